"""Weights in the authors' layouts: converted, they give the logits of a forward pass written here in NumPy from their names."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, traverse_util

from bam_jax.config import override
from bam_jax.convert import LAYOUTS, runs
from bam_jax.convert import __main__ as convert
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
    shapes = {f"attention.{name}": (n * D, E) for name, n in (("wq", H), ("wk", groups), ("wv", groups))}
    shapes |= {"attention.wo": (E, H * D)}
    shapes |= {f"feed_forward.{name}": shape for name, shape in (("w1", (F, E)), ("w2", (E, F)), ("w3", (F, E)))}
    for n in range(L):
        weights |= {f"layers.{n}.{name}.weight": draw(*shape) for name, shape in shapes.items()}
        weights |= {f"layers.{n}.{name}_norm.weight": 1 + draw(E) for name in ("attention", "ffn")}
        if "ssmax" in encoding:
            weights[f"layers.{n}.attention.seq_scale"] = rng.uniform(0.5, 1.5, (1, H, 1, 1))
    priors = ["prior"] if shared else [f"layers.{n}.attention.prior" for n in range(L)]
    for prior in priors if "bam" in encoding else ():
        for name, high in (("shape", 1), ("scale", 2), ("loc", 0.3)):
            weights[f"{prior}.{name}"] = rng.uniform(-high, high, (1, H, 1, 1))
    return {name: value.astype(np.float32) for name, value in weights.items()}


def bam_args(encoding, **changes):
    sizes = {"dim": E, "n_layers": L, "n_heads": H, "n_kv_heads": None, "vocab_size": V, "max_seq_len": 64}
    other = {"multiple_of": 1, "ffn_dim_multiplier": F / E + 0.01, "norm_eps": 1e-5}
    return {"args": {"position_encoding": encoding}, "model_args": sizes | other | changes}


def bam_logits(weights, encoding, tokens, codes, *, inside=True):
    """The training code's arithmetic, by the names of its weights."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    norm = lambda x, name: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"]
    x = w["tok_embeddings.weight"][tokens]
    at = np.arange(T)
    if "sinusoidal" in encoding:
        angle = at[:, None] * 10_000.0 ** (-np.arange(E) / E)
        x = x + np.where(np.arange(E) % 2, np.cos(angle), np.sin(angle))
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
    sizes = {"attn.c_attn": (3 * E, E), "attn.h_attn": (H, E), "attn.c_proj": (E, E), "mlp.c_fc": (F, E)}
    for n in range(L):
        for name, shape in (sizes | {"mlp.c_proj": (E, F)}).items():
            weights[f"transformer.h.{n}.{name}.weight"] = draw(*shape)
            weights[f"transformer.h.{n}.{name}.bias"] = draw(shape[0])
    for name in [f"h.{n}.ln_{i}" for n in range(L) for i in (1, 2)] + ["ln_f"]:
        weights |= {f"transformer.{name}.weight": 1 + draw(E), f"transformer.{name}.bias": draw(E)}
    return weights


