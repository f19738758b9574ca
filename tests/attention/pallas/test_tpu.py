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
from bam_jax.attention import EMPTY, Cache, Dropout, Mask, Scoring, Tiling, Tokens, Unsupported, attention, op
from bam_jax.attention.logits import tile
from bam_jax.attention.pallas import strips, tpu_grid
from benchmarks.tpu_static import CHIPS, compile_for
from tests.attention.common import BIASES, GATED, SUMS, Cauchy, H, Odd, close, drawn, normals, slopes
from tests.marks import full, longest

K = 2
vector = lambda *n: jnp.linspace(0.1, 1.0, H * int(np.prod(n))).reshape(H, *n)


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


def kernels_of(text):
    return text.count('custom_call_target="tpu_custom_call"')


def gradients(*operands, tiling=Tiling()):  # noqa: B008
    return slopes(lambda *x: attention(*x, backend="pallas_tpu", tiling=tiling).sum(), *operands)


def operands(name, length, width=64, dtype="bfloat16", *, mask=Mask(), packed=True, slots=None, kv_heads=K):  # noqa: B008
    """Shapes of attention with a bias of some name, or the bias."""
    shape = lambda *n, of=jnp.float32: jax.ShapeDtypeStruct(n, of)
    slots = slots or length
    own = lambda n: (shape(2, H, n), shape(2, H, n))
    i = j = None
    if name in SUMS:
        i, j = own(length), own(slots)
        i = (shape(2, H, length), i) if name in GATED else i
        j = (shape(2, H, slots), j) if name == "gated" else j
    bias = drawn(name) if isinstance(name, str) else name
    if isinstance(bias, biases.Mixture):
        i = (shape(2, H, length),) * len(jax.tree.leaves(bias)[0])
    side = lambda n, x: Tokens(shape(2, n, of=jnp.int32), shape(2, n, of=jnp.int32) if packed else None, x)
    temperature = shape(1, H, length) if packed else None
    x = lambda n, heads: shape(2, n, heads, width, of=jnp.dtype(dtype))
    scoring = Scoring(bias, side(length, i), side(slots, j), temperature, mask)
    return x(length, H), x(slots, kv_heads), x(slots, kv_heads), scoring


# Every bias on one chip, one of each kind on the others.
KINDS = "uniform", "alibi", "ggd", "t5", "cable", "mixture"
COMPILED = [
    (chip, name) if chip == "v5e" or name in KINDS else longest(chip, name) for chip in CHIPS for name in BIASES
]


@pytest.mark.parametrize(("chip", "name"), COMPILED)
def test_every_bias_compiles(chip, name):
    mask = Mask(window=200) if name == "ggd" else Mask(causal=name != "t5_bidirectional")
    small = functools.partial(gradients, tiling=Tiling(block_q=128, block_k=128))
    arguments = operands(name, 300, 48, mask=mask)
    formula, relative = tile.unsupported(arguments[3]) is None, strips.of_offsets(arguments[3])
    forms = 2 if formula and relative and name not in ("uniform", "alibi") else 1
    assert kernels_of(compiled(chip, small, *arguments).as_text()) == 3 * forms


@pytest.mark.parametrize("name", ["ggd", full("cable")])
def test_heads_of_long_texts_compile_with_grids_of_their_own(name):
    """A kernel for all heads, which a loop calls."""
    small = functools.partial(gradients, tiling=Tiling(block_q=128, block_k=128))
    loops = {}
    for blocks in (8, 16):
        text = compiled("v5e", small, *operands(name, blocks * 128)).as_text()
        assert kernels_of(text) == (6 if name == "ggd" else 3)
        loops[blocks] = text.count(" while(")
    assert loops[16] >= loops[8] + 3


@pytest.mark.parametrize("chip", CHIPS)
def test_dropout_compiles(chip):
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    dropping = lambda *x: (*x[:3], dataclasses.replace(x[3], dropout=Dropout(0.1, seed)))
    assert kernels_of(compiled(chip, gradients, *dropping(*operands("ggd", 300, 48))).as_text()) == 6
    one = dropping(*operands("ggd", 1, packed=False, slots=8192))
    assert compiled(chip, functools.partial(attention, backend="pallas_tpu"), *one)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("width", [full(32), 80, full(128), 256])
def test_blocks_of_every_width_fit(width, dtype):
    assert compiled("v5e", gradients, *operands("ggd", 1024, width, dtype))


