"""The GPU kernels: interpreted over several blocks, compiled for an H100 without one, and what they cannot do."""

import dataclasses
import functools
import importlib.util
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import biases
from bam_jax.attention import EMPTY, Dropout, Mask, Scoring, Tiling, Tokens, Unsupported, attention
from bam_jax.attention.pallas import gpu
from bam_jax.config import Config, ModelConfig
from bam_jax.models import transformer
from benchmarks import gpu_static, hlo
from tests.attention.common import Cauchy, Odd, close, normals, slopes
from tests.marks import longest

B, T, H, K, D = 2, 200, 2, 1, 48
HAVE_COMPILER = importlib.util.find_spec("jax_cuda13_plugin") is not None
needs_compiler = pytest.mark.skipif(
    not HAVE_COMPILER, reason="no GPU compiler: `make test-compilers` brings the extra compilers"
)
few = lambda *numbers: jnp.asarray(numbers, jnp.float32)
GGD = biases.GeneralisedGaussian(few(0.7, -0.4), few(-0.5, 0.3), few(0.3, 0.0))


def scoring(bias, mask=None, *, packed=True, temperature=None):
    """Two rows: documents that end inside blocks, and empty slots in front."""
    position = np.stack([np.arange(T), np.arange(T) - 70])
    position[position < 0] = EMPTY
    segment = 1 + (np.arange(T)[None] >= [[150], [130]]).astype(np.int32)
    tokens = Tokens(jnp.asarray(position, jnp.int32), jnp.asarray(segment, jnp.int32) if packed else None)
    return Scoring(bias, tokens, tokens, temperature, mask or Mask())


def operands(dtype):
    own, keys = (B, T, H, D), (B, T, K, D)
    return tuple(x.astype(dtype) for x in normals(np.random.default_rng(0), own, keys, keys))


def compare(operands, scoring, tolerance, tiling=Tiling()):  # noqa: B008
    """The interpreted kernels with the reference, output and gradients."""

    def run(backend, tiling, *arguments):
        return slopes(lambda *x: attention(*x, backend=backend, tiling=tiling), *arguments)

    made = jax.jit(run, static_argnums=(0, 1))("pallas_gpu", tiling, *operands, scoring)
    close(made, run("reference", Tiling(), *(x.astype(jnp.float32) for x in operands), scoring), tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "mask", "packed", "tempered"),
    [
        ("bfloat16", 3e-2, Mask(), True, True),
        pytest.param("float16", 4e-3, Mask(causal=False, window=90), False, False),
    ],
)
@pytest.mark.hopper
def test_several_blocks_agree_with_the_reference(dtype, tolerance, mask, packed, tempered):
    temperature = jnp.linspace(0.2, 1.5, H * T, dtype=jnp.float32).reshape(1, H, T) if tempered else None
    compare(operands(dtype), scoring(GGD, mask, packed=packed, temperature=temperature), tolerance)


@pytest.mark.hopper
def test_a_users_bias_and_tiles_left_out():
    compare(operands("bfloat16"), scoring(Cauchy(few(2.0, 30.0)), packed=False), 3e-2)
    tiling = Tiling(block_q=128, block_k=256)
    compare(operands("bfloat16"), scoring(biases.ALiBi(few(9.0, 0.1)), packed=False), 3e-2, tiling)


@pytest.mark.hopper
@pytest.mark.parametrize(
    ("bias", "tempered"), [(biases.Uniform(), False), (biases.ALiBi(few(0.1)), False), (Cauchy(few(9.0)), True)]
)
def test_tiles_without_hidden_pairs(bias, tempered, float32_on_gpus):
    """Those of the second block of queries and the first block of keys."""
    tokens = Tokens(jnp.arange(256)[None])
    whole = Scoring(bias, tokens, tokens, jnp.linspace(0.2, 1.5, 256)[None, None] if tempered else None)
    compare(normals(np.random.default_rng(0), *[(1, 256, 1, 48)] * 3), whole, 1e-5)


@pytest.mark.hopper
def test_a_value_that_is_not_finite_in_a_tile_without_hidden_pairs(float32_on_gpus):
    """The row that it belongs to and all later ones see it, those of the second block of queries in such a tile."""
    q, k, v = normals(np.random.default_rng(0), *[(1, 256, 1, 48)] * 3)
    tokens = Tokens(jnp.arange(256)[None])
    whole = Scoring(biases.Uniform(), tokens, tokens)
    run = jax.jit(lambda v: attention(q, k, v, whole, backend="pallas_gpu"))
    made = np.asarray(run(v.at[0, 100, 0, 7].set(jnp.inf)))
    np.testing.assert_array_equal(np.isnan(made[0, :, 0, 0]), np.arange(256) >= 100)


