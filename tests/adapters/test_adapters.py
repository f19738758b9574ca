"""The adapters inside Flax's own modules, against the same modules with the bias as a dense table."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import biases, encodings
from bam_jax.adapters import EncodedAttention, LinenPriorAttention, PriorAttention, attention_fn
from bam_jax.attention import Dropout, Mask, Scoring, Tokens, Unsupported, document_count
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.scoring import HIDDEN, bias_table
from bam_jax.config import Config, ModelConfig
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

B, T, H, E = 2, 7, 4, 24
CAUSAL, BOTH, WINDOW = Mask(causal=True), Mask(causal=False), Mask(causal=True, window=3)


def prior():
    return biases.GeneralisedGaussian(jnp.linspace(-0.5, 1.5, H), jnp.linspace(-1.0, 0.5, H), jnp.linspace(0.1, 0.3, H))


def dense(bias, visibility):
    """Flax's own attention with the bias and its mask as a table [1, H, T, T]."""

    def attend(query, key, value, mask=None, **_):
        at = Tokens(jnp.arange(query.shape[-3], dtype=jnp.int32)[None])
        table = (
            bias_table(Scoring(bias, at, at), jnp.float32) + jnp.where(visible(at, at, visibility), 0, HIDDEN)[:, None]
        )
        return nn.dot_product_attention(query, key, value, bias=table, mask=mask)

    return attend


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.normal(size=(B, T, E)), jnp.float32)


def close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert jnp.abs(other).max() > 1e-4
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def padding():
    """The first row's two last keys are hidden."""
    return (jnp.arange(T) < jnp.asarray([[T - 2], [T]]))[:, None, None]


@pytest.mark.parametrize(("mask", "hide"), [(CAUSAL, False), (BOTH, True), (WINDOW, True)])
def test_linen(x, mask, hide):
    class Layer(nn.Module):
        make: object

        @nn.compact
        def __call__(self, x):
            parameters = [self.param(n, lambda _, n=n: getattr(prior(), n)) for n in ("shape", "log_scale", "loc")]
            attend = self.make(biases.GeneralisedGaussian(*parameters), mask)
            layer = nn.MultiHeadDotProductAttention(H, attention_fn=attend, dropout_rate=0.5, deterministic=True)
            return layer(x, mask=padding() if hide else None)

    ours, theirs = Layer(attention_fn), Layer(dense)
    state = ours.init(jax.random.key(0), x)

    def loss(state, x, layer):
        out = layer.apply(state, x)
        return jnp.sum(jnp.sin(out)), out

    slopes = jax.jit(jax.grad(loss, (0, 1), has_aux=True), static_argnums=2)
    results = [slopes(state, x, layer) for layer in (ours, theirs)]
    for (d_state, _), _ in results:  # the key's bias moves all logits of a row alike
        np.testing.assert_allclose(d_state["params"]["MultiHeadDotProductAttention_0"]["key"].pop("bias"), 0, atol=1e-5)
    close(*results)


@pytest.mark.parametrize("mask", [CAUSAL, BOTH], ids=["causal", "both"])
def test_nnx_learns_the_prior(x, mask):
    encoding = encodings.BAM(encodings.Dims(H, E, T), init="spread", train_loc=True, rngs=nnx.Rngs(1))
    encoding.loc[...] = prior().loc  # the gradient jumps at 0
    make = functools.partial(nnx.MultiHeadAttention, H, E, decode=False)
    ours = make(attention_fn=PriorAttention(encoding, mask), rngs=nnx.Rngs(0))
    loss = lambda layer, x: jnp.sum(jnp.sin(layer(x)))
    found = nnx.jit(nnx.grad(loss))(ours, x)

    plain = lambda bias: make(attention_fn=dense(bias, mask), rngs=nnx.Rngs(0))
    d_bias = jax.jit(jax.grad(lambda bias: loss(plain(bias), x)))(encoding.bias())
    theirs = plain(encoding.bias())
    close(nnx.jit(lambda layer, x: layer(x))(ours, x), theirs(x))
    for name in ("shape", "log_scale", "loc"):
        close(found.attention_fn.prior[name][...], getattr(d_bias, name))
    expected = nnx.jit(nnx.grad(loss))(theirs, x)
    for name in ("query", "value", "out"):
        close(found[name].kernel[...], expected[name].kernel[...])


