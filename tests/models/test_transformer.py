import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special

from bam_jax import config as configs
from bam_jax.attention import EMPTY, Mask, document_count
from bam_jax.config import Config, MeshConfig, ModelConfig
from bam_jax.encodings import ENCODINGS
from bam_jax.models import counts
from bam_jax.models import transformer as models
from bam_jax.models.embedding import embed_texts
from bam_jax.models.layers import FAMILIES
from bam_jax.parallel.sharding import make_mesh
from bam_jax.system.errors import UserError
from bam_jax.training import losses
from tests.marks import full, longest

CONFIGS = Path(__file__).parents[2] / "configs"
VOCAB, T = 24, 12
TINY = ModelConfig(layers=2, width=16, heads=4, hidden=16, scan=False, dtype="float32")

# Encodings that differ from one that is tested in a formula alone; `-m endurance` takes them, too.
ALIKE = {
    *("additive_decay", "alibi_learned", "bam_contextual", "cable_nw", "dape_cable", "fox", "gaussian", "k_cable"),
    *("kerple_log", "kerple_power", "nape", "nope", "rope_ntk", "rope_pi", "rope_yarn", "sandwich", "student_t", "t5"),
    *("rope_llama3", "t5_distance", "bam_mixture"),
}


def build(encoding="bam", ssmax="off", context=T, **sizes):
    config = Config(encoding=encoding, ssmax=ssmax, context=context, model=dataclasses.replace(TINY, **sizes))
    model = models.build(config, vocab=VOCAB, rngs=nnx.Rngs(0))
    # Every parameter away from its initial value, so that nothing hides behind a zero.
    graph, state = nnx.split(model)
    noise = np.random.default_rng(1)
    move = lambda x: x + 0.3 * noise.normal(size=x.shape).astype(x.dtype) if x.dtype == jnp.float32 else x
    return nnx.merge(graph, jax.tree.map(move, state))


def size(state):
    return sum(math.prod(x.shape) for x in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("name", "changes", "counted"),
    [  # embedding, transformer with the scales of SSMax, prior
        ("lm_120m", {"model.vocab": 32_768}, (25_165_824, 95_963_904 + 12 * 16, 576)),
        ("lm_432m", {"model.vocab": 32_768}, (50_331_648, 380_677_632 + 14 * 24, 1008)),
        ("lm_1b", {"model.vocab": 32_768}, (67_108_864, 1_073_805_312 + 15 * 32, 1440)),
        # Less the encoding's; the paper prints 44M, 124M and 334M.
        ("gpt2_tiny", {"model.vocab": 50_304, "encoding": "nope"}, 44_670_976),
        ("gpt2_small", {"model.vocab": 50_304, "encoding": "nope"}, 123_689_472),
        ("gpt2_medium", {"model.vocab": 50_304, "encoding": "nope"}, 353_822_720),
    ],
)
def test_parameters_of_the_papers_models(name, changes, counted):
    *found, trained = dataclasses.astuple(counts.parameters(configs.load(CONFIGS / f"{name}.py", changes)))
    assert tuple(found) == counted if isinstance(counted, tuple) else sum(found) == counted
    assert trained == 2 * found[2] // 3  # BAM's centres are frozen


def test_parameters_of_bert_base():
    """As many as bert-base-uncased has with its head, less its two rows of token types."""
    config = configs.load(CONFIGS / "bert_base.py", {"encoding": "learned", "model.vocab": 30_522})
    model = nnx.eval_shape(lambda: models.build(config, vocab=30_522, rngs=nnx.Rngs(0)))
    pooler, token_types, head = 768 * 768 + 768, 2 * 768, 768 * 768 + 3 * 768 + 30_522
    encoder = counts.parameter_count(model) - size(nnx.state(model.head)) + token_types
    assert (encoder, encoder + pooler) == (108_891_648, 109_482_240)
    assert size(nnx.state(model.head)) == head == 622_650
    multiplied = counts.multiplied_parameters(config, counts.parameters(config))  # the embedding is the head as well
    assert multiplied == counts.parameter_count(model) == 109_512_762


