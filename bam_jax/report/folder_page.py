"""The page of an experiment with a folder of its own: report.html, report.md and figures/, from the files of its runs."""

import dataclasses
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax import render
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.records import Cell
from bam_jax.experiments import results, statistics
from bam_jax.experiments.results import Run
from bam_jax.render import page, style
from bam_jax.render.curves import FEW, Curve, Curves
from bam_jax.render.learned import Heads
from bam_jax.render.page import Estimated, Section, Table, Words
from bam_jax.report import beside_question
from bam_jax.report.cell_words import ONE_SEED, describe_ends, describe_interval, describe_next, with_interval
from bam_jax.report.learned_sections import attention_section, heads_section, priors_section, scatter_section
from bam_jax.report.left_out import LeftOut
from bam_jax.report.progress import describe_training
from bam_jax.report.run_curves import length_curves, position_curves
from bam_jax.report.run_priors import find_priors
from bam_jax.system import files, regular

SEEDS = f"""Lines are means over training seeds, bands their 95% t intervals over n seeds; thin lines are the seeds, where there
are no more than {FEW}. {style.FAMILIES}"""
GEOMETRIC = "Means of perplexities are geometric."
COLUMNS = 12
"""Lengths of a table that are shown one by one; the figure beside it has all."""


def write(folder: Path) -> Path:
    """Writes the report into the experiment's folder.

    Args:
        folder: the sweep's --runs.

    Returns:
        the path of report.html.

    Raises:
        UserError: no experiment there, or a file that cannot be read; runs that cannot are left out.
    """
    style.library()  # nothing is written without it
    left_out = LeftOut()
    priors: dict[str, Heads] = {}
    description, runs = results.read_sweep(folder, left_out.reading)
    for run in runs:
        with left_out.reading(f"the priors of {run.name}"):
            priors |= find_priors([run], folder) if run.config else {}
    sections = [*left_out.sections(), *page_sections(description, runs, folder, priors)]
    regular.check_folder(folder / "figures")
    (folder / "figures").mkdir(exist_ok=True)
    for section in sections:
        if section.figure:
            style.save_both(section.figure, folder / "figures" / section.name)
    files.write_atomically(folder / "report.md", page.to_markdown(description["title"], sections))
    files.write_atomically(folder / "report.html", page.to_html(description["title"], sections))
    left_out.say()
    return folder / "report.html"


def page_sections(
    description: Mapping[str, Any], runs: Sequence[Run], folder: Path, priors: Mapping[str, Heads]
) -> list[Section]:
    """The page's sections, in their order.

    Args:
        description: `experiment.json`.
        runs: all of the experiment, the main row's first.
        folder: where they stand.
        priors: by name, of the runs that have any.
    """
    contexts = [run.config.context for run in runs if run.config]
    context = contexts[0] if contexts else 1
    again = f"python -m bam_jax.report {shlex.quote(str(folder))}"
    main = [run for run in runs if run.label == runs[0].label]
    sections = [
        _summary(description, runs, main[0].label, context),
        *_expected_sections(description["claims"], length_curves(runs, Passkey.name), context),
        *_notes_sections(description["notes"]),
        *_passkey_sections(runs, main, context, again),
        *_perplexity_sections(runs, main, context, again),
    ]
    if main[0].name in priors:
        sections.append(priors_section(main[0], priors[main[0].name], context, again))
        sections += [heads_section(main[0], folder), attention_section(main[0], folder)]
    known = [(run, priors[run.name]) for run in runs if run.name in priors]
    if known:
        sections.append(scatter_section(known, again))
    sections.append(_runs_section(runs, folder))
    return sections


def _notes_sections(notes: Sequence[str]) -> list[Section]:
    return [Section("What these numbers say, and what they do not", items=notes)] if notes else []


def _commands(main: Sequence[Run], evaluation: str, again: str) -> list[str]:
    """The commands that measured an evaluation of the main row, and the one that makes this page."""
    return [*(command for command in main[0].commands if f"--eval={evaluation}" in command), again]


