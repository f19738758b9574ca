"""The runs of an experiment, read back from their folders."""

import contextlib
import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bam_jax.config import Config
from bam_jax.evals import records
from bam_jax.evals.base import Evaluation, Place
from bam_jax.evals.records import Cell
from bam_jax.evals.registry import kind_of
from bam_jax.experiments import jobs, recorded_runs
from bam_jax.experiments.experiment import Experiment
from bam_jax.experiments.experiment_json import read_description
from bam_jax.experiments.recorded_runs import RecordedRun
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder
from bam_jax.training.metrics import read_metrics


class Part(NamedTuple):
    """A run's cells for one depth and one task of an evaluation, each sample once."""

    cells: Sequence[Cell]
    wanted: int  # number of samples that are requested

    @property
    def n(self) -> int:
        """Number of samples, which is more than requested if a record has more."""
        return sum(cell["n"] for cell in self.cells)


class RunResults(NamedTuple):
    """A run's results: what was measured, and what was skipped."""

    cells: Sequence[Cell]
    stops: Sequence[Mapping[str, Any]]


def read_results(path: Path, recorded: RecordedRun | None) -> RunResults:
    """A run's results from its folder, which need not exist, and from its record; of equal cells, the folder's is used."""
    cells, stops = records.read_results(path)
    if recorded is None:
        return RunResults(cells, stops)
    return RunResults(records.merge(recorded.cells, cells), [*recorded.stops, *stops])


@dataclasses.dataclass(frozen=True)
class Run:
    """One trained row, read from its files."""

    name: str
    label: str
    seed: int
    labels: Sequence[tuple[Mapping[str, Any], str]]  # evaluation-time overrides, and the label of their curve
    commands: Sequence[str]
    config: Config | None  # None before training has begun
    # Of the newest step that has results, each sample once; the newest checkpoint may be later.
    cells: Sequence[Cell]
    history: Sequence[Mapping[str, Any]]  # the lines of metrics.jsonl, or some of them if the run is only recorded
    stops: Sequence[Mapping[str, Any]] = ()  # the lines of results.jsonl about skipped evaluations
    heads: Mapping[str, np.ndarray] | None = None  # `head_parameters` of a run that is only recorded

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.history[-1] if self.history else {}

    def curve(self, cell: Cell) -> str:
        """The label of the curve that a cell belongs to; evaluation-time overrides have their own curves."""
        for overrides, label in self.labels:
            if overrides == cell["overrides"]:
                return label
        return ", ".join([self.label, *(f"{name}={value}" for name, value in sorted(cell["overrides"].items()))])


def refuse_file(folder: Path) -> None:
    """Raise UserError if the folder of runs is a file; the folder need not exist."""
    if folder.is_file():
        raise UserError(f"--runs={folder} is a file; give the folder of the runs, or a name that is not there for none")


def read_sweep(
    folder: Path, reading: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
) -> tuple[dict[str, Any], list[Run]]:
    """Reads the folder of a sweep: `experiment.json`, its runs so far, and the records of runs that are missing."""
    described = read_description(folder)
    recorded = find_recorded(described)
    rows = []
    for entry in described["runs"]:
        name, run = entry["name"], no_run(entry["name"])
        with reading(name):
            run = read_run(folder / name, recorded=recorded[name] if name in recorded else None)
        rows.append(as_row(run, entry))
    return described, rows


def no_run(name: str) -> Run:
    """A run without any files, or without readable ones."""
    return Run(name=name, label=name, seed=0, labels=[], commands=[], config=None, cells=[], history=[])


def find_recorded(described: Mapping[str, Any]) -> dict[str, RecordedRun]:
    """The recorded runs of an experiment with its own folder, by name."""
    if "records" not in described:
        return {}
    runs = recorded_runs.read(Path(described["records"]))
    digests = {entry["name"]: entry["config"] for entry in described["runs"] if "config" in entry}
    return {name: runs[digest] for name, digest in digests.items() if digest in runs}