@pytest.mark.parametrize(("family", "scan"), [("gpt2", True), ("bert", True), ("bert", False)])
def test_a_family_is_its_formula(family, scan, tokens):
    """GPT-2 (norms before a layer's parts, GELU with tanh) and BERT (norms behind its sums, a transformed head) in NumPy."""
    bert = family == "bert"
    encoding = "learned" if bert else "nope"
    model = build(encoding, family=family, causal=not bert, scan=scan, remat=scan and bert)
    _, state = nnx.split(model)
    tree = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(state))
    linear = lambda p, x: x @ p["kernel"] + p["bias"]
    heads = lambda y: y.reshape(*y.shape[:2], TINY.heads, -1).swapaxes(1, 2)

    def norm(p, x):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + (1e-12 if bert else 1e-5)) * p["scale"] + p["bias"]

    erf = special.erf if bert else lambda x: np.tanh(np.sqrt(4 / np.pi) * (x + 0.08943 * x**3))
    gelu = lambda x: x * (1 + erf(x / np.sqrt(2))) / 2

    def attend(p, x):
        q, k, v = (heads(linear(p[name], x)) for name in ("query", "key", "value"))
        logits = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
        weights = np.exp(logits) * (1 if bert else np.tri(T))
        attended = (weights / weights.sum(-1, keepdims=True)) @ v
        return linear(p["out"], attended.swapaxes(1, 2).reshape(x.shape))

    mlp = lambda p, x: linear(p["down"], gelu(linear(p["up"], x)))
    table = tree["embed"]["embedding"]
    x = table[np.asarray(tokens)]
    if bert:
        x = norm(tree["norm"], x + tree["position"]["embedding"][:T])
    for n in range(TINY.layers):
        p = jax.tree.map(lambda y, n=n: y[n], tree["layers"])
        if bert:
            x = norm(p["attention_norm"], x + attend(p["attention"], x))
            x = norm(p["mlp_norm"], x + mlp(p["mlp"], x))
        else:
            x = x + attend(p["attention"], norm(p["attention_norm"], x))
            x = x + mlp(p["mlp"], norm(p["mlp_norm"], x))
    hidden, _ = model.hidden(tokens)
    if bert:
        np.testing.assert_allclose(hidden, x, atol=2e-4 * np.abs(x).max())
        head = tree["head"]
        expected = norm(head["norm"], gelu(linear(head["dense"], x))) @ table.T + head["bias"]
    else:
        expected = norm(tree["norm"], x) @ table.T
    np.testing.assert_allclose(model(tokens)[0], expected, atol=2e-4 * np.abs(expected).max())
    chosen = np.take_along_axis(expected, np.asarray(tokens)[..., None], -1)[..., 0]
    loss = (np.log(np.exp(expected).sum(-1)) - chosen).sum()
    total, _ = losses.cross_entropy(*model.unembedding(hidden), tokens, jnp.ones(tokens.shape), chunk=5)
    np.testing.assert_allclose(total, loss, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_a_gated_mlp_is_its_formula_for_a_token_and_for_many(family, rng):
    made = FAMILIES[family].mlp(8, 6, 1, family=FAMILIES[family], dtype=jnp.float32, rngs=nnx.Rngs(0))
    gate, up, down = (np.asarray(part.kernel[...], np.float64) for part in (made.gate, made.up, made.down))
    x = rng.normal(size=(2, 20, 8)).astype(np.float32)
    y = x @ gate
    activation = (
        y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))) / 2 if family == "gemma" else y * special.expit(y)
    )
    expected = (activation * (x @ up)) @ down
    products = [str(jax.make_jaxpr(made)(part)).count("dot_general") for part in (x, x[:1, :1])]
    assert products == [2, 3]  # the two maps of many tokens are one
    with jax.set_mesh(make_mesh(MeshConfig(data=2), jax.devices()[:2])):
        assert str(jax.make_jaxpr(made)(x)).count("dot_general") == 3  # each device has half of them
    slope = lambda part: jax.grad(lambda x: jnp.sin(made(x)).sum())(x[part])
    for part in (np.s_[:], np.s_[:1, :1]):
        np.testing.assert_allclose(made(x[part]), expected[part], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(slope(part), slope(np.s_[:])[part], rtol=1e-4, atol=1e-5)


def test_gpt2_starts_with_small_weights_and_smaller_ones_into_the_residual_stream():
    config = Config(encoding="nope", model=ModelConfig(family="gpt2", layers=8, width=64, heads=4, hidden=256))
    model = models.build(config, vocab=512, rngs=nnx.Rngs(0))
    attention, mlp = model.layers.attention, model.layers.mlp
    found = [jnp.std(x.kernel[...]) for x in (attention.query, mlp.up, attention.out, mlp.down)]
    np.testing.assert_allclose(
        [*found, jnp.std(model.embed.embedding[...])], [0.02, 0.02, 0.005, 0.005, 0.02], rtol=0.03
    )
    assert not attention.query.bias[...].any() and not mlp.up.bias[...].any()


def test_in_an_encoder_every_token_sees_every_other(tokens):
    model = build("bam", "on", causal=False)
    changed = tokens.at[:, -1].set((tokens[:, -1] + 5) % VOCAB)
    logits, other = model(tokens)[0], model(changed)[0]
    assert (logits != other).any(-1).all()


def test_an_embedding_is_the_mean_of_the_texts_own_rows(tokens):
    model, length = build("cable", causal=False, layers=1), jnp.asarray([5, 0])
    made = embed_texts(model, tokens, length)
    np.testing.assert_allclose(made[0], model.hidden(tokens[:1, :5])[0][0].mean(0), atol=1e-5)
    assert not made[1].any()
    np.testing.assert_array_equal(made, embed_texts(model, tokens.at[:, 5:].set(7), length))


def test_what_does_not_go_together_is_refused(tokens):
    """Also packed documents in a cache, texts beyond a learned table, and effective keys without a distance to keys before."""
    segment = jnp.ones((1, T), jnp.int32)
    for model, options, says in (
        (build(causal=False), {"caches": build().caches(2, T)}, "encoder"),
        (build(), {"segment": segment, "caches": build().caches(2, T)}, "segment and caches do not go together"),
        (build("learned", context=6), {}, rf"{T} tokens are more than the learned position table holds \(6\)"),
    ):
        with pytest.raises(UserError, match=says):
            model(tokens, **options)
    assert model(tokens[:, 6:])[0].shape == (2, 6, VOCAB)
    for encoding, sizes in (("cable", {}), ("bam", {"causal": False})):
        with pytest.raises(UserError, match="ssmax='effective' needs a decoder"):
            build(encoding, "effective", **sizes)


@pytest.mark.parametrize("encoding", [longest(name) if name in ALIKE else name for name in ENCODINGS])
def test_causality_documents_and_the_cache(encoding, tokens, by_pieces):
    """Later tokens change nothing, a document in a pack has the logits that it has alone, and the cache those of one pass."""
    model = build(encoding, "on", kv_heads=2)
    logits = model(tokens)[0]
    np.testing.assert_allclose(model(tokens, read=6)[0], logits[:, -6:], atol=1e-5)
    other = model(tokens.at[:, 7:].set((tokens[:, 7:] + 5) % VOCAB))[0]
    np.testing.assert_array_equal(other[:, :7], logits[:, :7])
    assert (other[:, 7:] != logits[:, 7:]).any((0, 2)).all()
    np.testing.assert_allclose(by_pieces(model, tokens), logits, atol=1e-4)
    if encoding in ("sinusoidal", "learned", "grape_ap"):  # which depend on where a text starts
        return
    packed = model(tokens, segment=jnp.asarray([[1] * 6 + [2] * 6, [3] * 6 + [4] * 3 + [0] * 3]))[0]
    second = model(tokens[:, 6:])[0]
    np.testing.assert_allclose(packed[:, :6], logits[:, :6], atol=1e-4)
    np.testing.assert_allclose(packed[0, 6:], second[0], atol=1e-4)
    np.testing.assert_allclose(packed[1, 6:9], second[1, :3], atol=1e-4)
    assert jnp.isfinite(packed).all()


@pytest.mark.parametrize("shape", [-20.0, pytest.param(20.0, marks=pytest.mark.full)])
def test_no_prior_breaks_causality_or_the_first_token(shape, tokens, slopes):
    model = build("bam", "on")
    encoding = model.layers.attention.encoding
    encoding.shape[...] = jnp.full_like(encoding.shape[...], shape)
    logits = model(tokens)[0]
    assert jnp.isfinite(logits).all()
    later = tokens.at[:, 5:].set(tokens[:, 5:] // 2)
    np.testing.assert_array_equal(model(later)[0][:, :5], logits[:, :5])
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(slopes(model, tokens)))


@pytest.mark.parametrize("ssmax", ["off", "inside", "outside"])
def test_attention_of_a_layer_is_the_papers_formula(ssmax, tokens, rng):
    """The prior inside or outside SSMax's factor, in packed documents, by loops."""
    model = build("bam", ssmax, layers=1)
    graph, stacked = nnx.split(model.layers.attention)
    layer = nnx.merge(graph, jax.tree.map(lambda s: s[0], stacked))
    segment = np.array([[1] * 5 + [2] * 5 + [0] * 2])
    x = rng.normal(size=(1, T, 16)).astype(np.float32)
    at = models.Tokens(jnp.arange(T)[None], jnp.asarray(segment))
    rows = models.TokenInfo(at, document_count(at, Mask()))
    made, _ = layer(jnp.asarray(x), rows, None, None)

    q, k, v = ((x[0] @ np.float64(m.kernel[...])).reshape(T, 4, 4) for m in (layer.query, layer.key, layer.value))
    prior = layer.encoding
    shape, log_scale, loc = (np.float64(p[...]) for p in (prior.shape, prior.log_scale, prior.loc))
    out = np.zeros((T, 4, 4))
    for i, h in np.ndindex(T, 4):
        keys = [j for j in range(i + 1) if segment[0, j] == segment[0, i] != 0]
        mu = math.exp(loc[h]) - math.exp(-loc[h])
        prior = [-math.exp(log_scale[h]) * (abs(j - i - mu) + 1e-5) ** shape[h] for j in keys]
        score = np.array([q[i, h] @ k[j, h] / 2 for j in keys])
        factor = 1.0 if ssmax == "off" else float(layer.ssmax.scale[...][h]) * math.log(max(len(keys), 1))
        logits = factor * (score + prior) if ssmax == "inside" else factor * score + prior
        weights = np.exp(logits - max(logits, default=0))
        out[i, h] = sum((w / weights.sum() * v[j, h] for w, j in zip(weights, keys, strict=True)), np.zeros(4))
    np.testing.assert_allclose(made[0], out.reshape(T, 16) @ np.float64(layer.out.kernel[...]), atol=2e-5)


@pytest.mark.full
def test_remat_keeps_fewer_activations():
    def kept(**remat):
        model = build("bam", layers=6, scan=True, **remat)
        graph, state = nnx.split(model)
        loss = lambda state, tokens: nnx.merge(graph, state)(tokens)[0].sum()
        compiled = jax.jit(jax.grad(loss)).lower(state, jnp.zeros((4, 128), jnp.int32)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    everything, nothing = kept(), kept(remat=True)
    assert nothing < 0.7 * everything and nothing < kept(remat=True, remat_keep="products") < everything


@pytest.mark.parametrize("scan", [True, False])
def test_a_layer_that_keeps_its_products_multiplies_none_again(scan):
    """And its gradient is the same."""

    def gradient_of(**remat):
        model = build("bam", layers=2, scan=scan, **remat)
        graph, state = nnx.split(model)
        loss = lambda state, tokens: jnp.square(nnx.merge(graph, state)(tokens)[0]).sum()
        return jax.jit(jax.grad(loss)), (state, jnp.arange(2 * T).reshape(2, T) % VOCAB)

    def products(gradient, arguments):
        return gradient.lower(*arguments).as_text().count("stablehlo.dot_general")

    keep = {"remat": True, "remat_keep": "products"}
    plain, keeping, again = (gradient_of(**options) for options in ({}, keep, {"remat": True}))
    assert products(*keeping) == products(*plain) < products(*again)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), keeping[0](*keeping[1]), plain[0](*plain[1]))


