"""A GPT-2 of Hugging Face's, against a forward pass written here in NumPy from its names."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax.convert import __main__ as convert
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.training import checkpoint, run_folder

numpy = pytest.importorskip("safetensors.numpy")

L, E, H, V, T, P = 2, 24, 4, 280, 9, 16
DESCRIBED = {"model_type": "gpt2", "vocab_size": V, "n_embd": E, "n_layer": L, "n_head": H, "n_positions": P}
TALE = ["some words of a tale, told again and again: 0123456789 " * 9]


def drawn(rng):
    draw = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
    weights = {"wte.weight": draw(V, E) * 5, "wpe.weight": draw(P, E), "ln_f.weight": 1 + draw(E), "ln_f.bias": draw(E)}
    for n in range(L):
        shapes = {"attn.c_attn": (E, 3 * E), "attn.c_proj": (E, E), "mlp.c_fc": (E, 4 * E), "mlp.c_proj": (4 * E, E)}
        for name, shape in shapes.items():
            weights |= {f"h.{n}.{name}.weight": draw(*shape), f"h.{n}.{name}.bias": draw(shape[1])}
        for name in ("ln_1", "ln_2"):
            weights |= {f"h.{n}.{name}.weight": 1 + draw(E), f"h.{n}.{name}.bias": draw(E)}
    return weights


def forward(weights, tokens):
    """Logits [T, V], in float64. Source: the definition in transformers' modeling_gpt2.py."""
    w = {name: np.float64(array) for name, array in weights.items()}
    linear = lambda x, name: x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:T]
    for n in range(L):
        q, k, v = (
            each.reshape(T, H, -1) for each in np.split(linear(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn"), 3, 1)
        )
        shares = np.exp(np.einsum("ihd,jhd->hij", q, k) / np.sqrt(E // H)) * np.tri(T)
        out = np.einsum("hij,jhd->ihd", shares / shares.sum(-1, keepdims=True), v).reshape(T, E)
        x = x + linear(out, f"h.{n}.attn.c_proj")
        y = linear(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")
        x = x + linear(0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))), f"h.{n}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


@pytest.mark.parametrize("named", ["", "transformer."])
def test_a_gpt2_enters_and_leaves(tmp_path, rng, command, refused, named):
    weights, source = drawn(rng), tmp_path / "theirs"
    source.mkdir()
    (source / "tokenizer.json").write_text(train_bpe(TALE, V))
    (source / "config.json").write_text(json.dumps(DESCRIBED))
    buffers = {f"h.{n}.attn.bias": np.tril(np.ones((1, 1, P, P), np.float32)) for n in range(L)}  # of old files
    numpy.save_file({named + name: array for name, array in (weights | buffers).items()}, source / "model.safetensors")
    assert not command(convert.main, f"--source={source}", f"--run={tmp_path / 'run'}")[0]
    config = run_folder.read_config(tmp_path / "run")
    assert (config.encoding, config.context, config.model.family, config.model.hidden) == ("learned", P, "gpt2", 4 * E)
    tokens = rng.integers(0, V, T)
    expected = forward(weights, tokens)
    made = checkpoint.restore_model(tmp_path / "run")[2](jnp.asarray(tokens)[None])[0][0]
    np.testing.assert_allclose(made, expected, atol=1e-4 * np.abs(expected).max())

    assert not command(convert.main, "--layout=gpt2", f"--run={tmp_path / 'run'}", f"--export={tmp_path / 'out'}")[0]
    again = numpy.load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(again.pop("lm_head.weight"), weights["wte.weight"])
    assert {name.removeprefix("transformer.") for name in again} == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(again[f"transformer.{name}"], array)
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {name: said[name] for name in DESCRIBED} == DESCRIBED
    (source / "config.json").write_text(json.dumps(DESCRIBED | {"activation_function": "relu"}))
    assert "activation_function" in refused(convert.main, f"--source={source}", f"--run={tmp_path / 'other'}")