@pytest.mark.hopper
@pytest.mark.parametrize("consecutive", [False, True])
def test_no_gradient_meets_a_hidden_value_that_is_not_finite(consecutive, float32_on_gpus):
    """Empty slots behind the text, in both blocks of keys, and one that is nobody's key."""
    q, k, v = normals(np.random.default_rng(0), *[(2, 256, 1, 48)] * 3)
    position = jnp.where(jnp.arange(256) < jnp.asarray([[110], [200]]), jnp.arange(256), EMPTY)
    hidden = Tokens(position, consecutive=consecutive)
    with_hidden = lambda *x: jnp.where((position == EMPTY)[:, :, None, None], jnp.asarray(x * 24, jnp.float32), v)
    run = lambda backend, *x: slopes(lambda *x: attention(*x, backend=backend), *x)
    whole = Scoring(biases.ALiBi(few(0.1)), hidden, hidden)
    made = jax.jit(run, static_argnums=0)("pallas_gpu", q, k, with_hidden(jnp.inf, jnp.nan), whole)
    close(made, run("reference", q, k, with_hidden(0, 0), whole), 1e-5)


@pytest.mark.hopper
def test_the_scale_is_that_of_the_queries_own_width(float32_on_gpus):
    """Values are twice as wide as keys, and queries are widened to them."""
    q, k, v = normals(np.random.default_rng(0), (1, 128, 1, 16), (1, 128, 1, 16), (1, 128, 1, 32))
    tokens = Tokens(jnp.arange(128)[None])
    made, exact = (
        attention(q, k, v, Scoring(biases.Uniform(), tokens, tokens), backend=backend)
        for backend in ("pallas_gpu", "reference")
    )
    close(made, exact, 1e-5)


@pytest.mark.parametrize("tempered", [False, True])
def test_one_query(tempered):
    """XLA alone computes it; its gradients are the kernels'."""
    q, k, v = operands("bfloat16")
    whole = scoring(GGD, packed=False)
    k, v = k.at[1, :70].set(jnp.nan), v.at[1, :70].set(jnp.inf)  # empty slots
    temperature = few(0.5, 2.0)[None, :, None] if tempered else None
    for at in (-1, 30):  # in the second row the latter is an empty slot, which sees nothing
        one = Scoring(GGD, Tokens(whole.queries.position[:, at][:, None]), whole.keys, temperature)
        last = q[:, at][:, None]
        made = jax.jit(lambda *x: attention(*x, one, backend="pallas_gpu", return_lse=True))(last, k, v)  # noqa: B023
        wide = (x.astype(jnp.float32) for x in (last, k, v))
        close(made, attention(*wide, one, backend="reference", return_lse=True), 1e-2)


# Two biases with and without documents. The others alternate: one with, the next without.
BOTH = "ggd", "cable"
COMPILED = [
    (name, packed) if name in BOTH or packed == bool(n % 2) else longest(name, packed)
    for n, name in enumerate(gpu_static.BIASES)
    for packed in (False, True)
]


@needs_compiler
@pytest.mark.parametrize(("name", "packed"), COMPILED)
def test_every_bias_compiles_for_an_h100(name, packed):
    """Whatever the user's default numbers."""
    dtype = "float16" if name == "ggd" else "bfloat16"
    arguments = gpu_static.operand_shapes(name, 48 if packed else 128, length=300, packed=packed, dtype=dtype)
    forms = gpu_static.forms(name)
    if name not in ("ggd", "alibi", "t5"):
        # In strips, the kernels of one bias differ from those of another in the number of strips alone, but for T5's, which
        # has more numbers than slopes are made for.
        forms = forms[-1:]
    each = [gpu_static.kernels(*arguments, in_strips=in_strips) for in_strips in forms]
    for f, shapes in (kernel for kernels in each for kernel in kernels.values()):
        with jax.enable_x64(name == "ggd"):
            assert gpu_static.compile_for_h100(f, *shapes).as_text().count('custom_call_target="mosaic_gpu') == 1


