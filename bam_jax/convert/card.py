"""The model card of an exported run: its model, its training and its measurements, as the README.md that Hugging Face shows."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bam_jax.config import Config
from bam_jax.evals.records import Cell
from bam_jax.experiments import results
from bam_jax.experiments.statistics import LEVEL, share_interval
from bam_jax.models.pattern import describe

APART = ("task", "prompt", "shots", "data", "essays")
"""Fields of a record, besides its length and overrides, that have a single value in each row of the table."""


def model_card(run: Path, config: Config, parameters: int, licence: str | None, own_code: bool) -> str:
    """The text of the card; `own_code` if the folder has a modeling file, which transformers runs only on request."""
    recorded, model, name = results.read_run(run), config.model, run.resolve().name
    kind, pipeline = ("decoder", "text-generation") if model.causal else ("encoder", "fill-mask")
    trust = ", trust_remote_code=True" if own_code else ""
    auto = f"AutoModelFor{'CausalLM' if model.causal else 'MaskedLM'}"
    sources = {data.source: data for _, data in config.data.parts().values()}
    rows = {
        "parameters": f"{parameters:,}",
        "layers": f"{model.layers} of width {model.width}, {model.heads} heads, family {model.family}",
        "positions": describe(config),
        "context in training": f"{config.context:,} tokens",
        "tokenizer": config.data.tokenizer.partition(":")[0],
        "data": ", ".join(f"{Path(source).name} ({data.task})" for source, data in sources.items()),
        "training": f"{config.steps:,} steps of {config.batch:,} rows, seed {config.seed}",
    }
    losses = {"loss": "last training loss", "held_out_loss": "last held-out loss"}
    for field, label in losses.items():
        if found := [line for line in recorded.history if field in line]:
            rows[label] = f"{found[-1][field]:.4f} nats a token at step {found[-1]['step']:,}"
    lines = [
        "---",
        f"license: {licence or 'unknown'}",
        "library_name: transformers",
        f"pipeline_tag: {pipeline}",
        "tags:",
        "- bam_jax",
        "---",
        f"# {name}",
        "",
        f"A language model ({kind}) trained with bam_jax and exported by `python -m bam_jax.convert`.",
        "",
        "```python",
        f"from transformers import {auto}, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})',
        f'model = {auto}.from_pretrained("FOLDER"{trust})',
        "```",
        "",
        *(
            ["Its modeling file attends densely and keeps no cache: memory grows with the square of the length.", ""]
            * own_code
        ),
        "## Model and training",
        "",
        *_table(["", ""], [*rows.items()]),
        "",
        "## Measurements",
        "",
        *_measurements(recorded.cells, config.context),
        "",
        "## Licence",
        "",
        "Unknown: none was named when the model was exported."
        if licence is None
        else f"{licence}, as named by who exported it.",
    ]
    return "\n".join(lines) + "\n"


def _measurements(cells: Sequence[Cell], context: int) -> list[str]:
    """A table of all records by evaluation and length, depths together."""
    if not cells:
        return ["None are recorded."]
    groups: dict[tuple[str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        apart = [f"{cell[name]}" for name in APART if cell.get(name) not in (None, "")]
        changes = [f"{name}={value}" for name, value in sorted(cell["overrides"].items())]
        groups[", ".join([cell["eval"], *apart, *changes]), cell["length"]].append(cell)
    rows = []
    for (name, length), several in sorted(groups.items()):
        value, n, unit = results.mean(several), sum(cell["n"] for cell in several), several[0]["unit"]
        shown = ""
        if unit == "accuracy" and 0 <= value <= 1:
            interval = share_interval(round(value * n), n)
            shown = f"{interval.low:.3f} to {interval.high:.3f}"
        rows.append([name, f"{length:,}", f"{length / context:g}", f"{value:.4g}", unit, shown, f"{n:,}"])
    commits = ", ".join(sorted({str(cell["commit"]) for cell in cells if cell.get("commit")}))
    header = ["evaluation", "tokens", "contexts", "value", "unit", f"{LEVEL:.0%} interval", "samples"]
    at = f"Measured at step {cells[0]['step']:,}{f' by commit {commits}' if commits else ''}."
    exact = (
        "Intervals are exact binomial ones over the samples of this one model; seeds of training would differ by more."
    )
    return [*_table(header, rows), "", at + (f" {exact}" if any(row[-2] for row in rows) else "")]


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    row = lambda cells: f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"
    return [row(header), row(["---"] * len(header)), *map(row, rows)]
