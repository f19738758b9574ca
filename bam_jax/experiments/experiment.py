"""An experiment: rows to train, their evaluations, the results that are expected, and the values that a paper printed."""

import dataclasses
import inspect
import runpy
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bam_jax.evals.base import Evaluation
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.plugins import named_where_it_fails

SCALES = ("toy", "small", "paper")
UNPRINTED = SCALES[:2]
"""The scales of an experiment that is no paper's."""
"""The first is the default; verdicts come from the others."""
RECORDS = "records"
"""The folder beside experiments that holds folders of records, by scale."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of an experiment's table: a configuration, trained once for each seed.

    Args:
        label: its name in the report.
        config: path of a config file.
        overrides: changes of that configuration, values by dotted names, as in {"encoding": "alibi", "model.layers": 2}.
        seeds: of training.
        evaluations: done after training, in this order.
        changes: further ones at evaluation only, in every column of the tables.
        start: label of the row whose trained parameters are this one's first ones; "": drawn from the seed.
        train: False: only its configuration is looked at.
    """

    label: str
    config: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    seeds: tuple[int, ...] = (0,)
    evaluations: tuple[Evaluation, ...] = ()
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    start: str = ""
    train: bool = True


class Speed(NamedTuple):
    """The speed or memory of a model with random parameters: no evaluation of a run (`benchmarks.speed`).

    Args:
        measure: a name in `benchmarks.speed.MEASURES`, such as "inference".
        length: tokens.
    """

    measure: str
    length: int


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a paper's table: what is measured of every row.

    Args:
        label: its head in the paper, such as "12K".
        evaluation: of a single length.
        depth: of a passkey; None: the mean over all depths.
        position: the window of positions that ends there, in tokens; 0: all positions of a sequence.
        quantity: instead of an evaluation, a name in `bam_jax.experiments.tables.QUANTITIES`.
        speed: instead of an evaluation, a speed or the memory of a model that need not be trained.
        unit: what the paper counts in, in ours: 1e-3 where it has ms and we have seconds, 0.01 for percent.
        missing: instead of all of them, why it cannot be measured yet.
    """

    label: str
    evaluation: Evaluation | None = None
    depth: float | None = None
    position: int = 0
    quantity: str = ""
    speed: Speed | None = None
    unit: float = 1.0
    missing: str = ""


DASH = "—"
"""What a table prints where a model cannot be measured."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper, a part of one, or the numbers that its text says of a figure.

    Args:
        title: such as "Table 4, Single 1: accuracy".
        columns: what is measured.
        values: by label of a row in the paper, a value for every column: as printed, `DASH` where there is a dash, "" where
            there is none; () where a figure's row has no numbers at all.
        group: the rows of the experiment are named "LABEL, GROUP"; "": as in the paper.
    """

    title: str
    columns: tuple[Column, ...]
    values: Mapping[str, tuple[str, ...]]
    group: str = ""

    def row(self, label: str) -> str:
        """The label in the experiment of a row of the paper."""
        return f"{label}, {self.group}" if self.group else label

    def cells(self, label: str) -> list[tuple[Column, str]]:
        """The columns of a row, each with what the paper has there.

        Args:
            label: of the row in the paper.

        Raises:
            UserError: the row has another number of values than the table has columns.
        """
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
    """A command before the rows, such as one that prepares their data; done again, it does what is missing.

    Args:
        module: what stands behind `python -m`.
        arguments: its arguments.
        makes: a file; the command is left out once it is there. "": the command itself sees what is missing.
    """

    module: str
    arguments: tuple[str, ...]
    makes: str = ""

    def command(self) -> str:
        """The command that a person would type."""
        return shlex.join(["python", "-m", self.module, *self.arguments])


@dataclasses.dataclass(frozen=True)
class Fetch:
    """Files that only the user can provide, such as a benchmark: nothing here is downloaded.

    Args:
        makes: the file or folder that is there once they are fetched.
        how: the command that fetches them, or what to put there.
    """

    makes: str
    how: str

    def command(self) -> str:
        """The command that a person would type."""
        return self.how


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The return value of an experiment file's `get_experiment()`.

    Args:
        title: what it measures.
        preparations: done in their order before the rows; files that the user fetches are looked for before all else.
        rows: the first is the main one: its heat map and its priors are drawn.
        expected: reported beside what was measured.
        notes: paragraphs about what the numbers do and do not say.
        platform: JAX_PLATFORMS of the rows, unless the environment sets it; "": JAX's own choice.
        tables: of the paper.
        shared: runs are named by their configurations, so that experiments with one folder of runs share them.
        comparable: whether the rows are trained as the paper's were, so that a difference from its values means something.
        records: a folder of records (`recorded_runs`), which count as measured without the runs' folders; None: none is kept.
        scale: one of `SCALES` where the rows are smaller than the paper's; "": they are as the title says.
        scales: at which it can be done; what no paper has is not done at "paper".
    """

    title: str
    rows: tuple[Row, ...]
    expected: tuple[Expected, ...] = ()
    notes: tuple[str, ...] = ()
    platform: str = "cpu"
    preparations: tuple[Preparation | Fetch, ...] = ()
    tables: tuple[Table, ...] = ()
    shared: bool = False
    comparable: bool = True
    records: Path | None = None
    scale: str = ""
    scales: tuple[str, ...] = SCALES

    @property
    def heading(self) -> str:
        """Heads the report: the title, with the scale."""
        return f"{self.title} ({self.scale} scale)" if self.scale else self.title


