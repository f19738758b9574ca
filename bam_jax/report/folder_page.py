"""The page of an experiment with its own folder: report.html, report.md and figures/, from the files of its runs."""

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
from bam_jax.render import style
from bam_jax.render.curves import FEW, Curve, Curves
from bam_jax.render.learned import Heads
from bam_jax.render.maps import Grid
from bam_jax.report import page
from bam_jax.report.figures import describe_grids, length_curves, passkey_floors, position_curves
from bam_jax.report.format import describe_ends, describe_interval, with_interval
from bam_jax.report.learned import attention_section, find_run_priors, heads_section, priors_section, scatter_section
from bam_jax.report.page import Estimated, Section, Skipped, Table, Words
from bam_jax.report.run_page import describe_training
from bam_jax.system import files, regular

SEEDS = f"""Lines are means over training seeds, bands their 95% t intervals; thin lines are the seeds, where there are no more
than {FEW}. The vertical line is the training context. {style.COLOUR_KEY}"""
GEOMETRIC = "Means of perplexities are geometric."
COLUMNS = 12  # largest number of lengths in a table; the figure has all


def write(folder: Path) -> Path:
    """Writes the report of a sweep's folder without unreadable runs, and returns the path of report.html."""
    style.library()  # fail before anything is written
    skipped, priors = Skipped(), {}
    description, runs = results.read_sweep(folder, skipped.reading)
    for run in runs:
        with skipped.reading(f"the priors of {run.name}"):
            if run.config and (found := find_run_priors(run, folder)):
                priors[run.name] = found
    sections = [*skipped.sections(), *page_sections(description, runs, folder, priors)]
    regular.check_folder(folder / "figures")
    (folder / "figures").mkdir(exist_ok=True)
    for section in sections:
        if section.figure:
            style.save_both(section.figure, folder / "figures" / section.name)
    files.write_atomically(folder / "report.md", page.to_markdown(description["title"], sections))
    files.write_atomically(folder / "report.html", page.to_html(description["title"], sections))
    skipped.log()
    return folder / "report.html"


def page_sections(
    description: Mapping[str, Any], runs: Sequence[Run], folder: Path, priors: Mapping[str, Heads]
) -> list[Section]:
    contexts = [run.config.context for run in runs if run.config]
    context = contexts[0] if contexts else 1
    again = f"python -m bam_jax.report {shlex.quote(str(folder))}"
    main = [run for run in runs if run.label == runs[0].label]
    asked = lambda name: [*(command for command in main[0].commands if f"--eval={name}" in command), again]
    keys, text = length_curves(runs, Passkey.name), length_curves(runs, Perplexity.name)
    positions = position_curves(runs)
    sections = [_summary(description, runs, keys, text, context)]
    if description["claims"]:
        sections.append(_expected_section(description["claims"], keys, context))
    if description["notes"]:
        sections.append(Section("What these numbers say, and what they do not", items=description["notes"]))
    if keys:
        words = f"""Whole keys: all five digits right. {SEEDS} Dotted: the keys that stand beside their question, which a model
            that sees a few tokens back finds. The error of a mean is at least that of its prompts."""
        figure, commands = render.passkey(keys, context, passkey_floors(runs)), asked(Passkey.name)
        section = Section("Passkey accuracy against length", words, figure=figure, name="passkey", commands=commands)
        sections += curves_sections(section, keys, context)
        sections += _depths_sections(main, context, commands)
    if text:
        words = f"""Held-out text in sequences of each length; exp of the mean loss over all their positions. {SEEDS}
            {GEOMETRIC}"""
        figure, commands = render.perplexity(text, context), asked(Perplexity.name)
        section = Section("Perplexity against length", words, figure=figure, name="perplexity", commands=commands)
        sections += [*curves_sections(section, text, context), *_ratio_sections(text, main[0].label, context)]
    if any(len(curve.lengths) > 1 for curve in positions.values()):
        words = f"""The longest sequences of held-out text, in windows of positions as long as a training context; a column is
            the window that ends there. {SEEDS} {GEOMETRIC}"""
        figure, commands = render.positions(positions, context), asked(Perplexity.name)
        section = Section("Perplexity by position", words, figure=figure, name="positions", commands=commands)
        sections += curves_sections(section, positions, context)
    if main[0].name in priors:
        sections.append(priors_section(main[0], priors[main[0].name], context, again))
        sections += [heads_section(main[0], folder), attention_section(main[0], folder)]
    if known := [(run, priors[run.name]) for run in runs if run.name in priors]:
        sections.append(scatter_section(known, again))
    return [*sections, _runs_section(runs, folder)]


