"""Does retrieval emerge from text without planted keys, and how far does it extrapolate?

Command:  python -m bam_jax.sweep experiments/emergence.py --scale=small     # a CPU
          python -m bam_jax.sweep experiments/emergence.py --scale=paper     # a GPU: docs/chip_hours.md prepares its text
Then:     python -m bam_jax.claims experiments/claims/emergence.toml --scale=small --out=docs/emergence_claims.md
Hardware: small: a CPU, 56 models of 0.9 million parameters, about an hour of a core each. paper: a GPU of 80 GB, models of 15
          million parameters, about a minute each.
Target:   experiments/claims/emergence.toml.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bam_jax.evals.copying import Copying
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
TEXT = "data/debian-docs"
"""The prepared text of the paper's scale."""


def methods(context: int) -> Mapping[str, Mapping[str, Any]]:
    """Changes of the configuration by label; local layers of the pattern see a quarter of the context."""
    local = f"rope:window={context // 4}"
    ladder = {"init": "ladder", "near_decay": 16.0, "train_loc": True}
    return {
        "ALiBi": {"encoding": "alibi", "encoding_options": {}, "ssmax": "off"},
        "NAPE, effective SSMax": {"encoding": "nape", "encoding_options": {}, "ssmax": "effective"},
        "BAM SSMax": {"encoding": "bam", "encoding_options": {"init": "uniform"}, "ssmax": "on"},
        "BAM ladder": {"encoding": "bam", "encoding_options": ladder, "ssmax": "effective"},
        "iRoPE": {"encoding": f"{local}/nope:log_temperature=0.1", "encoding_options": {}, "ssmax": "off"},
        "CABLE": {"encoding": "cable", "encoding_options": {}, "ssmax": "off"},
        "Local RoPE": {"encoding": f"rope:window={context}", "encoding_options": {}, "ssmax": "off"},
    }


PLAIN = {"data.task": "packed", "data.packing": "concat", "data.tokenizer": "byte"}
SCALES: Mapping[str, Mapping[str, Any]] = {
    "toy": {"context": 32, "batch": 4, "steps": 20, "model.layers": 2, "model.width": 16, "model.heads": 2},
    "small": {
        "context": 128,
        "batch": 16,
        "steps": 8000,
        "optimizer.warmup": 200,
        "optimizer.rate": 3e-3,
        "model.layers": 4,
        "model.width": 128,
        "model.heads": 8,
        "model.hidden": 256,
    },
    "paper": {
        "context": 512,
        "batch": 128,
        "steps": 2300,  # 151 million tokens
        "optimizer.warmup": 200,
        "optimizer.rate": 3e-3,
        "model.layers": 6,
        "model.width": 384,
        "model.heads": 8,
        "model.hidden": 768,
        "model.dtype": "bfloat16",
        "data.source": TEXT,
        "data.tokenizer": "bpe",
    },
}
"""The text is Python's documentation in bytes, at the paper's scale Debian's in a BPE of 8,192."""
SEEDS = {"toy": (0,), "small": tuple(range(600, 608)), "paper": tuple(range(600, 608))}
TIMES = ("1/2", "1", "2", "4", "16", "64")
"""Lengths in training contexts."""
TASKS = {"random": "Random tokens", "text": "Text", "passkey": "Passkeys"}
PROMPT = {"toy": 2**20, "small": 512, "paper": 256}
"""The least length that has room for a passkey's prompt."""

NOTES = (
    "No keys are planted: what a model knows of retrieval comes from text. The gain is what the first occurrence of a passage "
    "saves on its second, in nats a token, so that a model that does not look back has 0 at every length.",
    "All rows have one learning rate, and Local RoPE sees one training context. iRoPE has one local layer to each global one.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method; a table of gains for each kind of passage, and one of perplexity."""
    own = SCALES[scale]
    context = own["context"]
    rows = [
        Row(label, CONFIG, {**PLAIN, **own, **changes}, SEEDS[scale]) for label, changes in methods(context).items()
    ]
    lengths = TIMES if scale != "toy" else ("1/2", "16")  # each length compiles its own program
    tokens = {times: int(context * eval_fraction(times)) for times in lengths}
    samples, passage = (40, 64 if context == 512 else context // 8) if scale != "toy" else (2, 4)
    labels = dict.fromkeys((row.label for row in rows), ())
    tables = [
        Table(
            f"{title}: gain",
            tuple(
                Column(f"{times}×", Copying((length,), tasks=(task,), passage=passage, samples=samples))
                for times, length in tokens.items()
                if task != "passkey" or length >= PROMPT[scale]
            ),
            labels,
        )
        for task, title in TASKS.items()
    ]
    tables = [table for table in tables if table.columns]
    perplexities = tuple(
        Column(f"{times}×", Perplexity((length,), tokens=2**12 if scale == "toy" else 2**17))
        for times, length in tokens.items()
    )
    tables.append(Table("Perplexity", perplexities, labels))
    return tabled(
        "Retrieval from text alone",
        rows,
        tables,
        notes=NOTES,
        comparable=False,
        scale="" if scale == "paper" else scale,
        platform="" if scale == "paper" else "cpu",
    )


def eval_fraction(text: str) -> float:
    """The value of a number such as 64 or 1/2."""
    above, _, below = text.partition("/")
    return int(above) / int(below or 1)
