"""Runs side by side: methods are the differences between configurations, seeds give intervals, and each evaluation is a table."""

import csv
import dataclasses
import io
import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bam_jax import render
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.registry import kind_of
from bam_jax.experiments.statistics import Kind
from bam_jax.render import style
from bam_jax.render.curves import Curves
from bam_jax.report import page
from bam_jax.report.figures import make_curve, passkey_floor
from bam_jax.report.folder_page import SEEDS, curves_sections
from bam_jax.report.page import Section, Table
from bam_jax.system import files, regular
from bam_jax.system.errors import UserError, nearest
from bam_jax.training import run_folder

if TYPE_CHECKING:
    import pandas

TITLE = "Runs side by side"
RUN = ["path", "name"]
"""The columns that identify a run."""
OWN = {"seed", *run_folder.FREE}
"""Fields that do not distinguish methods, besides those of the mesh."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The measurements of all runs for one evaluation and one of its tasks."""

    evaluation: str
    task: str
    unit: str
    kind: Kind
    curves: Curves
    context: int  # the training context, the shortest of all runs
    floor: Mapping[int, float]  # of passkeys, by length

    @property
    def title(self) -> str:
        return f"{self.evaluation} ({self.task})" if self.task else self.evaluation

    @property
    def lengths(self) -> list[int]:
        return sorted({length for curve in self.curves.values() for length in curve.lengths})

    def figure(self) -> style.Figure | None:
        """The curves; None for a single length, or for a quantity without a figure."""
        if len(self.lengths) < 2 or self.kind not in (Kind.ACCURACY, Kind.PERPLEXITY):
            return None
        if self.kind is Kind.PERPLEXITY:
            return render.perplexity(self.curves, self.context)
        return render.passkey(self.curves, self.context, self.floor)


def plot_lengths(frame: "pandas.DataFrame", evaluation: str = "", *, by: Sequence[str] = ()) -> style.Figure:
    """Draws an evaluation against the length of the text: a line for each method, with its 95% interval over seeds.

    >>> frame = bam_jax.results("runs/*")  # doctest: +SKIP
    >>> bam_jax.plot_lengths(frame, "passkey")  # doctest: +SKIP

    Args:
        frame: a frame from `bam_jax.results`, or some of its rows.
        evaluation: such as "passkey" or "ruler (niah_single_1)"; "" if the frame has only one with a figure.
        by: fields of the configuration that define a method, such as "encoding" and "model.layers"; (): those that differ.

    Returns:
        A matplotlib figure. A dotted line marks the training context.

    Raises:
        UserError: the frame has no such evaluation, or fewer than two lengths of it; or `by` leaves two runs with the same seed
            in one method; or matplotlib is not installed (`pip install 'bam_jax[figures]'`).
    """
    drawn = {each.title: each for each in compare(frame, by) if not evaluation or each.title == evaluation}
    figures = {title: figure for title, each in drawn.items() if (figure := each.figure()) is not None}
    if evaluation in drawn and len(drawn[evaluation].lengths) == 1:
        length = drawn[evaluation].lengths[0]
        raise UserError(f"{evaluation!r} is measured at {length} tokens alone; evaluate it at several --lengths")
    if len(figures) != 1:
        known = list(figures) or [each.title for each in compare(frame, by)]
        what = (
            f"{evaluation!r} cannot be drawn against length"
            if evaluation
            else f"{len(figures)} evaluations have a figure"
        )
        raise UserError(f"{what}; {nearest(evaluation, known)}" if known else f"{what}: nothing is measured")
    return next(iter(figures.values()))


def compare(frame: "pandas.DataFrame", by: Sequence[str] = ()) -> list[Comparison]:
    """The evaluations in a frame of `bam_jax.results`, each with a curve for every method; arguments as in `plot_lengths`."""
    if lacks := {*RUN, "eval", "length", "step", "seed", "config.context"} - {*getattr(frame, "columns", ())}:
        raise UserError(f"the frame has no column {min(lacks)!r}; give rows of bam_jax.results with all its columns")
    newest = frame.groupby(RUN)["step"].transform("max")
    frame = frame[frame["step"] == newest]
    names = label(frame, by)
    found = []
    for (evaluation, task), cells in frame.fillna({"task": ""}).groupby(["eval", "task"]):
        kind, encodings = kind_of(evaluation), {}
        values: dict[str, dict[int, dict[int, float]]] = defaultdict(dict)
        prompts: dict[str, Counter[int]] = defaultdict(Counter)
        for (path, name, changes, seed, length), part in cells.groupby([*RUN, "overrides", "seed", "length"]):
            method = ", ".join(filter(None, (names[path, name], changes)))
            records = [{"n": row["n"], "masked": row.get("cell.masked")} for _, row in part.iterrows()]
            value = kind.mean(part["value"].tolist(), [*map(kind.weight, records)])
            values[method].setdefault(int(seed), {})[int(length)] = value
            prompts[method][int(length)] += int(part["n"].sum())
            encodings[method] = part["encoding"].iloc[0]
        unit = cells["unit"].iloc[0]
        words = {"perplexity": Kind.PERPLEXITY, "gain": Kind.GAIN, "nats": Kind.LOSS}
        quantity = next((kind for word, kind in words.items() if word in unit), Kind.ACCURACY)
        curves = {each: make_curve(quantity, values[each], prompts[each], encodings[each]) for each in sorted(values)}
        floor = {}
        if evaluation == Passkey.name:
            depths = cells.groupby(["length", *RUN])["depth"].nunique().groupby("length").min()
            floor = {int(length): passkey_floor(int(count)) for length, count in depths.items()}
        context = int(cells["config.context"].min())
        found.append(Comparison(str(evaluation), str(task), unit, quantity, curves, context, floor))
    return found


