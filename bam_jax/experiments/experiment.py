"""An experiment: rows to train, their evaluations, the expected results, and the values that a paper printed."""

import dataclasses
import inspect
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bam_jax.evals.base import Evaluation
from bam_jax.experiments.benchmark import Benchmark
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.plugins import run_file

SCALES = ("toy", "small", "paper")  # the first is the default; verdicts come from the others
UNPRINTED = SCALES[:2]  # the scales of an experiment that is not from a paper


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of an experiment's table: a configuration, trained once for each seed."""

    label: str  # its name in the report
    config: str  # path of a config file
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)  # {"encoding": "alibi"}
    seeds: tuple[int, ...] = (0,)  # of training
    evaluations: tuple[Evaluation, ...] = ()  # done after training, in this order
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)  # overrides at evaluation only
    start: str = ""  # label of the row whose trained parameters initialise this one; "": initialised from the seed
    train: bool = True  # False: only its configuration is used


class Speed(NamedTuple):
    """The speed or memory of an untrained model, measured by a `Benchmark`: the measure's name, and the length in tokens."""

    measure: str
    length: int


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a paper's table: what is measured of every row."""

    label: str  # its heading in the paper, such as "12K"
    evaluation: Evaluation | None = None  # of a single length
    depth: float | None = None  # of a passkey; None: the mean of all depths
    position: int = 0  # the window of positions that ends there, in tokens; 0: all positions of a sequence
    quantity: str = ""  # instead of an evaluation, a name in `bam_jax.experiments.tables.QUANTITIES`
    speed: Speed | None = None  # instead of an evaluation, a result of one of the experiment's benchmarks
    unit: float = 1.0  # the paper's unit in ours: 1e-3 for ms where we have seconds, 0.01 for percent
    missing: str = ""  # instead of all of these, the reason why it cannot be measured


DASH = "—"  # printed by a table where a model cannot be measured


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper, a part of one, or the numbers that the text states about a figure."""

    title: str  # such as "Table 4, Single 1: accuracy"
    columns: tuple[Column, ...]
    # By the label of a row in the paper, a value for every column: as printed, `DASH` for a dash, "" for none; () if a figure's
    # row has no numbers at all.
    values: Mapping[str, tuple[str, ...]]
    group: str = ""  # the experiment's rows are named "LABEL, GROUP"; "": as in the paper

    def row(self, label: str) -> str:
        """The experiment's label for a row of the paper."""
        return f"{label}, {self.group}" if self.group else label

    def cells(self, label: str) -> list[tuple[Column, str]]:
        """The columns of a row of the paper, each with its printed value."""
        values = self.values[label] or ("",) * len(self.columns)
        if len(values) != len(self.columns):
            raise UserError(f"{self.title}: {label!r} has {len(values)} values for {len(self.columns)} columns")
        return list(zip(self.columns, values, strict=True))


@dataclasses.dataclass(frozen=True)
class Expected:
    """An expected result: the mean passkey accuracy of the curve `label` at `length` tokens, within bounds."""

    label: str
    length: int
    least: float = 0.0
    most: float = 1.0


@dataclasses.dataclass(frozen=True)
class Preparation:
    """A command to run before the rows, such as one that prepares their data."""

    module: str  # run as `python -m MODULE`
    arguments: tuple[str, ...]
    makes: str = ""  # a file; if it exists, the command is skipped. "": the command itself does only what is missing

    def command(self) -> str:
        return shlex.join(["python", "-m", self.module, *self.arguments])


@dataclasses.dataclass(frozen=True)
class Fetch:
    """Files that only the user can provide, such as a benchmark: this package does not download them."""

    makes: str  # the file or folder that exists once they are fetched
    how: str  # the command that fetches them, or a description of what to put there

    def command(self) -> str:
        return self.how


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The return value of an experiment file's `get_experiment()`."""

    title: str
    rows: tuple[Row, ...]  # the first is the main one: its heat map and its priors are drawn
    expected: tuple[Expected, ...] = ()  # reported beside the measurements
    notes: tuple[str, ...] = ()  # paragraphs about what the numbers do and do not show; `load` joins their lines
    platform: str = "cpu"  # JAX_PLATFORMS of the rows, unless the environment sets it; "": JAX's own choice
    preparations: tuple[Preparation | Fetch, ...] = ()  # before the rows; files that the user fetches are checked first
    tables: tuple[Table, ...] = ()  # of the paper
    shared: bool = (
        False  # whether runs are named by their configurations, so that experiments with one folder of runs share them
    )
    comparable: bool = True  # whether the rows are trained like the paper's, so that differences are meaningful
    records: Path | None = None  # a folder of records, which count as measured without the runs' folders
    scale: str = ""  # one of `SCALES` if the rows are smaller than the paper's; "": they are as the title says
    scales: tuple[str, ...] = SCALES  # the supported scales
    benchmarks: tuple[Benchmark, ...] = ()  # for the speed columns of the tables

    @property
    def heading(self) -> str:
        """Title of the report, with the scale."""
        return f"{self.title} ({self.scale} scale)" if self.scale else self.title