def _passkey_sections(runs: Sequence[Run], main: Sequence[Run], context: int, again: str) -> list[Section]:
    sections = []
    commands = _commands(main, Passkey.name, again)
    curves = length_curves(runs, Passkey.name)
    if curves:
        figure = render.passkey(curves, context, beside_question.shares(runs))
        error = "The error of a mean is at least that of its prompts."
        text = f"Whole keys: all five digits right. {SEEDS} {beside_question.WORDS} {error}"
        whole = Section("Passkey accuracy against length", text, figure=figure, name="passkey", commands=commands)
        sections += _curves_sections(whole, curves, context)
    if any(cell["eval"] == Passkey.name and run.curve(cell) == run.label for run in main for cell in run.cells):
        sections.append(_depths_section(main, context, commands))
    return sections


def _perplexity_sections(runs: Sequence[Run], main: Sequence[Run], context: int, again: str) -> list[Section]:
    sections = []
    commands = _commands(main, Perplexity.name, again)
    lengths, positions = length_curves(runs, Perplexity.name), position_curves(runs)
    if lengths:
        figure = render.perplexity(lengths, context)
        text = f"""Held-out text in sequences of each length; exp of the mean loss over all their positions.
            {SEEDS} {GEOMETRIC}"""
        whole = Section("Perplexity against length", text, figure=figure, name="perplexity", commands=commands)
        sections += _curves_sections(whole, lengths, context)
        sections += _ratio_sections(lengths, main[0].label, context)
    if any(len(curve.lengths) > 1 for curve in positions.values()):
        figure = render.positions(positions, context)
        text = f"""The longest sequences of held-out text, in windows of positions as long as a training context; a
            column is the window that ends there. {SEEDS} {GEOMETRIC}"""
        whole = Section("Perplexity by position", text, figure=figure, name="positions", commands=commands)
        sections += _curves_sections(whole, positions, context)
    return sections


def _summary(description: Mapping[str, Any], runs: Sequence[Run], main: str, context: int) -> Section:
    """The best rows where they look furthest, the time that all took, and the runs that are missing."""
    cells = [cell for run in runs for cell in run.cells]
    training = sum(run.metrics["seconds"] for run in runs if run.metrics)
    measuring = sum(cell["seconds"] for cell in cells if "seconds" in cell)
    commits = ", ".join(sorted({str(cell["commit"]) for cell in cells if "commit" in cell}))
    text = f"""{len(runs)} models, {len(cells)} measurements, {(training + measuring) / 60:.0f} minutes of training and
        measuring, added up over processes; code: {commits or "–"}."""
    missing = [run.name for run in runs if not run.cells and len(run.commands) > 1]
    if missing:
        text += f" NOT THERE YET: {', '.join(missing)}; see `{description['folder']}/logs` and run this again."
    found = [
        *_findings(length_curves(runs, Passkey.name), main, context, "finds most keys", largest=True),
        *_findings(length_curves(runs, Perplexity.name), main, context, "has the lowest perplexity", largest=False),
    ]
    return Section("In short", text, items=found, commands=[description["command"]])


def _findings(curves: Curves, main: str, context: int, does: str, *, largest: bool) -> list[str]:
    """The best row and the next at the longest length that two rows have, and the main row where it alone goes further."""
    found = []
    said = lambda label, length: _in_words(curves[label], length)
    shared = [
        n for curve in curves.values() for n in curve.lengths if sum(bool(c.values(n)) for c in curves.values()) > 1
    ]
    if shared:
        length = max(shared)
        there = [label for label, curve in curves.items() if curve.values(length)]
        best, second, *others = sorted(there, key=lambda label: curves[label].middle(length), reverse=largest)
        value = lambda label: said(label, length).partition(" ")[0]
        alike = [second, *(label for label in others if value(label) == value(second))]
        where = f"At {render.times(length, context)} {best}"
        if said(best, length) == said(second, length):
            found.append(f"{where} and {second} are equal, {said(best, length)}, and no other is better.")
        else:
            few = min(len(curves[label].values(length)) for label in (best, second)) < 2
            then = describe_next(alike, value(second), f"{second}, {said(second, length)}", ONE_SEED if few else "")
            found.append(f"{where} {does}: {said(best, length)}; {then}.")
    if main in curves and (not shared or curves[main].lengths[-1] > max(shared)):
        far = curves[main].lengths[-1]
        found.append(f"At {render.times(far, context)}, which it alone was asked for, {main} has {said(main, far)}.")
    return found


