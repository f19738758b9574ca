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
from bam_jax.attention import EMPTY, Mask, Scoring, Tiling, Tokens, Unsupported, attention, op
from bam_jax.attention.pallas import gpu
from bam_jax.config import Config, ModelConfig
from bam_jax.models import transformer
from benchmarks import gpu_static

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
    draw = np.random.default_rng(0)
    q, d_out = (jnp.asarray(draw.normal(size=(B, T, H, D)), dtype) for _ in range(2))
    k, v = (jnp.asarray(draw.normal(size=(B, T, K, D)), dtype) for _ in range(2))
    return q, k, v, d_out


def run(backend, q, k, v, d_out, scoring, tiling):
    """Output and gradients of q, k, v, the bias and the temperature."""

    def forward(q, k, v, bias, temperature):
        whole = Scoring(bias, scoring.queries, scoring.keys, temperature, scoring.mask)
        return attention(q, k, v, whole, backend=backend, tiling=tiling)

    out, vjp = jax.vjp(forward, q, k, v, scoring.bias, scoring.temperature)
    return out, *vjp(d_out)


def interpreted(q, k, v, d_out, scoring, tiling=Tiling()):  # noqa: B008
    return jax.jit(run, static_argnums=(0, 6))("pallas_gpu", q, k, v, d_out, scoring, tiling)


def agree(made, expected, tolerance):
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max()))


def reference(q, k, v, d_out, scoring):
    wide = (x.astype(jnp.float32) for x in (q, k, v, d_out))
    return run("reference", *wide, scoring, Tiling())


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
    arguments = (*operands(dtype), scoring(GGD, mask, packed=packed, temperature=temperature))
    agree(interpreted(*arguments), reference(*arguments), tolerance)


@pytest.mark.hopper
def test_a_users_bias_and_tiles_left_out(cauchy):
    arguments = (*operands("bfloat16"), scoring(cauchy(few(2.0, 30.0)), packed=False))
    agree(interpreted(*arguments), reference(*arguments), 3e-2)
    arguments = (*operands("bfloat16"), scoring(biases.ALiBi(few(9.0, 0.1)), packed=False))
    agree(interpreted(*arguments, Tiling(block_q=128, block_k=256)), reference(*arguments), 3e-2)


@pytest.mark.parametrize("tempered", [False, True])
def test_one_query(tempered):
    """XLA alone computes it; its gradients are the kernels'."""
    q, k, v, _ = operands("bfloat16")
    whole = scoring(GGD, packed=False)
    k, v = k.at[1, :70].set(jnp.nan), v.at[1, :70].set(jnp.inf)  # empty slots
    temperature = few(0.5, 2.0)[None, :, None] if tempered else None
    for at in (-1, 30):  # in the second row the latter is an empty slot, which sees nothing
        one = Scoring(GGD, Tokens(whole.queries.position[:, at][:, None]), whole.keys, temperature)
        last = q[:, at][:, None]
        made = jax.jit(lambda *x: attention(*x, one, backend="pallas_gpu", return_lse=True))(last, k, v)  # noqa: B023
        wide = (x.astype(jnp.float32) for x in (last, k, v))
        agree(made, attention(*wide, one, backend="reference", return_lse=True), 1e-2)


@needs_compiler
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", gpu_static.BIASES)
def test_every_bias_compiles_for_an_h100(name, packed):
    arguments = gpu_static.operand_shapes(name, 48 if packed else 128, length=300, packed=packed)
    for f, shapes in gpu_static.kernels(*arguments).values():
        assert gpu_static.compile_for_h100(f, *shapes).as_text().count('custom_call_target="mosaic_gpu') == 1


@needs_compiler
def test_it_compiles_whatever_the_users_default_numbers(x64):
    for f, shapes in gpu_static.kernels(*gpu_static.operand_shapes("ggd", 64, length=256, dtype="float16")).values():
        gpu_static.compile_for_h100(f, *shapes)


