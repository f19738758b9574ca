"""Tables of fractions as heat maps: passkeys by depth and length, RULER by task and length."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bam_jax.render.style import GRID, Figure, plain, sheet, styled

WIDE = 2
"""Panels in a row, at most."""


class Grid(NamedTuple):
    """Fractions by row and column.

    Args:
        rows, columns: their names.
        values: [rows, columns] in [0, 1]; NaN where nothing was measured.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    values: np.ndarray


@styled
def grids(panels: Mapping[str, Grid], *, down: str, across: str) -> Figure:
    """A heat map for each model on a common scale; hatched: not measured.

    Args:
        panels: by the model's label; all have the same rows and columns.
        down, across: what the rows and the columns are.

    Source: BAM, figures 2, 3, 11, 12 and 16.
    """
    wide = min(WIDE, len(panels))
    tall = -(-len(panels) // wide)
    rows, columns = ([plain(name) for name in names] for names in next(iter(panels.values()))[:2])
    figure = sheet(1.1 + tall * (0.5 + 0.15 * len(rows)))
    every = figure.subplots(tall, wide, squeeze=False)
    turned = 90 if len(columns) * wide > 8 else 0
    for number, (axes, (label, grid)) in enumerate(zip(every.flat, panels.items(), strict=False)):
        edges = [np.arange(count + 1) - 0.5 for count in grid.values.shape]
        # Hatched below the mesh, which is transparent where nothing was measured.
        axes.fill_between(edges[1], -0.5, edges[0][-1], facecolor="none", edgecolor=GRID, hatch="////", linewidth=0)
        mesh = axes.pcolormesh(
            edges[1],
            edges[0],
            np.ma.masked_invalid(grid.values),
            cmap="cividis",
            vmin=0,
            vmax=1,
            edgecolor="white",
            linewidth=0.3,
        )
        axes.set(xlim=edges[1][[0, -1]], ylim=edges[0][[-1, 0]])
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
    pad = 0.2 / figure.get_figheight()  # of all panels' height: the same distance, however many they are
    label = "accuracy; hatched: not measured"
    bar = figure.colorbar(mesh, ax=every, location="top", shrink=0.4, aspect=30, pad=pad, label=label)
    bar.outline.set_visible(False)
    return figure
