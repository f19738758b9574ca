"""The search for learning rates: every learner has equally many tries, and the best one is kept.

A learner is a method with the data that it learns from. Searches never use the seeds of verdicts.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.experiments import jobs, results, tables
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.sweep import Sweep
from bam_jax.system import errors, files, jsonl
from bam_jax.system.errors import UserError

RULE = (
    "the highest accuracy at the training context if keys are planted or symbols asked, then the lowest perplexity "
    "or contrastive loss there; the worst seed counts"
)
SCORES = {
    "passkey": ("accuracy", min),
    "synthetic": ("accuracy", min),
    "perplexity": ("perplexity", max),
    "masked_perplexity": ("perplexity", max),
    "contrastive": ("loss", max),
}
"""The score that an evaluation gives, and the worse one of two."""

Rates = Mapping[str, float]
"""Overrides of the configuration."""


def label_of(learner: str, number: int) -> str:
    """The label of a row that tries a learner.

    >>> label_of("ALiBi, text", 2)
    'ALiBi, text, try 2'
    """
    return f"{learner}, try {number}"


def try_rows(tries: Mapping[str, Sequence[Rates]], make: Callable[[str, Rates], Row], **fields: Any) -> list[Row]:
    """A row for each learner with each of its tries."""
    return [
        dataclasses.replace(make(learner, rates), label=label_of(learner, number), **fields)
        for learner, tried in tries.items()
        for number, rates in enumerate(tried)
    ]


def best(scores: Sequence[Mapping[str, float]], enough: float = 1.0, floor: float = 0.0) -> int:
    """The number of the best try: the highest accuracy, then the lowest loss, then the first.

    Accuracies of at least `enough` are equal, and so are those of at most `floor`.

    >>> best([{"accuracy": 1.0, "perplexity": 5.0}, {"accuracy": 1.0, "perplexity": 4.0}, {"accuracy": 0.9, "perplexity": 3.0}])
    1
    """

    def rank(score: Mapping[str, float]) -> tuple[float, ...]:
        losses = [score[name] for name in ("perplexity", "loss") if name in score]
        accuracy = min(score.get("accuracy", 0.0), enough)
        return (-accuracy if accuracy > floor else 0.0, *losses)

    return min(range(len(scores)), key=lambda number: rank(scores[number]))


def worst_scores(made: Experiment, folder: Path) -> dict[str, dict[str, float]]:
    """The scores of each row of a finished search in its worst seed, by label."""
    found: dict[str, dict[str, float]] = {}
    read = tables.results_reader(folder, made.records)
    for job in jobs.row_jobs(made):
        cells = read(job).cells
        for name, (score, worse) in SCORES.items():
            mine = [cell for cell in cells if cell["eval"] == name]
            if mine:
                values = found.setdefault(job.row.label, {})
                value = round(results.mean(mine), 4)
                values[score] = worse(values[score], value) if score in values else value
    return found


def search(
    path: Path,
    tries: Mapping[str, Sequence[Rates]],
    folder: Path,
    out: Path,
    *,
    records: str = "",
    enough: float = 1.0,
    floor: float = 0.0,
) -> dict[str, Any]:
    """Do what is missing of a search, and write which rates each learner gets."""
    # Records contain the command, with file names relative to the clone.
    sweep = Sweep.load([os.path.relpath(path)], runs=folder, records=os.path.relpath(records) if records else "")
    if sweep.run():
        raise UserError(f"the search is not complete; see {folder / 'logs'}, then run the same command again")
    scores = worst_scores(sweep.experiments[0], folder)
    found, rates = {}, {}
    for learner, tried in tries.items():
        mine = [scores[label_of(learner, number)] for number in range(len(tried))]
        found[learner] = [{**rates, **score} for rates, score in zip(tried, mine, strict=True)]
        rates[learner] = dict(tried[best(mine, enough, floor)])
    rule = RULE if enough == 1.0 else f"{RULE}; an accuracy of {enough:g} is as good as any greater"
    rule += f"; an accuracy of {floor:g} is as bad as any smaller" if floor else ""
    result = {"command": f"python experiments/{path.name}", "rule": rule, "found": found, "rates": rates}
    files.write_atomically(out, jsonl.by_lines(result))
    return result


def main(file: str, out: Path, *stages: Mapping[str, Sequence[Rates]], enough: float = 1.0, floor: float = 0.0) -> None:
    """The command line of a search: do what is missing, and write the file of rates."""
    path = Path(file)

    def run(argv: Sequence[str]) -> None:
        parser = errors.Parser(prog=f"python experiments/{path.name}", description="Search for learning rates.")
        default = Path("runs") / path.stem
        parser.add_argument("--runs", type=files.local_path, default=default, help=f"folder of the runs ({default})")
        folder, records = parser.parse_args(argv).runs, path.with_name("records") / path.stem
        for tries in stages:
            result = search(path, tries, folder, out, records=str(records), enough=enough, floor=floor)
            print(f"wrote {out}: {result['rates']}")

    errors.run(run)