def read_run(path: Path, *, seed: int = 0, commands: Sequence[str] = (), recorded: RecordedRun | None = None) -> Run:
    """Reads a run's folder and its record."""
    begun = os.path.lexists(path / run_folder.CONFIG)  # a dangling link is an error
    config = run_folder.read_config(path) if begun else None
    cells, stops = read_results(path, recorded)
    history: Sequence[Mapping[str, Any]] = read_metrics(path)
    heads = None
    if recorded is not None and not begun:
        config, history, heads = recorded.config, recorded.history, recorded.heads
    newest = max((cell["step"] for cell in cells), default=0)
    made = dataclasses.replace(no_run(path.name), seed=seed, commands=commands, config=config, history=history)
    cells = records.without_repeats(cell for cell in cells if cell["step"] == newest)
    return dataclasses.replace(made, cells=cells, stops=stops, heads=heads)


def as_row(run: Run, entry: Mapping[str, Any]) -> Run:
    """A run as a row of an experiment, with only the cells that the experiment requests."""
    cells = run.cells
    if "evaluations" in entry:
        wanted = {
            id(cell)
            for each in entry["evaluations"]
            for length in each.lengths
            for part in find_parts(run.cells, each, length, run.config or Config(), each.overrides).values()
            for cell in part.cells
        }
        cells = [cell for cell in cells if id(cell) in wanted]
    own = {name: entry[name] for name in ("name", "label", "seed", "labels", "commands")}
    return dataclasses.replace(run, **own, cells=cells)


def find_parts(
    measured: Iterable[Cell], evaluation: Evaluation, length: int, config: Config, changes: Mapping[str, Any]
) -> dict[Place, Part]:
    """The parts of an evaluation at a length, by depth and task; cells that were measured under other conditions do not count.

    If the records of several cells match (for example with different values of `data_hash`), the newest is used.
    """
    found: dict[Place, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    newest: dict[Place, Cell] = {}
    for cell in measured:
        if cell["length"] == length and evaluation.asks(cell, config, changes):
            place = cell["depth"] if "depth" in cell else None, cell["task"] if "task" in cell else ""
            found[place][records.identity(cell)].append(cell)
            newest[place] = cell
    made = {}
    for place in evaluation.places():
        last = newest[place] if place in newest else None
        wanted = evaluation.wanted(length, last)
        cells = records.cover(found[place][records.identity(last)] if last else [], wanted)
        made[place] = Part(cells, wanted or max(1, sum(cell["n"] for cell in cells)))
    return made


def mean(cells: Sequence[Cell]) -> float:
    """The mean value of cells of one evaluation, weighted by `Evaluation.weight`."""
    kind = kind_of(cells[0]["eval"])
    return kind.mean([cell["value"] for cell in cells], [*map(kind.weight, cells)])


def read_provenance(made: Experiment, folder: Path) -> dict[str, Mapping[str, Any]]:
    """The `Source` of each trained model of an experiment, by the digest of its configuration."""
    found = {}
    for job in jobs.row_jobs(made):
        recorded = recorded_runs.find(made.records, job.digest)
        source = recorded.source if recorded else recorded_runs.read_source(folder / job.name)
        if source is not None:
            found[job.digest] = source
    return found


def describe_provenance(sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each machine: how many models it trained, and with which commits."""
    commits: dict[str, Counter[str]] = {}
    for source in sources:
        machine = source["machine"]
        cores = "" if machine["cores"] is None else f", {machine['cores']} core{'s' * (machine['cores'] != 1)} a model"
        device = "" if machine["device"] == "cpu" else f"{machine['device']}, "
        where = f"{device}{machine['processor']}{cores}, jax {machine['versions'].get('jax', 'of no version')}"
        commits.setdefault(where, Counter())[source["commit"] or "no checkout"] += 1
    lines = []
    for where, counts in sorted(commits.items()):
        found = ", ".join(f"{name} ({n})" for name, n in counts.items())
        lines.append(f"{where}: {counts.total()} model{'s' * (counts.total() > 1)}, of the commits {found}.")
    return lines