@pytest.mark.parametrize(
    ("encoding", "scan"), [("bam", True), full("bam", False), full("cable", False), full("cope", True)]
)
def test_one_encoding_shared_by_all_layers(encoding, scan, tokens, slopes):
    """The layers of a model with as many equal encodings; the gradient is the sum of theirs."""
    sizes = dataclasses.replace(TINY, scan=scan)
    config = Config(encoding=encoding, ssmax="on", shared_encoding=True, context=T, model=sizes)
    shared = models.build(config, vocab=VOCAB, rngs=nnx.Rngs(0))
    separate = models.build(dataclasses.replace(config, shared_encoding=False), vocab=VOCAB, rngs=nnx.Rngs(0))
    one = nnx.state(shared.layers.attention.encoding)
    one = jax.tree.map(lambda x: x + jnp.linspace(-0.3, 0.4, x.size).reshape(x.shape), one)
    nnx.update(shared.layers.attention.encoding, one)
    nnx.update(separate, nnx.state(shared, lambda path, _: "encoding" not in path))
    nnx.update(separate.layers.attention.encoding, jax.tree.map(lambda x: jnp.stack([x] * sizes.layers), one))
    assert size(nnx.state(separate)) - size(nnx.state(shared)) == (sizes.layers - 1) * size(one)

    (loss, made), (expected_loss, expected) = slopes(shared, tokens), slopes(separate, tokens)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    own = expected["layers"]["attention"]["encoding"]
    expected["layers"]["attention"]["encoding"] = jax.tree.map(lambda x: x.sum(0), own)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), made, expected)

    none, caches = shared(tokens[:, :6], caches=shared.caches(2, T), read=0)
    later, _ = shared(tokens[:, 6:], position=jnp.arange(6, T)[None], caches=caches)
    assert none.shape == (2, 0, VOCAB)
    np.testing.assert_allclose(later, shared(tokens)[0][:, 6:], atol=1e-4)


