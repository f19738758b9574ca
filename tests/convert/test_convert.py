"""Weights in the authors' layouts: converted, they give the logits of a forward pass written here in NumPy from their names."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, traverse_util

from bam_jax.config import override
from bam_jax.convert import LAYOUTS, runs
from bam_jax.convert import __main__ as convert
from bam_jax.convert.base import to_ours, to_theirs
from bam_jax.models import transformer
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, run_folder

flax = pytest.importorskip("safetensors.flax")
numpy = pytest.importorskip("safetensors.numpy")

L, E, H, D, F, V, T = 2, 24, 4, 6, 40, 300, 11


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def heads(x, n=H):
    return x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2)


def bam_weights(rng, encoding, *, shared=False, groups=H):
    draw = lambda *shape: rng.normal(size=shape) / np.sqrt(shape[-1])
    weights = {
        "tok_embeddings.weight": rng.normal(size=(V, E)),
        "output.weight": draw(V, E),
        "norm.weight": 1 + draw(E),
    }
    prior = lambda: {
        "shape": rng.uniform(-1, 1, (1, H, 1, 1)),
        "scale": rng.normal(size=(1, H, 1, 1)),
        "loc": rng.uniform(-0.3, 0.3, (1, H, 1, 1)),
    }
    for n in range(L):
        at = f"layers.{n}."
        for name, out in (("wq", H), ("wk", groups), ("wv", groups)):
            weights[f"{at}attention.{name}.weight"] = draw(out * D, E)
        weights[f"{at}attention.wo.weight"] = draw(E, H * D)
        weights |= {
            f"{at}feed_forward.w{i}.weight": draw(*shape) for i, shape in ((1, (F, E)), (2, (E, F)), (3, (F, E)))
        }
        weights |= {f"{at}{name}_norm.weight": 1 + draw(E) for name in ("attention", "ffn")}
        if "ssmax" in encoding:
            weights[f"{at}attention.seq_scale"] = rng.uniform(0.5, 1.5, (1, H, 1, 1))
        if "bam" in encoding and not shared:
            weights |= {f"{at}attention.prior.{name}": value for name, value in prior().items()}
    if "bam" in encoding and shared:
        weights |= {f"prior.{name}": value for name, value in prior().items()}
    return {name: value.astype(np.float32) for name, value in weights.items()}


def bam_args(encoding, **changes):
    model = {
        "dim": E, "n_layers": L, "n_heads": H, "n_kv_heads": None, "vocab_size": V, "multiple_of": 1,
        "ffn_dim_multiplier": F / E + 0.01, "norm_eps": 1e-5, "max_seq_len": 64,
    }  # fmt: skip
    return {"args": {"position_encoding": encoding}, "model_args": model | changes}


def bam_logits(weights, encoding, tokens, codes, *, inside=True):
    """The training code's arithmetic, by the names of its weights."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    norm = lambda x, name: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"]
    x = w["tok_embeddings.weight"][tokens]
    at = np.arange(T)
    if "sinusoidal" in encoding:
        table = np.empty((T, E))
        for p in range(T):
            for e in range(E):
                table[p, e] = (np.sin, np.cos)[e % 2](p * 10_000.0 ** (-e / E))
        x = x + table
    same = codes[:, :, None] == codes[:, None, :]
    visible = same & np.tri(T, dtype=bool)
    log_count = np.log(visible.sum(-1))[:, None, :, None]
    distance = (at[None, :] - at[:, None])[None, None].astype(float)

    def turn(y):
        """Neighbouring outputs are the parts of one complex number."""
        rate = 500_000.0 ** (-np.arange(0, D, 2) / D)
        z = (y[..., 0::2] + 1j * y[..., 1::2]) * np.exp(1j * at[:, None] * rate)
        return np.stack([z.real, z.imag], -1).reshape(y.shape)

    for n in range(L):
        name = f"layers.{n}.attention."
        y = norm(x, f"layers.{n}.attention_norm")
        q, k, v = (
            heads(y @ w[f"{name}{kind}.weight"].T, len(w[f"{name}{kind}.weight"]) // D) for kind in ("wq", "wk", "wv")
        )
        if "rotary" in encoding:
            q, k = turn(q), turn(k)
        k, v = (np.repeat(z, H // z.shape[1], axis=1) for z in (k, v))
        scores = q @ k.swapaxes(2, 3) / np.sqrt(D)
        bias = 0.0
        if "bam" in encoding:
            prior = "prior." if "prior.shape" in w else name + "prior."
            loc = np.exp(w[prior + "loc"]) - np.exp(-w[prior + "loc"])
            bias = -((np.abs(distance - loc) + 1e-5) ** w[prior + "shape"]) * np.exp(w[prior + "scale"])
        elif "alibi" in encoding:
            bias = -np.abs(distance) * (2.0 ** (-8 * np.arange(1, H + 1) / H)).reshape(1, H, 1, 1)
        if "ssmax" in encoding:
            factor = log_count * w[name + "seq_scale"]
            scores = (scores + bias) * factor if "bam" in encoding and inside else scores * factor + bias
        else:
            scores = scores + bias
        scores = np.where(visible[:, None], scores, -np.inf)
        attended = (softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + attended @ w[name + "wo.weight"].T
        y = norm(x, f"layers.{n}.ffn_norm")
        gate, up = (y @ w[f"layers.{n}.feed_forward.w{i}.weight"].T for i in (1, 3))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"layers.{n}.feed_forward.w2.weight"].T
    return norm(x, "norm") @ w["output.weight"].T


def cable_weights(rng):
    draw = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
    table = draw(V, E)
    weights = {"transformer.wte.weight": table, "lm_head.weight": table}
    sizes = {
        "attn.c_attn": (3 * E, E),
        "attn.h_attn": (H, E),
        "attn.c_proj": (E, E),
        "mlp.c_fc": (F, E),
        "mlp.c_proj": (E, F),
    }
    for n in range(L):
        for name, (out, inputs) in sizes.items():
            weights[f"transformer.h.{n}.{name}.weight"] = draw(out, inputs)
            weights[f"transformer.h.{n}.{name}.bias"] = draw(out)
    for name in [f"h.{n}.ln_{i}" for n in range(L) for i in (1, 2)] + ["ln_f"]:
        weights |= {f"transformer.{name}.weight": 1 + draw(E), f"transformer.{name}.bias": draw(E)}
    return weights


def cable_logits(weights, tokens):
    """The training code's arithmetic: unscaled q.k, softplus steps with a bias, no weight of the query."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    linear = lambda x, name: x @ w[f"transformer.{name}.weight"].T + w[f"transformer.{name}.bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"transformer.{name}.weight"]
            + w[f"transformer.{name}.bias"]
        )

    x = w["transformer.wte.weight"][tokens]
    for n in range(L):
        y = norm(x, f"h.{n}.ln_1")
        q, k, v = map(heads, np.split(linear(y, f"h.{n}.attn.c_attn"), 3, axis=-1))
        total = np.cumsum(-np.log1p(np.exp(linear(y, f"h.{n}.attn.h_attn"))), axis=1).swapaxes(1, 2)
        scores = q @ k.swapaxes(2, 3) + total[..., :, None] - total[..., None, :]
        scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
        x = x + linear((softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape), f"h.{n}.attn.c_proj")
        y = linear(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")
        x = x + linear(0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))), f"h.{n}.mlp.c_proj")
    return norm(x, "ln_f") @ w["lm_head.weight"].T


@pytest.fixture
def tokens(rng):
    return rng.integers(0, V, (2, T))


BYTES = "--config.data.tokenizer=byte"


def written(folder, weights, args=None):
    folder.mkdir()
    numpy.save_file(weights, folder / "model.safetensors")
    if args is not None:
        (folder / "args.json").write_text(json.dumps(args))
    return folder


def converted(layout, source, run):
    convert.main([f"--layout={layout}", f"--source={source}", f"--run={run}", BYTES])
    return checkpoint.restore_model(run)[2]


@pytest.fixture
def exported(tmp_path):
    """Exports tmp_path/run in a layout, compares every array with the published ones, and returns what describes them."""

    def export(layout, weights):
        convert.main([f"--layout={layout}", f"--run={tmp_path / 'run'}", f"--export={tmp_path / 'back'}"])
        back, described, _ = runs.read(LAYOUTS[layout], tmp_path / "back")
        assert back.keys() == weights.keys()
        for name, value in weights.items():
            np.testing.assert_allclose(back[name], value, rtol=1e-6, err_msg=name)
        return described

    return export


@pytest.mark.parametrize(
    ("encoding", "changes", "groups"),
    [
        ("bam_ssmax", {"train_loc": True}, H),
        ("bam_ssmax", {"ssmax_prior": False}, 2),
        ("alibi_ssmax", {}, H),
        ("rotary", {"rope_theta": 500_000}, 2),
        ("sinusoidal_ssmax", {}, H),
    ],
)
def test_bams_weights_give_their_logits_and_come_back_the_same(
    encoding, changes, groups, rng, tokens, tmp_path, exported
):
    weights = bam_weights(rng, encoding, groups=groups)
    args = bam_args(encoding, n_kv_heads=groups, **changes)
    model = converted("bam", written(tmp_path / "theirs", weights, args), tmp_path / "run")
    codes = np.sort(rng.integers(1, 4, (2, T)), axis=1)
    inside = "ssmax_prior" not in changes
    made = model(jnp.asarray(tokens), segment=jnp.asarray(codes))[0]
    np.testing.assert_allclose(made, bam_logits(weights, encoding, tokens, codes, inside=inside), atol=1e-4)
    described = exported("bam", weights)
    assert described["args"]["position_encoding"] == encoding
    again = runs.describe(LAYOUTS["bam"], weights, described, {"data.tokenizer": "byte"}, tmp_path)
    config = run_folder.read_config(tmp_path / "run")
    assert (again.model, again.encoding, again.ssmax) == (config.model, config.encoding, config.ssmax)
    assert again.encoding_options | config.encoding_options == again.encoding_options


def test_one_prior_for_all_layers_stays_one(rng, tokens, tmp_path, monkeypatch, exported):
    monkeypatch.setitem(globals(), "L", H)  # as many layers as heads, so that shapes tell nothing
    weights = bam_weights(rng, "bam_ssmax", shared=True)
    model = converted("bam", written(tmp_path / "theirs", weights, bam_args("bam_ssmax")), tmp_path / "run")
    expected = bam_logits(weights, "bam_ssmax", tokens, np.ones((2, T), int))
    np.testing.assert_allclose(model(jnp.asarray(tokens))[0], expected, atol=1e-4)
    assert run_folder.read_config(tmp_path / "run").shared_encoding
    assert exported("bam", weights)["model_args"]["global_positional_encoding"]


def test_one_prior_may_become_that_of_each_layer(rng, monkeypatch):
    monkeypatch.setitem(globals(), "L", H)
    layout, weights = LAYOUTS["bam"], bam_weights(rng, "bam", shared=True)
    overrides = {"data.tokenizer": "byte", "shared_encoding": False}
    config = runs.describe(layout, weights, bam_args("bam"), overrides, Path())
    entries = layout.entries(config, True)
    shapes = {entry.ours: entry.form.ours(weights[entry.names(config)[0]], config).shape for entry in entries}
    shapes = {name: (H, *shape) if name.startswith("layers/") else shape for name, shape in shapes.items()}
    back = to_theirs(layout, to_ours(layout, weights, config, shapes), config)
    for n in range(H):
        for name in ("shape", "scale", "loc"):
            np.testing.assert_array_equal(back[f"layers.{n}.attention.prior.{name}"], weights[f"prior.{name}"])


def test_one_encoding_is_written_for_each_layer_where_theirs_has_no_place_for_one(rng):
    layout, weights = LAYOUTS["cable"], cable_weights(rng)
    config = runs.describe(layout, weights, {}, {"data.tokenizer": "byte"}, Path())
    entries = layout.entries(config, False)
    ours = {}
    for entry in entries:
        first, *_ = entry.names(config)
        part = entry.form.ours(np.split(weights[first], entry.parts)[entry.part], config)
        stacked = entry.ours.startswith("layers/") and "encoding" not in entry.ours
        ours[entry.ours] = np.stack([part] * L) if stacked else part
    back = to_theirs(layout, ours, dataclasses.replace(config, shared_encoding=True))
    for n in range(L):
        for name in ("attn.h_attn.weight", "attn.h_attn.bias"):
            np.testing.assert_array_equal(back[f"transformer.h.{n}.{name}"], weights[f"transformer.h.0.{name}"])


def test_cables_weights_give_their_logits_and_come_back_the_same(rng, tokens, tmp_path, exported):
    weights = cable_weights(rng)
    compiled = {f"_orig_mod.{name}": value for name, value in weights.items()}
    model = converted("cable", written(tmp_path / "theirs", compiled), tmp_path / "run")
    np.testing.assert_allclose(model(jnp.asarray(tokens))[0], cable_logits(weights, tokens), atol=1e-4)
    assert not exported("cable", weights)


def test_bfloat16_is_read(rng, tmp_path):
    weights = {name: jnp.asarray(value, jnp.bfloat16) for name, value in cable_weights(rng).items()}
    flax.save_file(weights, tmp_path / "model.safetensors")
    back, *_ = runs.read(LAYOUTS["cable"], tmp_path)
    np.testing.assert_array_equal(back["lm_head.weight"], np.asarray(weights["lm_head.weight"], np.float32))


def test_a_tied_weight_may_be_written_once_and_must_not_differ(rng, tmp_path):
    weights = cable_weights(rng)
    once = {name: value for name, value in weights.items() if name != "lm_head.weight"}
    converted("cable", written(tmp_path / "once", once), tmp_path / "run")
    other = weights | {"lm_head.weight": weights["lm_head.weight"] + 1}
    with pytest.raises(UserError, match="should be the same"):
        converted("cable", written(tmp_path / "other", other), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_nothing_is_dropped_or_bent(rng, tmp_path):
    weights, args = bam_weights(rng, "bam"), bam_args("bam")
    norm = weights["norm.weight"]
    changes = {
        "lack 'norm.weight'": lambda w: w.pop("norm.weight"),
        "'norm.wait', which this layout does not know; did": lambda w: w.update({"norm.wait": norm}),
        "'norm.weight' makes": lambda w: w.update({"norm.weight": norm[1:]}),
        "seq_scale": lambda w: w.update({"layers.0.attention.seq_scale": np.ones((1, H, 1, 1), np.float32)}),
    }
    for n, (message, change) in enumerate(changes.items()):
        bent = dict(weights)
        change(bent)
        with pytest.raises(UserError, match=message):
            converted("bam", written(tmp_path / str(n), bent, args), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_model_without_a_layout_is_named(rng, tmp_path):
    source = written(tmp_path / "llama", bam_weights(rng, "bam"))
    (source / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    with pytest.raises(UserError, match=r"'llama'.*\(bam\).*\(cable\).*\(bert\)"):
        convert.main(["--layout=bam", f"--source={source}", f"--run={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_converted_is_said(rng, tmp_path):
    source = written(tmp_path / "theirs", bam_weights(rng, "bam"), bam_args("bam"))
    empty = tmp_path / "empty"
    empty.mkdir()
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes((source / "model.safetensors").read_bytes()[:1000])
    run = f"--run={tmp_path / 'run'}"
    for arguments, message in [
        (["--layout=bum", f"--source={source}", run], "did you mean 'bam'"),
        (["--layout=bam", run], "--source=FOLDER"),
        (["--layout=bam", f"--source={empty}", run], "has none of model.safetensors"),
        (["--layout=bam", f"--source={tmp_path / 'no'}", run], "no weights at"),
        (["--layout=bam", f"--source={torn}", run], "not a whole safetensors file"),
        (["--layout=cable", f"--source={source}", run], "GPT-2 with attn.h_attn"),
        (["--layout=bam", f"--source={source}", run, BYTES, "--config.model.hidden=41"], "w1.weight.*the model's is"),
        (["--layout=bam", f"--export={tmp_path / 'x'}", run], "not a run"),
    ]:
        with pytest.raises(UserError, match=message):
            convert.main(arguments)
    for args in (bam_args("bamm"), bam_args("bam", norm_eps=1e-6), bam_args("bam", dim=10**400), []):
        (source / "args.json").write_text(json.dumps(args))
        with pytest.raises(UserError, match="args.json"):
            convert.main(["--layout=bam", f"--source={source}", run, BYTES])
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_overwritten(rng, tmp_path):
    weights, args = bam_weights(rng, "nope"), bam_args("nope")
    source = written(tmp_path / "theirs", weights, args)
    converted("bam", source, tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(UserError, match="has a checkpoint already"):
        converted("bam", source, tmp_path / "run")
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    with pytest.raises(UserError, match="an empty folder"):
        convert.main(["--layout=bam", f"--run={tmp_path / 'run'}", f"--export={source}"])


def laid_out(name, changes):
    """The files that `export` would write of a model of zeros."""
    sizes = {"data.tokenizer": "byte", "context": 32, "model.layers": 2, "model.width": 8, "model.heads": 2}
    config = override({}, sizes | {"model.hidden": 8, "model.family": "gpt2" if name == "cable" else "llama"} | changes)
    _, tree = transformer.split(nnx.eval_shape(lambda: transformer.build(config, vocab=257, rngs=nnx.Rngs(0))))
    flat = [traverse_util.flatten_dict(leaves, sep="/") for leaves in tree.values()]
    arrays = {name: np.zeros(x.shape, np.float32) for leaves in flat for name, x in leaves.items()}
    return runs.lay_out(LAYOUTS[name], arrays, config, 257)


CABLES = {"encoding": "cable_nw", "encoding_options": {"gate": "softplus", "step_bias": True}}


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ("cable", {"encoding_options": {"gate": "relu", "step_bias": True}}),
        ("cable", {"shared_encoding": True, "model.soft_cap": 2.0}),
        ("bam", {"encoding": "sinusoidal", "encoding_options": {"odd_cosines": True, "base": 50.0}}),
        ("bam", {"encoding": "rope", "encoding_options": {"base_scale": 2.0}}),
        ("bam", {"encoding": "alibi", "ssmax": "inside"}),
        ("bam", {"encoding": "bam", "encoding_options.window": 3}),
        ("bam", {"encoding": "nope", "model.causal": False, "data.task": "masked"}),
    ],
)
def test_what_leaves_no_array_is_not_dropped(layout, changes):
    with pytest.raises(UserError, match="cannot say all of encoding=.* export without --layout"):
        laid_out(layout, (CABLES if layout == "cable" else {}) | changes)


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ("cable", CABLES | {"shared_encoding": True}),
        ("bam", {"encoding": "sinusoidal", "encoding_options.odd_cosines": True, "model.dtype": "float32"}),
        ("bam", {"encoding": "alibi", "ssmax": "outside"}),
    ],
)
def test_what_their_layout_says_is_written(layout, changes):
    theirs, described = laid_out(layout, changes)
    assert theirs and bool(described) == (layout == "bam")


def test_an_encoding_without_a_place_in_their_layout_is_named():
    with pytest.raises(UserError, match="no place for the encoding 'sandwich'; it holds bam, alibi, nope"):
        laid_out("bam", {"encoding": "sandwich"})
    with pytest.raises(UserError, match="no place for 'layers/attention/encoding"):
        laid_out("bam", {"encoding": "fire"})