def cable_logits(weights, tokens):
    """The training code's arithmetic: unscaled q.k, softplus steps with a bias, no weight of the query."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    linear = lambda x, name: x @ w[f"transformer.{name}.weight"].T + w[f"transformer.{name}.bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * w[f"transformer.{name}.weight"] + w[f"transformer.{name}.bias"]

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


def converted(layout, source, run, *options):
    convert.main([f"--layout={layout}", f"--source={source}", f"--run={run}", BYTES, *options])
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


@pytest.mark.parametrize("shared", [True, False])
def test_one_prior_for_all_layers_stays_one_or_becomes_that_of_each(
    shared, rng, tokens, tmp_path, monkeypatch, exported
):
    monkeypatch.setitem(globals(), "L", H)  # as many layers as heads, so that shapes tell nothing
    weights = bam_weights(rng, "bam_ssmax", shared=True)
    source = written(tmp_path / "theirs", weights, bam_args("bam_ssmax"))
    model = converted("bam", source, tmp_path / "run", f"--config.shared_encoding={shared}")
    expected = bam_logits(weights, "bam_ssmax", tokens, np.ones((2, T), int))
    np.testing.assert_allclose(model(jnp.asarray(tokens))[0], expected, atol=1e-4)
    assert run_folder.read_config(tmp_path / "run").shared_encoding is shared
    if shared:
        assert exported("bam", weights)["model_args"]["global_positional_encoding"]


def test_cables_weights_give_their_logits_and_come_back_the_same(rng, tokens, tmp_path, exported):
    weights = cable_weights(rng)
    compiled = {f"_orig_mod.{name}": value for name, value in weights.items()}
    model = converted("cable", written(tmp_path / "theirs", compiled), tmp_path / "run")
    np.testing.assert_allclose(model(jnp.asarray(tokens))[0], cable_logits(weights, tokens), atol=1e-4)
    assert not exported("cable", weights)


def test_bfloat16_and_a_tied_weight_that_is_written_once_are_read(rng, tmp_path):
    weights = cable_weights(rng)
    source = tmp_path / "once"
    source.mkdir()
    once = {name: jnp.asarray(value, jnp.bfloat16) for name, value in weights.items() if name != "lm_head.weight"}
    flax.save_file(once, source / "model.safetensors")
    model = converted("cable", source, tmp_path / "run")
    expected = np.asarray(once["transformer.wte.weight"], np.float32)
    np.testing.assert_array_equal(model.embed.embedding[...], expected)


def refused(says, *arguments):
    with pytest.raises(UserError, match=says):
        convert.main([*arguments])


def test_nothing_is_dropped_or_bent(rng, tmp_path):
    weights, table = bam_weights(rng, "bam"), cable_weights(rng)
    norm, scale = weights["norm.weight"], np.ones((1, H, 1, 1), np.float32)
    without = {name: value for name, value in weights.items() if name != "norm.weight"}
    for n, (layout, bent, says) in enumerate(
        (
            ("bam", without, "lack 'norm.weight'"),
            ("bam", weights | {"norm.wait": norm}, "'norm.wait', which this layout does not know; did"),
            ("bam", weights | {"norm.weight": norm[1:]}, "'norm.weight' makes"),
            ("bam", weights | {"layers.0.attention.seq_scale": scale}, "seq_scale"),
            ("cable", table | {"lm_head.weight": table["lm_head.weight"] + 1}, "should be the same"),
        )
    ):
        source = written(tmp_path / str(n), bent, bam_args("bam") if layout == "bam" else None)
        refused(says, f"--layout={layout}", f"--source={source}", f"--run={tmp_path / 'run'}", BYTES)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_converted_is_said(rng, tmp_path):
    source = written(tmp_path / "theirs", bam_weights(rng, "bam"), bam_args("bam"))
    (tmp_path / "empty").mkdir()
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes((source / "model.safetensors").read_bytes()[:1000])
    bam, run, given = "--layout=bam", f"--run={tmp_path / 'run'}", f"--source={source}"
    refused("did you mean 'bam'", "--layout=bum", given, run)
    refused("--source=FOLDER", bam, run)
    refused("has none of model.safetensors", bam, f"--source={tmp_path / 'empty'}", run)
    refused("no weights at", bam, f"--source={tmp_path / 'no'}", run)
    refused("not a whole safetensors file", bam, f"--source={torn}", run)
    refused("GPT-2 with attn.h_attn", "--layout=cable", given, run)
    refused("w1.weight.*the model's is", bam, given, run, BYTES, "--config.model.hidden=41")
    refused("not a run", bam, f"--export={tmp_path / 'x'}", run)
    for args in (bam_args("bamm"), bam_args("bam", norm_eps=1e-6), bam_args("bam", dim=10**400), []):
        (source / "args.json").write_text(json.dumps(args))
        refused("args.json", bam, given, run, BYTES)
    (source / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}))
    refused(r"'mamba'.*\(bam\).*\(cable\).*bert, bloom, gemma3_text, gpt2, llama", bam, given, run)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_overwritten(rng, tmp_path):
    source, run = written(tmp_path / "theirs", bam_weights(rng, "nope"), bam_args("nope")), tmp_path / "run"
    converted("bam", source, run)
    before = (run / "config.json").read_bytes()
    refused("has a checkpoint already", "--layout=bam", f"--source={source}", f"--run={run}", BYTES)
    assert (run / "config.json").read_bytes() == before
    refused("an empty folder", "--layout=bam", f"--run={run}", f"--export={source}")


def laid_out(name, changes):
    """The files that `export` would write of a model of zeros."""
    sizes = {"data.tokenizer": "byte", "context": 32, "model.layers": 3, "model.width": 8, "model.heads": 2}
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
        ("bam", {"encoding": "rope", "encoding_options": {"base_scale": 2.0}}),
        ("bam", {"encoding": "alibi", "ssmax": "inside"}),
        ("bam", {"encoding": "nope", "model.causal": False, "data.task": "masked"}),
    ],
)
def test_what_leaves_no_array_is_not_dropped(layout, changes):
    with pytest.raises(UserError, match="cannot say all of encoding=.* export without --layout"):
        laid_out(layout, (CABLES if layout == "cable" else {}) | changes)


def test_what_their_layout_says_is_written_and_an_encoding_without_a_place_named():
    assert not laid_out("cable", CABLES | {"shared_encoding": True})[1]
    assert laid_out("bam", {"encoding": "sinusoidal", "encoding_options.odd_cosines": True})[1]
    assert laid_out("bam", {"encoding": "alibi", "ssmax": "outside"})[1]
    with pytest.raises(UserError, match="no place for the encoding 'sandwich'; it holds bam, alibi, nope"):
        laid_out("bam", {"encoding": "sandwich"})
    with pytest.raises(UserError, match="no place for 'layers/attention/encoding"):
        laid_out("bam", {"encoding": "fire"})
