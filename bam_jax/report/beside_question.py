"""Passkeys that stand beside their question: a model that sees a few tokens back finds these, whatever its prior."""

from collections import defaultdict
from collections.abc import Iterable

from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.results import Run

WORDS = "Dotted: the keys that stand beside their question, which a model that sees a few tokens back finds."
"""The words for their line in a figure."""


def share(depths: int) -> float:
    """The share of keys that stand beside their question."""
    return 1 / depths if depths > 1 else 0.0


def shares(runs: Iterable[Run]) -> dict[int, float]:
    """The share by length in tokens; the largest, where runs have other depths."""
    depths: dict[int, dict[str, set[float | None]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        for cell in run.cells:
            if cell["eval"] == Passkey.name:
                depths[cell["length"]][run.name].add(cell["depth"])
    return {length: max(share(len(each)) for each in found.values()) for length, found in sorted(depths.items())}
