"""Numbers for every encoding: passkeys and perplexity to 64 times the training context, from one small model each.

Command:  python -m bam_jax.sweep experiments/leaderboard.py --scale=small
Then:     python -m bam_jax.tables experiments/leaderboard.py --scale=small
Hardware: a CPU or one GPU; 368 models of 2 layers, some 10 core-hours of a CPU (`--dry-run`).
Expected: four tables; experiments/leaderboard_rates.py finds the learning rates.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import small_scale

from bam_jax.encodings import ENCODINGS
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import DASH, UNPRINTED, Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
TIMES = (1, 4, 16, 64)
"""Lengths in training contexts."""
LADDER = {"encoding": "bam", "encoding_options": {"init": "ladder", "train_loc": True}, "ssmax": "effective"}
METHODS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"encoding": name, "encoding_options": {}, "ssmax": "off"} for name in ENCODINGS},
    "fox, open gates": {"encoding": "fox", "encoding_options": {"gate_bias": 4.0}, "ssmax": "off"},
    "bam ladder, effective SSMax": LADDER,
    "bam, SSMax": {"encoding": "bam", "encoding_options": {}, "ssmax": "on"},
    "nape, ASEntmax": {"encoding": "nape", "encoding_options": {}, "ssmax": "asentmax"},
    "nape, effective SSMax": {"encoding": "nape", "encoding_options": {}, "ssmax": "effective"},
    "alibi, SSMax": {"encoding": "alibi", "encoding_options": {}, "ssmax": "on"},
    "nope, SSMax": {"encoding": "nope", "encoding_options": {}, "ssmax": "on"},
}
"""Changes of the configuration by label: every encoding as published, FoX with gates that start open, and the combinations with
SSMax that are recommended or compared elsewhere."""
KEYLESS = ("learned",)
"""Encodings without positions for a passkey's answer, which comes after the training context."""
STRETCHED = ("alibi", "rope_pi", "rope_ntk", "rope_yarn", "rope_llama3")
"""Encodings that are extended at evaluation by a factor, which is the length in training contexts."""
SEEDS = tuple(range(500, 508))
"""The training seeds of the small scale."""

NOTES = (
    f"Every method learns from the same text: Python's documentation, four of five sequences of {CONTEXT} characters with a "
    "passkey. At the small scale each has the best of four rates by its worse score at the training context, with another "
    "seed. The recipe is the quickstart's, which was chosen for BAM.",
    "Where a factor is given, positions are interpolated at evaluation by the length in training contexts; no model was trained "
    "with it.",
    "`learned` is not asked for passkeys: its table ends with the training context, and the answer comes after it.",
    "FoX as published starts with forget gates of 0.5, and found no passkey at any rate of the search. A second row starts with "
    "gates of sigmoid(4), or 0.98.",
    "The sinusoids are about 35 times as large as the token embeddings at the start, as in the code of BAM's authors.",
    "40 passkeys of a seed at each length, at 20 depths. A passkey next to the question is found without any long-range head, so "
    "an accuracy of 0.05 to 0.1 shows nothing.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method; the toy scale has one seed, the small one eight."""
    seeds = (0,) if scale == "toy" else SEEDS
    rates = lambda method: small_scale.chosen_rates(method, small_scale.LEADERBOARD_RATES) if scale == "small" else {}
    rows = [Row(label, CONFIG, {**changes, **rates(label)}, seeds) for label, changes in METHODS.items()]
    keys = {label: () for label in METHODS if label not in KEYLESS}
    text = {label: ("", *[DASH] * (len(TIMES) - 1)) if label in KEYLESS else () for label in METHODS}
    far = TIMES[1:]
    tables = [
        Table("Keys: accuracy", tuple(Column(f"{n}×", _keys(n)) for n in TIMES), keys),
        Table("Text: perplexity", tuple(Column(f"{n}×", _text(n)) for n in TIMES), text),
        Table(
            "Keys with a factor: accuracy",
            tuple(Column(f"{n}×", _keys(n, n)) for n in far),
            dict.fromkeys(STRETCHED, ()),
        ),
        Table(
            "Text with a factor: perplexity",
            tuple(Column(f"{n}×", _text(n, n)) for n in far),
            dict.fromkeys(STRETCHED, ()),
        ),
    ]
    return tabled("Every encoding", rows, tables, notes=NOTES, comparable=False, scales=UNPRINTED)


def _keys(times: int, factor: int = 1) -> Passkey:
    return Passkey((times * CONTEXT,), trials=2, overrides=_factor(factor))


def _text(times: int, factor: int = 1) -> Perplexity:
    return Perplexity((times * CONTEXT,), overrides=_factor(factor))


def _factor(factor: int) -> dict[str, float]:
    return {} if factor == 1 else {"encoding_options.factor": float(factor)}