@pytest.mark.parametrize("bias", [biases.T5Distance(vector(1025)), biases.Mixture(biases.Band(jnp.ones((16, 500))))])
@pytest.mark.parametrize(("rows", "slots"), [(1024, 1024), (600, 100), full(37, 1000)])
@pytest.mark.parametrize("chip", CHIPS)
def test_strips_of_whole_and_of_short_blocks_compile(chip, rows, slots, bias):
    """Blocks of 512 x 512, and of what is no multiple of 8 or 128."""
    assert kernels_of(compiled(chip, gradients, *operands(bias, rows, slots=slots)).as_text()) == 3


@pytest.mark.parametrize("chip", CHIPS)
def test_the_sums_of_many_profiles_fit_as_far_as_they_are_taken(chip):
    arguments = operands(biases.Mixture(biases.Band(jnp.ones((16, 1024)))), 2**18, packed=False)
    assert kernels_of(compiled(chip, gradients, *arguments).as_text()) == 3


@pytest.fixture
def row(rng):
    """q, k, v [1, 24, H or K, 8] and tokens of one row of two documents."""
    tokens = Tokens(jnp.arange(24)[None], jnp.asarray([[1] * 9 + [2] * 15]))
    return *normals(rng, *((1, 24, heads, 8) for heads in (H, K, K))), tokens


def loss(backend, tokens, of_queries=None):
    def of(q, k, v, bias):
        scoring = Scoring(bias, dataclasses.replace(tokens, coordinate=of_queries), tokens)
        return attention(q, k, v, scoring, backend=backend, tiling=Tiling("exact", 16, 16))

    return jax.jit(functools.partial(slopes, of))


def test_a_bias_of_the_users_own_runs_with_its_gradient(row):
    *qkv, tokens = row
    made, expected = (loss(backend, tokens)(*qkv, Cauchy(vector() * 4)) for backend in ("pallas_tpu", "reference"))
    assert made[-1].all()
    close(made, expected, 1e-4)


