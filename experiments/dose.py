"""How many planted keys does retrieval need? One row of text in 20, one in 1,000, or none carries a key.

Command:  python -m bam_jax.sweep experiments/dose.py --scale=small     # a CPU; --scale=paper: a GPU
Then:     python -m bam_jax.tables experiments/dose.py --scale=small
Hardware: small: a CPU, 48 models of 2 layers, about a minute of a core each. paper: a GPU, 15 million parameters.
Expected: two tables; no claim is based on them.
"""

from pathlib import Path

from emergence import SCALES

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
METHODS = {
    "BAM ladder": {"encoding": "bam", "encoding_options": {"init": "ladder", "near_decay": 16.0, "train_loc": True}},
    "NAPE": {"encoding": "nape", "encoding_options": {}},
}
"""Changes of the configuration; both have effective SSMax."""
DOSES = {"none": 0.0, "1 in 1,000": 0.001, "1 in 20": 0.05}
"""Rows that carry a key, as a share of all."""
TIMES = (1, 4, 16, 64)
SEEDS = tuple(range(700, 708))

NOTES = (
    "40 passkeys of a seed at each length, at 20 depths. A key next to the question is found without any long-range head, so an "
    "accuracy of 0.05 to 0.1 shows nothing. A model without planted keys has never seen the signs that frame them.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method and dose."""
    paper = {name: value for name, value in SCALES["paper"].items() if not name.startswith("data.")}
    own = {"toy": {"steps": 20}, "small": {"optimizer.rate": 0.01}, "paper": paper}[scale]
    context = own.get("context", 64)
    rows = []
    for method, changes in METHODS.items():
        for label, dose in DOSES.items():
            parts = {"text": {"weight": 1 - dose, "task": "packed", "packing": "concat"}}
            if dose:
                parts["keys"] = {"weight": dose, "task": "passkey", "passkey_fraction": 1.0}
            overrides = {**own, **changes, "ssmax": "effective", "data.task": "packed", "data.mixture": parts}
            seeds = SEEDS if scale != "toy" else (0,)
            rows.append(Row(f"{method}, {label}", CONFIG, overrides, seeds))
    labels = dict.fromkeys((row.label for row in rows), ())
    times = TIMES if scale != "toy" else TIMES[:2]
    keys = tuple(Column(f"{n}×", Passkey((n * context,), trials=2)) for n in times)
    text = tuple(Column(f"{n}×", Perplexity((n * context,))) for n in times)
    tables = [Table("Keys: accuracy", keys, labels), Table("Text: perplexity", text, labels)]
    own_scale = "" if scale == "paper" else scale
    return tabled("Doses of planted keys", rows, tables, notes=NOTES, comparable=False, scale=own_scale)