def label(frame: "pandas.DataFrame", by: Sequence[str] = ()) -> dict[tuple[str, str], str]:
    """The method of each run, by its path and name: the fields that define methods, with their values.

    These are the encoding and all fields that differ between runs with the same encoding.
    """
    runs, fields = _read(frame)
    chosen = _making(fields, by)
    methods = {place: tuple(repr(each.get(name)) for name in chosen) for place, each in fields.items()}
    _check_seeds(methods, runs, fields)
    short = Counter(name.rpartition(".")[2] for name in chosen)
    made = {}
    for place, each in fields.items():
        words = []
        for name in chosen:
            last = name.rpartition(".")[2]
            if name in each and name != "encoding":
                words.append(f"{last if short[last] == 1 else name}={each[name]}")
        own = [str(each["encoding"])] if "encoding" in chosen or not words else []
        made[place] = ", ".join([*own, *words])
    return made


def others(frame: "pandas.DataFrame", by: Sequence[str] = ()) -> list[str]:
    """A line for each field that differs between runs but does not define methods, such as one that depends on the encoding."""
    _, fields = _read(frame)
    chosen, names, said = _making(fields, by), label(frame, by), []
    for name in _differing(fields):
        if name not in chosen:
            values: dict[str, dict[str, None]] = defaultdict(dict)
            for place, each in fields.items():
                values[str(each.get(name, "none"))][names[place]] = None
            told = "; ".join(f"{value} in {', '.join(methods)}" for value, methods in values.items())
            said.append(f"{name} is {told}.")
    return said


def _read(
    frame: "pandas.DataFrame",
) -> tuple[dict[tuple[str, str], Mapping[str, Any]], dict[tuple[str, str], dict[str, Any]]]:
    """A row of each run, and its fields that may define a method, by path and name."""
    runs = {(run["path"], run["name"]): run for _, run in frame.drop_duplicates(RUN).iterrows()}
    return runs, {place: _fields(run) for place, run in runs.items()}


