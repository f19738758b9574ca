"""Sections of the pages on what a BAM model has learned: its priors, what its heads do, and what they attend to."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.analysis import figures, heads
from bam_jax.analysis.priors import prior_weights
from bam_jax.experiments.results import Run
from bam_jax.render.learned import Heads
from bam_jax.render.page import Section, Table
from bam_jax.system.errors import UserError

NEAR = 8
"""Tokens that count as near in the table of priors."""


def priors_section(run: Run, learned: Heads, context: int, command: str) -> Section:
    """Each head's prior, drawn and in numbers.

    Args:
        run: of a BAM model.
        learned: its priors.
        context: keys of the query.
        command: what makes this page.
    """
    weights = prior_weights(learned, context)
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
        shows=f"of {run.label}, seed {run.seed}, {_count_negative([learned])} a shape below 0.",
        table=Table(["layer, head", "shape", "log scale", f"p of the nearest {NEAR}"], rows),
        commands=[command],
    )


def heads_section(run: Run, folder: Path) -> Section:
    """The reach and the coupling of each head, measured now; a sentence where that cannot be.

    Args:
        run: of a BAM model.
        folder: where it stands.
    """
    title, path = "What each head does", folder / run.name
    if run.heads is not None:
        return Section(title, f"Not measured: {_weights_missing(run)}")
    try:
        records = heads.measure(path, progress=False)
    except UserError as error:
        return Section(title, f"Not measured: {error}.")
    counts = Counter(record["class"] for record in records)
    classes = ", ".join(f"{count} {name}" for name, count in counts.items())
    return Section(
        title,
        f"""{run.label}, seed {run.seed}. The class is the shape's. Then the distances in tokens within which the prior,
        with SSMax's factor where it has one, holds 50, 90 and 99% of its mass, for a query that sees so many keys: a
        local head reaches no further in a longer text, a retrieval head always reaches all of it. At last, in nats along
        {records[0]["tokens"]} tokens of held-out text: −ln Z of theorem 1, how far attention is from what the content
        alone would do, and how far from the prior.""",
        figure=figures.draw_records(records),
        shows=f"along a text, a curve for each head of {run.label}, seed {run.seed}: {classes}.",
        name="coupling",
        table=Table(*heads.heads_table(records)),
        commands=[f"python -m bam_jax.heads --run={shlex.quote(str(path))}"],
    )


def attention_section(run: Run, folder: Path) -> Section:
    """Attention in a passkey prompt, drawn now; a sentence where that cannot be.

    Args:
        run: of a BAM model.
        folder: where it stands.
    """
    title, path = "Attention in a passkey prompt", folder / run.name
    if run.heads is not None:
        return Section(title, f"Not drawn: {_weights_missing(run)}")
    try:
        figure = figures.draw_attention(path)
    except UserError as error:
        return Section(title, f"Not drawn: {error}.")
    return Section(
        title,
        f"""{run.label}, seed {run.seed}. The key stands at the start and is asked for by the last token. Of each class of
        heads the one is shown whose last query sees most of the key.""",
        figure=figure,
        shows="a map of all queries and keys for each head, and below it the last query's weights, the passkey marked.",
        name="attention",
        commands=[f"python -m bam_jax.figures attention --run={shlex.quote(str(path))}"],
    )


def scatter_section(known: Sequence[tuple[Run, Heads]], command: str) -> Section:
    """Shape and log scale of every head, drawn by label and in numbers by run and layer.

    Args:
        known: runs of BAM models with their priors, at least one.
        command: what makes the page.
    """
    groups: dict[str, list[Heads]] = defaultdict(list)
    rows = []
    for run, learned in known:
        groups[run.label].append(learned)
        for layer, pairs in enumerate(np.stack([learned.shape, learned.log_scale], -1)):
            numbers = [f"{shape:.2f}, {scale:.2f}" for shape, scale in pairs]
            rows.append([run.label, f"{run.seed}", f"{layer}", *numbers])
    most = max(len(row) for row in rows) - 3
    joined = {label: Heads(*map(np.concatenate, zip(*several, strict=True))) for label, several in groups.items()}
    return Section(
        "Shape and log scale after training",
        "Every head of every BAM model. In the paper, heads below 0 retrieve and heads above 0 stay local.",
        figure=render.scatter(joined, {run.label: run.config.encoding if run.config else "" for run, _ in known}),
        name="scatter",
        shows="; ".join(f"of {label} {_count_negative(several)} a shape below 0" for label, several in groups.items())
        + ".",
        table=Table(["shape, log scale", "seed", "layer", *(f"head {head}" for head in range(most))], rows),
        commands=[command],
    )


def _count_negative(models: Sequence[Heads]) -> str:
    """The number of heads that look far, and of all, with a verb."""
    shapes = np.concatenate([np.ravel(learned.shape) for learned in models])
    return f"{np.sum(shapes < 0)} of {shapes.size} heads have"


def _weights_missing(run: Run) -> str:
    """The reason why a run that is only recorded has no more sections, with the command that trains it again."""
    return f"{run.name} is recorded, its weights are not here; `{run.commands[0]}` trains it again."