def tabled(
    title: str, rows: Sequence[Row], tables: Sequence[Table], *, shared: bool = True, **others: Any
) -> Experiment:
    """The experiment of a paper's tables: each row is evaluated for its columns, and trained if one of them needs it.

    There may be additional rows, which no table names, as starting points of others. `others` are further fields of the
    experiment.
    """
    labels = [row.label for row in rows]
    evaluations: dict[str, list[Evaluation]] = {label: [] for label in labels}
    trained: set[str] = set()
    for table in tables:
        for label in table.values:
            row = table.row(label)
            if row not in labels:
                raise UserError(f"{table.title} has a row {row!r} and the experiment none; {nearest(row, labels)}")
            for column, value in table.cells(label):
                if column.evaluation is None or value == DASH:
                    continue
                evaluations[row].append(column.evaluation)
                trained.add(row)
    trained |= {row.start for row in rows if row.label in trained}
    made = []
    for each in rows:
        joined = join_evaluations(evaluations[each.label])
        asked = tuple(dataclasses.replace(one, overrides={**one.overrides, **each.changes}) for one in joined)
        made.append(dataclasses.replace(each, train=each.label in trained, evaluations=asked))
    return Experiment(title, tuple(made), tables=tuple(tables), shared=shared, **others)


def join_evaluations(asked: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """The fewest equivalent evaluations of one run: join those that differ only in lengths, then those in tasks."""
    lengths: dict[Evaluation, set[int]] = {}
    for evaluation in asked:
        lengths.setdefault(dataclasses.replace(evaluation, lengths=()), set()).update(evaluation.lengths)
    groups: dict[Evaluation, list[Evaluation]] = {}
    for rest, wanted in lengths.items():
        whole = dataclasses.replace(rest, lengths=tuple(sorted(wanted)))
        groups.setdefault(whole.without_tasks(), []).append(whole)
    return tuple(first.joined(others) for first, *others in groups.values())


def load(
    path: str | Path,
    *,
    source: str | None = None,
    runs: Path = Path("runs"),
    scale: str | None = None,
    records: str | None = None,
) -> Experiment:
    """The experiment of a Python file, from its function `get_experiment()`, which receives the arguments that it names.

    `get_experiment(source, runs)` uses a corpus; `get_experiment(scale)` has several scales. The file can import modules from
    its folder. `records` is the folder of records; "": none; None: the experiment's own, see `find_records`.
    """
    if not Path(path).is_file():
        raise UserError(f"no experiment file {path}; give the path of one (the repository has some in experiments)")
    if scale is not None and scale not in SCALES:
        raise UserError(f"--scale={scale} is unknown; {nearest(scale, SCALES)}")
    with run_file(path, "experiment file") as names:
        if "get_experiment" not in names:
            must = "it must return a bam_jax.experiments.experiment.Experiment"
            raise UserError(f"{path} defines no get_experiment(); {must}")
        wanted = inspect.signature(names["get_experiment"]).parameters
        if "source" in wanted and source is None:
            raise UserError(f"{path} needs --source=PATH, where the corpus is that its docstring names")
        if source is not None and "source" not in wanted:
            raise UserError(f"--source={source}: {path} takes no corpus; leave the option out")
        if scale is not None and "scale" not in wanted:
            raise UserError(f"--scale={scale}: {path} has one scale only; leave the option out")
        known = {"source": source, "runs": runs, "scale": scale or SCALES[0]}
        made = names["get_experiment"](**{name: known[name] for name in wanted})
    if not isinstance(made, Experiment):
        raise UserError(f"get_experiment() of {path} returned {type(made).__name__}, not an Experiment; mend that file")
    if known["scale"] not in made.scales:
        given = " or ".join(f"--scale={name}" for name in made.scales)
        raise UserError(f"--scale={scale}: what {path} compares is no paper's; give {given}")
    own = find_records(Path(path), scale, shared=made.shared)
    kept = own if records is None else Path(records) if records else None
    return dataclasses.replace(made, records=kept, notes=tuple(" ".join(note.split()) for note in made.notes))


def find_records(path: Path, scale: str | None, *, shared: bool) -> Path | None:
    """The folder of records, next to the experiment's file: records/SCALE/NAME, or records/SCALE/shared for shared runs."""
    if scale is None or scale == SCALES[0]:  # the toy scale takes minutes and keeps no records
        return None
    return path.parent / "records" / scale / ("shared" if shared else path.stem)