@needs_compiler
@pytest.mark.parametrize("width", [48, longest(128)])
def test_as_many_profiles_as_there_may_be_compile_for_an_h100(width):
    """With all that a tile may read besides, they need most shared memory."""
    q, k, v, whole = gpu_static.operand_shapes("inkling", width, length=300, packed=True)
    weights = (whole.temperature,) * gpu._PROFILES
    bias = biases.Mixture(biases.Band(jax.ShapeDtypeStruct((gpu._PROFILES, 100), jnp.float32)))
    dropout = Dropout(0.1, jax.ShapeDtypeStruct((q.shape[0], q.shape[2]), jnp.uint32))
    queries = dataclasses.replace(whole.queries, coordinate=weights)
    whole = dataclasses.replace(whole, bias=bias, queries=queries, dropout=dropout)
    for f, shapes in gpu_static.kernels(q, k, v, whole, in_strips=True).values():
        assert gpu_static.compile_for_h100(f, *shapes).as_text().count('custom_call_target="mosaic_gpu') == 1


@needs_compiler
@pytest.mark.parametrize("in_strips", [False, True])
def test_dropout_compiles_for_an_h100(in_strips):
    q, k, v, whole = gpu_static.operand_shapes("ggd", 128, length=300)
    seeds = jax.ShapeDtypeStruct((q.shape[0], q.shape[2]), jnp.uint32)
    dropping = dataclasses.replace(whole, dropout=Dropout(0.1, seeds))
    for f, shapes in gpu_static.kernels(q, k, v, dropping, in_strips=in_strips).values():
        assert gpu_static.compile_for_h100(f, *shapes).as_text().count('custom_call_target="mosaic_gpu') == 1


@needs_compiler
def test_a_mapped_choice_between_strips_and_a_formula_compiles_for_an_h100():
    """The interpreter cannot map it: see test_transforms."""
    q, k, v, scoring = gpu_static.operand_shapes("ggd", 64, length=256)
    loss = lambda *x: attention(*x, backend="pallas_gpu").sum()
    rows = lambda q, k, v, scoring: jax.vmap(jax.grad(loss), (0, 0, 0, None))(q, k, v, scoring)
    q, k, v = (jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for x in (q, k, v))
    assert gpu_static.compile_for_h100(rows, q, k, v, scoring).as_text().count('custom_call_target="mosaic_gpu') >= 4


@needs_compiler
@pytest.mark.parametrize("width", [16, 80, 96])
def test_memory_holds_no_padded_operand_and_no_wide_gradient(width):
    """Temporary memory holds the second half of the output."""
    q, k, v, whole = gpu_static.operand_shapes("ggd", width, length=512)
    q = k = v = jax.ShapeDtypeStruct((64, *q.shape[1:]), q.dtype)
    whole = dataclasses.replace(whole, queries=Tokens(jnp.arange(512)[None], consecutive=True))
    whole = dataclasses.replace(whole, keys=whole.queries)

    def gradients(q, k, v, bias, d_out):
        run = lambda q, k, v, bias: attention(q, k, v, dataclasses.replace(whole, bias=bias), backend="pallas_gpu")
        return jax.vjp(run, q, k, v, bias)[1](d_out)

    compiled = gpu_static.compile_for_h100(gradients, q, k, v, whole.bias, q)
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * q.size * q.dtype.itemsize


@needs_compiler
@pytest.mark.parametrize("name", ["ggd", "cable"])
def test_one_query_starts_few_programs_and_copies_no_cache(name):
    _, k, v, whole = gpu_static.operand_shapes(name, 128, length=32768)
    queries = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], 1), x.dtype), whole.queries)
    q = jax.ShapeDtypeStruct((1, 1, gpu_static.HEADS, 128), k.dtype)
    one = dataclasses.replace(whole, queries=queries)
    forward, _ = gpu_static.kernels(q, k, v, one)["forward"]
    compiled = gpu_static.compile_for_h100(forward, q, k, v, one)
    assert hlo.Program(compiled.as_text()).launches() <= 20
    assert compiled.memory_analysis().temp_size_in_bytes < k.size * k.dtype.itemsize / 2


def pattern_model(pattern, backend, **sizes):
    """A decoder of a pattern with norms, gates, sinks and a cap."""
    today = {"dtype": "bfloat16", "qk_norm": True, "gate": True, "sinks": True, "soft_cap": 30.0}
    config = Config(encoding=pattern, context=512, model=ModelConfig(**sizes, **today))
    model = transformer.build(config, vocab=64, rngs=nnx.Rngs(0))
    for stack in model.stacks():
        stack.attention.backend = backend
    return model


