"""Figures over lengths and steps: accuracies, perplexities, documents, losses."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bam_jax.render.style import BLUE, ORANGE, REFERENCE, Axes, Figure, library, looks, plain, sheet, styled

FEW = 5  # greatest number of seeds drawn one by one; more would hide the band
MANY = 12  # greatest number of curves in a figure
MARKED = 20  # greatest number of points that are all marked; on a longer curve, only the first ten and the last are


class Curve(NamedTuple):
    """A value over lengths in tokens, of one or more training seeds."""

    seeds: Mapping[int, Mapping[int, float]]  # values by length, by seed
    # Low end, middle and high end of the interval of the seeds' mean, at lengths that at least two seeds have.
    intervals: Mapping[int, tuple[float, float, float]]
    encoding: str = ""  # determines the colour; "": the curve's label does

    @property
    def lengths(self) -> list[int]:
        return sorted({length for values in self.seeds.values() for length in values})

    def values(self, length: int) -> list[float]:
        return [values[length] for values in self.seeds.values() if length in values]

    def middle(self, length: int) -> float:
        return self.intervals[length][1] if length in self.intervals else self.values(length)[0]

    @property
    def end(self) -> float:
        return self.middle(self.lengths[-1])


Curves = Mapping[str, Curve]


@styled
def passkey(curves: Curves, context: int, floor: Mapping[int, float] | None = None) -> Figure:
    """Passkey accuracy against length; the floor is the share of keys next to their question. Source: BAM, figure 2."""
    figure, axes = _over_lengths(curves, context, largest=True)
    axes.set(ylim=(-0.03, 1.03), ylabel="accuracy")
    if floor:
        axes.plot(sorted(floor), [floor[length] for length in sorted(floor)], label="beside the question", **REFERENCE)
    _legend(figure, axes, len(curves))
    return figure


@styled
def perplexity(curves: Curves, context: int, across: str = "length") -> Figure:
    """Perplexity of held-out text against length or position, on a logarithmic axis. Source: BAM, figure 6."""
    figure, axes = _over_lengths(curves, context, largest=False, across=across)
    axes.set(yscale="log", ylabel="perplexity (per character or token)")
    ticker, (low, high) = library().ticker, axes.get_ylim()
    locator = ticker.LogLocator(subs=(1, 2, 3, 5))
    if sum(low <= tick <= high for tick in locator.tick_values(low, high)) < 3:
        locator = ticker.MaxNLocator(5)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    _legend(figure, axes, len(curves))
    return figure


def positions(curves: Curves, context: int) -> Figure:
    """Perplexity at the end of each window of positions, far beyond the training context."""
    return perplexity(curves, context, across="position")


def _over_lengths(curves: Curves, context: int, *, largest: bool, across: str = "length") -> tuple[Figure, Axes]:
    """Means over seeds with their intervals, on a logarithmic axis; of many curves, only the best at the longest length."""
    rank = lambda label: (curves[label].lengths[-1], curves[label].end if largest else -curves[label].end)
    kept = sorted(curves, key=rank, reverse=True)[:MANY]
    shown = {label: curve for label, curve in curves.items() if label in kept}
    figure = sheet(3.3, 6.2)  # with room for names
    axes = figure.add_subplot()
    styles = looks({label: curve.encoding or label for label, curve in shown.items()})
    for label, curve in shown.items():
        lengths, colour = curve.lengths, styles[label]["color"]
        marked = None if len(lengths) <= MARKED else [*range(MARKED // 2), len(lengths) - 1]
        look = styles[label] | {"label": plain(label, 36), "markevery": marked, "zorder": 3 if curve.intervals else 2}
        axes.plot(lengths, [curve.middle(n) for n in lengths], **look)
        if curve.intervals:  # a length that only one seed has leaves a gap
            ends = np.array([curve.intervals[n] if n in curve.intervals else [np.nan] * 3 for n in lengths])
            axes.fill_between(lengths, ends[:, 0], ends[:, 2], color=colour, alpha=0.15, linewidth=0)
            for values in curve.seeds.values() if len(curve.seeds) <= FEW else ():
                axes.plot([*values], [*values.values()], color=colour, linewidth=0.6, alpha=0.7)
    axes.axvline(context, zorder=1, **REFERENCE)
    every = sorted({length for curve in shown.values() for length in curve.lengths})
    apart = max(1.5, (every[-1] / every[0]) ** (1 / 7))  # room for eight ticks
    ticks = every[:1]
    for length in every:
        ticks += [length] if length >= apart * ticks[-1] else []
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{times(tick, context)}\n{_short(tick)}" for tick in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_xlabel(f"{across} in training contexts of {context} tokens, and in tokens", loc="left")
    return figure, axes


def _legend(figure: Figure, axes: Axes, count: int) -> None:
    named = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    named.sort(key=lambda line: float(np.asarray(line.get_ydata())[-1]), reverse=True)
    title = f"{count - MANY} more in the table" if count > MANY else None
    figure.legend(handles=named, loc="outside right upper", fontsize=8, handlelength=2.2, title=title, title_fontsize=7)


@styled
def lengths(corpora: Mapping[str, np.ndarray], context: int) -> Figure:
    """The shares of documents, and of their tokens, at each document length in tokens; one panel per corpus."""
    figure = sheet(0.4 + 2.4 * len(corpora))
    least, most = min(int(each.min()) for each in corpora.values()), max(int(each.max()) for each in corpora.values())
    # Bins of half an octave. Bins of short documents would have the same edge twice, since lengths are integers.
    halves = np.arange(np.floor(np.log2(max(least, 1))), np.log2(most + 1) + 0.5, 0.5)
    edges = np.unique(np.ceil(2**halves))
    panels = figure.subplots(len(corpora), sharex=True, squeeze=False).flat
    for (name, each), axes in zip(corpora.items(), panels, strict=True):
        for label, weights, colour in (("documents", np.ones(len(each)), BLUE), ("tokens", each, ORANGE)):
            share = 100 * np.histogram(each, edges, weights=weights)[0] / weights.sum()
            axes.stairs(share, edges, label=label, linewidth=1.6, color=colour)
        axes.axvline(context, **REFERENCE)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set(ylim=(0, None), ylabel="% of all")
        axes.set_title(plain(name), loc="left")
    axes.set_xlabel(f"length of a document in tokens; dotted: a row of {context:,}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


@styled
def losses(steps: Sequence[int], values: Sequence[float], held_out: Mapping[int, float] = {}) -> Figure:
    """The training loss in nats per token, and the held-out loss by step if it was measured."""
    figure = sheet(2.6)
    axes = figure.add_subplot()
    marker = "o" if len(steps) < 20 else ""
    axes.plot(steps, values, color=BLUE, linewidth=1.2, marker=marker, label="training, one batch")
    if held_out:
        axes.plot([*held_out], [*held_out.values()], color=ORANGE, linewidth=1.2, marker="s", label="held-out text")
        axes.legend()
    axes.set(xlim=(0, None), xlabel="step", ylabel="loss, nats a token")
    return figure


def times(length: int, context: int) -> str:
    """A length in training contexts.

    >>> times(4096, 64)
    '64×'
    """
    ratio = length / context
    return f"{ratio:.0f}×" if ratio >= 100 or ratio == int(ratio) else f"{ratio:.2g}×"


def _short(tokens: int) -> str:
    return f"{tokens}" if tokens < 1000 else f"{tokens / 1000:.2g}k" if tokens < 10_000 else f"{tokens / 1000:.0f}k"
