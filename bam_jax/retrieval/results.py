"""A ranking as a TREC run file, and its measures as a table."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bam_jax.retrieval.metrics import TITLES, Measures, bootstrap_interval, measure
from bam_jax.retrieval.problem import Problem
from bam_jax.retrieval.search import Best
from bam_jax.system import files


class Setting(NamedTuple):
    """The maker of a ranking: a name in `ranking.SCORERS`, and the tokens at which texts were cut."""

    scorer: str
    length: int


def measure_rankings(problem: Problem, best: Best) -> Measures:
    """The measures of each query of a problem."""
    ranked = [best.names(number) for number in range(len(problem.queries))]
    return measure(ranked, [query.grades for query in problem.queries])


def write_run(path: Path, problem: Problem, best: Best, tag: str) -> None:
    """Writes rankings as trec_eval reads them: query, Q0, document, rank, score, tag.

    The score has nine digits, so that it is the same float32 once more, ties included.
    """
    lines = [
        f"{query.id} Q0 {name} {rank} {score:.9g} {tag}\n"
        for number, query in enumerate(problem.queries)
        for rank, (name, score) in enumerate(best.ranking(number), 1)
    ]
    files.write_atomically(path, "".join(lines))


def summarise(measures: Measures) -> dict[str, dict[str, float]]:
    """The mean of each measure over the queries, with the ends of its bootstrap interval, as JSON has it."""
    summary = {}
    for name, values in measures._asdict().items():
        low, high = bootstrap_interval(values)
        summary[name] = {"mean": float(values.mean()), "low": low, "high": high}
    return summary


def table(found: Mapping[Setting, Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a table in Markdown: a row for each length and scorer."""
    yield f"| tokens | ranked by | {' | '.join(TITLES.values())} |"
    yield f"|{' --- |' * (2 + len(TITLES))}"
    for setting, summary in sorted(found.items(), key=lambda item: (item[0].length, item[0].scorer)):
        cells = [
            f"{cell['mean']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]" for cell in map(summary.__getitem__, TITLES)
        ]
        yield f"| {setting.length} | {setting.scorer} | {' | '.join(cells)} |"
