"""Curves over lengths and over positions, from what runs measured."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bam_jax.evals.records import Cell
from bam_jax.evals.registry import kind_of
from bam_jax.experiments import results, statistics
from bam_jax.experiments.results import Run
from bam_jax.experiments.statistics import Kind
from bam_jax.render.curves import Curve, Curves


def length_curves(runs: Iterable[Run], evaluation: str) -> Curves:
    """The mean over an evaluation's cells at each length; cells of the same label and seed count together."""
    kind, curves = Kind[kind_of(evaluation).curve.upper()], {}
    for (label, encoding), seeds in _by_label(runs, lambda cell: cell["eval"] == evaluation).items():
        values, prompts = {}, Counter[int]()
        for seed, cells in seeds.items():
            lengths = defaultdict(list)
            for cell in cells:
                lengths[cell["length"]].append(cell)
                prompts[cell["length"]] += cell["n"]
            values[seed] = {length: results.mean(lengths[length]) for length in sorted(lengths)}
        curves[label] = make_curve(kind, values, prompts, encoding)
    return curves


def position_curves(runs: Iterable[Run]) -> Curves:
    """The perplexity of each window of positions, by label and seed, at the greatest length that was measured."""
    curves = {}
    for (label, encoding), seeds in _by_label(runs, lambda cell: kind_of(cell["eval"]).figure == "position").items():
        values = {seed: window_perplexities(cells) for seed, cells in seeds.items()}
        curves[label] = make_curve(Kind.PERPLEXITY, values, Counter(), encoding)
    return curves


def _by_label(runs: Iterable[Run], chosen: Callable[[Cell], bool]) -> dict[tuple[str, str], dict[int, list[Cell]]]:
    """The chosen cells of runs by label and encoding, and by seed."""
    found: dict[tuple[str, str], dict[int, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    encodings: dict[str, str] = {}
    for run in runs:
        for cell in filter(chosen, run.cells):
            label = run.curve(cell)
            encoding = encodings.setdefault(label, run.config.encoding if run.config else "")
            found[label, encoding][run.seed].append(cell)
    return found


def make_curve(
    kind: Kind, seeds: Mapping[int, Mapping[int, float]], prompts: Mapping[int, int], encoding: str = ""
) -> Curve:
    """A curve with the interval over seeds wherever two or more have a value; prompts of all seeds matter to accuracies."""
    alone, found = Curve(seeds, {}), {}
    for length in alone.lengths:
        interval = statistics.interval(kind, alone.values(length), prompts[length])
        if interval is not None:
            found[length] = interval
    return Curve(seeds, found, encoding)


def window_perplexities(cells: Sequence[Cell]) -> dict[int, float]:
    """The perplexity of each window of the longest sequences, by the position at which the window ends.

    The end stands for the window: a token there has nearly as many tokens before it.
    """
    length = max(cell["length"] for cell in cells)
    longest = [cell for cell in cells if cell["length"] == length]
    window = longest[-1]["window"]  # of several window sizes the newest counts
    longest = [cell for cell in longest if cell["window"] == window]
    # Perplexities are averaged as losses, each record weighing as many sequences as it has.
    losses = np.average([cell["windows"] for cell in longest], 0, [cell["n"] for cell in longest])
    ends = [min((number + 1) * window, length) for number in range(len(losses))]
    return dict(zip(ends, np.exp(losses).tolist(), strict=True))
