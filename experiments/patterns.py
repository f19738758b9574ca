"""Layers of today beside those of the papers: local layers that turn, and every fourth one that sees all, far beyond the context.

Command:  python -m bam_jax.sweep experiments/patterns.py && python -m bam_jax.tables experiments/patterns.py
Hardware: a CPU; 9 models of four layers, each some two minutes of one core, and as long to ask; 72 at the small scale.
Claims:   experiments/claims_patterns.py, of the small scale, whose rates experiments/patterns_rates.py finds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import small
from bam_jax.experiments.experiment import Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT, WINDOW = 64, 16
TIMES = (1, 4, 16, 64)
"""Lengths in training contexts."""

LOCAL = f"rope:window={WINDOW}"
PRIOR = {"encoding_options.init": "uniform", "optimizer.prior_rate": 20.0}
GROWING = "nope:log_temperature=0.1"
PATTERNS = {
    "RNoPE": "/".join([LOCAL] * 3 + ["nope"]),
    "iRoPE": "/".join([LOCAL] * 3 + [GROWING]),
    "p-RoPE": "/".join([LOCAL] * 3 + ["p_rope"]),
    "local RoPE, BAM SSMax": "/".join([LOCAL] * 3 + ["bam:init=uniform,ssmax=on"]),
}
"""The four patterns: what every fourth layer has."""
METHODS = {
    **{label: {"encoding": pattern, "ssmax": "off"} for label, pattern in PATTERNS.items()},
    "iRoPE with norms, gates, sinks": {
        "encoding": PATTERNS["iRoPE"],
        "ssmax": "off",
        **{f"model.{name}": True for name in ("qk_norm", "gate", "sinks")},
    },
    "NoPE": {"encoding": "nope", "ssmax": "off"},
    "RoPE": {"encoding": "rope", "ssmax": "off"},
    "RoPE, all local": {"encoding": LOCAL, "ssmax": "off"},
    "BAM SSMax": {"encoding": "bam", **PRIOR, "ssmax": "on"},
}
"""Changes of the configuration by label; the last four have one encoding in all layers."""
METHODS["local RoPE, BAM SSMax"]["optimizer.prior_rate"] = PRIOR["optimizer.prior_rate"]

SEEDS = tuple(range(400, 408))
"""The training seeds of the small scale."""

NOTES = (
    f"Local layers see {WINDOW} tokens, a quarter of the training context. At the small scale each method has the best of three "
    "rates, by its own keys and perplexity at the training context on other seeds; at the toy scale all have that of "
    "configs/quickstart.py, which was chosen for none of them.",
    "iRoPE is ours in its proportions: Llama 4's local layers see blocks, here windows, and its factor begins at 8,192 tokens, "
    "here at the training context.",
    "A method that does not find the keys at 1× has not learned the task: what it does beyond says nothing of its reach.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method.

    Args:
        scale: "toy", of one seed, or "small", of eight.

    Raises:
        UserError: another scale.
    """
    seeds = (0,) if len(small.seeds_of_ours(scale, "these patterns")) == 1 else SEEDS
    rates = lambda method: small.chosen_rates(method, small.PATTERN_RATES) if seeds == SEEDS else {}
    rows = [make_row(method, seeds, rates(method)) for method in METHODS]
    keys = tuple(Column(f"{times}×", Passkey((times * CONTEXT,), trials=5)) for times in TIMES)
    text = tuple(Column(f"{times}×", Perplexity((times * CONTEXT,), tokens=2**17)) for times in TIMES)
    none: dict[str, tuple[str, ...]] = dict.fromkeys(METHODS, ())
    tables = [Table("Keys found: accuracy", keys, none), Table("Text: perplexity", text, none)]
    return tabled("Patterns of layers far beyond the training context", rows, tables, notes=NOTES, comparable=False)


def make_row(method: str, seeds: Sequence[int], rates: Mapping[str, float]) -> Row:
    """A model of a method.

    Args:
        method: of `METHODS`.
        seeds: of the training.
        rates: overrides.
    """
    return Row(method, CONFIG, {**METHODS[method], "model.layers": 4, **rates}, tuple(seeds), changes={})
