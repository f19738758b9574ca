"""The scale `small`, from which verdicts come: hours on two cores, minutes on one GPU, the same files as at the others.

A row has eight training seeds. Contexts and lengths are those of the toy scale. Models that look for passkeys learn from planted
keys in Python's documentation; models of which a perplexity is claimed learn from English text alone. The rates of each method
are chosen with other seeds among equally many tries (`experiments/small_rates.py`).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.system.errors import UserError

SEEDS = tuple(range(8))
"""The training seeds: the sample on which intervals stand."""

ENGLISH = "corpora/english"
"""The folder in which the user has English text, such as that of WikiText-2; a tenth of it is held out."""

OTHER_TEXT = "stdlib"
"""Text of another kind than `ENGLISH`, on which nothing of this kind is trained: it takes the place of Wikipedia."""

RATES = Path(__file__).parents[2] / "experiments" / "small_rates.json"
"""The rates that the search has chosen, by learner."""
ENCODER_RATES = RATES.with_name("encoder_rates.json")
"""The same of encoders (`experiments/encoder_rates.py`)."""
SYNTHETIC_RATES = RATES.with_name("synthetic_rates.json")
"""The same of synthetic tasks (`experiments/synthetic_rates.py`)."""
PATTERN_RATES = RATES.with_name("patterns_rates.json")
"""The same of patterns of layers (`experiments/patterns_rates.py`)."""

MIDDLE = 256_000
"""Tokens of the paper beyond which a length has fewer prompts: the time of a prompt grows with the square of its length."""

STEPS, CABLE_STEPS = 3000, 2000
TOKENS_A_STEP = 1024

BAM_SIZES: Mapping[str, Mapping[str, Any]] = {
    "120M": {},
    "432M": {"model.layers": 4, "model.width": 96, "model.heads": 6, "model.hidden": 192},
    "1.1B": {"model.layers": 8, "model.width": 128, "model.heads": 8, "model.hidden": 320},
}
"""Changes of configs/quickstart.py, whose model is the smallest: 4 and 17 times its parameters, 2 to 8 layers."""

RATE_OF_SIZE = {"120M": 1.0, "432M": 0.5, "1.1B": 0.3}
"""Rates by size as multiples of the smallest model's; those of BAM's Table 1."""

CABLE_SIZES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"model.layers": 2, "model.width": 64, "model.heads": 4, "model.hidden": 128},
    "small": {"model.layers": 2, "model.width": 96, "model.heads": 6, "model.hidden": 192},
    "medium": {"model.layers": 4, "model.width": 64, "model.heads": 4, "model.hidden": 128},
}

TRIES: Sequence[Mapping[str, float]] = tuple({"optimizer.rate": rate} for rate in (1e-3, 3e-3, 1e-2))
"""The tries of a method without a prior of its own."""

PRIOR_TRIES: Sequence[Mapping[str, float]] = tuple(
    {"optimizer.rate": rate, "optimizer.prior_rate": times} for rate, times in ((3e-3, 1.0), (3e-3, 20.0), (1e-2, 20.0))
)
"""The tries of BAM: as many, one of them with the prior at the common rate, as in the paper."""


def far_trials(length: int) -> int:
    """The prompts at each of 5 depths, at a length beyond those that the paper's figures compare all methods at.

    >>> far_trials(51_200), far_trials(512_000)
    (4, 2)

    Args:
        length: tokens, the paper's.
    """
    return 4 if length <= MIDDLE else 2


def tries(method: str) -> Sequence[Mapping[str, float]]:
    """The rates among which a method's are chosen, overrides of the configuration.

    >>> len(tries("ALiBi SSMax")) == len(tries("BAM SSMax"))
    True
    """
    return PRIOR_TRIES if method.startswith("BAM") else TRIES


KEYS, TEXT, GPT2 = "keys", "text", "GPT-2 on text"
MASKED, TRIPLETS = "masked", "triplets"
"""The kinds of learners: BAM's models on planted keys or on text alone, CABLE's on text; encoders, before and after triplets."""


def learner(name: str, kind: str) -> str:
    """The name of a method in the search: what it learns from matters to its rates.

    >>> learner("ALiBi", TEXT)
    'ALiBi, text'

    Args:
        name: the method, or an ablation of it.
        kind: `KEYS`, `TEXT`, `GPT2`, `MASKED` or `TRIPLETS`.
    """
    return f"{name}, {kind}"


def chosen_rates(name: str, file: Path = RATES) -> dict[str, float]:
    """The rates of a learner, overrides of the configuration.

    Args:
        name: as `learner` makes it.
        file: of the search, beside the experiment of its name.

    Raises:
        UserError: no file of the search, or none of its learners has that name.
    """
    search = f"python experiments/{file.stem}.py"
    if not file.is_file():
        if not file.parent.is_dir():  # an installed package has no experiments
            raise UserError(f"the rates of {name!r} need a clone of bam_jax: they are in its experiments/{file.name}")
        raise UserError(f"no {file}; give the command in a clone, after {search}")
    try:
        rates = json.loads(file.read_text())["rates"]
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"{file} is not what {search} writes ({error!r}); put it back, or run that command") from error
    if name not in rates:
        raise UserError(f"{file.name} has no rates of {name!r}; run {search}, which lists the learners")
    return dict(rates[name])


def bam_overrides(size: str, context: int, *, text: bool) -> dict[str, Any]:
    """The changes of configs/quickstart.py that make a model of BAM's, without its rates.

    Args:
        size: "120M", "432M" or "1.1B".
        context: tokens.
        text: whether it learns from text alone.
    """
    source = {"data.source": ENGLISH, "data.task": "packed"} if text else {}
    return {**BAM_SIZES[size], "batch": TOKENS_A_STEP // context, "steps": STEPS, **source}


def bam_rates(name: str, size: str, *, text: bool) -> dict[str, float]:
    """The rates of a model of BAM's: those chosen at the smallest size, less for larger ones.

    Args:
        name: the method, or the name of an ablation in the search.
        size, text: as in `bam_overrides`.

    Raises:
        UserError: see `chosen_rates`.
    """
    rates = chosen_rates(learner(name, TEXT if text else KEYS))
    return rates | {"optimizer.rate": rates["optimizer.rate"] * RATE_OF_SIZE[size]}


def cable_overrides(size: str, context: int) -> dict[str, Any]:
    """The changes of configs/gpt2_*.py that make a model of CABLE's, without its rates; all learn from text alone.

    Args:
        size: "tiny", "small" or "medium".
        context: tokens.
    """
    return {
        **CABLE_SIZES[size],
        **{"model.remat": False, "model.scan": False, "data.source": ENGLISH, "data.tokenizer": "char"},
        **{"data.holdout": 0.1, "batch": TOKENS_A_STEP // context, "steps": CABLE_STEPS},
        **{"optimizer.accumulate": 1, "optimizer.warmup": 100},
    }
