"""Today's layer patterns, local RoPE layers with every fourth one global, compared with the papers' far beyond the context.

Command:  python -m bam_jax.sweep experiments/patterns.py && python -m bam_jax.tables experiments/patterns.py
Hardware: a CPU; 9 models of four layers (11 rows), each about two minutes of one core, and as long to evaluate; 72 at the small
          scale.
Claims:   experiments/claims/patterns.toml, for the small scale; experiments/patterns_rates.py finds its learning rates.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import small_scale

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import UNPRINTED, Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT, WINDOW = 64, 16
TIMES = (1, 4, 16, 64)
"""Lengths in training contexts."""

LOCAL = f"rope:window={WINDOW}"
PRIOR_RATE = {"optimizer.prior_rate": 20.0}
FOURTH = {
    "RNoPE": "nope",
    "RoPE, every fourth global": "rope",
    "p-RoPE": "p_rope",
    "local RoPE, BAM SSMax": "bam:init=uniform,ssmax=on",
}
"""The patterns: what every fourth layer has."""
PATTERNS = {label: "/".join([LOCAL] * 3 + [fourth]) for label, fourth in FOURTH.items()}
METHODS = {
    **{label: {"encoding": pattern, "ssmax": "off"} for label, pattern in PATTERNS.items()},
    "RNoPE, gated": {"encoding": PATTERNS["RNoPE"], "ssmax": "off", "model.gate": True},
    "NoPE": {"encoding": "nope", "ssmax": "off"},
    "RoPE": {"encoding": "rope", "ssmax": "off"},
    "RoPE, all local": {"encoding": LOCAL, "ssmax": "off"},
    "BAM SSMax": {"encoding": "bam", "encoding_options": {"init": "uniform"}, "ssmax": "on", **PRIOR_RATE},
}
"""Changes of the configuration by label; the last four have one encoding in all layers."""
METHODS["local RoPE, BAM SSMax"] |= PRIOR_RATE
GROWING = {"encoding": "/".join([LOCAL] * 3 + ["nope:log_temperature=0.1"])}
"""The change at evaluation that makes RNoPE iRoPE: within the training context its factor is 1."""
GROWN = {"iRoPE": "RNoPE", "iRoPE, gated": "RNoPE, gated"}
"""The rows that are models of another, evaluated with `GROWING`."""

SEEDS = tuple(range(400, 408))
"""The training seeds of the small scale."""

NOTES = (
    f"Local layers see {WINDOW} tokens, a quarter of the training context. At the small scale each method has the best of three "
    "rates, by its own keys and perplexity at the training context on other seeds; at the toy scale all have that of "
    "configs/quickstart.py, which was chosen for none of them.",
    "iRoPE is a model of RNoPE, asked with a factor on its global layers that grows with the logarithm of the length. Its "
    "proportions are ours: Llama 4's local layers see blocks, here windows, and its factor begins at 8,192 tokens, here at the "
    "training context. SWAN's global layer is the first of four, here the last, and its factor is another. p-RoPE leaves three "
    "quarters of the pairs unturned, as Gemma 4 does.",
    "Three windows reach some 45 tokens together: a key that stands there is found without the global layer. So a pattern is "
    "held beside local RoPE in all layers as well, whose four windows reach some 60.",
    "A method that does not find the keys at 1× has not learned the task: what it does beyond says nothing of its reach.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method; the toy scale has one seed, the small one eight."""
    seeds = (0,) if scale == "toy" else SEEDS
    rates = lambda method: small_scale.chosen_rates(method, small_scale.PATTERN_RATES) if scale == "small" else {}
    rows = [make_row(method, seeds, rates(method)) for method in METHODS]
    rows += [
        dataclasses.replace(make_row(method, seeds, rates(method)), label=label, changes=GROWING)
        for label, method in GROWN.items()
    ]
    keys = tuple(Column(f"{times}×", Passkey((times * CONTEXT,), trials=5)) for times in TIMES)
    text = tuple(Column(f"{times}×", Perplexity((times * CONTEXT,), tokens=2**17)) for times in TIMES)
    none: dict[str, tuple[str, ...]] = dict.fromkeys((row.label for row in rows), ())
    tables = [Table("Keys found: accuracy", keys, none), Table("Text: perplexity", text, none)]
    title = "Patterns of layers far beyond the training context"
    return tabled(title, rows, tables, notes=NOTES, comparable=False, scales=UNPRINTED)


def make_row(method: str, seeds: Sequence[int], rates: Mapping[str, float]) -> Row:
    """A model of one of `METHODS`."""
    return Row(method, CONFIG, {**METHODS[method], "model.layers": 4, **rates}, tuple(seeds))
