"""The figures show what they are given: curves, names, cells, probabilities."""

import itertools
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgba
from matplotlib.text import Text

from bam_jax import encodings, render, report
from bam_jax.render import maps, style
from bam_jax.render.curves import FEW, MANY, Curve
from bam_jax.render.learned import Heads
from bam_jax.system.errors import UserError

CURVES = {
    "BAM SSMax": Curve(
        {0: {64: 1.0, 4096: 0.9, 32000: 0.8}, 1: {64: 1.0, 4096: 1.0}},
        {64: (0.9, 1.0, 1.0), 4096: (0.8, 0.95, 1.0)},
    ),
    "RoPE": Curve({0: {64: 1.0, 4096: 0.0}}, {}),
    "NoPE": Curve({0: {64: 0.9, 4096: 0.0}}, {}),
}
CSS = Path(report.__file__).parent / "templates" / "page.css"
HEADS = Heads(np.array([[-2.0, 0.5], [0.0, 1.0]]), np.array([[0.1, 0.2], [0.3, 0.4]]), np.zeros((2, 2)))


def test_a_curve_is_the_mean_over_the_seeds_and_its_band_the_interval():
    axes = render.passkey(CURVES, 64, {4096: 0.2, 64: 0.05}).axes[0]
    points = np.asarray(axes.lines[0].get_xydata(), float)
    np.testing.assert_allclose(points, [[64, 1.0], [4096, 0.95], [32000, 0.8]])
    (path,) = axes.collections[0].get_paths()  # with a gap where one seed is left
    assert {tuple(point) for point in path.vertices} == {(64, 0.9), (64, 1.0), (4096, 0.8), (4096, 1.0)}
    context, floor = axes.lines[-2:]
    assert [*context.get_xdata()] == [64, 64]
    assert [*floor.get_xdata()] == [64, 4096] and [*floor.get_ydata()] == [0.05, 0.2]


@pytest.mark.parametrize("seeds", [1, FEW, FEW + 1])
def test_few_seeds_have_a_thin_line_each(seeds):
    curve = Curve({n: {64: 0.5, 128: n / 10} for n in range(seeds)}, {64: (0.4, 0.5, 0.6)} if seeds > 1 else {})
    lines = render.passkey({"BAM": curve}, 64).axes[0].lines[1:-1]  # without the mean and the training context
    assert [line.get_ydata()[1] for line in lines] == [n / 10 for n in range(seeds) if 1 < seeds <= FEW]


def named(figure):
    """The names in a figure's legend, in their order."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("draw", [render.passkey, render.perplexity])
def test_curves_are_named_in_the_order_of_their_ends(draw):
    figure = draw(CURVES, 64)
    assert named(figure) == [*CURVES]
    figure.draw_without_rendering()
    parts = [figure.legends[0], figure.axes[0].yaxis.label, figure.axes[0].xaxis.label]
    for box in (part.get_window_extent() for part in parts):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_every_encoding_has_its_familys_colour_and_curves_of_one_differ():
    assert {*style.METHOD_COLOURS} == {*encodings.ENCODINGS}
    alone = render.passkey({"mine": Curve({0: {64: 1.0, 128: 1.0}}, {}, "cable")}, 64).axes[0].lines[0]
    assert alone.get_color() == style.METHOD_COLOURS["cable"]
    looks = style.looks({"a": "bam", "b SSMax": "bam", "c": "mine:Mine", "d": "other:Other"})
    assert looks["a"]["color"] == looks["b SSMax"]["color"] != looks["d"]["color"] != looks["c"]["color"]
    for names in (encodings.ENCODINGS, [f"{n}" for n in range(40)], ["bam"] * 40):
        found = style.looks({f"{n}": name for n, name in enumerate(names)}).values()
        assert len({tuple(look.values()) for look in found}) == len(names)


def luminance(colour):
    """The relative luminance of the Web Content Accessibility Guidelines."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return np.dot((0.2126, 0.7152, 0.0722), linear)


