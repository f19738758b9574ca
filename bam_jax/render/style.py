"""The look of every figure, and its way into a file or a page."""

import collections
import functools
import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
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

INK = "#1b1f24"
"""The colour of text and axes; inside a page it becomes the page's own."""
GRID = "#8a919966"
COLOURS = ("#3d7fc4", "#d27e2a", "#2f9e77", "#b565a7", "#d0505a", "#7d8590", "#a58a1a")
"""Legible on white and on black: at least 3:1 to both."""
METHOD_COLOURS = {
    **{"sinusoidal": "#7d8590", "learned": "#4d8f9e", "nope": "#8c6d4f"},
    **{"rope": "#d27e2a", "p_rope": "#c2651a", "rope_pi": "#bc8643", "rope_ntk": "#b8860b", "rope_yarn": "#bd8655"},
    **{"alibi": "#2f9e77", "alibi_learned": "#1f7a5c", "kerple_log": "#779f27", "kerple_power": "#7b9c4a"},
    **{
        "t5_distance": "#a58a1a",
        "t5": "#8f7d3a",
        "fire": "#5f8f3a",
        "additive_decay": "#689d87",
        "sandwich": "#8c993c",
    },
    **{"bam": "#3d7fc4", "bam_contextual": "#6f63c9", "gaussian": "#6696c7", "student_t": "#2f68a8"},
    **{"cable": "#d0505a", "cable_nw": "#ce7980", "k_cable": "#b03d59", "fox": "#b565a7"},
    **{"dape_kerple": "#93579f", "dape_cable": "#c2477f", "cope": "#9b6bb3"},
}
"""The colour of an encoding, the same in every figure, of the family's in `FAMILIES`. Some are alike to a colour-blind eye:
`MARKERS` tell those apart."""
FAMILIES = (
    "A method has one colour in all figures: absolute positions grey and teal, none brown, rotary orange, decaying priors "
    "green, learned priors blue, and red to purple where the text decides."
)
"""The words for these colours."""
MARKERS = "osD^vP*X"
"""The shapes of points; an encoding has the same in every figure."""
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)), (0, (7, 3)))
SIZE = 4.9
"""Inches; narrow, so that text stays legible on a telephone."""
SUFFIXES = (".png", ".svg")
MARK = "drawn by bam_jax"
"""The mark in every drawing, by which it is known again."""
LONGEST = 48
"""Characters of a label; a longer one would leave no room for its figure."""
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
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "svg.hashsalt": "bam_jax",  # ids that do not change from one drawing to the next
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def library() -> ModuleType:
    """matplotlib, which only those need who draw.

    Raises:
        UserError: it is not installed.
    """
    for part in ("matplotlib.colors", "matplotlib.figure", "matplotlib.ticker"):
        import_extra(part, "a figure", "figures")
    return import_extra("matplotlib", "a figure", "figures")


def sheet(height: float, *, layout: str | None = "constrained") -> Figure:
    """An empty figure, `SIZE` wide.

    Args:
        height: inches.
        layout: who makes room for names and legends; None: the caller.

    Raises:
        UserError: matplotlib is not installed.
    """
    return library().figure.Figure(figsize=(SIZE, height), layout=layout)


def styled[**P, T](draw: Callable[P, T]) -> Callable[P, T]:
    """Applies RC while a figure is made or drawn, and leaves matplotlib's own settings alone.

    Raises:
        UserError: matplotlib is not installed.
    """

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> T:
        with library().rc_context(RC):
            return draw(*args, **kwargs)

    return styled


def plain(text: str, longest: int = LONGEST) -> str:
    """A text that is not ours, such as a run's label, as matplotlib draws it as it stands: without mathematics, and not too long.

    >>> plain("costs $5 or $6")
    'costs \\\\$5 or \\\\$6'

    Args:
        text: any; what cannot be seen becomes a space.
        longest: characters.
    """
    line = re.sub(r"[\x00-\x1f\x7f]", " ", text)
    if len(line) > longest:  # names that begin alike often differ at their ends
        line = f"{line[: longest // 2]}…{line[len(line) + longest // 2 + 1 - longest :]}"
    return line.replace("$", r"\$")