@needs_compiler
@pytest.mark.parametrize("name", ["ggd", "cable"])
def test_one_query_starts_few_programs_and_copies_no_cache(name):
    _, k, v, whole = gpu_static.operand_shapes(name, 128, length=32768)
    queries = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], 1), x.dtype), whole.queries)
    q = jax.ShapeDtypeStruct((1, 1, gpu_static.HEADS, 128), k.dtype)
    one = dataclasses.replace(whole, queries=queries)
    forward, _ = gpu_static.kernels(q, k, v, one)["forward"]
    compiled = gpu_static.compile_for_h100(forward, q, k, v, one)
    assert gpu_static.launches(compiled.as_text()) <= 20
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

    def slopes(backend):
        graph, params, rest = nnx.split(
            pattern_model(pattern, backend, layers=2, width=32, heads=2, kv_heads=1, hidden=32), nnx.Param, ...
        )
        loss = lambda params: (
            nnx.merge(graph, params, rest)(tokens, segment=segment)[0] * jnp.cos(jnp.arange(64))
        ).sum()
        return jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(params))

    for made, expected in zip(slopes("pallas_gpu"), slopes("reference"), strict=True):
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


def test_what_it_cannot_do_it_refuses_by_a_reason(odd):
    q, k, v, _ = operands("bfloat16")
    asked = functools.partial(attention, backend="pallas_gpu")
    with pytest.raises(Unsupported, match=r"bfloat16, float16.*float32.*astype\(jnp.bfloat16\), or backend='auto'"):
        asked(*(x.astype(jnp.float32) for x in (q, k, v)), scoring(GGD))
    with pytest.raises(Unsupported, match="a head width of 192, above 128"):
        asked(*(jnp.repeat(x, 4, axis=-1) for x in (q, k, v)), scoring(GGD))
    with pytest.raises(Unsupported, match="Odd.* sinh"):
        asked(q, k, v, scoring(odd(few(1.0, 1.0))))
    with pytest.raises(ValueError, match="multiples of 128 queries and keys, got 64 x 128"):
        asked(q, k, v, scoring(GGD), tiling=Tiling(block_q=64))


def test_auto_passes_over_what_is_no_hopper(monkeypatch, caplog):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    op._announce.cache_clear()
    with caplog.at_level("INFO"):
        q, k, v, _ = operands("bfloat16")
        assert op.choose(q, k, v, scoring(GGD)) == "rows"
        assert op.choose(q, k, v, scoring(GGD)) == "rows"
    assert len(caplog.messages) == 1
    assert "the hidden ones too), since pallas_gpu cannot do this: it is made for Hopper" in caplog.text


@pytest.mark.parametrize(
    ("named", "refused"), [("12080", True), ("12090", True), ("12091", False), ("13000", False), ("", False)]
)
def test_an_assembler_that_miscompiles_masks_is_refused(named, refused, monkeypatch):
    hopper = types.SimpleNamespace(compute_capability="9.0", device_kind="NVIDIA H100")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [hopper])
    monkeypatch.setattr(gpu, "_platform_version", lambda: f"PJRT C API\ncuda {named}" if named else "rocm 60300")
    q, k, v, _ = operands("bfloat16")
    reason = gpu.refuses(q, k, v, scoring(GGD))
    assert (reason is not None) == refused
    assert reason is None or f"CUDA 12.{named[3]} miscompiles masks; take CUDA 13" in reason


@needs_compiler
def test_what_stands_in_for_the_kernels_has_few_launches():
    """Float32, which the kernels refuse: each pass starts at most 200 kernels at a length of 8192."""
    q, k, v, whole = gpu_static.operand_shapes("ggd", 64, dtype="float32")
    compiled = lambda f, *shapes: gpu_static.launches(gpu_static.compile_for_h100(f, *shapes).as_text())

    def forward(q, k, v, bias, whole):
        return attention(q, k, v, dataclasses.replace(whole, bias=bias))

    def both(q, k, v, bias, whole, d_out):
        return jax.vjp(lambda *x: forward(*x, whole), q, k, v, bias)[1](d_out)

    alone = compiled(forward, q, k, v, whole.bias, whole)
    assert 0 < alone <= 200
    assert 0 < compiled(both, q, k, v, whole.bias, whole, q) - alone <= 200
