"""The page of a run: training, priors, measurements, configuration, and the commands that repeat it."""

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
from bam_jax.evals.records import Cell
from bam_jax.evals.registry import kind_of
from bam_jax.experiments import results
from bam_jax.experiments.results import Run
from bam_jax.render.curves import Curve
from bam_jax.render.learned import Heads
from bam_jax.render.maps import Grid
from bam_jax.report.figures import describe_grids, make_grid, short_task, window_perplexities
from bam_jax.report.format import describe_ends
from bam_jax.report.learned import priors_section
from bam_jax.report.page import Link, Section, Table
from bam_jax.system import regular
from bam_jax.training import run_folder

FIRST = ("task", "length", "depth", "value", "unit", "n")  # the first columns in a table of records
LINES = 12  # largest number of steps in the table of losses
KEPT = ("eval", "first", "step", "overrides", "config", "tokenizer", "commit")
"""Fields of a record that are the same for the whole evaluation, and are not columns."""
APART = ("prompt", "seed", "essays", "data", "shots", "longer")
"""Fields that distinguish evaluations of one name, besides the overrides."""
BASE = configs.CONFIGS / "quickstart.py"  # the configuration file on which the command of a run is based


def page_sections(
    run: Run, config: Config, path: Path, learned: Heads | None, uses: Sequence[Link], command: str
) -> list[Section]:
    sections = [_summary(run, config, path, uses)]
    if run.history:
        sections.append(_losses_section(run))
    if learned is not None:
        sections.append(priors_section(run, learned, config.context, command))
    groups: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in run.cells:
        apart = [f"{name} {cell[name]}" for name in APART if name in cell]
        changes = [f"{name}={value}" for name, value in sorted(cell["overrides"].items())]
        groups[cell["eval"], *apart, *changes].append(cell)
    for number, (key, cells) in enumerate(groups.items()):
        sections.append(_evaluation_section(key, cells, config, f"eval{number}"))
    tokens = lambda lengths: ", ".join(f"{length:,}" for length in lengths)
    given_up = [
        f"{each['of']} at {tokens(each['lengths'])} tokens: no prompt was answered at {tokens(each['after'])}"
        for each in run.stops
    ]
    if given_up:
        sections.append(Section("Not measured", items=[*dict.fromkeys(given_up)]))
    sections.append(Section("Commands that repeat it", commands=run.commands))
    values = json.dumps(configs.to_dict(config), indent=1, sort_keys=True)
    place = f"`{path / 'config.json'}`:" if run.heads is None else "As it was recorded:"
    return [*sections, Section("Configuration", place, commands=[values], folded=True)]


def _summary(run: Run, config: Config, path: Path, uses: Sequence[Link]) -> Section:
    model = config.model
    rows = [
        ["encoding", f"{config.encoding}{'' if config.ssmax == 'off' else f', SSMax {config.ssmax}'}"],
        ["model", f"{model.family}, {model.layers} layers of width {model.width}, {model.heads} heads"],
        ["data", f"{config.data.source}, {config.data.tokenizer}, {config.data.task}"],
        ["context and batch", f"{config.context:,} tokens, {config.batch:,} rows"],
        ["seed", f"{config.seed}"],
        ["steps", describe_training(run, path)],
    ]
    if run.metrics:
        unit = f"nats a {'query' if config.data.contrastive else 'token'}"
        at = f", at step {run.metrics['step']:,}" if run.metrics["step"] < config.steps else ""
        speeds = [each["tokens_per_second"] for each in run.history if "tokens_per_second" in each]
        speed = f", {np.median(speeds):,.0f} tokens/s" if speeds else ""
        rows.append(["last loss", f"{run.metrics['loss']:.4f} {unit}{at}"])
        rows.append(["training", f"{run.metrics['seconds'] / 60:,.1f} minutes{speed}"])
    commits = ", ".join(sorted({str(cell["commit"]) for cell in run.cells if "commit" in cell}))
    step = f" at step {run.cells[0]['step']:,}, the newest that has any" if run.cells else ""
    rows.append(["measurements", f"{len(run.cells)}{step}{f'; code {commits}' if commits else ''}"])
    text = "It belongs to these experiments:" if uses else "It belongs to no experiment of this site."
    return Section("In short", text, items=uses, table=Table(["", ""], rows))


def describe_training(run: Run | None, path: Path) -> str:
    """The progress of the training in a folder, and why it ended."""
    if run is None or run.config is None:
        return "not begun"
    steps = run.config.steps
    step = max(run.metrics["step"] if run.metrics else 0, run_folder.latest_step(path))
    place = f"step {step:,} of {steps:,}" if step else "before its first record"
    if run_folder.is_claimed(path):
        return f"running, {place}"
    if (path / run_folder.DIVERGED).exists():
        reason = regular.read(path / run_folder.DIVERGED).decode(errors="replace")
        return f"diverged at {reason.strip()}"
    return f"{steps:,} of {steps:,}" if step == steps else f"stopped {'at ' if step else ''}{place}"


