"""Figures of learned priors: their curves, and the parameters of all heads."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bam_jax.render.style import GRID, INK, REFERENCE, Figure, lines, looks, plain, sheet, styled


class Heads(NamedTuple):
    """The priors of one model: shape, log_scale and loc, each [layers, heads]."""

    shape: np.ndarray
    log_scale: np.ndarray
    loc: np.ndarray


@styled
def priors(shape: np.ndarray, weights: np.ndarray) -> Figure:
    """Priors p(g_pos(i, j)) of every head for the last query of a context, one panel per layer. Source: BAM, figure 1.

    The shape theta_beta [layers, heads] labels and orders the curves; the weights p are [layers, heads, tokens].
    """
    layers, heads, tokens = weights.shape
    wide = min(layers, 2)
    tall = -(-layers // wide)
    figure = sheet(3.1 * tall)
    panels = figure.subplots(tall, wide, sharey=True, squeeze=False).flat
    styles = [*lines({f"{head}": "" for head in range(heads)}).values()]
    for layer, axes in enumerate(panels):
        if layer >= layers:
            axes.set_visible(False)
            continue
        for place, head in enumerate(np.argsort(shape[layer])):
            label = f"{head}: {shape[layer, head]:.2f}".replace("-", "−")
            look = styles[head] | {"marker": "." if place == 0 else ""}
            axes.plot(np.arange(1 - tokens, 1), weights[layer, head], label=label, **look)
        axes.axhline(1 / tokens, **REFERENCE)
        axes.set(yscale="log", ylim=(1e-4, 1.5), title=f"layer {layer}", xlabel="position $j - i$ in tokens")
        if heads <= 8:
            key = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, handlelength=1.4)
            key.set_title(r"head: shape $\theta_\beta$")
        if layer % wide == 0:
            axes.set_ylabel(r"$p(g_\mathrm{pos}(i, j))$")
    return figure


@styled
def scatter(groups: Mapping[str, Heads], encodings: Mapping[str, str]) -> Figure:
    """Shape and log scale of every head after training, by label; colours by the label's encoding. Source: BAM, figure 17."""
    columns = 2 if max(map(len, groups), default=0) <= 22 else 1
    figure = sheet(3.1 + 0.17 * -(-len(groups) // columns))
    axes = figure.add_subplot()
    styles = looks({label: encodings[label] for label in groups})
    for label, heads in groups.items():
        colour, marker = styles[label]["color"], styles[label]["marker"]
        edge = {"edgecolors": colour, "facecolors": (colour, 0.4), "linewidth": 1}  # so that overlapping points show
        axes.scatter(heads.shape.ravel(), heads.log_scale.ravel(), s=26, marker=marker, label=plain(label), **edge)
    axes.axvline(0, color=INK, linewidth=0.7)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -1), max(high, 1))
    axes.margins(y=0.14)
    for at, side, text in ((0.99, "right", "short-range"), (0.01, "left", "long-range")):
        axes.text(at, 0.98, text, transform=axes.transAxes, ha=side, va="top", style="italic")
    axes.set(xlabel=r"shape $\theta_\beta$", ylabel=r"log scale $\theta_\alpha$")
    figure.legend(loc="outside upper center", ncols=columns, handletextpad=0.2)
    return figure


@styled
def classes(curves: Mapping[str, np.ndarray], ahead: int, encodings: Mapping[str, str]) -> Figure:
    """Priors of several kinds for one query, [tokens] each, with `ahead` masked tokens shaded. Source: BAM, figure 1."""
    figure = sheet(3.1)
    axes = figure.add_subplot()
    styles = lines({label: encodings[label] for label in curves})
    for label, p in curves.items():
        axes.plot(np.arange(1 - len(p), 1), p, label=label, **styles[label])
    axes.axvspan(0.5, ahead, color=GRID, linewidth=0)
    across = axes.get_xaxis_transform()
    axes.text(0.5 + ahead / 2, 0.5, "masked", transform=across, rotation=90, ha="center", va="center")
    axes.set(xlim=(-len(p), ahead), ylim=(1e-4, 1.5), yscale="log")
    axes.set(xlabel="position $j - i$ in tokens", ylabel=r"$p(g_\mathrm{pos}(i, j))$")
    figure.legend(loc="outside upper center", ncols=2, handlelength=1.6)
    return figure


@styled
def scales(groups: Mapping[str, np.ndarray], encodings: Mapping[str, str]) -> Figure:
    """The distribution of Scalable Softmax's scale s over the heads after training, by label. Source: BAM, figure 14."""
    figure = sheet(2.8)
    axes = figure.add_subplot()
    every = np.concatenate([np.ravel(values) for values in groups.values()])
    low, high = min(every.min(), 0.99), max(every.max(), 1.01)
    edges = np.linspace(low, high, 1 + max(6, int(np.sqrt(every.size))))
    styles = looks({label: encodings[label] for label in groups})
    for label, values in groups.items():
        share = 100 * np.histogram(np.ravel(values), edges)[0] / np.size(values)
        look = {name: styles[label][name] for name in ("color", "linestyle")}
        axes.stairs(share, edges, label=f"{plain(label)} ({np.size(values)} heads)", linewidth=1.6, **look)
    axes.axvline(1, **REFERENCE)
    axes.set(ylim=(0, None), xlabel="scale $s$ after training; dotted: before", ylabel="% of the heads")
    figure.legend(loc="outside upper center", ncols=2, handlelength=1.6)
    return figure


@styled
def coupling(positions: Sequence[int], terms: Mapping[str, np.ndarray], groups: Sequence[str]) -> Figure:
    """The terms of `bam_jax.theory.coupling` in nats, [heads, windows], one panel per term. Source: BAM, appendix K.3."""
    figure = sheet(2.9)
    panels = figure.subplots(1, len(terms), sharey=True, squeeze=False)[0]
    names = sorted({*groups})
    styles = lines(dict.fromkeys(names, ""))
    for axes, (title, values) in zip(panels, terms.items(), strict=True):
        for group, each in zip(groups, values, strict=True):
            axes.plot(positions, each, label=group, **styles[group] | {"linewidth": 1.1})
        axes.set_title(title)
    panels[0].set(ylim=(0, None), ylabel="nats")
    figure.supxlabel("position in the text, tokens", fontsize=9)
    if len(names) > 1:
        found = dict(zip(groups, panels[0].lines, strict=True))
        figure.legend(found.values(), found, loc="outside upper center", ncols=len(names))
    return figure