@pytest.mark.parametrize("encoding", ["cable", "learned"])
def test_rows_padded_on_the_left(encoding, tokens):
    model = build(encoding, "on")
    pads = jnp.array([[0], [6]])
    position = jnp.where(jnp.arange(T) < pads, EMPTY, jnp.arange(T) - pads)
    both = model(tokens, position=position)[0]
    np.testing.assert_allclose(both[0], model(tokens)[0][0], atol=1e-4)
    np.testing.assert_allclose(both[1, 6:], model(tokens[:, 6:])[0][1], atol=1e-4)


def test_logits_are_float32_and_the_products_narrow(tokens):
    model = build("bam", "on", dtype="bfloat16")
    hidden, _ = model.hidden(tokens)
    assert hidden.dtype == jnp.bfloat16
    logits, _ = model(tokens)
    assert logits.dtype == jnp.float32
    assert model.layers.attention.encoding.shape.dtype == model.head.kernel.dtype == jnp.float32
    np.testing.assert_allclose(logits, build("bam", "on")(tokens)[0], atol=0.15 * float(jnp.abs(logits).max()))


@pytest.mark.parametrize("family", ["llama", full("gpt2"), "bert"])
def test_models_of_a_seed_start_alike_but_for_their_encodings(family):
    def initial(encoding, seed=0):
        config = Config(encoding=encoding, context=T, model=dataclasses.replace(TINY, family=family))
        model = models.build(config, vocab=VOCAB, rngs=nnx.Rngs(seed))
        return {"/".join(path): x[...] for path, x in nnx.to_flat_state(nnx.state(model, nnx.Param))}

    alibi, other = initial("alibi"), initial("alibi", seed=1)
    drawn = [name for name, x in alibi.items() if np.ptp(x) > 0]
    assert len(drawn) == len({float(np.ravel(alibi[name])[0]) for name in drawn})  # no two parameters begin alike
    assert not any(np.array_equal(alibi[name], other[name]) for name in drawn)
    for name in drawn:
        if name.startswith("layers"):
            assert not np.array_equal(alibi[name][0], alibi[name][1]), name  # nor do two layers
    for encoding in ("cable", "fire", "fox", "kerple_log", "learned", "t5"):  # which draw numbers of their own
        found = initial(encoding)
        assert found.keys() > alibi.keys()
        assert all(np.array_equal(found[name], alibi[name]) for name in alibi), encoding


