"""What an evaluation found, in a line for each task and length."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bam_jax.evals.running import EVALS, names
from bam_jax.experiments import results


def lines(
    run: str | os.PathLike,
    name: str,
    lengths: Sequence[int],
    found: Sequence[Mapping[str, Any]],
    *,
    tasks: str | None,
    patience: int | None,
) -> Iterator[str]:
    """The mean at each length, and which lengths were left out.

    Args:
        run, name, lengths: as `evals.running.evaluate` was given them.
        found: what it returned.
        tasks, patience: its options, as far as they were given.
    """
    cells: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for record in found:
        for task in names(record, tasks):
            cells[task, record["length"]].append(dict(record))
    for (task, length), group in sorted(cells.items()):
        n = sum(cell["n"] for cell in group)
        what = f"{task} {group[0]['unit']}".strip()
        yield f"{run}: {what} at {length} tokens: {results.mean(group):.3f} ({n} {EVALS[name].SAMPLES})"
    left_out = sorted(set(lengths) - {length for _, length in cells})
    if left_out:
        why = f"after {patience} lengths without any" if patience else "for which every question is too long"
        yield f"{run}: not measured: {', '.join(map(str, left_out))} tokens, {why}"
