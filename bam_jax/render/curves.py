"""Figures over lengths: accuracies, perplexities, documents."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bam_jax.render.style import INK, SIZE, Axes, Figure, library, method_styles, plain, sheet, style, styled

FOOT = (1.03, 1.1)
"""Where the heat map's row of means lies; depths go from 0 to 1."""
FEW = 5
"""Seeds of a curve that are drawn each by itself; more would hide the band."""
MANY = 12
"""Curves that a figure over lengths has room for."""
NAME = 28
"""Characters of a curve's name."""
MARKED = 20
"""Points of a curve that have a marker each; of more the first ten and the last have one."""
TICK = 0.3
"""Inches that a tick's words take."""
REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 0.7, "linestyle": (0, (1, 2))}
"""The look of a line that no method has made."""


class Seed(NamedTuple):
    """A curve of one training seed: values at lengths in tokens."""

    seed: int
    values: Mapping[int, float]


class Curve(NamedTuple):
    """A curve of one or more training seeds.

    Args:
        seeds: one at least.
        intervals: low end, middle and high end of the seeds' mean, at the lengths that two seeds or more have.
        encoding: its name, which decides on the colour; "": the curve's own label does.
    """

    seeds: Sequence[Seed]
    intervals: Mapping[int, tuple[float, float, float]]
    encoding: str = ""

    @property
    def lengths(self) -> list[int]:
        """The lengths that some seed has, ascending."""
        return sorted({length for seed in self.seeds for length in seed.values})

    def values(self, length: int) -> list[float]:
        """The values of the seeds that have a length."""
        return [seed.values[length] for seed in self.seeds if length in seed.values]

    def middle(self, length: int) -> float:
        """The middle of the interval at a length, or the value of the only seed that has it."""
        return self.intervals[length][1] if length in self.intervals else self.values(length)[0]

    @property
    def end(self) -> float:
        """The middle at the longest length."""
        return self.middle(self.lengths[-1])


Curves = Mapping[str, Curve]


@styled
def passkey(curves: Curves, context: int, beside: Mapping[int, float] | None = None) -> Figure:
    """Passkey accuracy against length: means over seeds, with bands of their intervals.

    Args:
        curves: accuracies in [0, 1] by label.
        context: tokens seen in training.
        beside: the share of keys that stand beside their question, by length, drawn for reference: a model that sees a few tokens
            back finds these. (Of random digits a guess finds one key in 100,000.)

    Source: BAM, figure 2.
    """
    shown = _best(curves, largest=True)
    places = sorted(beside or ())
    others = {"beside the question": (places[-1], beside[places[-1]])} if beside else {}
    figure, axes = _lines(shown, context, _more(len(curves) - len(shown)), *others)
    axes.set(ylim=(-0.03, 1.03), ylabel="accuracy")
    if beside:
        axes.plot(places, [beside[at] for at in places], zorder=1, **REFERENCE)
    _name(axes, shown, len(curves) - len(shown), others)
    return figure


@styled
def perplexity(curves: Curves, context: int) -> Figure:
    """Perplexity of held-out text against length, on a logarithmic axis.

    Args:
        curves: perplexities by label.
        context: tokens seen in training.

    Source: BAM, figure 6.
    """
    shown = _best(curves, largest=False)
    figure, axes = _lines(shown, context, _more(len(curves) - len(shown)))
    axes.set_yscale("log")
    axes.set_ylabel("perplexity (per character or token)")
    figure.subplots_adjust(left=0.14)  # numbers of three digits and more
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    low, high = axes.get_ylim()
    ticks = [t for t in (2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000, 10000, 1e5) if low <= t <= high]
    if len(ticks) < 3:  # within a factor of four evenly spaced ones do
        ticks = [t for t in library().ticker.MaxNLocator(5).tick_values(low, high) if low <= t <= high]
    axes.set_yticks(ticks)
    _name(axes, shown, len(curves) - len(shown))
    return figure


@styled
def positions(curves: Curves, context: int) -> Figure:
    """Perplexity against the position in a sequence, far beyond what was seen in training.

    Args:
        curves: perplexities by label, at the end of each window of positions.
        context: tokens seen in training.

    Source: BAM, perplexity by position.
    """
    figure = perplexity(curves, context)
    figure.axes[0].set_xlabel(f"position in training contexts of {context} tokens, and in tokens", loc="left")
    return figure


