"""Curves over lengths and over positions, from what runs measured."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from bam_jax.evals.records import Cell
from bam_jax.evals.registry import kind_of
from bam_jax.experiments import results, statistics
from bam_jax.experiments.results import Run
from bam_jax.experiments.statistics import Kind
from bam_jax.render.curves import Curve, Curves, Seed


def length_curves(runs: Iterable[Run], evaluation: str) -> Curves:
    """The mean over the cells of each length, by label and seed.

    Args:
        runs: cells of the same label and seed count together.
        evaluation: the name of one that makes a curve, such as "passkey".
    """
    groups: dict[str, dict[int, dict[int, list[Cell]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    encodings = {}
    for run in runs:
        for cell in run.cells:
            if cell["eval"] == evaluation:
                groups[run.curve(cell)][run.seed][cell["length"]].append(cell)
                encodings[run.curve(cell)] = _encoding(run)
    kind = Kind[kind_of(evaluation).curve.upper()]
    curves = {}
    for label, seeds in groups.items():
        prompts = Counter[int]()
        for lengths in seeds.values():
            for length, cells in lengths.items():
                prompts[length] += sum(cell["n"] for cell in cells)
        means = [
            Seed(seed, {length: results.mean(lengths[length]) for length in sorted(lengths)})
            for seed, lengths in seeds.items()
        ]
        curves[label] = make_curve(kind, means, prompts, encodings[label])
    return curves


def _encoding(run: Run) -> str:
    """The name of a run's encoding; "" where its configuration is not there."""
    return run.config.encoding if run.config else ""


def make_curve(kind: Kind, seeds: Sequence[Seed], prompts: Counter[int], encoding: str = "") -> Curve:
    """A curve with the interval over seeds wherever two or more have a value.

    Args:
        kind: of the values.
        seeds: one at least.
        prompts: of all seeds together, by length; only accuracies need them.
        encoding: as of `Curve`.
    """
    alone = Curve(seeds, {})
    intervals = {length: statistics.interval(kind, alone.values(length), prompts[length]) for length in alone.lengths}
    return Curve(seeds, {length: ends for length, ends in intervals.items() if ends is not None}, encoding)


def position_curves(runs: Iterable[Run]) -> Curves:
    """The perplexity of each window of positions, by label and seed, at the greatest length that was measured.

    Args:
        runs: cells of a run with the same label count together.
    """
    curves: dict[str, list[Seed]] = defaultdict(list)
    encodings = {}
    for run in runs:
        groups: dict[str, list[Cell]] = defaultdict(list)
        for cell in run.cells:
            if kind_of(cell["eval"]).figure == "position":
                groups[run.curve(cell)].append(cell)
        for label, cells in groups.items():
            curves[label].append(Seed(run.seed, window_perplexities(cells)))
            encodings[label] = _encoding(run)
    return {label: make_curve(Kind.PERPLEXITY, seeds, Counter(), encodings[label]) for label, seeds in curves.items()}


def window_perplexities(cells: Sequence[Cell]) -> dict[int, float]:
    """The perplexity of each window of the longest sequences, by the position at which the window ends.

    The end stands for the window: a token there has nearly as many tokens before it.

    Args:
        cells: perplexities, at least one; of several window sizes at the greatest length the newest counts.
    """
    length = max(cell["length"] for cell in cells)
    longest = [cell for cell in cells if cell["length"] == length]
    window = longest[-1]["window"]
    longest = [cell for cell in longest if cell["window"] == window]
    # Perplexities are averaged as losses, each record weighing as many sequences as it has.
    losses = np.average([cell["windows"] for cell in longest], 0, [cell["n"] for cell in longest])
    ends = [min((number + 1) * window, length) for number in range(len(losses))]
    return dict(zip(ends, np.exp(losses).tolist(), strict=True))