def test_nnx_adds_causality_and_batch_axes_and_groups(rng):
    x = jnp.asarray(rng.normal(size=(2, 3, T, E)), jnp.float32)
    layer = nnx.MultiHeadAttention(
        H, E, num_kv_heads=2, decode=False, attention_fn=attention_fn(prior(), BOTH), rngs=nnx.Rngs(0)
    )
    out = layer(x, is_causal=True)
    layer.attention_fn = attention_fn(prior(), CAUSAL)
    np.testing.assert_array_equal(out, layer(x))
    np.testing.assert_allclose(out[1, 2], layer(x[1, 2][None])[0], atol=1e-6)
    assert jnp.abs(layer(x) - layer(x[..., ::-1, :])).max() > 1e-2
    layer.set_attributes(dtype=jnp.bfloat16)
    assert layer(x).dtype == jnp.bfloat16
    np.testing.assert_allclose(layer(x).astype(jnp.float32), out, atol=0.05)


@pytest.mark.parametrize(("kind", "mask"), [("linen", CAUSAL), ("nnx", WINDOW)], ids=["linen", "nnx"])
def test_decoding_repeats_the_full_pass(x, kind, mask):
    attend = attention_fn(prior(), mask)
    if kind == "nnx":
        layer = nnx.MultiHeadAttention(H, E, decode=True, attention_fn=attend, rngs=nnx.Rngs(0))
        full = layer(x, decode=False)
        layer.init_cache(x.shape)
        steps = [layer(x[:, t : t + 1]) for t in range(T)]
    else:
        layer = nn.MultiHeadDotProductAttention(H, attention_fn=attend, decode=True)
        state = layer.init(jax.random.key(0), x)
        full = layer.clone(decode=False).apply({"params": state["params"]}, x)
        steps = []
        for t in range(T):
            out, new = layer.apply(state, x[:, t : t + 1], mutable="cache")
            state, steps = {**state, **new}, [*steps, out]
    np.testing.assert_allclose(jnp.concatenate(steps, 1), full, atol=2e-6)


def test_what_flax_may_ask_is_given_or_refused(x):
    make = functools.partial(nnx.MultiHeadAttention, H, E, decode=False, attention_fn=attention_fn(prior(), CAUSAL))
    layer = make(rngs=nnx.Rngs(0))
    refused = {
        "precision": lambda: make(precision="highest", rngs=nnx.Rngs(0))(x),
        "sow_weights": lambda: layer(x, sow_weights=True),
        "input_positions": lambda: layer(x, input_positions=jnp.arange(T)),
        "a dense mask (2, 1, 7, 7)": lambda: layer(x, mask=nn.make_causal_mask(x[..., 0])),
        "7 queries among 5 keys": lambda: layer(x, x[:, :5]),
        "1 queries among 7 keys": lambda: layer(x[:, :1], x),
    }
    for message, ask in refused.items():
        with pytest.raises(Unsupported) as error:
            ask()
        assert message in str(error.value)
    linen = nn.MultiHeadDotProductAttention(H, attention_fn=attention_fn(prior(), CAUSAL))
    with pytest.raises(Unsupported, match="sow_weights"):
        linen.init(jax.random.key(0), x, sow_weights=True)
    dropping = dataclasses.replace(linen, dropout_rate=1.5, deterministic=False)
    with pytest.raises(ValueError, match="dropout's rate is a number of Python's from 0 to below 1, got 1.5"):
        dropping.init(jax.random.key(0), x)


def dense_dropping(key, broadcast, rate=0.4):
    """Flax's own attention with the prior as a table and the mask of `Dropout` for this key."""

    def attend(query, key_, value, **_):
        at, seed = Tokens(jnp.arange(T)[None]), jax.random.bits(key)
        table = bias_table(Scoring(prior(), at, at), jnp.float32)
        weights = nn.dot_product_attention_weights(query, key_, bias=table + jnp.where(jnp.tri(T), 0, HIDDEN))
        seeds = jnp.broadcast_to(seed, (B, H)) if broadcast else seed
        factor = Dropout(rate, seeds).per_head(B, H).factor(at, at, jnp.float32)
        return jnp.einsum("bhts,bshd->bthd", weights * factor, value)

    return attend