def _in_words(curve: Curve, length: int) -> str:
    words = _estimate(curve, length)
    return with_interval(words.text, words.below) if isinstance(words, Estimated) else str(words)


def _expected_sections(claims: Sequence[Mapping[str, Any]], passkey: Curves, context: int) -> list[Section]:
    """The results that were expected beside what was measured; no section where nothing was."""
    rows: list[list[Words]] = []
    for bound in claims:
        label, length = bound["label"], bound["length"]
        curve = passkey[label] if label in passkey else Curve([], {})
        values = curve.values(length)
        met = "not measured"
        if values:
            met = "yes" if bound["least"] <= curve.middle(length) <= bound["most"] else "NO"
        every = " ".join(f"{value:.2f}" for value in values)
        what = f"{label} at {render.times(length, context)}"
        rows.append([what, met, _bounds(bound["least"], bound["most"]), _estimate(curve, length), every])
    table = Table(["passkey accuracy", "met", "should be", "mean", "every seed"], rows)
    return [Section("What was expected", table=table)] if rows else []


def _bounds(least: float, most: float) -> str:
    """Bounds of an accuracy in words, without one that every accuracy keeps."""
    below, above = f"at least {least:g}", f"at most {most:g}"
    if least > 0 and most < 1:
        return f"{below}, {above}"
    return below if least > 0 else above


def _curves_sections(section: Section, curves: Curves, context: int) -> list[Section]:
    """A section of curves with a table of their means, and one of every seed's values where curves have several.

    Args:
        section: all but the table and the figure in words.
        curves: drawn there.
        context: tokens seen in training.
    """
    lengths = _spaced(sorted({length for curve in curves.values() for length in curve.lengths}))
    head = [render.times(length, context) for length in lengths]
    means = [[label, *(_estimate(curve, length) for length in lengths)] for label, curve in curves.items()]
    ends = {label: (render.times(curve.lengths[-1], context), _number(curve.end)) for label, curve in curves.items()}
    shows = f"means over seeds, {describe_ends(ends)}."
    sections = [dataclasses.replace(section, shows=shows, table=Table(["", *head], means))]
    if any(len(curve.seeds) > 1 for curve in curves.values()):
        rows = []
        for label, curve in curves.items():
            for seed in curve.seeds:
                numbers = [_number(seed.values[length]) if length in seed.values else "–" for length in lengths]
                rows.append([label, f"{seed.seed}", *numbers])
        table = Table(["", "seed", *head], rows)
        sections.append(Section(f"{section.title}: every seed", table=table, folded=True))
    return sections


def _ratio_sections(curves: Curves, main: str, context: int) -> list[Section]:
    """The perplexities of other rows divided by the main row's of the same seed: what seeds have in common cancels."""
    if main not in curves:
        return []
    first = {seed.seed: seed.values for seed in curves[main].seeds}
    lengths = _spaced(curves[main].lengths)
    rows: list[list[Words]] = []
    for label in [label for label in curves if label != main]:
        cells: list[Words] = []
        for length in lengths:
            ratios = [
                seed.values[length] / first[seed.seed][length]
                for seed in curves[label].seeds
                if seed.seed in first and length in seed.values and length in first[seed.seed]
            ]
            cells.append(_ratio(ratios) if len(ratios) > 1 else "–")
        if any(cell != "–" for cell in cells):
            rows.append([label, *cells])
    text = f"""The perplexity of each row divided by that of {main} with the same seed: geometric means with 95% t intervals over
        the seeds that both have."""
    table = Table(["", *(render.times(length, context) for length in lengths)], rows)
    return [Section("Perplexity beside the first row's", text, table=table)] if rows else []