@pytest.mark.parametrize("paper", re.findall(r"--page: (#[0-9a-f]{6});", CSS.read_text()))
def test_all_colours_stand_out_from_a_light_and_from_a_dark_page(paper):
    many = {f"{n}": HEADS for n in range(20)}
    points = render.scatter(many, dict.fromkeys(many, "bam")).axes[0].collections
    lines = render.coupling([8, 16], {"one": np.ones((4, 2))}, ["a", "b", "c", "d"]).axes[0].lines
    drawn = [each.get_edgecolor()[0] for each in points]
    drawn += [to_rgba(line.get_color(), line.get_alpha()) for line in lines]
    below = np.array(to_rgba(paper)[:3])
    for colour in (*style.METHOD_COLOURS.values(), *style.COLOURS, *drawn):
        *seen, alpha = to_rgba(colour)
        darker, lighter = sorted((luminance(alpha * np.array(seen) + (1 - alpha) * below), luminance(below)))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


@pytest.mark.parametrize("draw", [render.passkey, render.perplexity])
def test_more_curves_than_there_is_room_for_are_the_best_and_say_so(draw):
    curves = {f"a start of many, {n:2d} layers": Curve({0: {64: 1.0, 128: 1 + n}}, {}, "bam") for n in range(20)}
    figure = draw(curves, 64)
    best = range(8, 20) if draw is render.passkey else range(MANY)
    assert [name[-9:] for name in named(figure)] == [f"{n:2d} layers" for n in reversed(best)]
    assert figure.legends[0].get_title().get_text() == "8 more in the table"
    lines = figure.axes[0].lines[:MANY]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == MANY


@pytest.mark.parametrize("values", [(2.0, 5e4), (3.0, 3.1)])
def test_every_range_of_perplexities_has_three_ticks(values):
    axes = render.perplexity({"BAM": Curve({0: dict(zip((64, 128), values, strict=True))}, {})}, 64).axes[0]
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 3


def test_many_lengths_have_ticks_that_do_not_meet():
    figure = render.passkey({"BAM": Curve({0: {64 * 2**k: 1.0 for k in range(14)} | {32000: 1.0}}, {})}, 64)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) > 4
    assert not any(left.overlaps(right) for left, right in itertools.pairwise(boxes))


def test_a_grid_shows_its_values_and_leaves_out_what_was_not_measured():
    values = np.array([[1.0, np.nan], [0.0, 0.5]])
    axes = render.grids({"a": render.Grid(["x", "y"], ["64", "128"], values)}, down="depth", across="length").axes[0]
    (mesh,) = (each for each in axes.collections if isinstance(each, QuadMesh))
    np.testing.assert_array_equal(np.ma.filled(mesh.get_array(), np.nan).reshape(2, 2), values)
    assert axes.get_ylim() == (1.5, -0.5)  # the first row on top


def test_a_panel_for_every_layer_and_a_curve_for_every_head():
    figure = render.priors(np.array([[1.0, -1.0]] * 3), np.full((3, 2, 16), 1 / 16))
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["layer 0", "layer 1", "layer 2"]
    assert [text.get_text() for text in panels[0].get_legend().get_texts()] == ["1: −1.00", "0: 1.00"]


def test_classes_share_axes_with_what_the_mask_hides():
    curves = {"uniform": np.full(16, 1 / 16), "local": np.geomspace(1e-6, 0.5, 16)}
    figure = render.classes(curves, 4, dict.fromkeys(curves, "bam"))
    axes = figure.axes[0]
    for line, p in zip(axes.lines, curves.values(), strict=True):
        np.testing.assert_allclose(np.asarray(line.get_xydata(), float), np.stack([np.arange(-15, 1), p], -1))
    assert named(figure) == list(curves)
    assert axes.get_xlim() == (-16, 4)


def test_scales_are_shares_of_each_models_heads():
    groups = {"small": np.array([[0.5, 1.0], [1.0, 1.5]]), "large": np.full((4, 8), 0.7)}
    axes = render.scales(groups, dict.fromkeys(groups, "bam")).axes[0]
    for steps, values in zip(axes.patches, groups.values(), strict=True):
        share, edges, _ = steps.get_data()
        assert share.sum() == pytest.approx(100)
        assert abs(np.average((edges[:-1] + edges[1:]) / 2, weights=share) - values.mean()) < np.diff(edges)[0]


def test_couplings_have_a_curve_for_each_head_in_its_groups_colour():
    terms = {"one": np.arange(6.0).reshape(3, 2), "two": np.ones((3, 2))}
    figure = render.coupling([8, 16], terms, ["local", "retrieval", "local"])
    for axes, values in zip(figure.axes, terms.values(), strict=True):
        for line, each in zip(axes.lines, values, strict=True):
            np.testing.assert_allclose(np.asarray(line.get_xydata(), float), np.stack([[8, 16], each], -1))
        first, second, third = (line.get_color() for line in axes.lines)
        assert first == third != second
    assert named(figure) == ["local", "retrieval"]