@pytest.mark.parametrize("name", ["ggd", full("t5_distance"), full("mixed_band")])
def test_kernels_race_with_nothing_and_read_what_was_written(name, row, monkeypatch):
    monkeypatch.setattr(tpu_grid, "_INTERPRET", pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"))
    *qkv, tokens = row
    bias = drawn(name)
    own = (jnp.ones((1, H, 24)),) * 3 if isinstance(bias, biases.Mixture) else None
    close(*(loss(backend, tokens, own)(*qkv, bias) for backend in ("pallas_tpu", "reference")), 1e-4)


def test_kernels_run_where_they_are_asked_for(row):
    *qkv, tokens = row
    program = lambda backend: str(jax.make_jaxpr(loss(backend, tokens))(*qkv, biases.Uniform()))
    assert "pallas_call" in program("pallas_tpu")
    assert "pallas_call" not in program("chunked")
    assert "pallas_call" not in program("auto")


def test_what_a_kernel_cannot_do_is_said_before_it_is_compiled(row):
    q, k, v, tokens = row
    own = dataclasses.replace(tokens, coordinate=jnp.ones((1, 1, 24)))
    refused = {
        "the formula of Odd or its gradient needs cosh, sinh": Odd(vector()),
        "the formula of Held holds an array that is no parameter": Held(vector()),
        "the formula of Whole takes its parameters otherwise than one by one": Whole(vector(3)),
        "Looked takes its parameters otherwise.*: looks a parameter up": Looked(vector(3)),
        "T5Distance takes its.* for offsets of positions, not of coordinates": biases.T5Distance(vector(3)),
        r"Whole has a parameter with more axes than \[H, n\]": Whole(vector(1, 3)),
    }
    for says, bias in refused.items():
        keys = own if isinstance(bias, biases.T5Distance) else tokens
        with pytest.raises(Unsupported, match=says):
            attention(q, k, v, Scoring(bias, tokens, keys), backend="pallas_tpu")
    uniform = Scoring(biases.Uniform(), tokens, tokens)
    with jax.enable_x64(True), pytest.raises(Unsupported, match="float64"):
        attention(*(x.astype(float) for x in (q, k, v)), uniform, backend="pallas_tpu")
    wide = jnp.zeros((1, 24, 1, 512))
    with pytest.raises(Unsupported, match="head width of 512"):
        attention(wide, wide, wide, uniform, backend="pallas_tpu")


def test_auto_takes_the_kernels_on_a_tpu_and_says_when_it_cannot(row, monkeypatch, caplog):
    *qkv, tokens = row
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    op._announce.cache_clear()
    with caplog.at_level("INFO"):
        assert op.choose(*qkv, Scoring(biases.Uniform(), tokens, tokens)) == "pallas_tpu"
        for _ in range(2):
            assert op.choose(*qkv, Scoring(Odd(vector()), tokens, tokens)) == "chunked"
    op._announce.cache_clear()
    assert [x.message for x in caplog.records] == [
        "attention: auto chose the backend 'pallas_tpu' on tpu",
        "attention: auto chose the backend 'chunked' on tpu (tile by tile, as suits a CPU), since pallas_tpu cannot do this: "
        "the formula of Odd or its gradient needs cosh, sinh",
    ]


@pytest.mark.parametrize("name", ["uniform", "ggd", "fire", "t5_distance", "cable"])
@pytest.mark.parametrize("kv_heads", [K, full(H), full(1)])
def test_one_query_over_a_cache(name, kv_heads, rng):
    """Several blocks of keys, a row padded on the left, slots not written yet; coordinates and temperatures of each head."""
    slots, at = 40, 29
    draw = lambda *shape: normals(rng, shape)[0]
    q, k, v = normals(rng, (2, 1, H, 8), *[(2, slots, kv_heads, 8)] * 2)
    position = np.stack([np.arange(slots), np.arange(slots) - 5])
    position[position < 0] = EMPTY
    position[:, at + 1 :] = EMPTY
    own_i = own_j = None
    if name == "cable":
        own_j = (jnp.cumsum(draw(2, H, slots) ** 2, -1), draw(1, 1, slots) / 100)
        own_i = (draw(2, H, 1) ** 2, tuple(x[..., at : at + 1] for x in own_j))
    queries = Tokens(jnp.asarray(position[:, at : at + 1]), None, own_i)
    keys = Tokens(jnp.asarray(position), None, own_j)
    temperature = jnp.asarray(rng.uniform(0.5, 2, (1, H, 1)), jnp.float32)
    scoring = Scoring(drawn(name), queries, keys, temperature)
    of = jax.jit(functools.partial(attention, tiling=Tiling("exact", 16, 16)), static_argnames="backend")
    np.testing.assert_allclose(*(of(q, k, v, scoring, backend=x) for x in ("pallas_tpu", "reference")), atol=2e-6)


@pytest.mark.parametrize(("name", "kv_heads"), [("ggd", 1), ("ggd", H), ("t5", K), ("cable", K), ("cable", H)])
@pytest.mark.parametrize("chip", CHIPS)
def test_decoding_compiles(chip, name, kv_heads):
    arguments = operands(name, 1, packed=False, slots=8192, kv_heads=kv_heads)
    ask = functools.partial(attention, backend="pallas_tpu")
    assert kernels_of(compiled(chip, ask, *arguments).as_text()) == 1
    if chip == "v5e" and name == "ggd":
        assert compiled(chip, gradients, *arguments)


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
        scoring = Scoring(drawn("ggd"), tokens, cache.tokens)
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
    q, k, v, scoring = operands("ggd", 256)
    put = lambda spec: lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
    operands_of_mesh = *map(put(P("data")), (q, k, v)), jax.tree.map(put(P()), scoring)
    refused = pytest.raises(NotImplementedError, match="cannot be automatically partitioned")
    with refused, jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        jax.jit(functools.partial(attention, backend="pallas_tpu")).lower(*operands_of_mesh).compile()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_kernels_compile_inside_shard_map_with_its_check(kind):
    """Their results say over which devices they vary; gradients of what all rows share are summed over devices."""
    mesh = mesh_of_tpus(kind)
    q, k, v, scoring = operands("ggd", 256)
    heads = P("data", None, "model")
    of_scoring = dataclasses.replace(
        jax.tree.map(lambda _: P("data"), scoring),
        bias=jax.tree.map(lambda _: P("model"), scoring.bias),
        temperature=P(None, "model"),
    )
    where = heads, heads, heads, of_scoring

    def here(*operands):
        loss, *found = gradients(*operands)
        return jax.lax.psum(loss, ("data", "model")), *found

    out = P(), heads, heads, heads, *[P("model")] * 3, P(None, "model")
    put = lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
    mapped = jax.jit(jax.shard_map(here, mesh=mesh, in_specs=where, out_specs=out))
    text = mapped.lower(*jax.tree.map(put, (q, k, v, scoring), where)).compile().as_text()
    assert kernels_of(text) == 6 and "all-reduce" in text  # in strips, and as a formula
    # Of a frozen prior the gradient is zeros, which vary over nothing.
    frozen = lambda q, *others: jax.grad(lambda q: attention(q, *others, backend="pallas_tpu").sum())(q)
    alone = jax.jit(jax.shard_map(frozen, mesh=mesh, in_specs=where, out_specs=heads))
    assert "tpu_custom_call" in alone.lower(*jax.tree.map(put, (q, k, v, scoring), where)).as_text()
