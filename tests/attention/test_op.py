"""The public operation: what it hides, what it refuses, how it composes and how much memory it takes."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.export
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array, Float

from bam_jax import biases
from bam_jax.attention import BACKENDS, EMPTY, Backend, Mask, Scoring, Tiling, Tokens, Unsupported, attention, op, rows
from bam_jax.attention.cpu import blocks, chunked
from bam_jax.attention.pallas import gpu, tpu_grid

B, T, H, D = 2, 12, 3, 4
# The GPU kernels are interpreted thread by thread, which takes long.
EACH = [pytest.param(name, marks=pytest.mark.hopper) if name == "pallas_gpu" else name for name in BACKENDS]
SHAPES = [-20.0, -7.5, 1.0]


def prior(shapes=SHAPES, log_scale=0.0):
    shape = jnp.asarray(shapes, jnp.float32)
    return biases.GeneralisedGaussian(shape, jnp.full_like(shape, log_scale), jnp.zeros_like(shape))


def scoring(bias=None, mask=None, **tokens):
    tokens = Tokens(jnp.arange(T, dtype=jnp.int32)[None], **tokens)
    return Scoring(prior() if bias is None else bias, tokens, tokens, mask=mask or Mask())


@pytest.fixture
def qkv(rng):
    return tuple(jnp.asarray(rng.normal(size=(B, T, H, D)), jnp.float32) for _ in range(3))


@pytest.fixture
def small_tiles(monkeypatch):
    for module in (blocks, tpu_grid):
        monkeypatch.setattr(module, "_block_sizes", lambda q, k: (4, 6))
    monkeypatch.setattr(rows, "_TABLE", B * H * T * 5)
    monkeypatch.setattr(gpu, "_DTYPES", (*gpu._DTYPES, "float32"))


@pytest.mark.parametrize("backend", EACH)
def test_first_row_sees_itself_whatever_the_shape(backend, qkv, small_tiles):
    """eps to the power -20 is infinite in float32; the first row has no other key to turn to."""

    def first(q, k, v, bias):
        return attention(q, k, v, scoring(bias), backend=backend)[:, 0].sum()

    out, gradients = jax.jit(jax.value_and_grad(first, (0, 1, 2, 3)))(*qkv, prior())
    np.testing.assert_allclose(out, qkv[2][:, 0].sum(), rtol=1e-5)
    for gradient in jax.tree.leaves(gradients):
        assert jnp.isfinite(gradient).all()
    np.testing.assert_allclose(gradients[2][:, 0], 1)


@pytest.mark.parametrize("log_scale", [0.0, 9.0])
@pytest.mark.parametrize("backend", EACH)
def test_no_bias_pushes_a_query_to_the_future(backend, log_scale, qkv, small_tiles):
    """A key of its own at -8103 nats is still far above a hidden one."""
    q, k, v = qkv
    weights = jnp.arange(1.0, D + 1)

    def past(k, v, t):
        out = attention(q, k, v, scoring(prior(log_scale=log_scale)), backend=backend)
        return (jnp.where(jnp.arange(T)[:, None, None] <= t, out, 0) * weights).sum()

    slopes = jax.jit(jax.grad(past, (0, 1)))
    for t in (0, 3, 4, T - 1):
        for gradient in slopes(k, v, t):
            assert not gradient[:, t + 1 :].any()
        assert slopes(k, v, t)[1][:, : t + 1].any((0, 2, 3)).all() or t == T - 1


@pytest.mark.parametrize("backend", EACH)
def test_rows_that_see_nothing_are_zero_and_pass_no_gradient_on(backend, qkv, small_tiles):
    segment = jnp.asarray([[0] * 5 + [1] * 7, [0] * 12], jnp.int32)

    def of(q, k, v, bias, temperature):
        s = dataclasses.replace(scoring(bias, segment=segment), temperature=temperature)
        out = attention(q, k, v, s, backend=backend)
        return (out * jnp.cos(out + 1)).sum(), out

    arguments = (*qkv, prior(), jnp.ones((B, H, T)))
    (_, out), gradients = jax.jit(jax.value_and_grad(of, range(5), has_aux=True))(*arguments)
    for x in (out, *gradients[:3], jnp.moveaxis(gradients[4], 1, 2)):
        assert not x[0, :5].any()
        assert not x[1].any()
    assert out[0, 5:].any((1, 2)).all()
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(gradients))


@pytest.mark.parametrize("backend", EACH)
def test_what_lies_in_empty_slots_does_not_matter(backend, qkv, small_tiles):
    q, k, v = qkv
    position = jnp.where(jnp.arange(T) < 7, jnp.arange(T), EMPTY)[None]
    s = dataclasses.replace(scoring(), keys=Tokens(position))
    run = jax.jit(lambda k, v: attention(q, k, v, s, backend=backend))
    np.testing.assert_array_equal(run(k, v), run(k.at[:, 7:].set(100.0), v.at[:, 7:].set(1e6)))
    short = attention(q, k[:, :7], v[:, :7], dataclasses.replace(s, keys=Tokens(position[:, :7])), backend=backend)
    np.testing.assert_allclose(run(k, v), short, atol=1e-6)


@pytest.mark.parametrize("backend", [each for each in EACH if each not in ("reference", "rows", "chunked")])
def test_vmap_of_a_kernel_is_a_loop(backend, qkv, small_tiles):
    q, k, v = (jnp.stack([x, 2 * x]) for x in qkv)
    of = lambda q, k, v: attention(q, k, v, scoring(biases.ALiBi(jnp.ones(H))), backend=backend).sum()
    mapped = jax.jit(jax.vmap(jax.value_and_grad(of, (0, 1, 2))))(q, k, v)
    one = jax.jit(jax.value_and_grad(of, (0, 1, 2)))
    for n in range(2):
        jax.tree.map(lambda a, b, n=n: np.testing.assert_allclose(a[n], b, atol=1e-5), mapped, one(q[n], k[n], v[n]))


@pytest.mark.full
def test_rows_take_memory_for_a_block_of_queries(qkv):
    def temporaries(length):
        tokens = Tokens(jnp.arange(length)[None])
        of = lambda q, k, v, cope: attention(q, k, v, Scoring(biases.Uniform(), tokens, tokens, rowwise=cope)).sum()
        x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
        shapes = x, x, x, biases.CoPE(jax.ShapeDtypeStruct((8, 16), jnp.float32))
        return jax.jit(jax.grad(of, (0, 1, 2, 3))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    table = 2 * 16384**2 * 4
    assert temporaries(16384) < table / 4
    assert temporaries(16384) < 1.5 * temporaries(8192)


def test_what_needs_whole_rows_runs_where_they_are(qkv, caplog):
    cope = dataclasses.replace(scoring(), rowwise=biases.CoPE(jnp.ones((4, D))))
    op._announce.cache_clear()
    with caplog.at_level("INFO"):
        auto = attention(*qkv, cope)
    assert "auto chose the backend 'rows' on cpu" in caplog.text
    np.testing.assert_array_equal(auto, attention(*qkv, cope, backend="rows"))
    for backend in ("chunked", "pallas_tpu", "pallas_gpu"):
        with pytest.raises(
            Unsupported, match=f"'{backend}' cannot do this: CoPE needs whole rows.*'reference' or 'rows'"
        ):
            attention(*qkv, cope, backend=backend)
    with pytest.raises(ValueError, match="scoring.rowwise must hold floats, not int32"):
        attention(*qkv, dataclasses.replace(cope, rowwise=biases.CoPE(jnp.ones((4, D), jnp.int32))))


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_accelerators_leave_whole_rows_to_xla(platform, qkv, monkeypatch, caplog):
    cope = dataclasses.replace(scoring(), rowwise=biases.CoPE(jnp.ones((4, D))))
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    op._announce.cache_clear()
    with caplog.at_level("INFO"):
        assert op.choose(*qkv, cope) == "rows"
    op._announce.cache_clear()
    assert f"'rows' on {platform} (all logits of many rows" in caplog.text
    assert f"since pallas_{platform} cannot do this: CoPE needs whole rows" in caplog.text


def test_memory_grows_with_the_length_not_its_square():
    def temporaries(length):
        of = lambda q, k, v, bias: attention(q, k, v, Scoring(bias, tokens, tokens), backend="chunked").sum()
        tokens = Tokens(jnp.arange(length)[None])
        x = jax.ShapeDtypeStruct((1, length, 4, 32), jnp.float32)
        compiled = jax.jit(jax.grad(of, (0, 1, 2, 3))).lower(x, x, x, prior([0.5] * 4)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = temporaries(4096), temporaries(8192)
    operand = 8192 * 4 * 32 * 4
    assert long < 12 * operand  # 50 MB; one table of logits has 1 GB
    assert long < 2.2 * short


def test_auto_says_which_backend_it_chose(qkv, caplog):
    op._announce.cache_clear()
    with caplog.at_level("INFO"):
        auto = attention(*qkv, scoring())
    assert "auto chose the backend 'chunked' on cpu" in caplog.text
    np.testing.assert_array_equal(auto, attention(*qkv, scoring(), backend="chunked"))


@pytest.mark.parametrize(
    "backend", ["chunked", *(pytest.param(name, marks=pytest.mark.full) for name in ("rows", "pallas_tpu"))]
)
def test_a_batch_may_be_symbolic_and_lengths_where_no_blocks_are_cut(backend, qkv):
    def gradients(q, k, v, backend):
        tokens = Tokens(jnp.arange(q.shape[1], dtype=jnp.int32)[None])
        out = lambda *rows: attention(*rows, Scoring(prior(), tokens, tokens), backend=backend)
        return jax.vjp(out, q, k, v)[1](q)

    for shape, name in (("b, 12, 3, 4", backend), ("b, t, 3, 4", "reference"), ("b, t, 3, 4", "auto")):
        x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), jnp.float32)
        exported = jax.export.export(jax.jit(functools.partial(gradients, backend=name)))(x, x, x)
        for made, expected in zip(exported.call(*qkv), gradients(*qkv, "reference"), strict=True):
            np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)
    with pytest.raises(Unsupported, match="symbolic sizes, but for that of a batch, have no blocks; take 'reference'"):
        jax.export.export(jax.jit(functools.partial(gradients, backend=backend)))(x, x, x)


def test_coordinates_that_a_bias_cannot_compare_are_said(qkv):
    """An array where the formula takes a pair of them is cut in two without a word."""
    sums = jnp.zeros((B, H, T))
    for bias, i, j in (
        (biases.Difference(), sums, sums),
        (biases.Difference(), None, None),
        (biases.CABLE(), (sums, sums), (sums, sums)),
        (biases.ALiBi(jnp.ones(H)), (sums, sums), sums),
    ):
        position = jnp.arange(T)[None]
        tokens = Tokens(position, coordinate=i), Tokens(position, coordinate=j)
        with pytest.raises(
            ValueError, match=rf"{type(bias).__name__} cannot compare .* see the coordinates of biases\."
        ):
            attention(*qkv, Scoring(bias, *tokens))


def test_a_fault_of_the_formula_itself_is_said(qkv):
    @biases.bias
    class Mine(biases.Bias):
        slope: jax.Array

        def __call__(self, i, j):
            return -self.slope * jnp.zeros(7) + i - j

    with pytest.raises(ValueError, match="cannot compare their positions .*; it raised .*incompatible") as error:
        attention(*qkv, scoring(Mine(jnp.ones(H))))
    assert error.value.__cause__ is not None


def test_a_sink_takes_its_share_of_a_row_by_the_normaliser(qkv):
    """A key of no content that every row sees: what a learned logit in the denominator is."""
    q, k, v = qkv
    out, lse = attention(q, k, v, scoring(), return_lse=True)
    assert lse.shape == (B, H, T) and lse.dtype == jnp.float32
    sink = jnp.array([-1.0, 0.0, 2.0])
    shared = out * jax.nn.sigmoid(lse - sink[:, None]).transpose(0, 2, 1)[..., None]
    np.testing.assert_array_equal(out, attention(q, k, v, scoring()))

    logits = jnp.einsum("bthd,bshd->bhts", q, k) / 2 + biases.table(
        prior(), *[jnp.arange(T, dtype=float)[None, None]] * 2
    )
    logits = jnp.where(jnp.tri(T, dtype=bool), logits, -jnp.inf)
    whole = jnp.concatenate([logits, jnp.broadcast_to(sink[:, None, None], (B, H, T, 1))], -1)
    expected = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(whole)[..., :-1], v)
    np.testing.assert_allclose(shared, expected, rtol=0, atol=1e-5)
    _, empty = attention(q, k[:, :0], v[:, :0], blind(), return_lse=True)
    assert empty.shape == (B, H, T) and (empty < -1e20).all()


def blind():
    """A scoring without keys."""
    none = Tokens(jnp.zeros((1, 0), jnp.int32))
    return dataclasses.replace(scoring(), keys=none)


def test_a_policy_that_saves_both_results_computes_nothing_of_the_forward_pass_again(qkv):
    def exponents(*names):
        policy = jax.checkpoint_policies.save_only_these_names(*names)
        layer = jax.checkpoint(lambda q, k, v: attention(q, k, v, scoring()).sum(), policy=policy)
        return count("exp", jax.make_jaxpr(jax.value_and_grad(layer, (0, 1, 2)))(*qkv).jaxpr)

    # The normalisers need all of the pass that the output needs.
    assert exponents("attention_out", "attention_lse") < exponents("attention_out") == exponents()


def count(primitive, jaxpr):
    """The number of times that a primitive stands in a jaxpr, inner ones included."""
    inside = [inner for equation in jaxpr.eqns for inner in jax.extend.core.jaxprs_in_params(equation.params)]
    return sum(equation.primitive.name == primitive for equation in jaxpr.eqns) + sum(
        count(primitive, inner) for inner in inside
    )


class Undecorated(biases.Relative):
    def __call__(self, i, j):
        return i - j


@biases.bias
class Own(biases.Relative):
    """Annotations that say less than names of axes are not held against their parameters."""

    own: Float[Array, "*H"]
    any: Float[Array, "..."] = biases.shared()

    def __call__(self, i, j):
        return -self.own * abs(i - j) * self.any.sum()


def test_unknown_backend_and_a_reason_are_said(qkv, monkeypatch):
    with pytest.raises(Unsupported, match="no attention backend 'flash': there are auto, reference, rows, chunked"):
        attention(*qkv, scoring(), backend="flash")
    shy = Backend(None, None, lambda q, k, v, scoring: f"head width {q.shape[-1]}")
    monkeypatch.setitem(BACKENDS, "shy", shy)
    with pytest.raises(Unsupported, match="'shy' cannot do this: head width 4"):
        attention(*qkv, scoring(), backend="shy")
    with pytest.raises(Unsupported, match="the attention backend given cannot do this: head width 4"):
        attention(*qkv, scoring(), backend=shy)
    with pytest.raises(Unsupported, match="no attention backend None: there are auto"):
        attention(*qkv, scoring(), backend=None)
    with pytest.raises(ValueError, match=r"a tile has at least one query and key, whole numbers, got 2\.0 x None"):
        Tiling(block_q=2.0)
    assert type(Tiling(block_q=np.int64(32)).block_q) is int


def test_shapes_that_do_not_fit_are_said(qkv):
    q, k, v = qkv
    with pytest.raises(ValueError, match=r"q \(12, 3, 4\)"):
        attention(q[0], k[0], v[0], scoring())
    with pytest.raises(ValueError, match=r"head count that divides q's: q \(2, 12, 3, 4\), k \(2, 12, 2, 4\)"):
        attention(q, k[:, :, :2], v[:, :, :2], scoring())
    with pytest.raises(ValueError, match="k and v must be alike"):
        attention(q, k, v[:, :-1], scoring())
    with pytest.raises(ValueError, match=r"scoring.keys holds an array \(1, 12\)"):
        attention(q, k[:, :-1], v[:, :-1], scoring())
    for shape in ((1, H, T - 1), (B, T), (1, H - 1, T)):
        said = rf"scoring.queries holds an array {re.escape(str(shape))}, not \[#B, #H, T\]"
        with pytest.raises(ValueError, match=said):
            wrong = Tokens(jnp.arange(T)[None], coordinate=jnp.zeros(shape))
            attention(q, k, v, dataclasses.replace(scoring(), queries=wrong))
    with pytest.raises(ValueError, match=r"scoring.keys holds an array \(2,\), not \[#B, T\] of 2 tokens in q \(2, 12"):
        attention(q, k[:, :B], v[:, :B], dataclasses.replace(scoring(), keys=Tokens(jnp.arange(B))))
    for name, x in (("temperature", jnp.ones((B, H, T), int)), ("sink_logits", jnp.ones(H, int))):
        with pytest.raises(ValueError, match=f"scoring.{name} must hold floats, not int32; give jnp.float32"):
            attention(q, k, v, dataclasses.replace(scoring(), **{name: x}))
    with pytest.raises(ValueError, match="slope of ALiBi must hold floats, not int32; give jnp.float32"):
        attention(q, k, v, scoring(biases.ALiBi(jnp.ones(H, jnp.int32))))
    with pytest.raises(ValueError, match=r"bias.*\(2,\).*3 heads"):
        attention(q, k, v, scoring(biases.ALiBi(jnp.ones(2))))
    with pytest.raises(ValueError, match=r"temperature.*\(2, 12\).*\[#B, H, T\]"):
        attention(q, k, v, dataclasses.replace(scoring(), temperature=jnp.ones((B, T))))
    with pytest.raises(ValueError, match="whose mask is a Mask"):
        attention(q, k, v, dataclasses.replace(scoring(), mask=None))
    for scale in (jnp.ones(()), float("nan"), "1", True):
        with pytest.raises(ValueError, match="scoring.scale is None or a finite number"):
            attention(q, k, v, dataclasses.replace(scoring(), scale=scale))
    for window in (0, "64", 6.5):
        with pytest.raises(ValueError, match=f"window={window!r}"):
            Mask(window=window)
    assert Mask(window=np.int64(6), sink_tokens=np.int32(2)) == Mask(window=6, sink_tokens=2)  # and hashes alike
    assert type(Mask(window=np.int64(6)).window) is int
    with pytest.raises(ValueError, match="causal='no'"):
        Mask(causal="no")
    with pytest.raises(ValueError, match=r"head count.*k \(2, 12, 0, 4\)"):
        attention(q, k[:, :, :0], v[:, :, :0], scoring())
    with pytest.raises(ValueError, match=r"scoring.bias is a Bias, such as biases.Uniform\(\) for none, got None"):
        attention(q, k, v, dataclasses.replace(scoring(), bias=None))


def test_parameters_that_do_not_fit_their_formula_are_said(qkv):
    square = jnp.ones((H, 8, 1))
    fire = biases.FIRE(jnp.ones((H, 8)), jnp.ones(H), jnp.ones(8), jnp.ones(7), jnp.ones(()), jnp.ones(()))
    starts = biases.t5_starts(8, 16)
    for bias, says in (
        (
            biases.GeneralisedGaussian(square, square, square),
            r"GeneralisedGaussian holds shape \(3, 8, 1\), not \[H\] of the 3 heads of q \[B, T",
        ),
        (fire, r"FIRE holds b1 \(7,\), not \[n\] of the 3 heads of q .*, n = 8"),
        (dataclasses.replace(fire, b1=jnp.ones(8), c=jnp.ones(1)), r"FIRE holds c \(1,\), not \[\] of the 3 heads"),
        (biases.T5(jnp.ones(H), starts), r"T5 holds table \(3,\), not \[H, n\]"),
        (biases.T5(jnp.ones((H, 7)), starts), "T5 holds a table of 7 values, and its starts ask for 8"),
        (biases.T5(jnp.ones((H, 8)), starts, True), "T5 holds a table of 8 values, and its starts ask for 16"),
        (Own(jnp.ones((H, 2)), jnp.ones(5)), r"Own holds own \(3, 2\), not \[H\] of the 3 heads"),
        (biases.ALiBi(0.5), r"slope \(\), not \[H\] .*; give jnp.full\(3, ...\)"),
        (biases.ALiBi(None), "slope of ALiBi must be an array, not NoneType"),
        (biases.ALiBi((0.5, 0.5, 0.5)), "slope of ALiBi must be an array, not tuple"),
        (biases.T5(jnp.ones((H, 3)), (0, 5, 2)), r"T5's starts ascend from 0, got \(0, 5, 2\); see biases.t5_starts"),
        (biases.T5(jnp.ones((H, 2)), (1, 5)), "T5's starts ascend from 0"),
        (Undecorated(), "the class Undecorated is no bias yet; put @biases.bias above it"),
    ):
        with pytest.raises((ValueError, TypeError), match=says):
            attention(*qkv, scoring(bias))


def test_what_is_no_array_or_tiling_is_said(qkv):
    q, k, v = qkv
    for arguments, name in (((None, k, v), "q"), ((q, k.tolist(), v), "k")):
        with pytest.raises(TypeError, match=rf"{name} must be an array, not (NoneType|list); give jnp.asarray"):
            attention(*arguments, scoring())
    for tokens, says in (
        (jnp.arange(T)[None], r"scoring.keys is a Tokens\(position, ...\), got ArrayImpl"),
        (Tokens(None), "scoring.keys: position must be an array, not NoneType"),
        (Tokens(jnp.arange(T)[None], segment=[1] * T), "scoring.keys: segment must be an array, not list"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            attention(q, k, v, dataclasses.replace(scoring(), keys=tokens))
    with pytest.raises(ValueError, match=r"heads are at least 1 wide: q \(2, 12, 3, 0\)"):
        attention(q[..., :0], k[..., :0], v, scoring())
    for name in ("temperature", "sink_logits"):
        with pytest.raises(TypeError, match=f"scoring.{name} must be an array, not list"):
            attention(q, k, v, dataclasses.replace(scoring(), **{name: [1.0] * H}))
    assert attention(q, k, v, scoring(Own(jnp.ones(H), jnp.ones((5, 2))))).shape == q.shape
    for tiling in (None, (128, 128)):
        with pytest.raises(TypeError, match=r"tiling is a Tiling\(skip, block_q, block_k\), got (None|\(128, 128\))"):
            attention(q, k, v, scoring(), tiling=tiling)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.complex64, jnp.float8_e4m3fn])
def test_dtypes_without_attention_are_said(dtype, qkv):
    for n, name in enumerate("qkv"):
        arguments = [x.astype(dtype) if n == m else x for m, x in enumerate(qkv)]
        said = rf"bfloat16, float16, float32, float64, got.*{name} {jnp.dtype(dtype)}.*\(2, 12, 3, 4\)"
        with pytest.raises(ValueError, match=said):
            attention(*arguments, scoring())


def test_numbers_of_tokens_that_would_wrap_are_said(qkv):
    names, dtypes = ("position", "segment", "sees_from", "sees_to"), (np.uint8, np.uint32, np.int16)
    for name, dtype in itertools.product(names, dtypes):
        numbers = {"position": np.arange(T)[None], name: np.arange(T, dtype=dtype)[None]}
        with pytest.raises(ValueError, match=f"{name} holds int32 or int64, got {np.dtype(dtype)}"):
            attention(*qkv, dataclasses.replace(scoring(), queries=Tokens(**numbers)))


def test_float16_is_an_input_but_on_a_tpu(qkv):
    half = [x.astype(jnp.float16) for x in qkv]
    expected = attention(*(x.astype(jnp.float32) for x in half), scoring(), backend="reference")
    for backend in ("reference", "rows", "chunked"):
        out = attention(*half, scoring(), backend=backend)
        assert out.dtype == jnp.float16
        np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=4e-3)
    # Gradients stay within its range where those of queries times a part of the scale would not.
    q, k, v = (jnp.tile(jnp.array(x, jnp.float16), 16)[None, :, None] for x in ([[0]], [[300], [-300]], [[30], [-30]]))
    bare = Scoring(biases.Uniform(), Tokens(jnp.ones((1, 1), int)), Tokens(jnp.arange(2)[None]))
    for backend in ("reference", "rows", "chunked"):
        slope = jax.grad(lambda q, backend=backend: attention(q, k, v, bare, backend=backend).astype(jnp.float32).sum())
        np.testing.assert_array_equal(slope(q), 36_000)
    for n in range(3):
        with pytest.raises(Unsupported, match="a TPU has no float16"):
            attention(*(half[n] if n == m else x for m, x in enumerate(qkv)), scoring(), backend="pallas_tpu")


@pytest.mark.parametrize("backend", ["reference", "rows", "chunked", "pallas_tpu", "auto"])
@pytest.mark.parametrize("rows, queries, keys", [(B, 0, T), (B, T, 0), (B, 0, 0), (0, T, T)])
def test_no_rows_and_no_keys(backend, rows, queries, keys, qkv):
    q, k, v = (x[:rows, :n] for x, n in zip(qkv, (queries, keys, keys), strict=True))
    side = lambda n: Tokens(jnp.arange(n)[None])
    of = lambda q, k, v, bias: attention(q, k, v, Scoring(bias, side(queries), side(keys)), backend=backend)
    np.testing.assert_array_equal(of(q, k, v, prior()), jnp.zeros_like(q))
    for slope in jax.tree.leaves(jax.grad(lambda *x: of(*x).sum(), (0, 1, 2, 3))(q, k, v, prior())):
        assert not slope.any()


def test_a_call_outside_of_jit_is_compiled_once(qkv):
    traced = []

    def note(name):
        return lambda *x: traced.append(name) or getattr(chunked, name)(*x)

    backend = Backend(note("forward"), note("backward"), lambda *x: None)
    of = lambda q, k, v, slopes: attention(q, k, v, scoring(biases.ALiBi(slopes)), backend=backend).sum()
    for n in range(3):
        arguments = (*(x + n for x in qkv), jnp.full(H, 1.0 + n))
        jax.block_until_ready((of(*arguments), jax.grad(of, range(4))(*arguments)))
    assert traced == ["forward", "forward", "backward"]  # by itself, and to be differentiated


@given(
    st.sampled_from([(1, 128, 4), (32, 64, 4), (8, 4096, 16), (1, 1, 1), (1, 1, 64), (64, 300, 32)]),
    st.sampled_from([1, 40, 64, 5000, 100_000]),
)
def test_blocks_stay_within_the_rows_and_the_tile(q, keys):
    block_q, block_k = blocks._block_sizes((q[0], q[1], q[2], 32), (q[0], keys, q[2], 32))
    assert 1 <= block_q <= q[1]
    assert 1 <= block_k <= keys
    assert q[0] * q[2] * block_q * block_k <= max(2 * blocks._TILE, q[0] * q[2] * 32 * 32)


@pytest.mark.parametrize("make", [float, np.float64, jnp.asarray], ids=["Python", "NumPy", "JAX"])
def test_wide_numbers_of_any_kind_are_narrowed_beside_float32_rows(make, x64):
    ones = lambda *shape: jnp.ones(shape, jnp.float32)
    q = jax.random.normal(jax.random.key(0), (1, 5, 2, 4), jnp.float32)
    fire = lambda number: biases.FIRE(ones(2, 3), ones(2), ones(3), ones(3), number(0.3), number(4.0))
    tokens = Tokens(jnp.arange(5)[None])
    made, expected = (
        attention(q, q, q, Scoring(fire(number), tokens, tokens), backend="chunked", tiling=Tiling(block_k=2))
        for number in (make, np.float32)
    )
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, expected, rtol=1e-6)
