"""The TPU kernels: the real compiler accepts them without a chip, and they say what they cannot do before it is asked."""

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bam_jax import biases
from bam_jax.attention import EMPTY, Cache, Mask, Scoring, Tiling, Tokens, Unsupported, attention, op
from bam_jax.attention.pallas import tpu_grid
from benchmarks.tpu_static import CHIPS, compile_for

H, K = 4, 2
vector = lambda *n: jnp.linspace(0.1, 1.0, H * int(np.prod(n))).reshape(H, *n)
BIASES = {
    "uniform": biases.Uniform(),
    "alibi": biases.ALiBi(vector()),
    "ggd": biases.GeneralisedGaussian(vector(), vector(), vector()),
    "kerple_log": biases.KerpleLog(vector(), vector()),
    "kerple_power": biases.KerplePower(vector(), vector()),
    "sandwich": biases.Sandwich(vector()),
    "additive_decay": biases.AdditiveDecay(vector(), vector(), vector()),
    "gaussian": biases.Gaussian(vector()),
    "student_t": biases.StudentT(vector(), vector()),
    "fire": biases.FIRE(vector(3), vector(), jnp.ones(3), jnp.ones(3), jnp.ones(()), jnp.ones(())),
    "t5": biases.T5(vector(4), starts=biases.t5_starts(4, 9)),
    "t5_bidirectional": biases.T5(vector(8), starts=biases.t5_starts(4, 9), bidirectional=True),
    "t5_distance": biases.T5Distance(vector(9)),
    "difference": biases.Difference(),
    "distance": biases.Difference(symmetric=True),
    "cable": biases.CABLE(),
    "k_cable": biases.KCABLE(),
    "contextual": biases.ContextualGaussian(vector(), vector()),
}


@biases.bias
class Looked(biases.Bias):
    values: jax.Array

    def __call__(self, i, j):
        return self.values[jnp.abs(i - j).astype(jnp.int32)]


@biases.bias
class Held(biases.Bias):
    slope: jax.Array

    def __call__(self, i, j):
        return -self.slope * jnp.abs(i - j) * jnp.asarray([[1.0, 2.0]]).sum()


@biases.bias
class Whole(biases.Bias):
    weights: jax.Array

    def __call__(self, i, j):
        return (self.weights * (i - j)[..., None]).sum(-1)


def compiled(chip, f, *arguments):
    pytest.importorskip("libtpu")
    return compile_for(chip, f, *arguments)


def slopes(q, k, v, scoring, tiling):
    """Gradients of everything that has one."""
    real, whole = jax.tree.flatten(scoring)
    places = [n for n, x in enumerate(real) if jnp.issubdtype(x.dtype, jnp.floating)]

    def loss(q, k, v, floats):
        leaves = list(real)
        for n, x in zip(places, floats, strict=True):
            leaves[n] = x
        return attention(q, k, v, jax.tree.unflatten(whole, leaves), backend="pallas_tpu", tiling=tiling).sum()

    return jax.value_and_grad(loss, (0, 1, 2, 3))(q, k, v, [real[n] for n in places])


def operands(bias, length, width, dtype, *, mask, packed=True, slots=None, kv_heads=K):
    shape = lambda *n, of=jnp.float32: jax.ShapeDtypeStruct(n, of)
    slots = slots or length
    own = lambda n: (shape(2, H, n), shape(2, H, n))
    i = j = None
    if isinstance(bias, biases.Difference | biases.CABLE | biases.KCABLE | biases.ContextualGaussian):
        i, j = own(length), own(slots)
        i = (shape(2, H, length), i) if isinstance(bias, biases.CABLE | biases.KCABLE) else i
    side = lambda n, x: Tokens(shape(2, n, of=jnp.int32), shape(2, n, of=jnp.int32) if packed else None, x)
    temperature = shape(1, H, length) if packed else None
    x = lambda n, heads: shape(2, n, heads, width, of=dtype)
    return (
        x(length, H),
        x(slots, kv_heads),
        x(slots, kv_heads),
        Scoring(bias, side(length, i), side(slots, j), temperature, mask),
    )


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("chip", CHIPS)
def test_every_bias_compiles(chip, name):
    mask = Mask(window=200) if name == "ggd" else Mask(causal=name != "t5_bidirectional")
    arguments = operands(BIASES[name], 300, 48, jnp.bfloat16, mask=mask)
    small = functools.partial(slopes, tiling=Tiling(block_q=128, block_k=128))
    assert compiled(chip, small, *arguments).as_text().count('custom_call_target="tpu_custom_call"') == 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "width", [pytest.param(32, marks=pytest.mark.full), 80, pytest.param(128, marks=pytest.mark.full), 256]
)
def test_blocks_of_every_width_fit(width, dtype):
    arguments = operands(BIASES["ggd"], 1024, width, jnp.dtype(dtype), mask=Mask())
    assert compiled("v5e", functools.partial(slopes, tiling=Tiling()), *arguments)