@pytest.mark.parametrize("kind", ["linen", "nnx"])
@pytest.mark.parametrize("broadcast", [True, False])
def test_dropout_is_that_of_the_modules_stream(x, kind, broadcast):
    options = {"dropout_rate": 0.4, "broadcast_dropout": broadcast}
    key = jax.random.key(7)
    if kind == "linen":
        make = functools.partial(nn.MultiHeadDotProductAttention, H, **options)
        layer = make(attention_fn=LinenPriorAttention(lambda _: prior(), CAUSAL))
        state = layer.init(jax.random.key(0), x, deterministic=True)
        run = lambda key: layer.apply(state, x, deterministic=False, rngs={"dropout": key})
        used = layer.apply(state, method=lambda self: self.make_rng("dropout"), rngs={"dropout": key})
        plain = {"params": {name: own for name, own in state["params"].items() if name != "attention_fn"}}
        like = lambda attend: make(attention_fn=attend).apply(plain, x, deterministic=True)
        still, again = layer.apply(state, x, deterministic=True), run(key)
    else:
        make = functools.partial(nnx.MultiHeadAttention, H, E, decode=False, **options)
        run = lambda key: make(attention_fn=attention_fn(prior(), CAUSAL), rngs=nnx.Rngs(0, dropout=key))(
            x, deterministic=False
        )
        used = nnx.Rngs(dropout=key).dropout.fork()()
        like = lambda attend: make(attention_fn=attend, rngs=nnx.Rngs(0))(x, deterministic=True)
        still = make(attention_fn=attention_fn(prior(), CAUSAL), rngs=nnx.Rngs(0))(x, deterministic=True)
        again = run(key)
    close(run(key), like(dense_dropping(used, broadcast)))
    np.testing.assert_array_equal(run(key), again)
    close(still, like(dense(prior(), CAUSAL)))
    assert jnp.abs(run(jax.random.key(8)) - again).max() > 1e-2


def test_a_linen_prior_is_learned(x):
    make = functools.partial(nn.MultiHeadDotProductAttention, H)
    layer = make(attention_fn=LinenPriorAttention(lambda _: prior(), CAUSAL))
    state = layer.init(jax.random.key(0), x)["params"]
    others = {name: own for name, own in state.items() if name != "attention_fn"}
    loss = lambda layer, params: jnp.sum(jnp.sin(layer.apply({"params": params}, x)))
    of_table = lambda bias, others: loss(make(attention_fn=dense(bias, CAUSAL)), others)
    d_bias, expected = jax.jit(jax.grad(of_table, (0, 1)))(prior(), others)
    made = jax.jit(jax.grad(functools.partial(loss, layer)))(state)
    close(made.pop("attention_fn"), {name: getattr(d_bias, name) for name in ("shape", "log_scale", "loc")})
    for of_keys in (made["key"].pop("bias"), expected["key"].pop("bias")):  # it moves all logits of a row alike
        np.testing.assert_allclose(of_keys, 0, atol=1e-5)
    close(made, expected)


