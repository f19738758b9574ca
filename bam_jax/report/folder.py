"""The report of an experiment with a folder of its own: report.html, report.md and figures/, from the files of its runs."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax import render
from bam_jax.analysis import heads, trained
from bam_jax.experiments import results
from bam_jax.experiments.results import Cell, Run
from bam_jax.render import page, style
from bam_jax.render.curves import Curves
from bam_jax.render.learned import Heads
from bam_jax.render.page import Section, Table
from bam_jax.report.standing import state
from bam_jax.system import files
from bam_jax.system.errors import UserError

NEAR = 8
"""Tokens that count as near in the table of priors."""


def sections(manifest: Mapping[str, Any], runs: Sequence[Run], folder: Path) -> list[Section]:
    """The report's parts, in their order.

    Args:
        manifest: `experiment.json`.
        runs: all of the experiment, the main row's first.
        folder: where they stand.
    """
    contexts = [run.config.context for run in runs if run.config]
    context = contexts[0] if contexts else 1
    again = f"python -m bam_jax.report {shlex.quote(str(folder))}"
    main = [run for run in runs if run.label == runs[0].label]
    made = {name: [c for c in main[0].commands if f"--eval={name}" in c] for name in ("passkey", "perplexity")}
    passkey, perplexity = results.curves(runs, "passkey"), results.curves(runs, "perplexity")
    parts = [_short(manifest, runs, passkey, context)]
    if passkey:
        parts.append(
            Section(
                "Passkey accuracy against length",
                """Whole keys: all five digits right. Lines are means over training seeds; bands go from the
                worst seed to the best.""",
                figure=render.passkey(passkey, context),
                name="passkey",
                table=_lengths(passkey, context),
                commands=[*made["passkey"], again],
            )
        )
    if any(cell["eval"] == "passkey" and run.curve(cell) == run.label for run in main for cell in run.cells):
        parts.append(_depths(main, context, [*made["passkey"], again]))
    if perplexity:
        parts.append(
            Section(
                "Perplexity against length",
                "Held-out text in sequences of each length; exp of the mean loss over all their positions.",
                figure=render.perplexity(perplexity, context),
                name="perplexity",
                table=_lengths(perplexity, context),
                commands=[*made["perplexity"], again],
            )
        )
    positions = results.positions(runs)
    if any(len(seed.values) > 1 for seeds in positions.values() for seed in seeds):
        parts.append(
            Section(
                "Perplexity by position",
                """The longest sequences of held-out text, in windows of positions as long as a training context; a
                column is the window that ends there.""",
                figure=render.positions(positions, context),
                name="positions",
                table=_lengths(positions, context),
                commands=[*made["perplexity"], again],
            )
        )
    if main[0].heads is not None:
        parts.append(priors(main[0], main[0].heads, context, again))
        parts += [_heads(main[0], folder), _attention(main[0], folder)]
    if any(run.heads is not None for run in runs):
        parts.append(_scatter(runs, again))
    parts.append(_runs(runs, folder))
    if manifest["notes"]:
        parts.append(Section("What these numbers say, and what they do not", items=manifest["notes"]))
    return parts


def _short(manifest: Mapping[str, Any], runs: Sequence[Run], passkey: Curves, context: int) -> Section:
    """What was claimed beside what was measured, and what is missing."""
    rows = []
    for claim in manifest["claims"]:
        seeds = [seed for label, seeds in passkey.items() if label == claim["label"] for seed in seeds]
        values = [value for seed in seeds for length, value in seed.values.items() if length == claim["length"]]
        bound = f"at least {claim['least']:g}" if claim["least"] > 0 else f"at most {claim['most']:g}"
        met = "yes" if values and claim["least"] <= np.mean(values) <= claim["most"] else "NO"
        each = " ".join(f"{value:.2f}" for value in values)
        what = f"{claim['label']} at {render.times(claim['length'], context)}"
        rows.append([what, bound, _number(values), each, met if values else "not measured"])
    cells = [cell for run in runs for cell in run.cells]
    seconds = sum(run.metrics["seconds"] for run in runs if run.metrics) + sum(
        c["seconds"] for c in cells if "seconds" in c
    )
    commits = ", ".join(sorted({str(cell["commit"]) for cell in cells if "commit" in cell}))
    text = f"""{len(runs)} models, {len(cells)} measurements, {seconds / 60:.0f} minutes of training and
        measuring, added up over processes; code: {commits or "–"}."""
    missing = [run.name for run in runs if not run.cells and len(run.commands) > 1]
    if missing:
        text += f" NOT THERE YET: {', '.join(missing)}; see `{manifest['folder']}/logs` and run this again."
    table = Table(["passkey accuracy", "should be", "mean", "every seed", "met"], rows) if rows else None
    return Section("In short", text, table=table, commands=[manifest["command"]])


def _lengths(curves: Curves, context: int) -> Table:
    """A row for every seed of a curve, below their mean where there are several."""
    lengths = sorted({length for seeds in curves.values() for seed in seeds for length in seed.values})
    rows = []
    for label, seeds in curves.items():
        columns = [[seed.values[length] for seed in seeds if length in seed.values] for length in lengths]
        if len(seeds) > 1:
            rows.append([label, "mean", *map(_number, columns)])
        for seed in seeds:
            numbers = [_number([seed.values[length]] if length in seed.values else []) for length in lengths]
            rows.append([f" {label}" if len(seeds) > 1 else label, f"{seed.seed}", *numbers])
    return Table(["", "seed", *(render.times(length, context) for length in lengths)], rows)


def _number(values: Sequence[float]) -> str:
    """Their mean; a dash for none."""
    mean = float(np.mean(values)) if values else None
    return "–" if mean is None else f"{mean:.2f}" if mean < 100 else f"{mean:.0f}" if mean < 1e5 else f"{mean:.0e}"


def _depths(main: Sequence[Run], context: int, commands: list[str]) -> Section:
    """The main row's own curve, mean over its seeds."""
    cells: dict[tuple[int, float], list[Cell]] = defaultdict(list)
    for run in main:
        for cell in run.cells:
            if cell["eval"] == "passkey" and run.curve(cell) == run.label:
                cells[cell["length"], cell["depth"]].append(cell)
    means = {place: results.mean(cells[place]) for place in sorted(cells)}
    lengths, depths = sorted({length for length, _ in means}), sorted({depth for _, depth in means})
    rows = [[f"{d:.2f}", *(_number([means[n, d]]) if (n, d) in means else "" for n in lengths)] for d in depths]
    return Section(
        "Passkey accuracy by length and depth",
        f"""{main[0].label}, mean over {len(main)} seeds. At depth 0 the key stands at the start, as far from
        the question as it can.""",
        figure=render.heat_map(means, context),
        name="depths",
        table=Table(["depth", *(render.times(length, context) for length in lengths)], rows),
        commands=commands,
    )


