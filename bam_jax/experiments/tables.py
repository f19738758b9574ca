"""The cells of a paper's tables, each with our runs' measurements.

A cell that is not measured, or only in part, has a state for this and is never filled in.
"""

import dataclasses
import enum
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.evals.base import Evaluation, Place
from bam_jax.evals.records import Cell
from bam_jax.experiments import jobs, recorded_runs, results, statistics
from bam_jax.experiments.experiment import DASH, Column, Experiment, Table
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Part, RunResults
from bam_jax.experiments.statistics import Interval, Kind
from bam_jax.models import counts
from bam_jax.system.errors import UserError


def _trained_prior_percent(config: Config) -> float:
    """The trained parameters of the encodings, in percent of the model's other parameters."""
    known = counts.parameters(config)
    return 100 * known.trained_prior / (known.embedding + known.transformer)


QUANTITIES: Mapping[str, Callable[[Config], float]] = {
    "embedding_parameters": lambda config: counts.parameters(config).embedding,
    "transformer_parameters": lambda config: counts.parameters(config).transformer,
    "prior_parameters": lambda config: counts.parameters(config).prior,
    "trained_prior_parameters": lambda config: counts.parameters(config).trained_prior,
    "trained_prior_percent": _trained_prior_percent,
    "rate": lambda config: config.optimizer.rate,
    **{name: operator.attrgetter(f"model.{name}") for name in ("heads", "layers", "width", "hidden")},
}
"""Values of a configuration that need no run."""


FACTORS = {"K": Decimal(10) ** 3, "M": Decimal(10) ** 6, "B": Decimal(10) ** 9}


class State(enum.Enum):
    """The state of a cell of a table in one seed."""

    MEASURED = "all that the column asks for is there"
    MISSING = "nothing is there"
    PARTIAL = "some samples are not there"
    STOPPED = "given up, since no prompt was answered at the lengths before"
    UNMEASURABLE = "the paper has a dash there"
    NOT_ASKED = "no evaluation measures it"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A cell of a table in one seed."""

    state: State
    value: float | None = None  # in the column's unit; None unless measured
    remark: str = ""  # how many samples there are, or why there are none
    seed: int = 0
    n: int = 0  # number of samples; if it was given up, the number that would have been asked
    speed: Mapping[str, Any] | None = None  # the record of a speed or a memory


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell of a table in all seeds: an outcome for each seed, or a single one if it does not depend on seeds."""

    row: str
    column: Column
    paper: str  # as printed; "": nothing
    outcomes: tuple[Outcome, ...]

    @property
    def ours(self) -> tuple[float, ...]:
        return tuple(outcome.value for outcome in self.outcomes if outcome.value is not None)

    @property
    def by_seed(self) -> dict[int, float]:
        """The value of each settled seed; a seed that was given up has 0."""
        settled = [outcome for outcome in self.outcomes if outcome.value is not None or outcome.state is State.STOPPED]
        return {outcome.seed: outcome.value or 0.0 for outcome in settled}

    @property
    def samples(self) -> int:
        return sum(outcome.n for outcome in self.outcomes)

    @property
    def kind(self) -> Kind:
        if self.column.speed is not None:
            return Kind.SPEED
        if self.column.evaluation is None:
            return Kind.CONFIGURATION
        return Kind[self.column.evaluation.quantity.upper()]

    @property
    def interval(self) -> Interval | None:
        return statistics.interval(self.kind, list(self.by_seed.values()), self.samples, self.column.unit)

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.ours)) if self.ours else None

    @property
    def asked(self) -> bool:
        """Whether a run or a comparison of speeds must measure it."""
        measured = self.column.evaluation is not None or self.column.speed is not None
        return measured and self.paper != DASH

    @property
    def stopped(self) -> bool:
        return any(outcome.state is State.STOPPED for outcome in self.outcomes)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to measure: each seed has its value, or was given up."""
        done = (State.MEASURED, State.STOPPED)
        return bool(self.outcomes) and all(outcome.state in done for outcome in self.outcomes)


def compare(table: Table, made: Experiment, folder: Path) -> list[Entry]:
    """Compare every cell of a table with the runs, row after row."""
    planned = jobs.row_jobs(made)
    read = results_reader(folder, made.records)
    # Of several records of the same model, measure and length, the newest is used.
    speeds = {
        (each["config"], each["measure"], each["length"]): each
        for benchmark in made.benchmarks
        for each in benchmark.records(folder)
    }
    entries = []
    for label in table.values:
        mine = [job for job in planned if job.row.label == table.row(label)]
        for column, paper in table.cells(label):
            outcomes = _speed(column, mine[0], speeds) if column.speed and paper != DASH else None
            entries.append(Entry(label, column, paper, tuple(outcomes or _measure(column, paper, mine, read))))
    return entries


type Reader = Callable[[Job], RunResults]


def results_reader(folder: Path, file: Path | None) -> Reader:
    """A function that reads a job's results from the folder of runs and from records; runs that jobs share are read once."""
    read = functools.cache(lambda name, digest: results.read_results(folder / name, recorded_runs.find(file, digest)))
    return lambda job: read(job.name, job.digest)


