"""Figures of tables between queries and keys: attention weights and biases."""

from collections.abc import Mapping

import numpy as np

from bam_jax.render.style import COLOURS, Figure, sheet, styled

PIXELS = 256
"""Rows and columns of a map, at most; longer texts are pooled."""
LEAST = 1e-4
"""Attention weight that is drawn as none."""
DEEP = -12.0
"""Nats below the largest bias of a row that are drawn as deepest: a weight of 6e-6."""


def pooled(table: np.ndarray) -> np.ndarray:
    """A table of at most `PIXELS` rows and columns, each the largest of what it stands for.

    Args:
        table: [T, S].

    >>> pooled(np.eye(2 * PIXELS))[1, :3].tolist()
    [0.0, 1.0, 0.0]
    """
    # The largest stays: a single token that is attended to would vanish in a mean.
    for axis in (0, 1):
        step = -(-table.shape[axis] // PIXELS)
        table = np.maximum.reduceat(table, range(0, table.shape[axis], step), axis=axis)
    return table


@styled
def attention(maps: Mapping[str, np.ndarray], key: tuple[int, int]) -> Figure:
    """Attention weights of some heads in a passkey prompt: of all queries as maps, of the last one as curves below.

    Args:
        maps: p, [T, T], 0 where hidden, by title.
        key: the passkey's first token, and the one after its last.

    Source: BAM, figure 4.
    """
    figure = sheet(3.3)
    top, bottom = figure.subplots(2, len(maps), squeeze=False, height_ratios=(2, 1), sharex="all", sharey="row")
    for column, (title, weights) in enumerate(maps.items()):
        length = len(weights)
        axes, below = top[column], bottom[column]
        image = axes.imshow(
            np.clip(pooled(weights), LEAST, 1),
            norm="log",
            vmin=LEAST,
            vmax=1,
            cmap="cividis",
            extent=(0, length, length, 0),
            aspect="auto",
            interpolation="nearest",
        )
        below.plot(np.arange(length) + 0.5, np.maximum(weights[-1], LEAST), color=COLOURS[0], linewidth=0.9)
        below.set(yscale="log", ylim=(LEAST, 1.5))
        below.axvspan(*key, color=COLOURS[1], alpha=0.35, linewidth=0)
        axes.axvspan(*key, 1.01, 1.04, color=COLOURS[1], linewidth=0, clip_on=False)
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
    """The biases between every query and key of a text, a panel for each head, rows relative to their largest.

    Args:
        maps: [T, T] in nats, NaN where hidden, by title.
        wide: panels in a row.

    Source: CABLE, figures 4 and 8 to 15.
    """
    wide = min(wide, len(maps))
    tall = -(-len(maps) // wide)
    figure = sheet(0.8 + 4.4 / wide * tall)
    panels = figure.subplots(tall, wide, squeeze=False, sharex=True, sharey=True)
    for axes, (title, table) in zip(panels.flat, maps.items(), strict=False):
        length = len(table)
        image = axes.imshow(
            table - np.nanmax(table, axis=1, keepdims=True),
            vmin=DEEP,
            vmax=0,
            cmap="cividis",
            extent=(0, length, length, 0),
            interpolation="nearest",
        )
        axes.set_title(title, fontsize=7.5)
        axes.grid(visible=False)
        axes.tick_params(labelsize=7)
    for axes in panels.flat[len(maps) :]:
        axes.set_visible(False)
    figure.supxlabel("key $j$", fontsize=9)
    figure.supylabel("query $i$", fontsize=9)
    bar = figure.colorbar(
        image, ax=panels, label="nats below the largest of the row", aspect=25, extend="min", location="top", shrink=0.6
    )
    bar.outline.set_visible(False)
    return figure