def _summary(description: Mapping[str, Any], runs: Sequence[Run], keys: Curves, text: Curves, context: int) -> Section:
    cells = [cell for run in runs for cell in run.cells]
    training = sum(run.metrics["seconds"] for run in runs if run.metrics)
    measuring = sum(cell["seconds"] for cell in cells if "seconds" in cell)
    commits = ", ".join(sorted({str(cell["commit"]) for cell in cells if "commit" in cell}))
    words = f"""{len(runs)} models, {len(cells)} measurements, {(training + measuring) / 60:.0f} minutes of training and
        measuring, added up over processes; code: {commits or "–"}."""
    missing = [run.name for run in runs if not run.cells and len(run.commands) > 1]
    if missing:
        words += f" NOT THERE YET: {', '.join(missing)}; see `{description['folder']}/logs` and run this again."
    found = _best_rows("Passkey accuracy", keys, runs[0].label, context, largest=True)
    found += _best_rows("Perplexity", text, runs[0].label, context, largest=False)
    return Section("In short", words, items=found, commands=[description["command"]])


def _best_rows(name: str, curves: Curves, main: str, context: int, *, largest: bool) -> list[str]:
    """The three best rows at the longest length of two rows or more, and the main row at a longer one."""
    found: list[str] = []
    values = lambda label, length: f"{label} {_in_words(curves[label], length)}"
    rows = {n: [label for label in curves if curves[label].values(n)] for each in curves.values() for n in each.lengths}
    shared = max((length for length, labels in rows.items() if len(labels) > 1), default=0)
    if shared:
        best = sorted(rows[shared], key=lambda label: curves[label].middle(shared), reverse=largest)[:3]
        ranked = "; ".join(values(label, shared) for label in best)
        found.append(f"{name} at {render.times(shared, context)}, best first: {ranked}.")
    if main in curves and curves[main].lengths[-1] > shared:
        far = curves[main].lengths[-1]
        found.append(f"{name} at {render.times(far, context)}, asked of one row only: {values(main, far)}.")
    return found


def _expected_section(claims: Sequence[Mapping[str, Any]], keys: Curves, context: int) -> Section:
    rows: list[list[Words]] = []
    for bound in claims:
        label, length, least, most = (bound[name] for name in ("label", "length", "least", "most"))
        curve = keys.get(label, Curve({}, {}))
        values = curve.values(length)
        met = "not measured"
        if values:
            met = "yes" if least <= curve.middle(length) <= most else "NO"
        # Omit bounds that every accuracy satisfies.
        bounds = [f"at least {least:g}"] if least > 0 else []
        bounds += [f"at most {most:g}"] if most < 1 or least <= 0 else []
        every = " ".join(f"{value:.2f}" for value in values)
        what = f"{label} at {render.times(length, context)}"
        rows.append([what, met, ", ".join(bounds), _estimate(curve, length), every])
    head = ["passkey accuracy", "met", "should be", "mean", "every seed"]
    return Section("What was expected", table=Table(head, rows))


