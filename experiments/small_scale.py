"""The scale `small`, from which verdicts come: hours on two cores, minutes on one GPU.

A row has eight training seeds. Contexts and lengths are those of the toy scale. Models for passkeys learn from planted keys
in Python's documentation. Models whose perplexity is claimed learn from English text only. The rates of each method are chosen
with other seeds, among equally many tries (`small_rates.py`).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.system.errors import UserError

SEEDS = tuple(range(8))
"""The training seeds, the sample on which intervals are based."""

ENGLISH = "corpora/english"
"""The user's folder with English text, such as that of WikiText-2; a tenth of it is held out."""
OTHER_TEXT = "stdlib"
"""Takes the place of Wikipedia: text of another kind than `ENGLISH`, on which no such model is trained."""

RATES, ENCODER_RATES, SYNTHETIC_RATES, PATTERN_RATES, LEADERBOARD_RATES, NULL_RATES, FAIR_RATES = (
    Path(__file__).with_name(f"{name}_rates.json")
    for name in ("small", "encoder", "synthetic", "patterns", "leaderboard", "null", "fair")
)
"""What the searches of the same names have chosen, by learner."""

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
"""Rates as multiples of the smallest model's, by size; those of BAM's Table 1."""

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
"""As many tries of BAM, one of them with the prior at the common rate, as in the paper."""


def tries(method: str) -> Sequence[Mapping[str, float]]:
    """The rates among which a method's are chosen, overrides of the configuration."""
    return PRIOR_TRIES if method.startswith("BAM") else TRIES


KEYS, TEXT, GPT2 = "keys", "text", "GPT-2 on text"
MASKED, TRIPLETS = "masked", "triplets"
"""Kinds of learners: BAM's models on planted keys or on text alone, CABLE's on text; encoders, before and after triplets."""


def learner(name: str, kind: str) -> str:
    """The name of a method in a search of rates, by what it learns from.

    >>> learner("ALiBi", TEXT)
    'ALiBi, text'
    """
    return f"{name}, {kind}"


def chosen_rates(name: str, file: Path = RATES) -> dict[str, float]:
    """The rates of a learner in the file of a search, as overrides of the configuration."""
    search = f"python experiments/{file.stem}.py"
    if not file.is_file():
        raise UserError(f"no {file}; give the command in a clone, after {search}")
    try:
        rates = json.loads(file.read_text())["rates"]
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"{file} is not what {search} writes ({error!r}); put it back, or run that command") from error
    if name not in rates:
        raise UserError(f"{file.name} has no rates of {name!r}; run {search}, which lists the learners")
    return dict(rates[name])


def bam_overrides(size: str, context: int, *, text: bool) -> dict[str, Any]:
    """The changes of configs/quickstart.py that make a model of BAM's, on keys or on text alone, without its rates."""
    source = {"data.source": ENGLISH, "data.task": "packed"} if text else {}
    return {**BAM_SIZES[size], "batch": TOKENS_A_STEP // context, "steps": STEPS, **source}


def bam_rates(name: str, size: str, *, text: bool) -> dict[str, float]:
    """The rates of a model of BAM's: those chosen at the smallest size, less for larger ones."""
    rates = chosen_rates(learner(name, TEXT if text else KEYS))
    return rates | {"optimizer.rate": rates["optimizer.rate"] * RATE_OF_SIZE[size]}


def cable_overrides(size: str, context: int) -> dict[str, Any]:
    """The changes of configs/gpt2_*.py that make a model of CABLE's, without its rates; all learn from text alone."""
    return {
        **CABLE_SIZES[size],
        **{"model.remat": False, "model.scan": False, "data.source": ENGLISH, "data.tokenizer": "char"},
        **{"data.holdout": 0.1, "batch": TOKENS_A_STEP // context, "steps": CABLE_STEPS},
        **{"optimizer.accumulate": 1, "optimizer.warmup": 100},
    }
