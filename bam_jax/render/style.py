"""The style of all figures, and how they are written to a file or a page."""

import functools
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bam_jax.system import files
from bam_jax.system.extras import import_extra

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

type Figure = matplotlib.figure.Figure
type Axes = matplotlib.axes.Axes

INK = "#1b1f24"  # of text and axes; inside a page it becomes the page's own colour
GRID = "#8a919966"
# A contrast of at least 3:1 to a white and to a dark page.
GREY, ORANGE, GREEN, BLUE, RED = "#7d8590", "#d27e2a", "#2f9e77", "#3d7fc4", "#d0505a"
COLOURS = (BLUE, ORANGE, GREEN, "#b565a7", RED, GREY, "#a58a1a")
FAMILIES = {
    GREY: "sinusoidal learned nope",
    ORANGE: "rope p_rope rope_pi rope_ntk rope_yarn rope_llama3 xpos pope selective_rope",
    GREEN: "alibi alibi_learned nape kerple_log kerple_power t5_distance t5 fire additive_decay sandwich",
    BLUE: "bam bam_contextual bam_mixture gaussian student_t",
    RED: "cable cable_nw k_cable fox grape_a inkling dape_kerple dape_cable cope shaw grape_ap path",
}
METHOD_COLOURS = {name: colour for colour, names in FAMILIES.items() for name in names.split()}
COLOUR_KEY = (
    "Colours show families of methods in all figures: grey absolute positions or none, orange rotary, green decaying "
    "biases, blue learned priors, red biases that depend on the text."
)
MARKERS = "osD^vP*X"
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)), (0, (7, 3)))
REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 0.7, "linestyle": (0, (1, 2))}  # not the curve of a method
SUFFIXES = (".png", ".svg")
MARK = "drawn by bam_jax"  # in the metadata of every file, to recognise it
RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.7,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "svg.hashsalt": "bam_jax",  # the same ids in every drawing
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def library() -> ModuleType:
    """matplotlib, which only figures need; UserError if it is not installed."""
    import_extra("matplotlib.figure", "a figure", "figures")
    return import_extra("matplotlib", "a figure", "figures")


def sheet(height: float, width: float = 4.9) -> Figure:
    """An empty figure, in inches, narrow enough for its text to be legible on a phone."""
    return library().figure.Figure(figsize=(width, height), layout="constrained")


def styled[**P, T](draw: Callable[P, T]) -> Callable[P, T]:
    """Applies RC while a figure is made or drawn, and leaves matplotlib's own settings alone."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> T:
        with library().rc_context(RC):
            return draw(*args, **kwargs)

    return styled


def plain(text: str, longest: int = 48) -> str:
    """A label that matplotlib draws literally, without mathematics, shortened in the middle.

    >>> plain("costs $5 or $6")
    'costs \\\\$5 or \\\\$6'
    """
    line = re.sub(r"[\x00-\x1f\x7f]", " ", text)
    if len(line) > longest:  # names that begin alike often differ at their ends
        line = f"{line[: longest // 2]}…{line[len(line) + longest // 2 + 1 - longest :]}"
    return line.replace("$", r"\$")


def looks(encodings: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and dashes of each label by the name of its encoding; other names get colours in turn.

    >>> found = looks({"BAM": "bam", "BAM SSMax": "bam", "mine": "cauchy:CauchyPrior"})
    >>> found["BAM"]["color"] == found["BAM SSMax"]["color"], found["BAM"]["marker"] == found["BAM SSMax"]["marker"]
    (True, False)
    """
    crowded = {name for name, count in Counter(encodings.values()).items() if count > len(DASHES)}
    used, spare, found = Counter[str](), itertools.cycle(COLOURS), {}
    for label, name in encodings.items():
        # Many curves of one encoding in one colour would be indistinguishable.
        colour = METHOD_COLOURS[name] if name in METHOD_COLOURS and name not in crowded else next(spare)
        turn = used[colour]
        used[colour] += 1
        marker, dashes = MARKERS[turn % len(MARKERS)], DASHES[turn % len(DASHES)]
        found[label] = {"color": colour, "marker": marker, "linestyle": dashes}
    return found


def lines(encodings: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The looks without markers."""
    return {label: look | {"marker": ""} for label, look in looks(encodings).items()}


@styled
def svg(figure: Figure, name: str) -> str:
    """A figure as part of a page, with text in the page's colour and ids that begin with `name`."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    drawing = file.getvalue()
    drawing = drawing[drawing.index("<svg") :].replace(INK, "currentColor").replace("xlink:href", "href")
    return re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", drawing)


def keep_other(path: Path) -> None:
    """Raise UserError if the .png or .svg exists and `save` did not write it."""
    files.keep_other(path, MARK)


@styled
def save(figure: Figure, path: Path) -> None:
    """Writes a figure in the format of the path's suffix, .png or .svg; equal figures give equal files."""
    file = io.BytesIO()
    if path.suffix == ".png":
        figure.savefig(file, dpi=200, metadata={"Software": MARK})
    else:
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": MARK})
    files.write_atomically(path, file.getvalue())


def save_both(figure: Figure, path: Path) -> None:
    """Writes `path`.png and `path`.svg."""
    for suffix in SUFFIXES:
        save(figure, Path(f"{path}{suffix}"))
