"""Null models of BAM ladder: the contributions of its prior, the prior's start, its training, and the factor of the scores.

Command:  python -m bam_jax.sweep experiments/null_models.py --scale=small
Then:     PYTHONPATH=experiments python -m bam_jax.claims experiments/claims/null_models.toml --out=docs/null_claims.md
Hardware: a CPU or one GPU; 280 models of 2 and 4 layers, some 11 core-hours of a CPU.
Target:   experiments/claims/null_models.toml. The rates come from experiments/null_rates.py.
"""

import math
from pathlib import Path

import small_scale

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import UNPRINTED, Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
LADDER = {"init": "ladder", "near_shape": 1.0, "near_decay": 16.0}
FROZEN = {**LADDER, "train_shape": False, "train_scale": False}
METHODS = {
    "ladder": {"encoding": "bam", "encoding_options": {**LADDER, "train_loc": True}},
    "frozen ladder": {"encoding": "bam", "encoding_options": FROZEN},
    "uniform": {"encoding": "bam", "encoding_options": {"init": "uniform"}, "optimizer.prior_rate": 20.0},
    "NAPE": {"encoding": "nape", "encoding_options": {"alibi_heads": 3, "slopes": "exponential"}},
}
"""Changes of the configuration. The near heads of the frozen ladder are those of NAPE: slopes of 1, 1/2 and 1/4 nats a token."""
BASELINES = {
    "ALiBi": {"encoding": "alibi", "encoding_options": {}},
    "NoPE": {"encoding": "nope", "encoding_options": {}},
}
"""NAPE's two kinds of heads, each alone. They are measured with `EFFECTIVE` only."""
EFFECTIVE = "effective SSMax"
TRAINED = {"no SSMax": "off", "SSMax": "on", EFFECTIVE: "effective"}
"""Factors of the scores in training and evaluation."""
FACTORS = {"log factor": 0.1, "log factor, full": round(1 / math.log(CONTEXT), 4)}
"""Factors at evaluation alone of models without SSMax: 1 + alpha ln(n / C) of n visible keys, C the training context. Llama 4's
alpha, and the one with which the factor is log(n) / log(C)."""
DEPTHS = (2, 4)
SEEDS = {"toy": (300,), "small": tuple(range(300, 310))}

KEYS = (
    Column("1×", Passkey((CONTEXT,), trials=2)),
    Column("64×", Passkey((64 * CONTEXT,), trials=2)),
)
FAR = (Column("500×", Passkey((500 * CONTEXT,))),)
TOKENS = 2**17  # leaves an uncertainty of 0.05 to 0.15% in a ratio of two methods
PERPLEXITIES = tuple(Column(f"{n}×", Perplexity((n * CONTEXT,), tokens=TOKENS)) for n in (1, 64))
NOTES = (
    "The ladder starts with one long-range head in each layer and three short-range ones. Frozen, its prior stays as it starts. "
    "NAPE (Vasylenko et al. 2026) has the same short-range heads as fixed ALiBi and one head without positions.",
    f"40 keys of a seed up to 64 times the training context of {CONTEXT} characters, 20 at 500 times, at 20 depths; perplexity a "
    "character of Python's documentation, held out and without keys.",
    "ALiBi has no head without distance, NoPE only such. "
    "The prior of the uniform start learns 20 times faster than the model. A log factor scales the scores of models without "
    "SSMax at evaluation alone.",
)


def row(method: str, factor: str, layers: int, rates: dict[str, float], seeds: tuple[int, ...]) -> Row:
    """A method with a factor at a depth; its label is "METHOD, FACTOR, N layers"."""
    changes = {"log_temperature": FACTORS[factor]} if factor in FACTORS else {}
    ssmax = TRAINED[factor] if factor in TRAINED else "off"
    overrides = {**(METHODS | BASELINES)[method], "ssmax": ssmax, "model.layers": layers, **rates}
    return Row(f"{method}, {factor}, {layers} layers", CONFIG, overrides, seeds, changes=changes)


def get_experiment(scale: str) -> Experiment:
    """Three tables for each depth; the toy scale has one seed, the small one ten."""
    rows, tables, seeds = [], [], SEEDS["toy" if scale == "toy" else "small"]
    compared = [(method, factor) for method in METHODS for factor in (*TRAINED, *FACTORS)]
    compared += [(method, EFFECTIVE) for method in BASELINES]
    for layers in DEPTHS:
        group = f"{layers} layers"
        for method, factor in compared:
            rates = {} if scale == "toy" else small_scale.chosen_rates(f"{method}, {group}", small_scale.NULL_RATES)
            rows.append(row(method, factor, layers, rates, seeds))
        labels = [f"{method}, {factor}" for method, factor in compared]
        far = [label for label in labels if label.endswith(EFFECTIVE)]
        tables.append(Table(f"Keys, {group}: accuracy", KEYS, dict.fromkeys(labels, ()), group=group))
        tables.append(Table(f"Far keys, {group}: accuracy", FAR, dict.fromkeys(far, ()), group=group))
        tables.append(Table(f"Text, {group}: perplexity", PERPLEXITIES, dict.fromkeys(labels, ()), group=group))
    return tabled("Null models of BAM ladder", rows, tables, notes=NOTES, comparable=False, scales=UNPRINTED)
