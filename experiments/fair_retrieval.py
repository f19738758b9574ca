"""BAM's retrieval claims, tested again: wider searches for rates, ALiBi with trained slopes, 24 fresh seeds, keys at 20 depths.

Command:  python -m bam_jax.sweep experiments/fair_retrieval.py --scale=small
Then:     python -m bam_jax.claims experiments/claims/fair_retrieval.toml --scale=small --out=docs/fair_claims.md
Hardware: a CPU or one GPU; 288 models of 2 layers, some 6 core-hours of a CPU.
Target:   experiments/claims/fair_retrieval.toml. The rates come from experiments/fair_rates.py.
"""

from pathlib import Path

import small_scale

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import UNPRINTED, Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64


def _bam(**options: str | bool) -> dict:
    return {"encoding": "bam", "encoding_options": {"init": "uniform", **options}}


ALIBI, LEARNED = ({"encoding": name, "encoding_options": {}} for name in ("alibi", "alibi_learned"))
ROPE = {"encoding": "rope", "encoding_options": {"base": 500_000.0}}
METHODS = {
    "BAM SSMax": {**_bam(), "ssmax": "on"},
    "BAM SSMax from ALiBi": {**_bam(init="alibi"), "ssmax": "on"},
    "BAM SSMax from sampled": {**_bam(init="sampled"), "ssmax": "on"},
    "BAM SSMax with location": {**_bam(train_loc=True), "ssmax": "on"},
    "BAM": {**_bam(), "ssmax": "off"},
    "ALiBi SSMax": {**ALIBI, "ssmax": "on"},
    "ALiBi": {**ALIBI, "ssmax": "off"},
    "ALiBi learned SSMax": {**LEARNED, "ssmax": "on"},
    "ALiBi learned": {**LEARNED, "ssmax": "off"},
    "NoPE SSMax": {"encoding": "nope", "encoding_options": {}, "ssmax": "on"},
    "RoPE SSMax": {**ROPE, "ssmax": "on"},
    "RoPE": {**ROPE, "ssmax": "off"},
}
"""Changes of the configuration. RoPE has BAM's base, with SSMax times 100 at evaluation, as in BAM's appendix H.3."""
EVALUATED = {"RoPE SSMax": {"encoding_options.base_scale": 100.0}}
SEEDS = {"toy": (800,), "small": tuple(range(800, 824))}
TIMES = (1, 4, 16, 64)
"""Lengths in training contexts."""

NOTES = (
    "Decoders of 2 layers learn Python's documentation with planted passkeys, as in the papers' tables at the small scale. Each "
    "method has the best of four rates, ALiBi with learned slopes and SSMax of five, by its worse score of two other seeds at "
    "the training context.",
    "40 passkeys of a seed at each length, 20 at 500 times the context, all at 20 depths. A key next to the question is found "
    "without any long-range head, so an accuracy of 0.05 to 0.1 shows nothing.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method; the toy scale has one seed, the small one 24."""
    rows = []
    for label, changes in METHODS.items():
        rates = small_scale.chosen_rates(label, small_scale.FAIR_RATES) if scale == "small" else {}
        seeds, at_evaluation = SEEDS["toy" if scale == "toy" else "small"], EVALUATED.get(label, {})
        rows.append(Row(label, CONFIG, {**changes, **rates}, seeds, changes=at_evaluation))
    keys = (
        *(Column(f"{n}×", Passkey((n * CONTEXT,), trials=2)) for n in TIMES),
        Column("500×", Passkey((500 * CONTEXT,))),
    )
    text = tuple(Column(f"{n}×", Perplexity((n * CONTEXT,), tokens=2**17)) for n in (1, 64))
    labels = dict.fromkeys(METHODS, ())
    tables = [Table("Keys: accuracy", keys, labels), Table("Text: perplexity", text, labels)]
    return tabled("Retrieval, fairly", rows, tables, notes=NOTES, comparable=False, scales=UNPRINTED)