def is_measured(evaluation: Evaluation, job: Job, measured: RunResults) -> bool:
    """Whether a run's results contain everything that an evaluation of the job requests, or show that it was given up."""
    columns = [Column("", dataclasses.replace(evaluation, lengths=(length,))) for length in evaluation.lengths]
    return all(_outcome(column, job, measured).state in (State.MEASURED, State.STOPPED) for column in columns)


def _speed(column: Column, job: Job, speeds: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> list[Outcome]:
    assert column.speed is not None
    digest = configs.digest(configs.load(job.row.config, {**job.row.overrides, **job.row.changes}))
    if (digest, *column.speed) not in speeds:
        return [Outcome(State.MISSING)]
    record = speeds[digest, *column.speed]
    return [Outcome(State.MEASURED, record["value"] / column.unit, speed=record)]


def _measure(column: Column, paper: str, planned: Sequence[Job], read: Reader) -> list[Outcome]:
    if column.missing:
        return [Outcome(State.NOT_ASKED, remark=column.missing)]
    if paper == DASH:
        return [Outcome(State.UNMEASURABLE)]
    if column.quantity:
        return [Outcome(State.MEASURED, QUANTITIES[column.quantity](planned[0].config))]
    return [dataclasses.replace(_outcome(column, job, read(job)), seed=job.seed) for job in planned]


def _outcome(column: Column, job: Job, measured: RunResults) -> Outcome:
    assert column.evaluation is not None
    parts = parts_of(column.evaluation, job, measured)
    if column.depth is not None:
        parts = {at: part for at, part in parts.items() if at[0] == column.depth}
    if not any(part.cells for part in parts.values()):
        return _missing_or_stopped(column.evaluation, job, measured, _count(parts)[1])
    if column.evaluation.grouped:
        return _answered(parts, column)
    count, wanted = _count(parts)
    if count < wanted:
        return Outcome(State.PARTIAL, remark=f"{count} of {wanted} samples")
    total = sum(part.n for part in parts.values())
    remark = f"{total} samples, of which {wanted} are asked for" if total > wanted else ""
    return Outcome(State.MEASURED, _mean(parts, column.position) / column.unit, remark, n=total)


def _count(parts: Mapping[Any, Part]) -> tuple[int, int]:
    """The number of requested samples that are measured, and the number of requested samples."""
    return sum(min(part.n, part.wanted) for part in parts.values()), sum(part.wanted for part in parts.values())


def _mean(parts: Mapping[Any, Part], position: int = 0) -> float:
    """The mean over parts, each weighted by the number of its requested samples."""
    values = [_window(part.cells, position) if position else results.mean(part.cells) for part in parts.values()]
    return float(np.average(values, weights=[part.wanted for part in parts.values()]))


def _window(cells: Sequence[Cell], position: int) -> float:
    cell = cells[0]
    if position % cell["window"] or position > cell["length"]:
        remedy = f"give the column a position that is a multiple of {cell['window']}, the run's context"
        where = f"no window of {cell['window']} positions in {cell['length']} ends at {position}"
        raise UserError(f"{where}; {remedy}")
    # Average losses instead of perplexities, as for all positions of a sequence.
    losses = [cell["windows"][position // cell["window"] - 1] for cell in cells]
    return math.exp(np.average(losses, weights=[cell["n"] for cell in cells]))


def parts_of(evaluation: Evaluation, job: Job, measured: RunResults) -> dict[Place, Part]:
    """The results of a job's trained model in an evaluation of a single length, by depth and task."""
    # An unfinished run, or one evaluated only before its end, has no values for a table.
    cells = [cell for cell in measured.cells if cell["step"] == job.config.steps]
    overrides = {**evaluation.overrides, **job.row.changes}
    return results.find_parts(cells, evaluation, evaluation.lengths[0], job.config, overrides)


def _missing_or_stopped(evaluation: Evaluation, job: Job, measured: RunResults, wanted: int) -> Outcome:
    """A cell without results: given up, if with at most the requested patience and on the same prompts; otherwise missing."""
    overrides = {**evaluation.overrides, **job.row.changes}
    for record in measured.stops:
        # The record of a stop has the fields of the records that it replaces, except for the name, which is in `of`.
        mine = evaluation.asks({**record, "eval": record["of"]}, job.config, overrides)
        here = record["step"] == job.config.steps and evaluation.lengths[0] in record["lengths"]
        if mine and here and evaluation.gives_up(len(record["after"])):
            if all(_failed(dataclasses.replace(evaluation, lengths=(n,)), job, measured) for n in record["after"]):
                after = " and ".join(f"{length:,}" for length in record["after"])
                return Outcome(State.STOPPED, remark=f"no prompt answered at {after} tokens", n=wanted)
    return Outcome(State.MISSING)


def _failed(evaluation: Evaluation, job: Job, measured: RunResults) -> bool:
    parts = parts_of(evaluation, job, measured).values()
    return all(part.n >= part.wanted and not results.mean(part.cells) for part in parts)


def _answered(parts: Mapping[Place, Part], column: Column) -> Outcome:
    """A benchmark, whose questions have equal weight; the remark counts skipped tasks."""
    assert column.evaluation is not None
    answered = {at: part for at, part in parts.items() if part.cells}
    count, wanted = _count(answered)
    tasks = f"{len(answered)} of {len(parts)} tasks"
    if count < wanted:
        return Outcome(State.PARTIAL, remark=f"{count} of {wanted} questions of {tasks}")
    skips = column.evaluation.skips_samples
    if len(answered) < len(parts) and not skips:
        return Outcome(State.PARTIAL, remark=tasks)
    remark = f"{count} questions of {tasks}" if skips else ""
    return Outcome(State.MEASURED, _mean(answered) / column.unit, remark, n=count)


def parse_number(printed: str) -> Decimal | None:
    """The number that a paper printed; None for nothing or a dash.

    >>> [str(parse_number(text)) for text in ("17.00", "~25M", "2 × 768", "32.84 ± 0.40", ">0.8", "—")]
    ['17.00', '25000000', '1536', '32.84', '0.8', 'None']
    >>> parse_number("1 × 10^-3")
    Decimal('0.001')
    """
    if printed in ("", DASH):
        return None
    product = Decimal(1)
    for factor in printed.partition("±")[0].lstrip("~<>").split("×"):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?:\^(-?\d+))?([KMB]?)\s*", factor)
        if found is None:
            raise UserError(f"{printed!r} is not a number as tables print them")
        base, power, unit = found.groups()
        product *= Decimal(base) ** int(power or 1) * (FACTORS[unit] if unit else 1)
    return product
