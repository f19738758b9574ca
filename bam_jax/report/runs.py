"""The page of a run: its training, its priors, what was measured, its configuration, and the commands that repeat it."""

import dataclasses
import json
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax import config as configs
from bam_jax import render
from bam_jax.config import Config
from bam_jax.evals import records
from bam_jax.evals.table import kind_of
from bam_jax.experiments import papers, results
from bam_jax.experiments.results import Cell, Run
from bam_jax.render.fractions import Grid
from bam_jax.render.page import Link, Section, Table
from bam_jax.report import drawn, folder, standing

FIRST = ("task", "length", "depth", "value", "unit", "n")
"""What comes first in a table of records."""
LINES = 12
"""Steps in the table of losses, at most."""
KEPT = ("eval", "first", "step", "overrides", "config", "tokenizer", "commit")
"""What a record says of the run and the evaluation, not of its own value."""
APART = ("prompt", "seed", "essays", "data", "shots", "longer")
"""What tells evaluations of a name apart, where they have it, besides their overrides."""


def sections(run: Run, path: Path, uses: Sequence[Link], command: str) -> list[Section]:
    """The page's parts, in their order.

    Args:
        run: as `bam_jax.experiments.results` reads it.
        path: its folder.
        uses: the experiments that it belongs to.
        command: what makes this page.
    """
    assert run.config is not None
    parts = [_short(run, run.config, path, uses), *_losses(run)]
    if run.heads is not None:
        parts.append(folder.priors(run, run.heads, run.config.context, command))
    groups: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in run.cells:
        apart = [f"{name} {cell[name]}" for name in APART if name in cell]
        changes = [f"{name}={value}" for name, value in sorted(cell["overrides"].items())]
        groups[cell["eval"], *apart, *changes].append(cell)
    parts += [_measured(key, cells, run.config, f"eval{n}") for n, (key, cells) in enumerate(groups.items())]
    given_up = dict.fromkeys(
        f"{each['of']} at {_tokens(each['lengths'])} tokens: no prompt was answered at {_tokens(each['after'])}"
        for each in records.results(path)[1]
    )
    parts += [Section("Not measured", items=list(given_up))] if given_up else []
    parts.append(Section("Commands that repeat it", commands=run.commands))
    text = json.dumps(configs.to_dict(run.config), indent=1, sort_keys=True)
    return [*parts, Section("Configuration", f"`{path / 'config.json'}`:", commands=[text], folded=True)]


def _short(run: Run, config: Config, path: Path, uses: Sequence[Link]) -> Section:
    """What the model is, and how far its training is."""
    model = config.model
    commits = ", ".join(sorted({str(cell["commit"]) for cell in run.cells if "commit" in cell}))
    rows = [
        ["encoding", f"{config.encoding}{'' if config.ssmax == 'off' else f', SSMax {config.ssmax}'}"],
        ["model", f"{model.family}, {model.layers} layers of width {model.width}, {model.heads} heads"],
        ["data", f"{config.data.source}, {config.data.tokenizer}, {config.data.task}"],
        ["context and batch", f"{config.context:,} tokens, {config.batch}"],
        ["seed", f"{config.seed}"],
        ["steps", standing.state(run, path)],
        ["measurements", f"{len(run.cells)}{f', code {commits}' if commits else ''}"],
    ]
    if run.metrics:
        rows[-1:-1] = [["last loss", f"{run.metrics['loss']:.4f} nats a token"], ["training", _took(run)]]
    text = "It belongs to these experiments:" if uses else "It belongs to no experiment of this site."
    return Section("In short", text, items=uses, table=Table(["", ""], rows))


def _took(run: Run) -> str:
    seconds = run.metrics["seconds"]
    speeds = [each["tokens_per_second"] for each in run.history if "tokens_per_second" in each]
    speed = f", {np.median(speeds):,.0f} tokens/s" if speeds else ""
    return f"{seconds / 60:,.1f} minutes{speed}"