@pytest.mark.parametrize("lengths", [(1024, 1024), (600, 100), pytest.param((37, 1000), marks=pytest.mark.full)])
@pytest.mark.parametrize("chip", CHIPS)
def test_strips_of_whole_and_of_short_blocks_compile(chip, lengths):
    """Blocks of 512 x 512, and of what is no multiple of 8 or 128."""
    rows, slots = lengths
    arguments = operands(biases.T5Distance(vector(1025)), rows, 64, jnp.bfloat16, mask=Mask(), slots=slots)
    text = compiled(chip, functools.partial(slopes, tiling=Tiling()), *arguments).as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 3


@pytest.fixture
def row(rng):
    """q, k, v [1, 24, H or K, 8] and tokens of one row of two documents."""
    draw = lambda heads: jnp.asarray(rng.normal(size=(1, 24, heads, 8)), jnp.float32)
    tokens = Tokens(jnp.arange(24)[None], jnp.asarray([[1] * 9 + [2] * 15]))
    return draw(H), draw(K), draw(K), tokens


def loss(backend, tokens):
    def of(q, k, v, bias):
        tiling = Tiling(block_q=16, block_k=16)
        out = attention(q, k, v, Scoring(bias, tokens, tokens), backend=backend, tiling=tiling)
        return (out * jnp.cos(jnp.arange(8.0))).sum()

    return jax.jit(jax.value_and_grad(of, (0, 1, 2, 3)))


def close(made, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(1, np.abs(b).max())), made, expected
    )


def test_a_bias_of_the_users_own_runs_with_its_gradient(row, cauchy):
    *qkv, tokens = row
    bias = cauchy(vector() * 4)
    made, expected = (loss(backend, tokens)(*qkv, bias) for backend in ("pallas_tpu", "reference"))
    assert made[1][3].scale.all()
    close(made, expected)