def priors(run: Run, learned: Heads, context: int, command: str) -> Section:
    """Each head's prior, drawn and in numbers.

    Args:
        run: of a BAM model.
        learned: its priors.
        context: keys of the query.
        command: what makes this page.
    """
    weights = results.weights(learned, context)
    columns = learned.shape, learned.log_scale, weights[..., -NEAR:].sum(-1)
    rows = [
        [f"{layer}, {head}", *(f"{column[layer, head]:.2f}" for column in columns)]
        for layer, head in np.ndindex(learned.shape.shape)
    ]
    return Section(
        "Learned priors",
        f"""{run.label}, seed {run.seed}: each head's prior over the {context} positions that the last query
        of a training context sees, without SSMax's factor; dotted: the uniform prior. A negative shape
        suppresses what is near and leaves all that is far alone, at any length: a retrieval head. A positive
        one looks near: a local head.""",
        figure=render.priors(learned.shape, weights),
        name="priors",
        table=Table(["layer, head", "shape", "log scale", f"p of the nearest {NEAR}"], rows),
        commands=[command],
    )


def _heads(run: Run, folder: Path) -> Section:
    """What each head does, measured now; a sentence where that cannot be."""
    title, path = "What each head does", folder / run.name
    try:
        records = heads.measure(path, progress=False)
    except UserError as error:
        return Section(title, f"Not measured: {error}.")
    return Section(
        title,
        f"""{run.label}, seed {run.seed}. The class is the shape's. Then the distances in tokens within which the prior,
        with SSMax's factor where it has one, holds 50, 90 and 99% of its mass, for a query that sees so many keys: a
        local head reaches no further in a longer text, a retrieval head always reaches all of it. At last, in nats along
        {records[0]["tokens"]} tokens of held-out text: −ln Z of theorem 1, how far attention is from what the content
        alone would do, and how far from the prior.""",
        figure=trained.coupled(records),
        name="coupling",
        table=Table(*heads.table(records)),
        commands=[f"python -m bam_jax.heads --run={shlex.quote(str(path))}"],
    )