@pytest.mark.full
def test_a_linen_prior_in_lifted_transformations(x):
    """Two layers, scanned, jitted and recomputed, each with a prior and random numbers of its own."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            draw = lambda key: biases.ALiBi(jax.random.uniform(key, (H,)))
            attend = LinenPriorAttention(draw, CAUSAL)
            made = nn.remat(nn.jit(nn.MultiHeadDotProductAttention))(
                H, attention_fn=attend, dropout_rate=0.4, deterministic=False, name="attention"
            )
            return made(x), made(x)

    streams = {"params": True, "dropout": True}
    layers = nn.scan(Layer, variable_axes={"params": 0}, split_rngs=streams, length=2)()
    state = layers.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x, None)
    run = lambda state: layers.apply(state, x, None, rngs={"dropout": jax.random.key(2)})[1]
    first, second = run(state)
    of_prior = lambda state: state["params"]["LinenPriorAttention_0"]["slope"]
    slopes, slope = of_prior(state), of_prior(jax.grad(lambda state: run(state)[1].sum())(state))
    assert slope.shape == slopes.shape == (2, H) and jnp.abs(slope).min() > 0
    assert jnp.abs(slopes[0] - slopes[1]).min() > 0 and jnp.abs(first - second).min() > 0


def test_a_prior_is_a_bias_and_nothing_else():
    hooks = {"rope": "turn", "cable": "coordinate", "sinusoidal": "embed", "cope": "rowwise"}
    for encoding, hook in hooks.items():
        made = encodings.ENCODINGS[encoding](encodings.Dims(H, E, T), rngs=nnx.Rngs(0))
        with pytest.raises(Unsupported, match=f"the hook '{hook}'"):
            PriorAttention(made, CAUSAL)


def projected(x, rngs):
    """Queries, keys and values of two key heads."""
    heads = lambda count: nnx.LinearGeneral(E, (count, E // H), rngs=rngs)
    return heads(H)(x), heads(2)(x), heads(2)(x)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cable", {}),
        ("rope", {"base": 100.0}),
        ("bam", {"init": "spread"}),
        ("dape_kerple", {}),
        ("rope", {"window": 3}),
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_an_encoding_between_projections_is_that_of_the_models(x, name, options, causal):
    """A layer of this package with the same parameters, and so CABLE's sums and RoPE's turns."""
    made = EncodedAttention(name, encodings.Dims(H, E, T, causal), options=options, rngs=nnx.Rngs(3))
    segments = jnp.asarray([[1] * 4 + [2] * 3, [1] * 5 + [0] * 2])
    sizes = ModelConfig(layers=1, width=E, heads=H, kv_heads=2, hidden=8, causal=causal, dtype="float32")
    config = Config(encoding=name, encoding_options=options, context=T, model=sizes)
    layer = next(iter(transformer.build(config, vocab=5, rngs=nnx.Rngs(0)).blocks())).attention
    nnx.update(layer.encoding, nnx.state(made.encoding))
    layer.out = lambda y: y
    at = transformer.Tokens(jnp.arange(T)[None], segments)
    expected, _ = layer(x, transformer.TokenInfo(at, document_count(at, Mask(causal=causal))), None, None)
    split = lambda y: y.reshape(B, T, -1, E // H)
    q, k, v = split(layer.query(x)), split(layer.key(x)), split(layer.value(x))
    found = nnx.jit(lambda made, *arrays: made(*arrays))(made, x, q, k, v, segments)
    np.testing.assert_allclose(found.reshape(B, T, E), expected, atol=1e-5)
    gradient = nnx.jit(nnx.grad(lambda made: made(x, q, k, v, segments).sum()))(made)
    assert all(jnp.isfinite(y).all() for y in jax.tree.leaves(gradient)) and ("cable" not in name or gradient)


def test_an_encoding_in_linen(x):
    dims, (q, k, v) = encodings.Dims(H, E, T), projected(x, nnx.Rngs(1))
    layer = nnx.bridge.to_linen(EncodedAttention, "cable", dims)
    state = layer.init(jax.random.key(0), x, q, k, v)
    assert {path[-1].key for path, _ in jax.tree.leaves_with_path(state["params"])} >= {"kernel"}
    slope = jax.grad(lambda state: layer.apply(state, x, q, k, v).sum())(state)
    assert all(jnp.abs(y).max() > 0 for y in jax.tree.leaves(slope["params"]))


def test_an_encoding_that_adds_to_the_embeddings_is_refused():
    with pytest.raises(Unsupported, match="sinusoidal adds to the embeddings"):
        EncodedAttention("sinusoidal", encodings.Dims(H, E, T), rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="no option 'bass': did you mean 'base'"):
        EncodedAttention("rope", encodings.Dims(H, E, T), options={"bass": 3}, rngs=nnx.Rngs(0))


def test_documents_are_as_long_as_the_rows():
    q = jnp.ones((B, T, H, 6))
    attend = attention_fn(prior(), CAUSAL, segments=jnp.ones((1, T - 1), jnp.int32))
    with pytest.raises(Unsupported, match=f"documents of {T - 1} tokens, and {T} queries"):
        attend(q, q, q)