def _differing(fields: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    """The fields that have several values, the encoding first."""
    names = dict.fromkeys(name for each in fields.values() for name in each)
    return [name for name in names if len({repr(each.get(name)) for each in fields.values()}) > 1]


def _making(fields: Mapping[Any, Mapping[str, Any]], by: Sequence[str]) -> list[str]:
    """The fields that define methods: those that are named, or the encoding and the fields that differ within an encoding."""
    names = list(dict.fromkeys(name for each in fields.values() for name in each))
    by = [by] if isinstance(by, str) else by
    for name in by:
        if name not in names:
            raise UserError(f"--by={name} is no field of these runs; {nearest(name, names)}")
    if by:
        return list(by)
    alike: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in fields.values():
        alike[each["encoding"]].append(each)
    within = {name for each in alike.values() for name in _differing(dict(enumerate(each)))}
    return ["encoding", *(name for name in names if name in within)]


def _fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run's configuration that may define a method, the encoding first; each option is a separate field."""
    found = {name.removeprefix("config."): value for name, value in run.items() if name.startswith("config.")}
    options = json.loads(found.pop("encoding_options"))
    found |= {f"encoding_options.{name}": value for name, value in options.items()}
    # Only whether a run starts from another run's parameters matters, not which run: each seed has its own.
    found["start"] = bool(found["start"])
    first = {name: found[name] for name in ("encoding", "ssmax")}
    rest = {name: value for name, value in found.items() if name not in OWN and not name.startswith("mesh.")}
    return first | rest


def _check_seeds(
    methods: Mapping[tuple[str, str], Any],
    runs: Mapping[tuple[str, str], Mapping[str, Any]],
    fields: Mapping[tuple[str, str], Mapping[str, Any]],
) -> None:
    """Raises: UserError: a method has two runs with the same seed."""
    seen: dict[Any, tuple[str, str]] = {}
    for place, method in methods.items():
        first = seen.setdefault((method, runs[place]["seed"]), place)
        if first != place:
            differ = [name for name, value in fields[place].items() if fields[first].get(name) != value]
            what = (
                f"differ in {', '.join(differ)}; add that to --by" if differ else "are one run; leave one of them out"
            )
            raise UserError(f"{' and '.join(_place(*each) for each in (first, place))} have the same seed and {what}")


def _place(path: str, name: str) -> str:
    return path if Path(path).name == name else f"{name} in {path}"


def missing(frame: "pandas.DataFrame", unmeasured: Sequence[str] = ()) -> list[str]:
    """The commands for measurements that some runs have and others lack; none for runs that are only recorded.

    Args:
        unmeasured: folders of runs without any measurement.
    """
    places = [*frame[RUN].drop_duplicates().itertuples(index=False), *((run, Path(run).name) for run in unmeasured)]
    commands = []
    for evaluation, cells in frame[frame["overrides"] == ""].groupby("eval"):
        every = sorted(cells["length"].unique())
        options = []
        if evaluation == Passkey.name:
            depths = cells.groupby([*RUN, "length"])["depth"].nunique().max()
            options = [f"--depths={depths}", f"--trials={cells['n'].max():.0f}"]
        for path, name in places:
            own = {*cells[(cells["path"] == path) & (cells["name"] == name)]["length"]}
            lacks = ",".join(f"{length:.0f}" for length in every if length not in own)
            if lacks and Path(path).name == name:
                asked = [f"--run={path}", f"--eval={evaluation}", f"--lengths={lacks}", *options]
                commands.append(shlex.join(["python", "-m", "bam_jax.evaluate", *asked]))
    return commands


def sections(frame: "pandas.DataFrame", by: Sequence[str] = (), unmeasured: Sequence[str] = ()) -> list[Section]:
    """The page: a table and a figure for each evaluation, what is missing, and the runs of each method."""
    made: list[Section] = []
    for each in compare(frame, by):
        unit = each.unit[:1].upper() + each.unit[1:] + "."
        words = f"{unit} {SEEDS}"
        figure = each.figure()
        name = f"compare-{len(made)}"
        section = Section(each.title.capitalize(), words if figure else unit, figure=figure, name=name)
        made += curves_sections(section, each.curves, each.context)
    if also := others(frame, by):
        made.append(Section("What else differs", items=also))
    if lacking := missing(frame, unmeasured):
        made.append(Section("Not measured by all", "These commands measure what some runs lack.", commands=lacking))
    methods: dict[str, list[str]] = defaultdict(list)
    for place, method in label(frame, by).items():
        methods[method].append(_place(*place))
    rows = [[method, f"{len(runs)}", files.shortened(runs, 50)] for method, runs in sorted(methods.items())]
    return [*made, Section("The runs", table=Table(["method", "seeds", "runs"], rows), folded=True)]


def to_csv(found: Sequence[Comparison]) -> str:
    """A line for each method and length of each evaluation."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["evaluation", "task", "method", "length", "value", "low", "high", "seeds", "unit"])
    for each in found:
        for method, curve in each.curves.items():
            for length in curve.lengths:
                low, middle, high = curve.intervals.get(length, ("", curve.middle(length), ""))
                count = len(curve.values(length))
                writer.writerow([each.evaluation, each.task, method, length, middle, low, high, count, each.unit])
    return file.getvalue()


def to_latex(found: Sequence[Comparison]) -> str:
    """A booktabs table for each evaluation: methods as rows, lengths as columns, the interval after each mean."""
    parts = []
    for each in found:
        lines = [f"% {each.title}, {each.unit}", rf"\begin{{tabular}}{{l{'r' * len(each.lengths)}}}", r"\toprule"]
        lines.append(" & ".join(["", *(f"{length:,}" for length in each.lengths)]) + r" \\ \midrule")
        for method, curve in each.curves.items():
            cells = [_latex_cell(curve, length) for length in each.lengths]
            lines.append(" & ".join([_escape(method), *cells]) + r" \\")
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(parts) + "\n"


def _latex_cell(curve: render.Curve, length: int) -> str:
    if not curve.values(length):
        return "--"
    value = f"{curve.middle(length):.2f}"
    if length not in curve.intervals:
        return value
    low, _, high = curve.intervals[length]
    return rf"${value}\,[{low:.2f}, {high:.2f}]$"


def _escape(text: str) -> str:
    """A label as LaTeX prints it literally."""
    named = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(named.get(letter, rf"\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def write(frame: "pandas.DataFrame", out: Path, by: Sequence[str] = (), unmeasured: Sequence[str] = ()) -> str:
    """Writes compare.html, .md, .csv and .tex and figures/ into a folder, and returns the part to print on a terminal."""
    style.library()  # fail before anything is written
    found, made = compare(frame, by), sections(frame, by, unmeasured)
    texts = {"html": page.to_html(TITLE, made), "md": page.to_markdown(TITLE, made)}
    texts |= {"csv": to_csv(found), "tex": to_latex(found)}
    # Text files have no mark: they belong to this command only if its page is next to them.
    paths = {suffix: out / f"compare.{suffix}" for suffix in texts}
    for path in [paths["html"]] if paths["html"].exists() else paths.values():
        files.keep_other(path, page.HEAD)
    regular.check_folder(out / "figures")
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for section in made:
        if section.figure:
            style.save_both(section.figure, out / "figures" / section.name)
    for suffix, text in texts.items():
        files.write_atomically(paths[suffix], text)
    shown = [dataclasses.replace(section, figure=None, text="") for section in made if not section.folded]
    return page.to_markdown(TITLE, shown)