def _attention(run: Run, folder: Path) -> Section:
    """Attention in a passkey prompt, drawn now; a sentence where that cannot be."""
    title, path = "Attention in a passkey prompt", folder / run.name
    try:
        figure = trained.attention(path)
    except UserError as error:
        return Section(title, f"Not drawn: {error}.")
    return Section(
        title,
        f"""{run.label}, seed {run.seed}. The key stands at the start and is asked for by the last token. Of each class of
        heads the one is shown whose last query sees most of the key.""",
        figure=figure,
        name="attention",
        commands=[f"python -m bam_jax.figures attention --run={shlex.quote(str(path))}"],
    )


def _scatter(runs: Sequence[Run], command: str) -> Section:
    groups: dict[str, list[Heads]] = defaultdict(list)
    rows = []
    for run in runs:
        if run.heads is not None:
            groups[run.label].append(run.heads)
            for layer, pairs in enumerate(np.stack([run.heads.shape, run.heads.log_scale], -1)):
                numbers = [f"{shape:.2f}, {scale:.2f}" for shape, scale in pairs]
                rows.append([run.label, f"{run.seed}", f"{layer}", *numbers])
    most = max(len(row) for row in rows) - 3
    return Section(
        "Shape and log scale after training",
        "Every head of every BAM model. In the paper, heads below 0 retrieve and heads above 0 stay local.",
        figure=render.scatter(
            {label: Heads(*map(np.concatenate, zip(*g, strict=True))) for label, g in groups.items()}
        ),
        name="scatter",
        table=Table(["shape, log scale", "seed", "layer", *(f"head {head}" for head in range(most))], rows),
        commands=[command],
    )


def _runs(runs: Sequence[Run], folder: Path) -> Section:
    rows = []
    for run in runs:
        made, metrics = run.config, run.metrics
        rates = [f"{made.optimizer.rate:g}", f"{made.optimizer.prior_rate:g}×"] if made else ["", ""]
        what = [made.encoding, made.ssmax] if made else ["", ""]
        last = [f"{metrics['loss']:.3f}", f"{metrics['seconds']:.0f}"] if metrics else ["", ""]
        rows.append([run.label, f"{run.seed}", *what, *rates, state(run, folder / run.name), *last])
    head = ["", "seed", "encoding", "SSMax", "peak rate", "prior's", "steps", "last loss", "seconds"]
    return Section("The runs", table=Table(head, rows), commands=[run.commands[0] for run in runs])


def write(folder: Path) -> Path:
    """Writes the report into the experiment's folder.

    Args:
        folder: the sweep's --runs.

    Returns:
        the path of report.html.

    Raises:
        UserError: no experiment there, or a file that cannot be read.
    """
    manifest, runs = results.read(folder)
    parts = sections(manifest, runs, folder)
    (folder / "figures").mkdir(exist_ok=True)
    for part in parts:
        if part.figure:
            style.save(part.figure, folder / "figures" / part.name)
    files.write_atomically(folder / "report.md", page.to_markdown(manifest["title"], parts))
    files.write_atomically(folder / "report.html", page.to_html(manifest["title"], parts))
    return folder / "report.html"