def curves_sections(section: Section, curves: Curves, context: int) -> list[Section]:
    """A section of curves with a table of means, and one of every seed's values if there are several."""
    lengths = _spaced(sorted({length for curve in curves.values() for length in curve.lengths}))
    head = [render.times(length, context) for length in lengths]
    means = [[label, *(_estimate(curve, length) for length in lengths)] for label, curve in curves.items()]
    ends = {label: (render.times(curve.lengths[-1], context), _number(curve.end)) for label, curve in curves.items()}
    shows = f"means over seeds, {describe_ends(ends)}."
    sections = [dataclasses.replace(section, shows=shows, table=Table(["", *head], means))]
    if any(len(curve.seeds) > 1 for curve in curves.values()):
        rows = [
            [label, f"{seed}", *(_number(values[length]) if length in values else "–" for length in lengths)]
            for label, curve in curves.items()
            for seed, values in curve.seeds.items()
        ]
        sections.append(Section(f"{section.title}: every seed", table=Table(["", "seed", *head], rows), folded=True))
    return sections


def _ratio_sections(curves: Curves, main: str, context: int) -> list[Section]:
    """The perplexities of other rows divided by the main row's with the same seed, which cancels the effect of the seed."""
    if main not in curves:
        return []
    first, lengths = curves[main].seeds, _spaced(curves[main].lengths)
    rows: list[list[Words]] = []
    for label, curve in curves.items():
        cells: list[Words] = []
        for length in lengths:
            both = [s for s in curve.seeds if s in first and length in curve.seeds[s] and length in first[s]]
            ratios = [curve.seeds[seed][length] / first[seed][length] for seed in both]
            interval = statistics.positive_interval(ratios) if len(ratios) > 1 else None
            show = "{:.3f}".format
            cells.append(
                Estimated(show(interval.middle), describe_interval(interval, len(ratios), show)) if interval else "–"
            )
        if label != main and any(cell != "–" for cell in cells):
            rows.append([label, *cells])
    text = f"""The perplexity of each row divided by that of {main} with the same seed: geometric means with 95% t intervals over
        the seeds that both have."""
    table = Table(["", *(render.times(length, context) for length in lengths)], rows)
    return [Section("Perplexity beside the first row's", text, table=table)] if rows else []


def _spaced(lengths: Sequence[int]) -> list[int]:
    """All lengths if there are few; otherwise lengths that are at least twice the previous one, and the last.

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
    values = curve.values(length)
    if not values:
        return "–"
    interval = describe_interval(curve.intervals.get(length), len(values), _number)
    return Estimated(_number(curve.middle(length)), interval)


def _in_words(curve: Curve, length: int) -> str:
    words = _estimate(curve, length)
    return with_interval(words.text, words.below) if isinstance(words, Estimated) else str(words)


def _number(value: float) -> str:
    if value < 100:
        return f"{value:.2f}"
    return f"{value:.0f}" if value < 1e5 else f"{value:.0e}"


def _depths_sections(main: Sequence[Run], context: int, commands: list[str]) -> list[Section]:
    """The main row's accuracies by depth and length, averaged over its seeds."""
    cells: dict[int, dict[float, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for run in main:
        for cell in run.cells:
            if cell["eval"] == Passkey.name and run.curve(cell) == run.label:
                cells[cell["length"]][cell["depth"]].append(cell)
    if not cells:
        return []
    means = {n: {depth: results.mean(cells[n][depth]) for depth in sorted(cells[n])} for n in sorted(cells)}
    depths = [f"{depth:.2f}" for depth in max(means.values(), key=len)]
    names = [render.times(length, context) for length in means]
    # A length with fewer depths has taller cells.
    columns = [
        [[*column.values()][at * len(column) // len(depths)] for at in range(len(depths))] for column in means.values()
    ]
    panel = {main[0].label: Grid(depths, names, np.array(columns).T)}
    rows = [[depth, *map(_number, values)] for depth, *values in zip(depths, *columns, strict=True)]
    text = f"""{main[0].label}, mean over {len(main)} seed{"s" if len(main) > 1 else ""}. At depth 0 the key is at the start, as
        far from the question as it can be. A value of a length with fewer depths fills several rows. Intervals are above, where
        all depths count together."""
    title, table = "Passkey accuracy by length and depth", Table(["depth", *names], rows)
    figure = render.grids(panel, down="depth of the passkey", across="length in training contexts")
    shows = describe_grids(panel, "depth")
    return [Section(title, text, figure=figure, name="depths", shows=shows, table=table, commands=commands)]


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
