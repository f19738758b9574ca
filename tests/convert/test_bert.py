"""A BERT as Hugging Face publishes it: converted, it gives the rows and logits that transformers itself gives."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax.convert import __main__ as convert
from bam_jax.models.embedding import embed_texts
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint

numpy = pytest.importorskip("safetensors.numpy")

GOLDEN = Path(__file__).parent / "bert_golden"  # written by make_bert_golden.py
CONFIG = json.loads((GOLDEN / "config.json").read_text())
POSITIONS, WIDTH = "bert.embeddings.position_embeddings.weight", CONFIG["hidden_size"]
EXPECTED = numpy.load_file(GOLDEN / "expected.safetensors")


@pytest.fixture
def published(rng):
    """The weights of the golden model, and the heads that published ones have besides."""
    weights = numpy.load_file(GOLDEN / "model.safetensors")
    for name, rows in (("bert.pooler.dense", WIDTH), ("cls.seq_relationship", 2)):
        for part, shape in (("weight", (rows, WIDTH)), ("bias", rows)):
            weights[f"{name}.{part}"] = rng.normal(size=shape).astype(np.float32)
    return weights


def written(folder, weights, **changes):
    folder.mkdir()
    numpy.save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "vocab.txt").write_bytes((GOLDEN / "vocab.txt").read_bytes())
    return folder


def converted(source, run, *arguments):
    convert.main(["--layout=bert", f"--source={source}", f"--run={run}", *arguments])
    return checkpoint.restore_model(run)


def test_transformers_gives_the_same(published, tmp_path, capsys):
    config, tokenizer, model = converted(written(tmp_path / "bert", published), tmp_path / "run")
    ids = jnp.asarray(EXPECTED["ids"])
    np.testing.assert_allclose(model.hidden(ids)[0], EXPECTED["rows"], atol=1e-4)
    np.testing.assert_allclose(model(ids)[0], EXPECTED["logits"], atol=1e-4)
    # Padded, and with another mask of attention: what is filled is the same.
    padded = jnp.pad(ids[:1], ((0, 0), (0, 3)))
    filled = (jnp.arange(padded.shape[1]) < ids.shape[1]).astype(jnp.int32)[None]
    logits = model(padded, segment=filled)[0][:, : ids.shape[1]]
    np.testing.assert_allclose(logits, EXPECTED["logits"][:1], atol=1e-4)
    embedded = embed_texts(model, ids, jnp.full(2, ids.shape[1]))
    np.testing.assert_allclose(embedded, EXPECTED["rows"].mean(1), atol=1e-4)
    said = capsys.readouterr().out
    assert "left out" in said and "bert.pooler.dense.weight" in said and "cls.seq_relationship.bias" in said
    positions = CONFIG["max_position_embeddings"]
    found = config.encoding, config.context, config.data.task, config.model.causal, config.model.family
    assert found == ("learned", positions, "masked", False, "bert")
    text = json.loads((GOLDEN / "expected.json").read_text())
    first, *ids, last = text["ids"]
    assert tokenizer.encode(text["text"]).tolist() == ids
    assert (tokenizer.bos, tokenizer.eos, tokenizer.mask) == (first, last, text["mask"])
    convert.main(["--layout=bert", f"--run={tmp_path / 'run'}", f"--export={tmp_path / 'back'}"])
    back = numpy.load_file(tmp_path / "back" / "model.safetensors")
    types = "bert.embeddings.token_type_embeddings.weight"
    assert not back[types].any()
    np.testing.assert_array_equal(back[POSITIONS], published[POSITIONS] + published[types][0])
    with pytest.raises(UserError, match=f"tokens are more than the learned position table holds \\({positions}\\)"):
        model(jnp.zeros((1, positions + 1), jnp.int32))


def old(weights):
    """As bert-base-uncased is: gamma and beta, counted positions."""
    renamed = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )
    positions = np.arange(CONFIG["max_position_embeddings"])[None]
    return {renamed(name): value for name, value in weights.items()} | {"bert.embeddings.position_ids": positions}


def tied_twice(weights):
    table, bias = weights["bert.embeddings.word_embeddings.weight"], weights["cls.predictions.bias"]
    return weights | {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias}


def bare(weights):
    return {name.removeprefix("bert."): value for name, value in weights.items() if not name.startswith("cls.")}


@pytest.mark.parametrize("change", [old, tied_twice, bare])
def test_other_names_of_the_same_weights(change, published, tmp_path, capsys):
    _, _, model = converted(written(tmp_path / "bert", change(published)), tmp_path / "run")
    ids = jnp.asarray(EXPECTED["ids"])
    np.testing.assert_allclose(model.hidden(ids)[0], EXPECTED["rows"], atol=1e-4)
    if change is bare:
        assert "no head for masked tokens" in capsys.readouterr().out
    else:
        np.testing.assert_allclose(model(ids)[0], EXPECTED["logits"], atol=1e-4)


def test_what_cannot_be_converted_is_said(published, tmp_path):
    run = tmp_path / "run"
    lacks = {name: value for name, value in published.items() if name != POSITIONS}
    more = published | {"bert.encoder.layer.0.adapter.weight": published["cls.predictions.bias"]}
    for n, (weights, changes, options, says) in enumerate(
        (
            (published, {"model_type": "roberta"}, (), "'roberta'"),
            (published, {"hidden_act": "relu"}, (), "has hidden_act='relu'"),
            (published, {"hidden_size": 48}, (), "makes"),
            (published, {}, ("--config.encoding=alibi",), "the model has no 'position/embedding'"),
            (lacks, {}, (), "token_type_embeddings.weight' and no 'bert.embeddings.position"),
            (more, {}, (), "adapter.weight', which this layout does not know"),
        )
    ):
        with pytest.raises(UserError, match=says):
            converted(written(tmp_path / str(n), weights, **changes), run, *options)
    (tmp_path / "0" / "config.json").unlink()
    with pytest.raises(UserError, match="config.json has no 'vocab_size'; .* give the folder of one"):
        converted(tmp_path / "0", run)
    assert not run.exists()
