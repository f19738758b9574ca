"""A BERT as Hugging Face publishes it: converted, it gives the logits of a forward pass in NumPy, and of transformers itself."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from bam_jax.convert import __main__ as convert
from bam_jax.data.tokenizers import tokenizer
from bam_jax.models.embedding import embed_texts
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, run_folder

numpy = pytest.importorskip("safetensors.numpy")

GOLDEN = Path(__file__).parent / "bert_golden"
L, E, H, F, T = 2, 24, 4, 40, 16
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789abcdef", *(f"##{letter}" for letter in "abcdef")]
V = len(PIECES)
CONFIG = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_size": E,
    "intermediate_size": F,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": T,
    "model_type": "bert",
    "num_attention_heads": H,
    "num_hidden_layers": L,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": V,
}


def published(rng, *, head=True):
    """Random weights by the names that transformers gives them."""
    draw = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
    layer = {
        "attention.self.query": (E, E),
        "attention.self.key": (E, E),
        "attention.self.value": (E, E),
        "attention.output.dense": (E, E),
        "intermediate.dense": (F, E),
        "output.dense": (E, F),
    }
    linear = {f"bert.encoder.layer.{n}.{name}": shape for n in range(L) for name, shape in layer.items()}
    norms = [f"bert.encoder.layer.{n}.{name}" for n in range(L) for name in ("attention.output", "output")]
    norms.append("bert.embeddings")
    weights = {"bert.embeddings.word_embeddings.weight": draw(V, E)}
    weights["bert.embeddings.position_embeddings.weight"] = draw(T, E)
    weights["bert.embeddings.token_type_embeddings.weight"] = draw(2, E)
    linear["bert.pooler.dense"] = (E, E)
    if head:
        linear["cls.predictions.transform.dense"] = (E, E)
        norms.append("cls.predictions.transform")
        weights["cls.predictions.bias"] = draw(V)
        linear["cls.seq_relationship"] = (2, E)
    for name, shape in linear.items():
        weights |= {f"{name}.weight": draw(*shape), f"{name}.bias": draw(shape[0])}
    for name in norms:
        weights |= {f"{name}.LayerNorm.weight": 1 + draw(E), f"{name}.LayerNorm.bias": draw(E)}
    return weights


def forward(weights, tokens):
    """The last rows and the logits of one-segment texts, by the published names, in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    linear = lambda x, name: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    gelu = lambda x: x * (1 + special.erf(x / np.sqrt(2))) / 2
    heads = lambda y: y.reshape(*y.shape[:2], H, -1).swapaxes(1, 2)

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
        return x * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    x = w["bert.embeddings.word_embeddings.weight"][tokens] + w["bert.embeddings.token_type_embeddings.weight"][0]
    x = norm(x + w["bert.embeddings.position_embeddings.weight"][: tokens.shape[1]], "bert.embeddings")
    for n in range(L):
        at = f"bert.encoder.layer.{n}."
        q, k, v = (heads(linear(x, f"{at}attention.self.{name}")) for name in ("query", "key", "value"))
        scores = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(E // H))
        attended = (scores / scores.sum(-1, keepdims=True)) @ v
        attended = linear(attended.swapaxes(1, 2).reshape(x.shape), f"{at}attention.output.dense")
        x = norm(x + attended, f"{at}attention.output")
        x = norm(x + linear(gelu(linear(x, f"{at}intermediate.dense")), f"{at}output.dense"), f"{at}output")
    if "cls.predictions.bias" not in w:
        return x, None
    y = norm(gelu(linear(x, "cls.predictions.transform.dense")), "cls.predictions.transform")
    return x, y @ w["bert.embeddings.word_embeddings.weight"].T + w["cls.predictions.bias"]


def written(folder, weights, **changes):
    folder.mkdir()
    numpy.save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    return folder


def converted(source, run, *arguments):
    convert.main(["--layout=bert", f"--source={source}", f"--run={run}", *arguments])
    return checkpoint.restore_model(run)


@pytest.fixture
def tokens(rng):
    return rng.integers(0, V, (2, 11))


def test_the_weights_give_their_logits(rng, tokens, tmp_path, capsys):
    weights = published(rng)
    config, made, model = converted(written(tmp_path / "bert", weights), tmp_path / "run")
    rows, logits = forward(weights, tokens)
    np.testing.assert_allclose(model.hidden(jnp.asarray(tokens))[0], rows, atol=1e-4)
    np.testing.assert_allclose(model(jnp.asarray(tokens))[0], logits, atol=1e-4)
    embedded = embed_texts(model, jnp.asarray(tokens), jnp.asarray([11, 11]))
    np.testing.assert_allclose(embedded, rows.mean(1), atol=1e-4)
    said = capsys.readouterr().out
    assert "left out" in said and "bert.pooler.dense.weight" in said and "cls.seq_relationship.bias" in said
    assert (config.encoding, config.context, config.data.task, config.model.causal) == ("learned", T, "masked", False)
    assert made.encode("face").tolist() == [PIECES.index(piece) for piece in ("f", "##a", "##c", "##e")]
    assert (made.bos, made.eos, made.mask) == (2, 3, 4)
    with pytest.raises(UserError, match=f"17 tokens are more than the learned position table holds \\({T}\\)"):
        model(jnp.zeros((1, T + 1), jnp.int32))


def old(weights):
    """As bert-base-uncased is: gamma and beta, counted positions."""
    ends = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    named = {}
    for name, value in weights.items():
        end = next((end for end in ends if name.endswith(end)), "")
        named[name.removesuffix(end) + ends[end] if end else name] = value
    return named | {"bert.embeddings.position_ids": np.arange(T, dtype=np.int64)[None]}


def tied_twice(weights):
    table, bias = (weights["bert.embeddings.word_embeddings.weight"], weights["cls.predictions.bias"])
    return weights | {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias}


@pytest.mark.parametrize("change", [old, tied_twice])
def test_other_names_of_the_same_weights(change, rng, tokens, tmp_path):
    weights = published(rng)
    _, _, model = converted(written(tmp_path / "bert", change(weights)), tmp_path / "run")
    np.testing.assert_allclose(model(jnp.asarray(tokens))[0], forward(weights, tokens)[1], atol=1e-4)


def test_an_encoder_saved_without_its_head(rng, tokens, tmp_path, capsys):
    weights = published(rng, head=False)
    bare = {name.removeprefix("bert."): value for name, value in weights.items()}
    _, _, model = converted(written(tmp_path / "bert", bare), tmp_path / "run")
    np.testing.assert_allclose(model.hidden(jnp.asarray(tokens))[0], forward(weights, tokens)[0], atol=1e-4)
    assert "no head for masked tokens" in capsys.readouterr().out


def test_a_new_encoding_needs_no_positions_of_theirs(rng, tmp_path):
    """Only the positions of the published weights have no place then, and the command says so."""
    source = written(tmp_path / "bert", published(rng))
    with pytest.raises(UserError, match="the model has no 'position/embedding'"):
        converted(source, tmp_path / "run", "--config.encoding=alibi")


def test_what_cannot_be_converted_is_said(rng, tmp_path):
    weights = published(rng)
    source = written(tmp_path / "bert", weights)
    run = tmp_path / "run"
    for changes, says in (
        ({"model_type": "roberta"}, "'roberta'"),
        ({"model_type": "gpt2"}, "config.json has model_type='gpt2'"),
        ({"hidden_act": "relu"}, "has hidden_act='relu'"),
        ({"layer_norm_eps": 1e-5}, "has layer_norm_eps=1e-05, which must be"),
        ({"position_embedding_type": "relative_key"}, "has position_embedding_type='relative_key'"),
        ({"hidden_size": 0}, "has hidden_size=0"),
        ({"hidden_size": 48}, "makes"),
    ):
        (source / "config.json").write_text(json.dumps(CONFIG | changes))
        with pytest.raises(UserError, match=says):
            converted(source, run)
    (source / "config.json").unlink()
    with pytest.raises(UserError, match="config.json has no 'vocab_size'; .* give the folder of one"):
        converted(source, run)
    positions = "bert.embeddings.position_embeddings.weight"
    lacks = {name: value for name, value in weights.items() if name != positions}
    with pytest.raises(UserError, match="token_type_embeddings.weight' and no 'bert.embeddings.position"):
        converted(written(tmp_path / "lacks", lacks), run)
    more = weights | {"bert.encoder.layer.0.adapter.weight": weights["cls.predictions.bias"]}
    with pytest.raises(UserError, match="adapter.weight', which this layout does not know"):
        converted(written(tmp_path / "more", more), run)
    assert not run.exists()


def test_a_run_is_not_laid_out_so(rng, tmp_path):
    converted(written(tmp_path / "bert", published(rng)), tmp_path / "run")
    with pytest.raises(UserError, match="not laid out as its layout was"):
        convert.main(["--layout=bert", f"--run={tmp_path / 'run'}", f"--export={tmp_path / 'back'}"])
    assert run_folder.read_config(tmp_path / "run").model.family == "bert"


@pytest.mark.full
def test_transformers_gives_the_same(tmp_path):
    """The ids of a text, last rows and logits that `tests/convert/make_bert_golden.py` had from transformers."""
    expected = json.loads((GOLDEN / "expected.json").read_text())
    _, made, model = converted(GOLDEN, tmp_path / "run")
    assert made.encode(expected["text"]).tolist() == expected["ids"][1:-1]
    assert (made.bos, made.eos) == (expected["ids"][0], expected["ids"][-1])
    assert tokenizer(f"bert:{GOLDEN}").mask == expected["mask"]
    arrays = numpy.load_file(GOLDEN / "expected.safetensors")
    ids = jnp.asarray(arrays["ids"])
    np.testing.assert_allclose(model.hidden(ids)[0], arrays["rows"], atol=1e-4)
    np.testing.assert_allclose(model(ids)[0], arrays["logits"], atol=1e-4)
    # Padded, and with another mask of attention: what is filled is the same.
    padded = jnp.pad(ids[:1], ((0, 0), (0, 3)))
    filled = (jnp.arange(padded.shape[1]) < ids.shape[1]).astype(jnp.int32)[None]
    np.testing.assert_allclose(model(padded, segment=filled)[0][:, : ids.shape[1]], arrays["logits"][:1], atol=1e-4)