@pytest.mark.hopper
@pytest.mark.parametrize(
    "pattern",
    ["rope:window=5/nope:log_temperature=0.5,log_temperature_start=4", "rope:window=5/bam:init=spread,ssmax=on"],
)
def test_layers_of_a_pattern_have_the_references_gradients(pattern):
    """The kernels of a stack that reads a table, and of one stack for each formula; 20 tokens in two documents."""
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (1, 20)), jnp.int32)
    segment = 1 + (jnp.arange(20)[None] >= 13).astype(jnp.int32)

    def of(backend):
        sizes = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 32}
        graph, params, rest = nnx.split(pattern_model(pattern, backend, **sizes), nnx.Param, ...)
        return jax.jit(functools.partial(slopes, lambda x: nnx.merge(graph, x, rest)(tokens, segment=segment)[0]))(
            params
        )

    for made, expected in zip(of("pallas_gpu"), of("reference"), strict=True):
        largest = np.abs(expected).max()
        assert largest > 0
        np.testing.assert_allclose(made, expected, rtol=0, atol=4e-2 * largest)


@needs_compiler
@pytest.mark.parametrize(
    "pattern", ["rope:window=128/rope:window=128/nope:log_temperature=0.5", "rope:window=64/bam:ssmax=on"]
)
def test_layers_of_a_pattern_compile_for_an_h100(pattern):
    """Forward and backward, one program for all depths."""
    build = lambda: pattern_model(pattern, "pallas_gpu", layers=12, width=256, heads=4, kv_heads=2, hidden=256)
    graph, tree = transformer.split(nnx.eval_shape(build))
    loss = lambda params, frozen, tokens: nnx.merge(graph, params, frozen)(tokens)[0].sum()
    tokens = jax.ShapeDtypeStruct((2, 512), jnp.int32)
    compiled = gpu_static.compile_for_h100(jax.grad(loss), tree["params"], tree["frozen"], tokens)
    assert compiled.as_text().count('custom_call_target="mosaic_gpu') >= 3 * len(nnx.eval_shape(build).stacks())


def test_what_it_cannot_do_it_refuses_by_a_reason():
    q, k, v = operands("bfloat16")
    asked = functools.partial(attention, backend="pallas_gpu")
    with pytest.raises(Unsupported, match=r"bfloat16, float16.*float32.*astype\(jnp.bfloat16\), or backend='auto'"):
        asked(*(x.astype(jnp.float32) for x in (q, k, v)), scoring(GGD))
    with pytest.raises(Unsupported, match="a head width of 192, above 128"):
        asked(*(jnp.repeat(x, 4, axis=-1) for x in (q, k, v)), scoring(GGD))
    with pytest.raises(Unsupported, match="Odd.* sinh"):
        asked(q, k, v, scoring(Odd(few(1.0, 1.0))))
    with pytest.raises(ValueError, match="multiples of 128 queries and keys, got 64 x 128"):
        asked(q, k, v, scoring(GGD), tiling=Tiling(block_q=64))


@pytest.mark.parametrize(
    ("chip", "named", "says"),
    [
        ("9.0", "12080", "CUDA 12.8 miscompiles masks; take CUDA 13"),
        ("9.0", "12090", "CUDA 12.9 miscompiles masks; take CUDA 13"),
        ("9.0", "12091", None),
        ("9.0", "", None),
        ("8.0", "13000", "it is made for Hopper"),
    ],
)
def test_chips_and_assemblers_that_fail_are_refused(chip, named, says, monkeypatch):
    device = types.SimpleNamespace(compute_capability=chip, device_kind="NVIDIA H100")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.setattr(gpu, "_platform_version", lambda: f"PJRT C API\ncuda {named}" if named else "rocm 60300")
    reason = gpu.refuses(*operands("bfloat16"), scoring(GGD))
    assert (reason is None) if says is None else (says in reason)


@needs_compiler
def test_what_stands_in_for_the_kernels_has_few_launches():
    """Float32, which the kernels refuse: each pass starts at most 200 kernels at a length of 8192."""
    q, k, v, whole = gpu_static.operand_shapes("ggd", 64, dtype="float32")
    run = lambda whole, q, k, v, bias: attention(q, k, v, dataclasses.replace(whole, bias=bias))
    both = lambda d_out, whole, *x: jax.vjp(functools.partial(run, whole), *x)[1](d_out)
    launches = lambda f, *shapes: hlo.Program(gpu_static.compile_for_h100(f, *shapes).as_text()).launches()
    arguments = whole, q, k, v, whole.bias
    alone = launches(run, *arguments)
    assert 0 < alone <= 200
    assert 0 < launches(both, q, *arguments) - alone <= 200
