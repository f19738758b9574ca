"""The command that draws trained models: which heads it takes, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax import figures as command
from bam_jax.analysis import figures
from bam_jax.biases import alibi_slopes
from bam_jax.data import loader, tokenizers
from bam_jax.models import transformer
from bam_jax.system import errors
from bam_jax.training import checkpoint, run_folder


def save(folder, name, encoding, ssmax, causal=True, **options):
    """A run whose checkpoint at step 1 is the initial model."""
    config = configs.from_dict(
        {
            "encoding": encoding,
            "ssmax": ssmax,
            "encoding_options": options,
            "context": 24,
            "model": {"layers": 2, "width": 16, "heads": 4, "hidden": 16, "causal": causal},
            "data": {"source": str(folder / "text.txt")},
        }
    )
    tokenizer = tokenizers.tokenizer("char")
    initial = nnx.jit(lambda: transformer.build(config, vocab=tokenizer.size, rngs=nnx.Rngs(0)))()
    state = {"model": transformer.split(initial)[1], "optimizer": {"count": jnp.zeros(1)}}
    with run_folder.claim(folder / name, config, tokenizer), checkpoint.Checkpoints(folder / name) as checkpoints:
        checkpoints.save(1, state, loader.batches(config, tokenizer))
    return folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("a tale of some length, told again and again. " * 200)
    return {
        "bam": save(folder, "bam", "bam", "on", init="spread", spread=2.0),
        "alibi": save(folder, "alibi", "alibi", "off"),
        "encoder": save(folder, "encoder", "nope", "off", causal=False),
    }


def draw(*arguments):
    with pytest.raises(SystemExit) as exit:
        errors.run(command.main, arguments)
    return exit.value.code


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
def test_every_figure_becomes_two_files(runs, tmp_path, capsys):
    for name in figures.NAMES:
        assert not draw(name, f"--run={runs['bam']}", f"--out={tmp_path / 'some' / name}")
        assert {path.suffix for path in (tmp_path / "some").glob(f"{name}.*")} == {".png", ".svg"}
    assert not draw("scatter", f"--run={runs['bam']}", f"--run={runs['bam']}", "--label=a", "--label=b")
    assert (runs["bam"] / "scatter.svg").exists()
    assert "scatter.png" in capsys.readouterr().out


MISTAKES = [
    (["scater", "--run=bam"], "did you mean 'scatter'"),
    (["attention", "--run=bam", "--run=alibi"], "attention shows one run, not 2"),
    (["scatter", "--run=bam", "--run=bam"], "a --label of its own"),
    (["scatter", "--run=bam", "--length=5"], "--length=5 does not go with scatter"),
    (["priors", "--run=bam", f"--length={2**31}"], f"--length={2**31} does not go with priors"),
    (["attention", "--run=bam", "--length=3"], "length 3 is shorter than the passkey prompt"),
    (["attention", "--run=encoder"], "is an encoder"),
    (["biases", "--run=bam", "--length=99999999"], "not 99999999; ask for a shorter text"),
    (["priors", "--run=alibi"], "no BAM priors, its encoding is 'alibi'"),
    (["scales", "--run=alibi"], "no Scalable Softmax"),
    (["scales", "--run=nothing"], "not a run"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(runs, tmp_path, capsys, arguments, message):
    places = [
        argument.replace("--run=", f"--run={runs['bam'].parent}/") if "--run" in argument else argument
        for argument in arguments
    ]
    assert draw(*places, f"--out={tmp_path / 'figure'}") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and message in said
    assert not list(tmp_path.iterdir())


def test_another_file_stays_and_a_suffix_may_be_given(runs, tmp_path, capsys):
    given = "scales", f"--run={runs['bam']}"
    assert not draw(*given, f"--out={tmp_path / 'v1.2.png'}")
    assert {path.name for path in tmp_path.iterdir()} == {"v1.2.png", "v1.2.svg"}
    assert not draw(*given, f"--out={tmp_path / 'v1.2'}")
    for path in sorted(tmp_path.iterdir()):
        path.write_text("mine")
        assert draw(*given, f"--out={tmp_path / 'v1.2'}") == 2
        assert path.name in capsys.readouterr().err and path.read_text() == "mine"
        path.unlink()
