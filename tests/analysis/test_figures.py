"""The command that draws trained models: which heads it takes, and what it refuses."""

import numpy as np
import pytest

from bam_jax import figures as figures_command
from bam_jax.analysis import figures
from bam_jax.biases import alibi_slopes


def test_attention_is_that_of_the_head_of_each_class_that_sees_most_of_the_key(runs, rng, monkeypatch):
    given = {}
    monkeypatch.setattr(figures.maps, "attention", lambda maps, key: given.update(maps=maps, key=key))
    figures.draw_attention(runs["bam"], 40)
    assert given["key"] == (1, 6)  # after the token that opens a key
    assert [title.split("\n")[0] for title in given["maps"]] == ["retrieval", "long-tail", "local"]
    for weights in given["maps"].values():
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    layers = rng.random((2, 4, 40, 40))
    left = iter(layers)
    monkeypatch.setattr(figures, "_joint", lambda *layer: next(left))
    figures.draw_attention(runs["bam"], 40)
    seen = layers[:, :, -1, 1:6].sum(-1)
    for weights, members in zip(given["maps"].values(), ([0, 1], [2], [3]), strict=True):
        layer, head = np.unravel_index(seen[:, members].argmax(), (2, len(members)))
        np.testing.assert_array_equal(weights, layers[layer, members[head]])


def test_bias_maps_of_several_runs_are_their_biases(runs, monkeypatch):
    given = {}
    monkeypatch.setattr(figures.maps, "tables", lambda maps, wide: given.update(maps))
    figures.draw_biases({"one": runs["alibi"]}, 10)
    distance = np.arange(10)[:, None] - np.arange(10)
    for head, slope in enumerate(alibi_slopes(4)):
        expected = np.where(distance >= 0, -slope * distance, np.nan)
        np.testing.assert_allclose(given[f"head {head}"], expected, rtol=1e-6)
    given.clear()
    figures.draw_biases(runs, 10)
    labels = ("bam", "alibi", "encoder scores")  # without a bias it is the scores that are drawn
    assert list(given) == [f"{label}, {head}" for label in labels for head in (0, 1, 3)]
    assert not np.isnan(given["encoder scores, 0"]).any()


@pytest.mark.full
def test_every_figure_becomes_two_files(runs, tmp_path, command):
    for name in figures.NAMES:
        assert not command(figures_command.main, name, f"--run={runs['bam']}", f"--out={tmp_path / 'some' / name}")[0]
        assert {path.suffix for path in (tmp_path / "some").glob(f"{name}.*")} == {".png", ".svg"}
    two = f"--run={runs['bam']}", f"--run={runs['bam']}", "--label=a", "--label=b"
    assert "scatter.png" in command(figures_command.main, "scatter", *two)[1]
    assert (runs["bam"] / "scatter.svg").exists()


MISTAKES = [
    ("scater --run=bam", "did you mean 'scatter'"),
    ("attention --run=bam --run=alibi", "attention shows one run, not 2"),
    ("scatter --run=bam --run=bam", "a --label of its own"),
    ("scatter --run=bam --length=5", "--length=5 does not go with scatter"),
    (f"priors --run=bam --length={2**31}", f"--length={2**31} does not go with priors"),
    ("attention --run=encoder", "is an encoder"),
    ("priors --run=alibi", "no BAM priors, its encoding is 'alibi'"),
    ("scales --run=alibi", "no Scalable Softmax"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(runs, tmp_path, refused, arguments, message):
    places = arguments.replace("--run=", f"--run={runs['bam'].parent}/").split()
    assert message in refused(figures_command.main, *places, f"--out={tmp_path / 'figure'}")
    assert not list(tmp_path.iterdir())


def test_another_file_stays_and_a_suffix_may_be_given(runs, tmp_path, command, refused):
    given = figures_command.main, "scales", f"--run={runs['bam']}"
    for out in ("v1.2.png", "v1.2"):
        assert not command(*given, f"--out={tmp_path / out}")[0]
        assert {path.name for path in tmp_path.iterdir()} == {"v1.2.png", "v1.2.svg"}
    for path in sorted(tmp_path.iterdir()):
        path.write_text("mine")
        assert path.name in refused(*given, f"--out={tmp_path / 'v1.2'}") and path.read_text() == "mine"
        path.unlink()
