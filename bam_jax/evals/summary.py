"""The results of an evaluation, in a line for each task and length."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

from bam_jax.evals.base import Evaluation
from bam_jax.evals.records import Cell


def lines(run: str | os.PathLike, evaluation: Evaluation, records: Sequence[Cell]) -> Iterator[str]:
    """The mean of each task and length, and the lengths that were left out."""
    cells: dict[tuple[str, int], list[Cell]] = defaultdict(list)
    for record in records:
        for heading in evaluation.headings(record):
            cells[heading, record["length"]].append(record)
    for (heading, length), measured in sorted(cells.items()):
        n = sum(record["n"] for record in measured)
        value = evaluation.mean([record["value"] for record in measured], [*map(evaluation.weight, measured)])
        name = f"{heading} {measured[0]['unit']}".strip()
        yield f"{run}: {name} at {length} tokens: {value:.3f} ({n} {evaluation.sample_noun})"
    left_out = sorted({*evaluation.lengths} - {length for _, length in cells})
    if left_out:
        lengths = ", ".join(map(str, left_out))
        yield f"{run}: not measured: {lengths} tokens, {evaluation.why_left_out()}"