def _losses(run: Run) -> list[Section]:
    if not run.history:
        return []
    places = np.unique(np.linspace(0, len(run.history) - 1, LINES).round().astype(int))
    shown = [run.history[place] for place in places]
    names = [
        name for name in ("loss", "gradient_norm", "rate", "tokens_per_second") if all(name in each for each in shown)
    ]
    rows = [[f"{each['step']:,}", *(_number(each[name]) for name in names)] for each in shown]
    steps, values = ([each[name] for each in run.history] for name in ("step", "loss"))
    return [
        Section(
            "Training loss",
            f"Of every step that was written down, {len(run.history)} of them; the table has at most {LINES}.",
            figure=render.losses(steps, values),
            name="loss",
            table=Table(["step", *(name.replace("_", " ") for name in names)], rows),
        )
    ]


def _measured(key: Sequence[str], cells: Sequence[Cell], config: Config, name: str) -> Section:
    """An evaluation with a figure where it has one of its own, and a table in any case."""
    title, table = ", ".join(key).capitalize(), _table(cells)
    kind = kind_of(key[0])
    if kind.figure == "depth":
        grid, table = _grid(cells, lambda cell: f"{cell['depth']:.2f}"), _lengths(cells, config.context)
        figure = render.grids({"": grid}, down="depth of the passkey", across="length in tokens")
    elif kind.figure == "task":
        grid = _grid(cells, lambda cell: drawn.plain(cell["task"]))
        figure = render.grids({"": grid}, down="task", across="length in tokens")
    elif kind.figure == "position" and any(len(cell["windows"]) > 1 for cell in cells):
        plain: Any = Run("", "perplexity", 0, [], [], None, [{**cell, "overrides": {}} for cell in cells], [], None)
        figure = render.positions(results.positions([plain]), config.context)
    else:
        return Section(title, table=table)
    return Section(title, figure=figure, name=name, table=table)


def _grid(cells: Sequence[Cell], row: Any) -> Grid:
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in sorted(cells, key=lambda cell: cell["length"]):
        groups[row(cell), f"{cell['length']:,}"].append(cell)
    rows, columns = ({place[n]: None for place in groups} for n in (0, 1))
    return drawn.grid({at: results.mean(those) for at, those in groups.items()}, sorted(rows), list(columns))


def _lengths(cells: Sequence[Cell], context: int) -> Table:
    """The mean over all depths of each length."""
    rows = []
    for length in sorted({cell["length"] for cell in cells}):
        those = [cell for cell in cells if cell["length"] == length]
        n, seconds = sum(cell["n"] for cell in those), sum(cell["seconds"] for cell in those if "seconds" in cell)
        place = [f"{length:,}", render.times(length, context)]
        rows.append([*place, f"{results.mean(those):.3f}", f"{n}", f"{seconds:,.1f}"])
    return Table(["tokens", "contexts", "accuracy", "prompts", "seconds"], rows)


def _table(cells: Sequence[Cell]) -> Table:
    """Every record with all of it that is a number or a word."""
    values = {name: None for cell in cells for name, value in cell.items() if isinstance(value, int | float | str)}
    first = [name for name in FIRST if name in values]
    names = [*first, *(name for name in values if name not in (*first, *KEPT, *APART))]
    rows = [[_number(cell[name]) if name in cell else "" for name in names] for cell in cells]
    return Table([name.replace("_", " ") for name in names], rows)


def _tokens(lengths: Sequence[int]) -> str:
    return ", ".join(f"{length:,}" for length in lengths)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def command(config: Config, path: Path) -> str:
    """What trains a run of the same configuration, as the changes to the smallest config file.

    Args:
        config: the run's.
        path: its folder.
    """
    base = papers.CONFIGS / "quickstart.py"
    changes = {
        name: value
        for (name, value), (_, old) in zip(_fields(config), _fields(configs.load(base)), strict=True)
        if value != old or (name == "encoding_options" and value)
    }
    arguments = [f"--config={base}", *configs.arguments(changes), f"--workdir={path}"]
    return shlex.join(["python", "-m", "bam_jax.train", *arguments])


def _fields(section: Any, above: str = "") -> list[tuple[str, Any]]:
    """Every field of nested dataclasses by its dotted name."""
    found = []
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        nested = dataclasses.is_dataclass(value)
        found += _fields(value, f"{above}{field.name}.") if nested else [(f"{above}{field.name}", value)]
    return found