@styled
def heat_map(accuracy: Mapping[tuple[int, float], float], context: int) -> Figure:
    """Passkey accuracy by length and depth; the last row and column are means.

    Args:
        accuracy: by (length in tokens, depth in [0, 1]); lengths may have depths of their own.
        context: tokens seen in training.

    Source: BAM, figure 3.
    """
    columns = {length: sorted(depth for each, depth in accuracy if each == length) for length, _ in sorted(accuracy)}
    # Lengths may have depths of their own, so that each column is a mesh by itself; depths that all of the finest
    # columns have are averaged in the last one.
    figure = sheet(3.9)
    axes = figure.add_subplot()
    axes.grid(visible=False)
    finest = max(columns.values(), key=len)
    rows = [[accuracy[length, depth] for length, depths in columns.items() if depths == finest] for depth in finest]
    body = [np.array([accuracy[length, depth] for depth in depths]) for length, depths in columns.items()]
    for column, values in enumerate([*body, np.array([np.mean(row) for row in rows])]):
        at = column + (0.25 if column == len(columns) else 0)
        edges = np.linspace(0, 1, len(values) + 1)
        for heights, cells in ((edges, values), (FOOT, values.mean(keepdims=True))):
            box = axes.pcolormesh([at - 0.48, at + 0.48], heights, cells[:, None], cmap="cividis", vmin=0, vmax=1)
            box.set(edgecolor="white", linewidth=0.3)
        shade = "white" if values.mean() < 0.5 else "black"
        axes.text(at, sum(FOOT) / 2, f"{values.mean():.2f}", ha="center", va="center", color=shade)
    names = [*(f"{times(length, context)}\n{_short(length)}" for length in columns), "mean"]
    axes.set_xticks([*range(len(columns)), len(columns) + 0.25], names)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1, sum(FOOT) / 2], ["start", "0.25", "0.5", "0.75", "end", "mean"])
    axes.set(ylim=(1.1, 0), xlabel="length in training contexts, and in tokens", ylabel="depth of the passkey")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(
        box, ax=axes, orientation="horizontal", location="top", shrink=0.4, aspect=30, label="accuracy"
    )
    bar.outline.set_visible(False)
    return figure