def test_attention_maps_show_weights_and_the_last_query_above_the_key():
    weights = np.maximum(np.tril(np.full((300, 300), 1e-6)), np.diag(np.full(300, 0.9)))
    weights[-1, 20:30] = 0.09
    figure = render.attention({"one": weights, "two": weights}, (20, 30))
    top, bottom = figure.axes[0], figure.axes[2]
    assert [axes.get_title() for axes in figure.axes[:2]] == ["one", "two"]
    shown = np.asarray(top.images[0].get_array())
    assert shown.shape == (150, 150) and shown[3, 3] == 0.9 and shown[3, 100] == maps.LEAST  # pooled by two
    points = np.stack([np.arange(300) + 0.5, np.maximum(weights[-1], maps.LEAST)], -1)
    np.testing.assert_allclose(np.asarray(bottom.lines[0].get_xydata(), float), points)
    for axes in (top, bottom):
        box = axes.patches[0].get_extents().transformed(axes.transData.inverted())
        np.testing.assert_allclose([box.x0, box.x1], [20, 30])


def test_bias_maps_are_relative_to_the_largest_of_each_row():
    table = np.where(np.tri(4), -np.arange(16.0).reshape(4, 4), np.nan)
    figure = render.tables({f"head {n}": table for n in range(5)}, wide=3)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == [f"head {n}" for n in range(5)]
    shown = np.ma.filled(np.ma.masked_invalid(np.asarray(panels[4].images[0].get_array(), float)), np.nan)
    np.testing.assert_allclose(shown[3], [0, -1, -2, -3])
    assert np.isnan(shown[0, 1:]).all()
    figure.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in panels]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_the_scatter_has_every_head():
    axes = render.scatter({"BAM": HEADS, "BAM SSMax": HEADS}, {"BAM": "bam", "BAM SSMax": "bam"}).axes[0]
    points = [np.asarray(group.get_offsets()) for group in axes.collections]
    np.testing.assert_allclose(points, [np.stack([HEADS.shape.ravel(), HEADS.log_scale.ravel()], -1)] * 2)


def test_a_label_is_drawn_as_it_stands():
    label = "$\\frac{1$ --> <b> & \x00\x1b" + "x" * 1000
    curves = {label: Curve({0: {64: 0.5, 128: 0.5}}, {})}
    drawn = [
        render.passkey(curves, 64),
        render.lengths({label: np.array([1, 5])}, 4),
        render.scatter({label: HEADS}, {label: "bam"}),
        render.scales({label: np.ones(3)}, {label: "bam"}),
        render.grids({label: render.Grid([label], [label], np.ones((1, 1)))}, down="depth", across="length"),
    ]
    for figure in drawn:
        xml.fromstring(style.svg(figure, "one"))
        texts = [text for text in figure.findobj(Text) if "frac" in text.get_text()]
        assert texts and not any(text._preprocess_math(text.get_text())[1] for text in texts)


def test_svg_is_xml_in_the_pages_colour_with_ids_of_its_own(tmp_path):
    figure = render.scatter({"BAM": HEADS}, {"BAM": "bam"})
    text = style.svg(figure, "one")
    root = xml.fromstring(text)
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    assert ids and all(name.startswith("one-") for name in ids)
    used = {value[1:] for e in root.iter() for key, value in e.attrib.items() if key.endswith("href")}
    assert used and used <= ids
    assert style.INK not in text and "currentColor" in text
    assert style.svg(figure, "one") == text
    style.save_both(figure, tmp_path / "scatter")
    assert (tmp_path / "scatter.png").stat().st_size > 1000 and (tmp_path / "scatter.svg").exists()


@pytest.mark.parametrize("suffix", style.SUFFIXES)
def test_a_drawing_is_replaced_and_another_file_stays(tmp_path, suffix):
    path = tmp_path / f"scatter{suffix}"
    for _ in range(2):
        style.keep_other(path)
        style.save(render.scatter({"BAM": HEADS}, {"BAM": "bam"}), path)
    style.library().figure.Figure().savefig(path)  # by the user's own hand
    with pytest.raises(UserError, match="this command did not write it"):
        style.keep_other(path)
