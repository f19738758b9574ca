"""The learned priors of BAM models, from weights or records, and sections on priors, heads and attention."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.analysis import figures, heads
from bam_jax.experiments import recorded_runs
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Run
from bam_jax.render.learned import Heads
from bam_jax.report.page import Section, Table
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder

NEAR = 8  # nearest tokens in the table of priors


def find_run_priors(run: Run, folder: Path) -> Heads | None:
    """The priors of a run in a folder; None for another encoding or without a checkpoint."""
    if run.heads is not None:
        return as_heads(run.heads)
    path = folder / run.name
    if run.config is None or run.config.encoding != "bam" or not run_folder.latest_step(path):
        return None
    return figures.learned_priors(path)


def find_job_priors(job: Job, folder: Path, file: Path | None) -> Heads | None:
    """The priors of a BAM job, from its run or a file of records; None if it is not trained."""
    if run_folder.latest_step(folder / job.name) == job.config.steps:
        return figures.learned_priors(folder / job.name)
    recorded = recorded_runs.find(file, job.digest)
    return as_heads(recorded.heads) if recorded else None


def as_heads(recorded: Mapping[str, np.ndarray]) -> Heads | None:
    """Recorded parameters [layers, heads] as priors; None if they are another encoding's, or their shapes differ."""
    if not {*Heads._fields} <= recorded.keys():
        return None
    heads = Heads(**{name: recorded[name] for name in Heads._fields})
    return heads if len({values.shape for values in heads}) == 1 else None


def priors_section(run: Run, learned: Heads, context: int, command: str) -> Section:
    """Each head's prior for a query with `context` keys, drawn and in numbers."""
    weights = figures.prior_weights(learned, context)
    columns = learned.shape, learned.log_scale, weights[..., -NEAR:].sum(-1)
    rows = [
        [f"{layer}, {head}", *(f"{column[layer, head]:.2f}" for column in columns)]
        for layer, head in np.ndindex(learned.shape.shape)
    ]
    return Section(
        "Learned priors",
        f"""{run.label}, seed {run.seed}: each head's prior over the {context} positions that the last query of a training
        context sees, without SSMax's factor; dotted: the uniform prior. A head with a negative shape suppresses near
        positions and weighs all far ones alike, at any length: a retrieval head. A positive shape makes a local head.""",
        figure=render.priors(learned.shape, weights),
        name="priors",
        shows=f"of {run.label}, seed {run.seed}, {_count_negative([learned])} a shape below 0.",
        table=Table(["layer, head", "shape", "log scale", f"p of the nearest {NEAR}"], rows),
        commands=[command],
    )


def heads_section(run: Run, folder: Path) -> Section:
    """The reach and coupling of each head, measured now, or the reason why that is impossible."""
    title, path = "What each head does", folder / run.name
    try:
        records = heads.measure(_weights(run, path), progress=False)
    except UserError as error:
        return Section(title, f"Not measured: {error}.")
    counts = Counter(record["class"] for record in records)
    classes = ", ".join(f"{count} {name}" for name, count in counts.items())
    return Section(
        title,
        f"""{run.label}, seed {run.seed}. The class follows from the shape. The next columns are the distances in tokens
        within which the prior, with SSMax's factor where it has one, holds 50, 90 and 99% of its mass, for a query with
        that many keys. A local head reaches no further in a longer text; a retrieval head always reaches all of it. The
        last columns are in nats along {records[0]["tokens"]} tokens of held-out text: −ln Z of theorem 1, and how far
        attention is from what content alone would give, and from the prior.""",
        figure=figures.draw_records(records),
        shows=f"along a text, a curve for each head of {run.label}, seed {run.seed}: {classes}.",
        name="coupling",
        table=Table(*heads.heads_table(records)),
        commands=[f"python -m bam_jax.heads --run={shlex.quote(str(path))}"],
    )


def attention_section(run: Run, folder: Path) -> Section:
    """Attention in a passkey prompt, drawn now, or the reason why that is impossible."""
    title, path = "Attention in a passkey prompt", folder / run.name
    try:
        figure = figures.draw_attention(_weights(run, path))
    except UserError as error:
        return Section(title, f"Not drawn: {error}.")
    return Section(
        title,
        f"""{run.label}, seed {run.seed}. The key is at the start, and the last token asks for it. Of each class of heads,
        the one whose last query attends most to the key.""",
        figure=figure,
        shows="a map of all queries and keys for each head, and below it the last query's weights, the passkey marked.",
        name="attention",
        commands=[f"python -m bam_jax.figures attention --run={shlex.quote(str(path))}"],
    )


def _weights(run: Run, path: Path) -> Path:
    """The folder of a run; UserError if the run is only recorded."""
    if run.heads is not None:
        raise UserError(f"{run.name} is recorded, its weights are not here; `{run.commands[0]}` trains it again")
    return path


def scatter_section(known: Sequence[tuple[Run, Heads]], command: str) -> Section:
    """Shape and log scale of every head, drawn by label and in numbers by run and layer."""
    groups: dict[str, list[Heads]] = defaultdict(list)
    rows = []
    for run, learned in known:
        groups[run.label].append(learned)
        for layer, pairs in enumerate(np.stack([learned.shape, learned.log_scale], -1)):
            numbers = [f"{shape:.2f}, {scale:.2f}" for shape, scale in pairs]
            rows.append([run.label, f"{run.seed}", f"{layer}", *numbers])
    most = max(len(row) for row in rows) - 3
    joined = {label: Heads(*map(np.concatenate, zip(*several, strict=True))) for label, several in groups.items()}
    counts = "; ".join(f"of {label} {_count_negative(several)} a shape below 0" for label, several in groups.items())
    return Section(
        "Shape and log scale after training",
        "Every head of every BAM model. In the paper, heads below 0 retrieve and heads above 0 stay local.",
        figure=render.scatter(joined, {run.label: run.config.encoding if run.config else "" for run, _ in known}),
        name="scatter",
        shows=f"{counts}.",
        table=Table(["shape, log scale", "seed", "layer", *(f"head {head}" for head in range(most))], rows),
        commands=[command],
    )


def _count_negative(models: Sequence[Heads]) -> str:
    shapes = np.concatenate([np.ravel(learned.shape) for learned in models])
    return f"{np.sum(shapes < 0)} of {shapes.size} heads have"
