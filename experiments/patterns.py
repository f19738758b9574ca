"""Layers of today beside those of the papers: local layers that turn, and every fourth one that sees all, far beyond the context.

Command:  python -m bam_jax.sweep experiments/patterns.py && python -m bam_jax.tables experiments/patterns.py
Hardware: a CPU; 9 models of four layers, each some two minutes of one core, and as long to ask.
"""

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

NOTES = (
    f"""Local layers see {WINDOW} tokens, a quarter of the training context. All methods have the rate of
    configs/quickstart.py, which was chosen for none of them: a difference of methods may be one of rates.""",
    """iRoPE is ours in its proportions: Llama 4's local layers see blocks, here windows, and its factor begins at 8,192 tokens,
    here at the training context.""",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method.

    Args:
        scale: "toy", of one seed, or "small", of eight.

    Raises:
        UserError: another scale.
    """
    seeds = small.seeds_of_ours(scale, "these patterns")
    rows = [Row(label, CONFIG, {**changes, "model.layers": 4}, seeds, changes={}) for label, changes in METHODS.items()]
    keys = tuple(Column(f"{times}×", Passkey((times * CONTEXT,), depths=10)) for times in TIMES)
    text = tuple(Column(f"{times}×", Perplexity((times * CONTEXT,))) for times in TIMES)
    none: dict[str, tuple[str, ...]] = dict.fromkeys(METHODS, ())
    tables = [Table("Keys found: accuracy", keys, none), Table("Text: perplexity", text, none)]
    notes = tuple(" ".join(note.split()) for note in NOTES)
    return tabled("Patterns of layers far beyond the training context", rows, tables, notes=notes, comparable=False)