def _ratio(ratios: Sequence[float]) -> Words:
    """The geometric mean of a ratio over seeds, with its interval."""
    number = "{:.3f}".format
    interval = statistics.positive_interval(ratios)
    return Estimated(number(interval.middle), describe_interval(interval, len(ratios), number))


def _spaced(lengths: Sequence[int]) -> list[int]:
    """All lengths where they are few; else each at least twice the one before, and the last.

    >>> _spaced(range(64, 64 * 33, 64))
    [64, 128, 256, 512, 1024, 2048]
    """
    if len(lengths) <= COLUMNS:
        return list(lengths)
    kept = [lengths[0]]
    for length in lengths:
        kept += [length] if length >= 2 * kept[-1] else []
    return kept if kept[-1] == lengths[-1] else [*kept, lengths[-1]]


def _estimate(curve: Curve, length: int) -> Words:
    """The mean over seeds with its interval; a dash where no seed has the length."""
    values = curve.values(length)
    if not values:
        return "–"
    interval = curve.intervals[length] if length in curve.intervals else None
    return Estimated(_number(curve.middle(length)), describe_interval(interval, len(values), _number))


def _number(value: float) -> str:
    """An accuracy or a perplexity as it is printed."""
    if value < 100:
        return f"{value:.2f}"
    return f"{value:.0f}" if value < 1e5 else f"{value:.0e}"


def _depths_section(main: Sequence[Run], context: int, commands: list[str]) -> Section:
    """The main row's own curve, mean over its seeds."""
    cells: dict[tuple[int, float], list[Cell]] = defaultdict(list)
    for run in main:
        for cell in run.cells:
            if cell["eval"] == Passkey.name and run.curve(cell) == run.label:
                cells[cell["length"], cell["depth"]].append(cell)
    means = {place: results.mean(cells[place]) for place in sorted(cells)}
    finest = max((tuple(depth for each, depth in means if each == length) for length, _ in means), key=len)
    lengths = [length for length in sorted({n for n, _ in means}) if all((length, depth) in means for depth in finest)]
    rows = [[f"{depth:.2f}", *(_number(means[length, depth]) for length in lengths)] for depth in finest]
    longest = max(length for length, _ in means)
    end = _number(float(np.mean([value for (length, _), value in means.items() if length == longest])))
    return Section(
        "Passkey accuracy by length and depth",
        f"""{main[0].label}, mean over {len(main)} seed{"s" if len(main) > 1 else ""}. At depth 0 the key stands at the
        start, as far from the question as it can. The table has the lengths with keys at {len(finest)} depths. Intervals stand
        above, where all depths count together.""",
        figure=render.heat_map(means, context),
        name="depths",
        shows=f"{main[0].label}, mean over depths, {describe_ends({'': (render.times(longest, context), end)})}.",
        table=Table(["depth", *(render.times(length, context) for length in lengths)], rows),
        commands=commands,
    )


def _runs_section(runs: Sequence[Run], folder: Path) -> Section:
    rows = []
    for run in runs:
        made, metrics = run.config, run.metrics
        rates = [f"{made.optimizer.rate:g}", f"{made.optimizer.prior_rate:g}×"] if made else ["", ""]
        what = [made.encoding, made.ssmax] if made else ["", ""]
        last = [f"{metrics['loss']:.3f}", f"{metrics['seconds']:.0f}"] if metrics else ["", ""]
        rows.append([run.label, f"{run.seed}", *what, *rates, describe_training(run, folder / run.name), *last])
    head = ["", "seed", "encoding", "SSMax", "peak rate", "prior's rate", "steps", "last loss, nats", "training, s"]
    return Section("The runs", table=Table(head, rows), commands=[run.commands[0] for run in runs])
