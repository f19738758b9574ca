"""Heat maps: fractions by row and column, attention weights, biases."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bam_jax.render.style import BLUE, GRID, ORANGE, Figure, plain, sheet, styled

PIXELS = 256  # greatest number of rows and columns of a map; longer texts are pooled
LEAST = 1e-4  # attention weights up to this are drawn as none
DEEP = -12.0  # end of the colour scale, in nats relative to the largest bias of a row: a weight of 6e-6


class Grid(NamedTuple):
    """Fractions in [0, 1], [rows, columns]; NaN where nothing was measured."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: np.ndarray


@styled
def grids(panels: Mapping[str, Grid], *, down: str, across: str) -> Figure:
    """A heat map for each model on a common scale; all have the same rows and columns. Source: BAM, figures 2, 3, 11, 12, 16."""
    wide = min(2, len(panels))
    tall = -(-len(panels) // wide)
    rows, columns = ([plain(name) for name in names] for names in next(iter(panels.values()))[:2])
    figure = sheet(1.1 + tall * (0.5 + 0.15 * len(rows)))
    every = figure.subplots(tall, wide, squeeze=False)
    turned = 90 if len(columns) * wide > 8 else 0
    for number, (axes, (label, grid)) in enumerate(zip(every.flat, panels.items(), strict=False)):
        across_edges, down_edges = (np.arange(len(names) + 1) - 0.5 for names in (columns, rows))
        # Hatching below the mesh, which is transparent where nothing was measured.
        axes.fill_between(
            across_edges, -0.5, down_edges[-1], facecolor="none", edgecolor=GRID, hatch="////", linewidth=0
        )
        shown, look = np.ma.masked_invalid(grid.values), {"cmap": "cividis", "edgecolor": "white", "linewidth": 0.3}
        mesh = axes.pcolormesh(across_edges, down_edges, shown, vmin=0, vmax=1, **look)
        axes.invert_yaxis()
        lowest, leftmost = number + wide >= len(panels), number % wide == 0
        axes.set_xticks(range(len(columns)), columns if lowest else [], rotation=turned, fontsize=8)
        axes.set_yticks(range(len(rows)), rows if leftmost else [], fontsize=8)
        axes.set_title(plain(label), fontsize=8.5)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    for axes in every.flat[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel(across, fontsize=9)
    figure.supylabel(down, fontsize=9)
    pad = 0.2 / figure.get_figheight()  # relative to the height of all panels: the same distance for any number of them
    label = "accuracy; hatched: not measured"
    bar = figure.colorbar(mesh, ax=every, location="top", shrink=0.4, aspect=30, pad=pad, label=label)
    bar.outline.set_visible(False)
    return figure


def pooled(table: np.ndarray) -> np.ndarray:
    """A table of at most `PIXELS` rows and columns; each entry is the maximum of those that it replaces.

    >>> pooled(np.eye(2 * PIXELS))[1, :3].tolist()
    [0.0, 1.0, 0.0]
    """
    # The maximum, because a single attended token would vanish in a mean.
    for axis in (0, 1):
        step = -(-table.shape[axis] // PIXELS)
        table = np.maximum.reduceat(table, range(0, table.shape[axis], step), axis=axis)
    return table


@styled
def attention(maps: Mapping[str, np.ndarray], key: tuple[int, int]) -> Figure:
    """Attention weights of some heads in a passkey prompt, [T, T], and below, those of the last query. Source: BAM, figure 4."""
    figure = sheet(3.3)
    top, bottom = figure.subplots(2, len(maps), squeeze=False, height_ratios=(2, 1), sharex="all", sharey="row")
    look = {"norm": "log", "vmin": LEAST, "vmax": 1, "cmap": "cividis", "aspect": "auto", "interpolation": "nearest"}
    for axes, below, (title, weights) in zip(top, bottom, maps.items(), strict=True):
        length = len(weights)
        image = axes.imshow(np.clip(pooled(weights), LEAST, 1), extent=(0, length, length, 0), **look)
        below.plot(np.arange(length) + 0.5, np.maximum(weights[-1], LEAST), color=BLUE, linewidth=0.9)
        below.set(yscale="log", ylim=(LEAST, 1.5))
        below.axvspan(*key, color=ORANGE, alpha=0.35, linewidth=0)
        axes.axvspan(*key, 1.01, 1.04, color=ORANGE, linewidth=0, clip_on=False)
        axes.set_xlim(-0.02 * length, length)
        for panel in (axes, below):
            panel.grid(visible=False)
        axes.set_title(title, pad=9)
    top[0].set_ylabel("query $i$")
    bottom[0].set_ylabel("last query")
    figure.supxlabel("key $j$; orange: the passkey", fontsize=9)
    bar = figure.colorbar(image, ax=top.tolist(), label="attention $p_{ij}$", aspect=14)
    bar.outline.set_visible(False)
    return figure


@styled
def tables(maps: Mapping[str, np.ndarray], wide: int) -> Figure:
    """Biases [T, T] in nats, NaN where hidden, rows relative to their largest. Source: CABLE, figures 4 and 8 to 15."""
    wide = min(wide, len(maps))
    tall = -(-len(maps) // wide)
    figure = sheet(0.8 + 4.4 / wide * tall)
    panels = figure.subplots(tall, wide, squeeze=False, sharex=True, sharey=True)
    look = {"vmin": DEEP, "vmax": 0, "cmap": "cividis", "interpolation": "nearest"}
    for axes, (title, table) in zip(panels.flat, maps.items(), strict=False):
        relative = table - np.nanmax(table, axis=1, keepdims=True)
        image = axes.imshow(relative, extent=(0, len(table), len(table), 0), **look)
        axes.set_title(title, fontsize=7.5)
        axes.grid(visible=False)
        axes.tick_params(labelsize=7)
    for axes in panels.flat[len(maps) :]:
        axes.set_visible(False)
    figure.supxlabel("key $j$", fontsize=9)
    figure.supylabel("query $i$", fontsize=9)
    label = "nats below the largest of the row"
    bar = figure.colorbar(image, ax=panels, label=label, aspect=25, extend="min", location="top", shrink=0.6)
    bar.outline.set_visible(False)
    return figure
