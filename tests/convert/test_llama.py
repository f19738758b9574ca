"""A Llama of Hugging Face's and of llama.cpp's, against a forward pass written here in NumPy from their names."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax.convert import __main__ as convert
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.training import checkpoint, run_folder

numpy = pytest.importorskip("safetensors.numpy")
gguf = pytest.importorskip("gguf")

L, E, H, K, F, V, T = 2, 32, 4, 2, 64, 300, 9
D = E // H
DESCRIBED = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": E,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "intermediate_size": F,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "transformers_version": "4.57.0",
}


def drawn(rng, *, tied=False, biases=False):
    draw = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
    weights = {"model.embed_tokens.weight": draw(V, E) * 5, "model.norm.weight": 1 + draw(E)}
    if not tied:
        weights["lm_head.weight"] = draw(V, E)
    for n in range(L):
        at = f"model.layers.{n}."
        shapes = {"self_attn.q": (E, E), "self_attn.k": (K * D, E), "self_attn.v": (K * D, E), "self_attn.o": (E, E)}
        shapes |= {"mlp.gate": (F, E), "mlp.up": (F, E), "mlp.down": (E, F)}
        weights |= {f"{at}{name}_proj.weight": draw(*shape) for name, shape in shapes.items()}
        weights |= {f"{at}{name}_layernorm.weight": 1 + draw(E) for name in ("input", "post_attention")}
        if biases:  # a Qwen 2
            weights |= {f"{at}self_attn.{name}_proj.bias": draw(E if name == "q" else K * D) for name in "qkv"}
    return weights


def forward(weights, tokens, described=DESCRIBED):
    """Logits [T, V] of one text, in float64. Source: the definition in transformers' modeling_llama.py."""
    w = {name: np.float64(array) for name, array in weights.items()}
    norm = lambda x, name: x / np.sqrt((x**2).mean(-1, keepdims=True) + described["rms_norm_eps"]) * w[name]
    rate = described["rope_theta"] ** (-np.arange(D // 2) / (D // 2))

    def turn(x):
        angle = np.concatenate([np.arange(T)[:, None] * rate] * 2, -1)[:, None]
        half = np.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1)
        return x * np.cos(angle) + half * np.sin(angle)

    x = w["model.embed_tokens.weight"][tokens]
    for n in range(L):
        at = f"model.layers.{n}."
        y = norm(x, f"{at}input_layernorm.weight")
        bias = lambda name, at=at: w.get(f"{at}self_attn.{name}_proj.bias", 0)
        q, k, v = ((y @ w[f"{at}self_attn.{name}_proj.weight"].T + bias(name)).reshape(T, -1, D) for name in "qkv")
        q, k, v = turn(q), np.repeat(turn(k), H // K, 1), np.repeat(v, H // K, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(D)
        shares = np.exp(scores) * np.tri(T)
        out = np.einsum("hij,jhd->ihd", shares / shares.sum(-1, keepdims=True), v).reshape(T, E)
        x = x + out @ w[f"{at}self_attn.o_proj.weight"].T
        y = norm(x, f"{at}post_attention_layernorm.weight")
        gate = y @ w[f"{at}mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[f"{at}mlp.up_proj.weight"].T)) @ w[f"{at}mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


@pytest.fixture(scope="session")
def vocabulary():
    """The contents of a tokenizer.json of as many tokens as the models have."""
    made = train_bpe(["some words of a tale, told again and again: 0123456789 " * 9], V)
    tokens = json.loads(made)["model"]["vocab"]
    assert len(tokens) <= V
    return made


def folder(path, weights, vocabulary, described=DESCRIBED, parts=1):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(described))
    (path / "tokenizer.json").write_text(vocabulary)
    if parts == 1:
        numpy.save_file(weights, path / "model.safetensors")
        return path
    names = sorted(weights)
    places = {name: f"model-{number % parts + 1:05}-of-{parts:05}.safetensors" for number, name in enumerate(names)}
    for place in {*places.values()}:
        numpy.save_file({name: weights[name] for name in names if places[name] == place}, path / place)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def logits(run, tokens):
    return np.asarray(checkpoint.restore_model(run)[2](jnp.asarray(tokens)[None])[0][0])


TOKENS = np.random.default_rng(5).integers(0, V, T)


@pytest.mark.parametrize(("kind", "tied", "parts"), [("llama", False, 1), ("llama", True, 3), ("qwen2", True, 1)])
def test_a_llama_of_hugging_faces(tmp_path, rng, vocabulary, command, kind, tied, parts):
    weights = drawn(rng, tied=tied, biases=kind == "qwen2")
    described = DESCRIBED | {"tie_word_embeddings": tied, "model_type": kind}
    source = folder(tmp_path / "theirs", weights, vocabulary, described, parts)
    assert not command(convert.main, f"--source={source}", f"--run={tmp_path / 'run'}")[0]
    config = run_folder.read_config(tmp_path / "run")
    assert (config.encoding, config.encoding_options, config.context) == ("rope", {"base": 500.0}, 64)
    assert (config.model.kv_heads, config.model.tied, config.model.norm_epsilon) == (K, tied, 1e-6)
    expected = forward(weights, TOKENS, described)
    np.testing.assert_allclose(logits(tmp_path / "run", TOKENS), expected, atol=1e-4 * np.abs(expected).max())

    # And out again: the same arrays and description.
    assert not command(convert.main, "--layout=llama", f"--run={tmp_path / 'run'}", f"--export={tmp_path / 'out'}")[0]
    again = numpy.load_file(tmp_path / "out" / "model.safetensors")
    kept = {name: array for name, array in again.items() if not (tied and name == "lm_head.weight")}
    assert kept.keys() == weights.keys()
    for name, array in kept.items():
        np.testing.assert_array_equal(array, weights[name])
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {name: said[name] for name in described if name in said} == {
        name: value for name, value in described.items() if name in said
    } and said["architectures"] == [f"{kind.capitalize()}ForCausalLM"]


def to_llama_cpp(kernel, heads):
    """Rows of each head as its converter writes them: the two of a rotation's pair beside each other."""
    return kernel.reshape(heads, 2, D // 2, -1).swapaxes(1, 2).reshape(kernel.shape)


def write_gguf(path, weights, vocabulary, *, quantised=False, **changes):
    named = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    named |= {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    named |= {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    fields = {"architecture": "llama", "model": "gpt2", "pre": "smollm"} | changes
    writer, model = gguf.GGUFWriter(path, fields["architecture"]), json.loads(vocabulary)["model"]
    writer.add_block_count(L)
    writer.add_context_length(64)
    writer.add_embedding_length(E)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(K)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(500.0)
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(fields["pre"])
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += [f"<unused{n}>" for n in range(V - len(tokens))]
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") and len(token) > 1 else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]])
    for name, array in weights.items():
        stem = name.removesuffix(".weight")
        if stem in whole:
            theirs = whole[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            theirs = f"blk.{layer}.{named[part]}"
            if part.endswith(("q_proj", "k_proj")):
                array = to_llama_cpp(array, H if "q_proj" in part else K)
        kind = gguf.GGMLQuantizationType.Q8_0
        if quantised and array.ndim == 2:
            writer.add_tensor(f"{theirs}.weight", gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{theirs}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("quantised", [False, True])
def test_a_llama_of_llama_cpps(tmp_path, rng, vocabulary, command, quantised):
    weights = drawn(rng, tied=True)
    source = write_gguf(tmp_path / "model.gguf", weights, vocabulary, quantised=quantised)
    assert not command(convert.main, f"--source={source}", f"--run={tmp_path / 'run'}")[0]
    expected, made = forward(weights, TOKENS), logits(tmp_path / "run", TOKENS)
    error = np.abs(made - expected).max() / np.abs(expected).max()
    assert error < 1e-4 if not quantised else 1e-4 < error < 0.05
    _, tokenizer, _ = checkpoint.restore_model(tmp_path / "run")
    text = "some words of 2026"
    assert tokenizer.decode(tokenizer.encode(text)) == text and tokenizer.size == V
    assert [tokenizer.decode(each[None]) for each in tokenizer.encode("12")] == ["1", "2"], "each digit stands alone"


def test_what_cannot_be_read_is_one_line(tmp_path, rng, vocabulary, refused):
    weights, run = drawn(rng), f"--run={tmp_path / 'run'}"
    ask = lambda source: refused(convert.main, f"--source={source}", run)
    for name, value in {"attention_bias": True, "mlp_bias": True, "use_sliding_window": True}.items():
        source = folder(tmp_path / name, weights, vocabulary, DESCRIBED | {name: value})
        assert f"config.json has {name}=" in ask(source)
    for name in ("rope_scaling", "rope_parameters"):
        source = folder(tmp_path / name, weights, vocabulary, DESCRIBED | {name: {"rope_type": "longrope"}})
        assert "config.json has rope_scaling of type 'longrope'" in ask(source)
    assert "model of type 'mamba'" in ask(
        folder(tmp_path / "m", weights, vocabulary, DESCRIBED | {"model_type": "mamba"})
    )
    assert "vocab_size" in ask(folder(tmp_path / "few", weights, vocabulary, {"model_type": "llama"}))
    parts = folder(tmp_path / "parts", weights, vocabulary, parts=2)
    (parts / "model-00002-of-00002.safetensors").unlink()
    assert "names model-00002-of-00002.safetensors, which is not there" in ask(parts)
    index = parts / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))
    assert "weight_map" in ask(parts)
    index.write_text(json.dumps({"weight_map": {"a": "model.pkl"}}))
    assert "which is no .safetensors file" in ask(parts)
    whole = write_gguf(tmp_path / "whole.gguf", weights, vocabulary)
    (tmp_path / "torn.gguf").write_bytes(whole.read_bytes()[:5000])
    assert "is not a whole GGUF file" in ask(tmp_path / "torn.gguf")
    others = {"architecture": "mamba", "model": "llama", "pre": "tekken"}
    for field, value in others.items():
        path = write_gguf(tmp_path / f"{field}.gguf", weights, vocabulary, **{field: value})
        assert repr(value) in ask(path)
    assert "--layout=bert is not what a .gguf file holds" in refused(
        convert.main, f"--source={whole}", run, "--layout=bert"
    )
    assert not (tmp_path / "run").exists()