def style[T](labels: Sequence[T], label: T) -> dict[str, Any]:
    """Colour and dashes of a label: the same in every figure that is given the same labels."""
    turn, colour = divmod(labels.index(label), len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": DASHES[turn % len(DASHES)]}


def method_styles(encodings: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and dashes of each curve of a figure: two for its encoding, dashes where several share them.

    >>> looks = method_styles({"BAM": "bam", "BAM SSMax": "bam", "mine": "cauchy:CauchyPrior"})
    >>> looks["BAM"]["color"] == looks["BAM SSMax"]["color"], looks["BAM"]["linestyle"] == looks["BAM SSMax"]["linestyle"]
    (True, False)

    Args:
        encodings: the name of each curve's encoding by the curve's label; others than the project's own share `COLOURS`, and
            so do the curves of an encoding that has more of them than there are dashes.
    """
    crowds = {name for name, count in collections.Counter(encodings.values()).items() if count > len(DASHES)}
    names = {label: label if name in crowds else name for label, name in encodings.items()}
    own = list(METHOD_COLOURS)
    others = [name for name in dict.fromkeys(names.values()) if name not in own]
    shared: dict[str, int] = {}
    looks = {}
    # Scalable Softmax is drawn solid, if it is there, and what differs from it in dashes.
    for label in sorted(names, key=lambda label: "SSMax" not in label):
        name = names[label]
        colour = METHOD_COLOURS[name] if name in own else COLOURS[others.index(name) % len(COLOURS)]
        place = (own if name in own else others).index(name)
        turn = shared[colour] = shared[colour] + 1 if colour in shared else 0
        looks[label] = {
            "color": colour,
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": DASHES[turn % len(DASHES)],
        }
    return looks


def method_points(encodings: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The look of each label's points, where dashes have no place: filled, hollow, then the next marker, in the one colour.

    Lighter and darker shades would fall below 3:1 on a light page or on a dark one.

    >>> looks = method_points({"BAM": "bam", "BAM SSMax": "bam"})
    >>> looks["BAM"]["facecolors"], looks["BAM"]["edgecolors"] == looks["BAM SSMax"]["edgecolors"]
    ('none', True)

    Args:
        encodings: see `method_styles`.
    """
    alike: dict[str, int] = collections.defaultdict(int)
    first: dict[str, int] = {}
    found = {}
    for label, look in method_styles(encodings).items():
        colour = look["color"]
        turn, hollow = divmod(alike[colour], 2)
        alike[colour] += 1
        place = first.setdefault(colour, MARKERS.index(look["marker"])) + turn
        fill = "none" if hollow else (colour, 0.5)  # the edge is whole; through the face others are seen
        found[label] = {"marker": MARKERS[place % len(MARKERS)], "edgecolors": colour, "facecolors": fill}
    return found


@styled
def svg(figure: Figure, name: str, label: str, table: str = "") -> str:
    """A figure as part of a page: text in the page's colour, and ids of its own.

    Args:
        figure: drawn.
        name: the ids begin with it.
        label: what it shows, for those who do not see it.
        table: the id of the table with its numbers, whose caption has the same and `-caption`; "": there is none.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawing = file.getvalue()
    # Several drawings share a page: each id gets the figure's name, and black becomes the reader's own colour.
    drawing = drawing[drawing.index("<svg") :].replace(INK, "currentColor").replace("xlink:href", "href")
    drawing = re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", drawing)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    box = re.search(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', drawing)
    assert box is not None
    said = f'role="img" aria-label="{html.escape(label)}"'
    said += f' aria-describedby="{table}-caption" aria-details="{table}"' if table else ""
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box[1]} {said}>{drawing[box.end() :]}'


def keep_other(path: Path) -> None:
    """Refuse to replace a drawing that is not by `save`.

    Raises:
        UserError: such a .png or .svg is there.
    """
    files.keep_other(path, MARK)


@styled
def save(figure: Figure, path: Path) -> None:
    """Writes a figure as its path's suffix says, .png or .svg, on white, with the mark of this function.

    Equal figures give equal files.
    """
    file = io.BytesIO()
    if path.suffix == ".png":
        figure.savefig(file, dpi=200, metadata={"Software": MARK})
    else:
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": MARK})
    files.write_atomically(path, file.getvalue())


def save_both(figure: Figure, path: Path) -> None:
    """Writes `path`.png and `path`.svg; see `save`."""
    for suffix in SUFFIXES:
        save(figure, Path(f"{path}{suffix}"))