@pytest.mark.parametrize("name", ["ggd", pytest.param("t5_distance", marks=pytest.mark.full)])
def test_kernels_race_with_nothing_and_read_what_was_written(name, row, monkeypatch):
    monkeypatch.setattr(tpu_grid, "_INTERPRET", pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"))
    *qkv, tokens = row
    close(*(loss(backend, tokens)(*qkv, BIASES[name]) for backend in ("pallas_tpu", "reference")))


def test_kernels_run_where_they_are_asked_for(row):
    *qkv, tokens = row
    program = lambda backend: str(jax.make_jaxpr(loss(backend, tokens))(*qkv, biases.Uniform()))
    assert "pallas_call" in program("pallas_tpu")
    assert "pallas_call" not in program("chunked")
    assert "pallas_call" not in program("auto")


def test_what_a_kernel_cannot_do_is_said_before_it_is_compiled(row, odd):
    q, k, v, tokens = row
    ask = lambda bias, dtype="float32": attention(
        *(x.astype(dtype) for x in (q, k, v)), Scoring(bias, tokens, tokens), backend="pallas_tpu"
    )
    with pytest.raises(Unsupported, match="the formula of Odd or its gradient needs cosh, sinh"):
        ask(odd(vector()))
    with pytest.raises(Unsupported, match="the formula of Held holds an array that is no parameter"):
        ask(Held(vector()))
    with pytest.raises(Unsupported, match="the formula of Whole takes its parameters otherwise than one by one"):
        ask(Whole(vector(3)))
    with pytest.raises(Unsupported, match="Looked takes its parameters otherwise.*: looks a parameter up"):
        ask(Looked(vector(3)))
    own = dataclasses.replace(tokens, coordinate=jnp.ones((1, 1, 24)))
    with pytest.raises(Unsupported, match="T5Distance takes its.* for offsets of positions, not of coordinates"):
        attention(q, k, v, Scoring(biases.T5Distance(vector(3)), tokens, own), backend="pallas_tpu")
    with pytest.raises(Unsupported, match=r"Whole has a parameter with more axes than \[H, n\]"):
        ask(Whole(vector(1, 3)))
    with jax.enable_x64(True), pytest.raises(Unsupported, match="float64"):
        ask(biases.Uniform(), "float64")
    wide = jnp.zeros((1, 24, 1, 512))
    with pytest.raises(Unsupported, match="head width of 512"):
        attention(wide, wide, wide, Scoring(biases.Uniform(), tokens, tokens), backend="pallas_tpu")


def test_auto_takes_the_kernels_on_a_tpu_and_says_when_it_cannot(row, odd, monkeypatch, caplog):
    *qkv, tokens = row
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    op._announce.cache_clear()
    with caplog.at_level("INFO"):
        assert op.choose(*qkv, Scoring(biases.Uniform(), tokens, tokens)) == "pallas_tpu"
        for _ in range(2):
            assert op.choose(*qkv, Scoring(odd(vector()), tokens, tokens)) == "chunked"
    op._announce.cache_clear()
    assert [x.message for x in caplog.records] == [
        "attention: auto chose the backend 'pallas_tpu' on tpu",
        "attention: auto chose the backend 'chunked' on tpu (tile by tile, as suits a CPU), since pallas_tpu cannot do this: "
        "the formula of Odd or its gradient needs cosh, sinh",
    ]


@pytest.mark.parametrize("name", ["uniform", "ggd", "fire", "t5_distance", "cable"])
@pytest.mark.parametrize("kv_heads", [K, *(pytest.param(heads, marks=pytest.mark.full) for heads in (H, 1))])
def test_one_query_over_a_cache(name, kv_heads, rng):
    """Several blocks of keys, a row padded on the left, slots not written yet; coordinates and temperatures of each head."""
    slots, at = 40, 29
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    q, k, v = draw(2, 1, H, 8), draw(2, slots, kv_heads, 8), draw(2, slots, kv_heads, 8)
    position = np.stack([np.arange(slots), np.arange(slots) - 5])
    position[position < 0] = EMPTY
    position[:, at + 1 :] = EMPTY
    own_i = own_j = None
    if name == "cable":
        own_j = (jnp.cumsum(draw(2, H, slots) ** 2, -1), draw(1, 1, slots) / 100)
        own_i = (draw(2, H, 1) ** 2, tuple(x[..., at : at + 1] for x in own_j))
    queries, keys = (
        Tokens(jnp.asarray(position[:, at : at + 1]), None, own_i),
        Tokens(jnp.asarray(position), None, own_j),
    )
    temperature = jnp.asarray(rng.uniform(0.5, 2, (1, H, 1)), jnp.float32)
    scoring = Scoring(BIASES[name], queries, keys, temperature)

    def of(backend):
        ask = lambda q, k, v, scoring: attention(
            q, k, v, scoring, backend=backend, tiling=Tiling(block_q=16, block_k=16)
        )
        return jax.jit(ask)(q, k, v, scoring)

    np.testing.assert_allclose(of("pallas_tpu"), of("reference"), atol=2e-6)


@pytest.mark.parametrize(("name", "kv_heads"), [("ggd", 1), ("ggd", H), ("t5", K), ("cable", K), ("cable", H)])
@pytest.mark.parametrize("chip", CHIPS)
def test_decoding_compiles(chip, name, kv_heads):
    arguments = operands(BIASES[name], 1, 64, jnp.bfloat16, mask=Mask(), packed=False, slots=8192, kv_heads=kv_heads)
    ask = lambda q, k, v, scoring: attention(q, k, v, scoring, backend="pallas_tpu")
    assert compiled(chip, ask, *arguments).as_text().count('custom_call_target="tpu_custom_call"') == 1
    if chip == "v5e" and name == "ggd":
        assert compiled(chip, functools.partial(slopes, tiling=Tiling()), *arguments)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_step_of_decoding_copies_no_cache(chip):
    """XLA lays the cache out as the kernel reads it, slots along the lanes: no head width is padded to 128 numbers."""
    width, slots = 48, 2**15
    shape = lambda *n, of=jnp.bfloat16: jax.ShapeDtypeStruct(n, of)
    row, query = shape(1, 1, K, width), shape(1, 1, H, width)
    position = shape(1, 1, of=jnp.int32)
    cache = jax.eval_shape(lambda k: Cache.empty(k, Tokens(position), slots), row)

    def step(cache, q, k, v, position):
        tokens = Tokens(position)
        cache = cache.append(k, v, tokens)
        scoring = Scoring(BIASES["ggd"], tokens, cache.tokens)
        return attention(q, cache.k, cache.v, scoring, backend="pallas_tpu"), cache

    memory = compiled(chip, step, cache, query, row, row, position).memory_analysis()
    assert memory.temp_size_in_bytes < slots * K * width  # a quarter of the cache
    assert memory.argument_size_in_bytes < 1.2 * 2 * 2 * slots * K * width  # nothing is padded to 128 lanes


def mesh_of_tpus(kind):
    pytest.importorskip("libtpu")
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    devices = topologies.get_topology_desc(platform="tpu", topology_name=CHIPS["v5e"]).devices
    return jax.sharding.Mesh(np.array(devices).reshape(2, 2), ("data", "model"), axis_types=(kind,) * 2)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_the_compiler_cuts_no_kernels(kind):
    """Arrays of a mesh need `jax.shard_map` around the kernels, as `per_device.mesh_attention` puts it."""
    mesh = mesh_of_tpus(kind)
    q, k, v, scoring = operands(BIASES["ggd"], 256, 64, jnp.bfloat16, mask=Mask())
    put = lambda spec: lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
    operands_of_mesh = *map(put(P("data")), (q, k, v)), jax.tree.map(put(P()), scoring)
    refused = pytest.raises(NotImplementedError, match="cannot be automatically partitioned")
    with refused, jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        jax.jit(functools.partial(attention, backend="pallas_tpu")).lower(*operands_of_mesh).compile()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_kernels_compile_inside_shard_map_with_its_check(kind):
    """Their results say over which devices they vary; gradients of what all rows share are summed over devices."""
    mesh = mesh_of_tpus(kind)
    q, k, v, scoring = operands(BIASES["ggd"], 256, 64, jnp.bfloat16, mask=Mask())
    heads, rows = P("data", None, "model"), P("data")
    where = heads, heads, heads, jax.tree.map(lambda _: rows, scoring)
    where = (*where[:3], dataclasses.replace(where[3], bias=jax.tree.map(lambda _: P("model"), scoring.bias)))
    where = (*where[:3], dataclasses.replace(where[3], temperature=P(None, "model")))

    def here(q, k, v, scoring):
        loss, (dq, dk, dv, floats) = slopes(q, k, v, scoring, Tiling())
        return jax.lax.psum(loss, ("data", "model")), dq, dk, dv, floats

    mapped = jax.shard_map(
        here, mesh=mesh, in_specs=where, out_specs=(P(), heads, heads, heads, [P("model")] * 3 + [P(None, "model")])
    )
    shapes = jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)),
        (q, k, v, scoring),
        where,
    )
    text = jax.jit(mapped).lower(*shapes).compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 3 and "all-reduce" in text
