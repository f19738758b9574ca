"""The op inside other people's models: the files of docs/examples, against dense attention with a table in the same place."""

import runpy
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from bam_jax import biases
from tests.examples import stand_ins

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
B, T, E, H, D = 2, 8, 12, 4, 6
CAUSAL = jnp.tril(jnp.ones((B, T, T), bool))
STEPS = jnp.broadcast_to(jnp.arange(T), (B, T))


def example(name, modules, monkeypatch):
    """What an example defines, where a library's modules are these."""
    for path, module in modules.items():
        parts = path.split(".")
        for n in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:n]), sys)  # a package that holds nothing
        monkeypatch.setitem(sys.modules, path, module)
    return runpy.run_path(FOLDER / f"{name}.py")


def table_of(bias):
    return lambda i, j: biases.table(bias, i[:, None].astype(jnp.float32), j[:, None].astype(jnp.float32))


def close(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jnp.abs(b).max() > 1e-4
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.normal(size=(B, T, E)), jnp.float32)


LOCAL = {"attn_type": stand_ins.AttentionType.LOCAL_SLIDING, "sliding_window_size": 3}
GEMMA = {
    "heads apart": {"num_kv_heads": H, "attn_logits_soft_cap": 2.0},
    "grouped": {"num_kv_heads": 2, "use_qk_norm": True, "rope_scale_factor": 2.0, **LOCAL},
}


def gemma(Attention, **options):
    sizes = {"num_heads": H, "features": E, "head_dim": D, "query_pre_attn_scalar": 0.3}
    return Attention(**sizes, **{"attn_type": stand_ins.AttentionType.GLOBAL} | options)


def decoded(attend, x, cache, bucket):
    """Four tokens at once and then one by one, with a cache of `bucket` slots."""
    rows = []
    for begin, end in [(0, 4), *((n, n + 1) for n in range(4, T))]:
        seen = jnp.arange(bucket) <= jnp.arange(begin, end)[:, None]
        cache, out = attend(x[:, begin:end], STEPS[:, begin:end], cache, jnp.broadcast_to(seen, (B, *seen.shape)))
        rows.append(out)
    return jnp.concatenate(rows, axis=1)


def zeros(heads, bucket):
    return {name: jnp.zeros((B, bucket, heads, D)) for name in ("k", "v")} | {"end_index": jnp.zeros(B, jnp.int32)}


@pytest.mark.parametrize("options", GEMMA.values(), ids=GEMMA)
def test_flax_gemma(x, options, monkeypatch):
    modules = stand_ins.flax_gemma()
    example("flax_gemma", modules, monkeypatch)
    ours, theirs = (
        gemma(each, **options, rngs=nnx.Rngs(3)) for each in (modules["modules"].Attention, stand_ins.NnxGemma)
    )
    for name, start in (("shape", 0.5), ("log_scale", -1.0), ("loc", 0.2)):
        getattr(ours.prior, name)[...] = jnp.linspace(start, start + 0.5, H)

    def run(model, prior, x):
        model.bias = table_of(prior.bias())
        _, out = model(x, STEPS, None, CAUSAL)
        return jnp.sin(out).sum(), out

    (_, out), d_ours = nnx.value_and_grad(lambda m, x: run(m, m.prior, x), argnums=(0, 1), has_aux=True)(ours, x)
    found = nnx.value_and_grad(run, argnums=(0, 1, 2), has_aux=True)(theirs, ours.prior, x)
    (_, expected), (d_model, d_prior, d_x) = found
    close(out, expected)
    d_model["prior"] = d_prior
    close(nnx.to_pure_dict(d_ours[0]), nnx.to_pure_dict(d_model))
    close(d_ours[1], d_x)
    close(decoded(ours, x, zeros(options["num_kv_heads"], T + 2), T + 2), expected)


def test_flax_gemma_in_packed_rows(x, monkeypatch):
    modules = stand_ins.flax_gemma()
    example("flax_gemma", modules, monkeypatch)
    model = gemma(modules["modules"].Attention, num_kv_heads=H, rngs=nnx.Rngs(0))
    packed = jnp.concatenate([STEPS[:, :5], STEPS[:, :3]], axis=1)
    _, out = model(x, packed, None, None)
    close(out[:, 5:], model(x[:, 5:], STEPS[:, :3], None, None)[1])


@pytest.mark.parametrize("options", GEMMA.values(), ids=GEMMA)
def test_deepmind_gemma(x, options, monkeypatch):
    modules = stand_ins.deepmind_gemma()
    example("deepmind_gemma", modules, monkeypatch)
    ours = gemma(modules["gemma.gm.nn"]._modules.Attention, **options)
    state = ours.init(jax.random.key(1), x, STEPS, None, CAUSAL)
    np.testing.assert_allclose(state["params"]["slopes"], biases.alibi_slopes(H))

    def run(state, x, make):
        _, out = make(state["params"]["slopes"]).apply(state, x, STEPS, None, CAUSAL)
        return jnp.sin(out).sum(), out

    theirs = lambda slopes: gemma(stand_ins.LinenGemma, bias=table_of(biases.ALiBi(slopes)), **options)
    found, expected = (
        jax.value_and_grad(run, (0, 1), has_aux=True)(state, x, make) for make in (lambda _: ours, theirs)
    )
    close(found, expected)
    cache = zeros(options["num_kv_heads"], T + 2) | {"positions": jnp.zeros((B, T + 2), jnp.int32)}
    close(decoded(lambda *given: ours.apply(state, *given), x, cache, T + 2), expected[0][1])