def _losses_section(run: Run) -> Section:
    held_out = {each["step"]: each["held_out_loss"] for each in run.history if "held_out_loss" in each}
    # The table prefers lines with a held-out loss.
    lines = [each for each in run.history if each["step"] in held_out] or run.history
    shown = [lines[at] for at in np.unique(np.linspace(0, len(lines) - 1, LINES).round().astype(int))]
    known = ("loss", "held_out_loss", "accuracy", "gradient_norm", "rate", "tokens_per_second")
    names = [name for name in known if all(name in each for each in shown)]
    cell = lambda name, value: f"{value:.3f}" if name.endswith("loss") else _number(value)
    rows = [[f"{each['step']:,}", *(cell(name, each[name]) for name in names)] for each in shown]
    steps, values = ([each[name] for each in run.history] for name in ("step", "loss"))
    end = f"; that of held-out text ends at {_number([*held_out.values()][-1])}" if held_out else ""
    ends = f"from {_number(values[0])} at step {steps[0]:,} to {_number(values[-1])} at step {steps[-1]:,}"
    return Section(
        "Loss in training and on held-out text" if held_out else "Training loss",
        f"Of all {len(run.history)} steps that were logged; the table has at most {LINES}.",
        figure=render.losses(steps, values, held_out),
        name="loss",
        shows=f"the loss goes {ends}{end}.",
        table=Table(["step", *(name.replace("_", " ") for name in names)], rows),
    )


def _evaluation_section(key: Sequence[str], cells: Sequence[Cell], config: Config, name: str) -> Section:
    heading = ", ".join(key)  # names of folders and classes keep their letters
    title, table, kind = heading[:1].upper() + heading[1:], _records_table(cells), kind_of(key[0]).figure
    if kind in ("depth", "task"):
        row = (lambda cell: f"{cell['depth']:.2f}") if kind == "depth" else (lambda cell: short_task(cell["task"]))
        panel = {"": _grid([(row(cell), cell) for cell in cells])}
        down = "depth of the passkey" if kind == "depth" else "task"
        figure, shows = render.grids(panel, down=down, across="length in tokens"), describe_grids(panel, kind)
        table = _lengths_table(cells, config.context) if kind == "depth" else table
    elif kind == "position" and any(len(cell["windows"]) > 1 for cell in cells):
        curve = Curve({config.seed: window_perplexities(cells)}, {}, config.encoding)
        figure = render.positions({"perplexity": curve}, config.context)
        shows = f"perplexity by position, {describe_ends({'': (f'{curve.lengths[-1]:,}', _number(curve.end))})}."
    else:
        return Section(title, table=table)
    return Section(title, figure=figure, shows=shows, name=name, table=table)


def _grid(cells: Sequence[tuple[str, Cell]]) -> Grid:
    """The mean at each length and row, from cells with the names of their rows."""
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for row, cell in sorted(cells, key=lambda pair: pair[1]["length"]):
        groups[row, f"{cell['length']:,}"].append(cell)
    rows, lengths = {row for row, _ in groups}, dict.fromkeys(length for _, length in groups)
    return make_grid({at: results.mean(several) for at, several in groups.items()}, sorted(rows), list(lengths))


def _lengths_table(cells: Sequence[Cell], context: int) -> Table:
    groups: dict[int, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell["length"]].append(cell)
    rows = []
    for length, several in sorted(groups.items()):
        n, seconds = (sum(cell[name] for cell in several if name in cell) for name in ("n", "seconds"))
        place = [f"{length:,}", render.times(length, context)]
        rows.append([*place, f"{results.mean(several):.3f}", f"{n}", f"{seconds:,.1f}"])
    return Table(["tokens", "contexts", "accuracy", "prompts", "seconds"], rows)


def _records_table(cells: Sequence[Cell]) -> Table:
    values = dict.fromkeys(
        name for cell in cells for name, value in cell.items() if isinstance(value, int | float | str)
    )
    first = [name for name in FIRST if name in values]
    names = [*first, *(name for name in values if name not in (*first, *KEPT, *APART))]
    rows = [[_number(cell[name]) if name in cell else "" for name in names] for cell in cells]
    return Table([name.replace("_", " ") for name in names], rows)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def training_commands(config: Config, path: Path) -> list[str]:
    """The command that trains the configuration into a folder, as changes to `BASE`."""
    base, fields = configs.to_fields(configs.load(BASE)), configs.to_fields(config)
    # Another encoding drops the file's options and SSMax, so the run's own are given even if they are equal.
    stated = {"ssmax", *(["encoding_options"] if fields["encoding_options"] else [])}
    changes = {name: value for name, value in fields.items() if value != base[name] or name in stated}
    arguments = [f"--config={BASE}", *configs.arguments(changes), f"--workdir={path}"]
    return [shlex.join(["python", "-m", "bam_jax.train", *arguments])]