def printed(text: str, *, transpose: bool = False) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """A table as it stands in a paper, cells between bars: the heads of its columns, and its rows by their labels.

    >>> printed("| length | CABLE | RoPE |\\n| 512 | 17.00 | 17.39 |", transpose=True)
    (('512',), {'CABLE': ('17.00',), 'RoPE': ('17.39',)})

    Args:
        text: a line for each row, first that of the heads.
        transpose: whether the paper's columns are wanted as rows.

    Raises:
        UserError: a row with more or fewer cells than the heads have, or two of one label.
    """
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.strip().splitlines()]
    for line in lines:
        if len(line) != len(lines[0]):
            raise UserError(f"row {line[0]!r} has {len(line)} cells and the heads {len(lines[0])}")
    if transpose:
        lines = [list(column) for column in zip(*lines, strict=True)]
    labels = [line[0] for line in lines[1:]]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"two rows are called {label!r}")
    return tuple(lines[0][1:]), {line[0]: tuple(line[1:]) for line in lines[1:]}


def tabled(
    title: str, rows: Sequence[Row], tables: Sequence[Table], *, shared: bool = True, **others: Any
) -> Experiment:
    """The experiment of a paper's tables: each row is evaluated as its columns say, and trained if one of them needs it.

    Args:
        title: heads the tables.
        rows: with or without those that no table names, from which others may start.
        tables: of the paper.
        shared: see `Experiment`; what no other experiment shares may have runs, and a folder of records, of its own.
        others: further fields of the experiment.

    Raises:
        UserError: a table names a row that there is not.
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
    made = tuple(
        dataclasses.replace(row, train=row.label in trained, evaluations=_changed(evaluations[row.label], row.changes))
        for row in rows
    )
    return Experiment(title, made, tables=tuple(tables), shared=shared, **others)


def join_evaluations(asked: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """As few evaluations as do the same: those that differ in their lengths are one, then those that differ in their tasks.

    Args:
        asked: of one run.
    """
    lengths: dict[Evaluation, set[int]] = {}
    for evaluation in asked:
        lengths.setdefault(dataclasses.replace(evaluation, lengths=()), set()).update(evaluation.lengths)
    groups: dict[Evaluation, list[Evaluation]] = {}
    for rest, wanted in lengths.items():
        whole = dataclasses.replace(rest, lengths=tuple(sorted(wanted)))
        groups.setdefault(whole.without_tasks(), []).append(whole)
    return tuple(first.joined(others) for first, *others in groups.values())


def _changed(asked: Iterable[Evaluation], changes: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    """The evaluations of a row, with its changes."""
    joined = join_evaluations(asked)
    return tuple(dataclasses.replace(each, overrides={**each.overrides, **changes}) for each in joined)


def load(
    path: str | Path,
    *,
    source: str | None = None,
    runs: Path = Path("runs"),
    scale: str | None = None,
    records: str | None = None,
) -> Experiment:
    """The experiment in a Python file with `get_experiment()`, which is given what its arguments name.

    `get_experiment(source, runs)` is about a corpus, `get_experiment(scale)` can be done at several scales.

    Args:
        path: the file.
        source: where the user has the corpus.
        runs: folder of the runs, below which preparations may put what they make of it.
        scale: "toy", "small" or "paper"; None: toy.
        records: the folder of records; "": none; None: the one that belongs to the experiment, see `find_records`.

    Raises:
        UserError: no such file, or no `get_experiment` in it, or a corpus or scale missing or not wanted.
    """
    if not Path(path).is_file():
        raise UserError(f"no experiment file {path}; give the path of one (the repository has some in experiments)")
    if scale is not None and scale not in SCALES:
        raise UserError(f"--scale={scale} is unknown; {nearest(scale, SCALES)}")
    with named_where_it_fails(path, "experiment file"):
        names = runpy.run_path(str(path))
    if "get_experiment" not in names:
        raise UserError(
            f"{path} defines no get_experiment(); it must return a bam_jax.experiments.experiment.Experiment"
        )
    wanted = inspect.signature(names["get_experiment"]).parameters
    if "source" in wanted and source is None:
        raise UserError(f"{path} needs --source=PATH, where the corpus is that its docstring names")
    if source is not None and "source" not in wanted:
        raise UserError(f"--source={source}: {path} takes no corpus; leave the option out")
    if scale is not None and "scale" not in wanted:
        raise UserError(f"--scale={scale}: {path} has one scale only; leave the option out")
    known = {"source": source, "runs": runs, "scale": scale or SCALES[0]}
    with named_where_it_fails(path, "experiment file"):
        made = names["get_experiment"](**{name: known[name] for name in wanted})
    if not isinstance(made, Experiment):
        raise UserError(f"get_experiment() of {path} returned {type(made).__name__}, not an Experiment; mend that file")
    if known["scale"] not in made.scales:
        given = " or ".join(f"--scale={name}" for name in made.scales)
        raise UserError(f"--scale={scale}: what {path} compares is no paper's; give {given}")
    kept = (
        find_records(Path(path), scale, shared=made.shared) if records is None else Path(records) if records else None
    )
    return dataclasses.replace(made, records=kept)


def find_records(path: Path, scale: str | None, *, shared: bool) -> Path | None:
    """The folder of records that belongs to an experiment, below its folder: records/SCALE/NAME.

    Args:
        path: the experiment's file.
        scale: as `load` takes it; what is done in minutes, the toy scale, keeps no records.
        shared: whether it shares its runs with others of its folder, and so their folder, shared.
    """
    if scale in (None, SCALES[0]):
        return None
    return path.parent / RECORDS / scale / ("shared" if shared else path.stem)