@styled
def lengths(corpora: Mapping[str, np.ndarray], context: int) -> Figure:
    """The share of documents at each length, and of the tokens that stand in them, a panel for each corpus.

    Args:
        corpora: tokens of each document, [documents] integers, by name.
        context: tokens of a row, marked.
    """
    figure = sheet(0.4 + 2.4 * len(corpora))
    least, most = min(int(each.min()) for each in corpora.values()), max(int(each.max()) for each in corpora.values())
    # Bins of half an octave; those of short documents would have the same edge twice, since lengths are integers.
    halves = np.arange(np.floor(np.log2(max(least, 1))), np.log2(most + 1) + 0.5, 0.5)
    edges = np.unique(np.ceil(2**halves))
    panels = figure.subplots(len(corpora), sharex=True, squeeze=False).flat
    for (name, each), axes in zip(corpora.items(), panels, strict=True):
        for label, weights in (("documents", np.ones(len(each))), ("tokens", each)):
            share = 100 * np.histogram(each, edges, weights=weights)[0] / weights.sum()
            axes.stairs(share, edges, label=label, linewidth=1.6, **style(("documents", "tokens"), label))
        axes.axvline(context, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set(ylim=(0, None), ylabel="% of all")
        axes.set_title(plain(name), loc="left")
    axes.set_xlabel(f"length of a document in tokens; dotted: a row of {context:,}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


@styled
def losses(steps: Sequence[int], values: Sequence[float], held_out: Mapping[int, float] = {}) -> Figure:
    """The loss of training, and of held-out text where that was measured.

    Args:
        steps: of the optimiser.
        values: nats a token, at each of them.
        held_out: the same on held-out text, by step.
    """
    figure = sheet(2.6)
    axes = figure.add_subplot()
    axes.plot(steps, values, linewidth=1.2, marker="o" if len(steps) < 20 else "", label="training, one batch")
    if held_out:
        axes.plot(
            list(held_out), list(held_out.values()), linewidth=1.2, marker="s", markersize=4, label="held-out text"
        )
        axes.legend(frameon=False)
    axes.set(xlim=(0, None), xlabel="step", ylabel="loss, nats a token")
    return figure


def times(length: int, context: int) -> str:
    """A length in training contexts.

    >>> times(4096, 64)
    '64×'
    """
    ratio = length / context
    return f"{ratio:.0f}×" if ratio >= 100 or ratio == int(ratio) else f"{ratio:.2g}×"


def _best(curves: Curves, *, largest: bool) -> Curves:
    """At most `MANY` curves, in their order: those that look furthest, and of these the best at their longest length."""
    sign = 1 if largest else -1
    rank = lambda label: (curves[label].lengths[-1], sign * curves[label].end)
    kept = sorted(curves, key=rank, reverse=True)[:MANY]
    return {label: curve for label, curve in curves.items() if label in kept}


def _lines(curves: Curves, context: int, *others: str) -> tuple[Figure, Axes]:
    """Curves over lengths on a logarithmic axis, with room at the right for their names and for other words."""
    figure = sheet(3.3, layout=None)
    axes = figure.add_subplot()
    names = max(len(plain(label, NAME)) for label in (*curves, *others, ""))
    left, right = 0.1, 1 - (0.65 + 0.062 * names) / SIZE
    figure.subplots_adjust(left=left, right=right, bottom=0.19, top=0.97)
    looks = _looks(curves)
    for label, curve in curves.items():
        look = looks[label]
        middles = [curve.middle(length) for length in curve.lengths]
        marked = None if len(middles) <= MARKED else [*range(MARKED // 2), len(middles) - 1]
        axes.plot(curve.lengths, middles, zorder=3 if curve.intervals else 2, markevery=marked, **look)
        _draw_seeds(axes, curve, look["color"])
    lengths = sorted({length for curve in curves.values() for length in curve.lengths})
    least = (lengths[-1] / lengths[0]) ** (TICK / (SIZE * (right - left)))
    ticks = lengths[:1]
    for length in lengths:
        ticks += [length] if length >= max(least, 1.5) * ticks[-1] else []
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{times(tick, context)}\n{_short(tick)}" for tick in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_xlabel(f"length in training contexts of {context} tokens, and in tokens", loc="left")
    return figure, axes


def _short(tokens: int) -> str:
    """A length in few letters, such as 4.1k."""
    return f"{tokens}" if tokens < 1000 else f"{tokens / 1000:.2g}k" if tokens < 10_000 else f"{tokens / 1000:.0f}k"


def _draw_seeds(axes: Axes, curve: Curve, colour: str) -> None:
    """Draws the band of a curve's intervals, and thin lines for its seeds where they are few; nothing for one seed."""
    if not curve.intervals:
        return
    # A length that one seed has leaves a gap, since it has no interval.
    gap = (np.nan, np.nan, np.nan)
    ends = [curve.intervals[length] if length in curve.intervals else gap for length in curve.lengths]
    low, _, high = zip(*ends, strict=True)
    axes.fill_between(curve.lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    if len(curve.seeds) <= FEW:
        for seed in curve.seeds:
            axes.plot([*seed.values], [*seed.values.values()], color=colour, linewidth=0.6, alpha=0.7)


def _more(left_out: int) -> str:
    """The words for curves that are left out; "" for none."""
    return f"{left_out} more in the table" if left_out else ""


def _name(axes: Axes, curves: Curves, left_out: int, others: Mapping[str, tuple[float, float]] | None = None) -> None:
    """Writes the curves' names at the right in the order of their ends, each with a piece of its line, and how many are left out.

    A name stands at the height of its curve's end where there is room. No line leads to it: that would look like a curve.

    Args:
        axes: with the curves.
        curves: by name.
        left_out: curves that are not drawn.
        others: the ends of lines of reference, by name.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    last = {label: (curve.lengths[-1], curve.end) for label, curve in curves.items()}
    looks = _looks(curves) | dict.fromkeys(others or {}, REFERENCE)
    ends = sorted((to_axes.transform(end)[1], label) for label, end in (last | dict(others or {})).items())
    # From the lowest name up each keeps its distance from the one below; from the highest down all stay within the figure.
    gap = min(0.075, 1 / max(len(ends), 1))
    heights = [height for height, _ in ends]
    for k in range(1, len(heights)):
        heights[k] = max(heights[k], heights[k - 1] + gap)
    limit = 1.0
    for k in reversed(range(len(heights))):
        heights[k] = limit = min(heights[k], limit)
        limit -= gap
    for height, (_, label) in zip(heights, ends, strict=True):
        piece = {"transform": axes.transAxes, "clip_on": False, "markevery": [1], **looks[label]}
        axes.plot((1.02, 1.06, 1.1), [height] * 3, **piece)
        axes.text(1.115, height, plain(label, NAME), transform=axes.transAxes, va="center")
    if left_out:
        axes.text(1.02, -0.08, _more(left_out), transform=axes.transAxes, va="center", style="italic")


def _looks(curves: Curves) -> dict[str, dict[str, Any]]:
    return method_styles({label: curve.encoding or label for label, curve in curves.items()})