def test_effective_keys_scale_the_scores_and_not_the_prior(tokens):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, T, TINY.width)), jnp.float32)
    info = models.TokenInfo(models.Tokens(jnp.arange(T)[None]), 1 + jnp.arange(T)[None])
    blocks = [build("bam", ssmax).blocks()[0].attention for ssmax in ("off", "effective")]
    (plain, _, _, scoring, _), (scaled, *_, effective, _) = (block.inputs(x, info) for block in blocks)
    keys = blocks[1].ssmax(info.visible, scoring.bias)[0]
    assert effective.temperature is None
    np.testing.assert_allclose(scaled[0], plain[0] * keys.T[..., None], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ssmax", ["asentmax", full("entmax"), full("adaptive")])
def test_sharper_rows_are_causal_decode_and_train(ssmax, tokens, by_pieces, slopes):
    model = build("nape", ssmax)
    logits = model(tokens)[0]
    other = model(tokens.at[:, 7:].set((tokens[:, 7:] + 5) % VOCAB))[0]
    np.testing.assert_allclose(other[:, :7], logits[:, :7], atol=1e-5)
    np.testing.assert_allclose(by_pieces(model, tokens), logits, atol=1e-4)
    assert (logits != build("nape")(tokens)[0]).any()
    gradient = slopes(model, tokens)[1]["layers"]["attention"]
    assert ssmax != "asentmax" or all(x.any() for x in jax.tree.leaves(gradient["ssmax"]))
    with pytest.raises(UserError, match=r"config.ssmax=asentmax leaves a sink no share; set config.model.sinks=False"):
        build("nape", "asentmax", sinks=True)


def test_the_factor_of_asentmax_is_its_papers(tokens, rng):
    (_, layer), x = build("nope", "asentmax").blocks(), jnp.asarray(rng.normal(size=(2, 5, 16)), jnp.float32)
    factor = layer.attention.ssmax(jnp.asarray([[1, 2, 3, 4, 9]]), layer.attention.encoding.bias(), x)
    for b, t, h in np.ndindex(2, 5, 4):
        of = lambda linear, at=(b, t, h): (x[at[:2]] @ linear.kernel[...] + linear.bias[...])[at[2]]
        slope, power = np.log1p(np.exp(of(layer.attention.ssmax.slope))), 2 * np.tanh(of(layer.attention.ssmax.power))
        np.testing.assert_allclose(factor[b, h, t], 1 + slope * np.log([2, 3, 4, 5, 10][t]) ** power, rtol=1e-4)


@pytest.mark.parametrize(
    ("encoding", "family", "scan"),
    [("bam", "llama", True), ("cable", "llama", False), ("rope", "llama", True), ("cable", "bert", True)],
)
def test_what_is_scored_is_what_attention_is_given(encoding, family, scan, tokens, monkeypatch):
    model = build(encoding, ssmax="on", scan=False, family=family)
    given = []
    inner = models.per_device.mesh_attention

    def attend(q, k, v, scoring, **how):
        given.append((q, k, scoring))
        return inner(q, k, v, scoring, **how)

    monkeypatch.setattr(models.per_device, "mesh_attention", attend)
    segment = jnp.ones_like(tokens).at[:, 5:].set(2)
    model(tokens, segment=segment)
    monkeypatch.undo()
    model.config = dataclasses.replace(model.config, scan=scan)
    found = model.scorings(tokens, segment=segment)
    assert len(found) == len(given) == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, given)