def test_deepmind_gemma_with_prompts_of_two_lengths(x, monkeypatch):
    """The second row's prompt has two tokens fewer; its padding stays in the cache, and the mask hides it."""
    modules = stand_ins.deepmind_gemma()
    example("deepmind_gemma", modules, monkeypatch)
    model = gemma(modules["gemma.gm.nn"]._modules.Attention, num_kv_heads=H)
    state = model.init(jax.random.key(1), x, STEPS, None, CAUSAL)
    cache = zeros(H, T + 1) | {"positions": jnp.zeros((B, T + 1), jnp.int32)}
    tokens = jnp.arange(T + 1) < jnp.asarray([[T], [T - 2]])
    at = jnp.minimum(STEPS, jnp.asarray([[T - 1], [T - 3]]))
    mask = tokens[:, None] & (jnp.arange(T + 1) <= jnp.arange(T)[:, None])
    cache, _ = model.apply(state, x, at, cache, mask)
    shown = tokens | (jnp.arange(T + 1) == T)
    new = x[:, :1]
    _, out = model.apply(state, new, at[:, -1:] + 1, cache, shown[:, None])
    short = jnp.concatenate([x[1:, : T - 2], new[1:]], axis=1)
    alone = jnp.tril(jnp.ones((1, T - 1, T - 1), bool))
    close(out[1, 0], model.apply(state, short, STEPS[:1, : T - 1], None, alone)[1][0, -1])


def test_flax_lm1b(x, monkeypatch):
    modules = stand_ins.flax_lm1b()
    names = example("flax_lm1b", modules, monkeypatch)
    config = stand_ins.LmConfig()
    ours = names["Block"](config)
    document = jnp.asarray([[1] * 5 + [2] * 3, [1] * 6 + [0] * 2])
    mask = nn.combine_masks(nn.make_attention_mask(document, document, jnp.equal), nn.make_causal_mask(document))
    state = ours.init(jax.random.key(0), x)

    def run(state, x, make):
        model = make(state["params"]["slopes"])
        out = jnp.where((document > 0)[..., None], model.apply(state, x, decoder_mask=mask), 0)
        return jnp.sin(out).sum(), out

    theirs = lambda slopes: stand_ins.Block(config, table_of(biases.ALiBi(slopes)))
    close(*[jax.value_and_grad(run, (0, 1), has_aux=True)(state, x, make) for make in (lambda _: ours, theirs)])

    whole = ours.apply(state, x)
    decoder = names["Block"](stand_ins.LmConfig(decode=True))
    cache = decoder.init(jax.random.key(0), x)["cache"]
    rows = []
    for n in range(T):
        out, new = decoder.apply({**state, "cache": cache}, x[:, n : n + 1], mutable=["cache"])
        cache = new["cache"]
        rows.append(out)
    close(jnp.concatenate(rows, axis=1), whole)
    positions = modules["models"].AddPositionEmbs(config)
    np.testing.assert_array_equal(positions.apply({}, x), x)


def test_maxtext(rng, monkeypatch):
    modules = stand_ins.maxtext()
    example("maxtext_alibi", modules, monkeypatch)
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), (AxisType.Auto, AxisType.Auto), devices=jax.devices()[:4])
    options = {"num_query_heads": H, "attn_logits_soft_cap": 2.0, "sliding_window_size": 4}
    with jax.set_mesh(mesh):
        ours = modules["maxtext.layers"].attentions.AttentionOp(None, mesh, **options)
    q, k, v = (jnp.asarray(rng.normal(size=(B, T, heads, D)), jnp.float32) for heads in (H, 2, 2))
    segments = jnp.asarray([[1] * 5 + [2] * 3, [1] * 8])

    def run(op, q, k, v):
        out, *rest = op(q, k, v, segments, STEPS, "train")
        assert rest == [None, None]
        return jnp.sin(out).sum(), out

    def dense(slopes, q, k, v):
        return run(stand_ins.AttentionOp(None, mesh, bias=table_of(biases.ALiBi(slopes)), **options), q, k, v)

    every = {"argnums": (0, 1, 2, 3), "has_aux": True}
    (_, out), (d_op, *slopes) = nnx.value_and_grad(run, **every)(ours, q, k, v)
    (_, expected), found = jax.value_and_grad(dense, **every)(ours.slopes[...], q, k, v)
    close([out, d_op["slopes"][...], *slopes], [expected, *found])
    with pytest.raises(NotImplementedError, match="prefill"):
        ours(q, k, v, segments, STEPS, "prefill")


def test_easydel(monkeypatch):
    modules = stand_ins.easydel()
    example("easydel_mpt", modules, monkeypatch)
    table = modules["easydel.modules.mosaic_mpt"].modeling_mosaic.build_mpt_alibi_tensor(num_heads=H, sequence_length=T)
    distance = np.abs(np.arange(T)[:, None] - np.arange(T))
    expected = -np.exp(np.linspace(-4, 0, H))[:, None, None] * np.sqrt(distance + 1e-5)
    np.testing.assert_allclose(table, expected[None], rtol=1e-5)
