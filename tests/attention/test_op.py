"""The public operation: what it hides, what it refuses, how it composes and how much memory it takes."""

import dataclasses
import functools
import itertools

import jax
import jax.export
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from bam_jax import biases
from bam_jax.attention import EMPTY, Backend, Mask, Scoring, Tiling, Tokens, Unsupported, attend, attention, op
from bam_jax.attention.cpu import chunked
from tests.attention.common import EACH, close, normals, slopes
from tests.marks import full

B, T, H, D = 2, 12, 3, 4


def prior(shapes=(-20.0, -7.5, 1.0), log_scale=0.0):
    shape = jnp.asarray(shapes, jnp.float32)
    return biases.GeneralisedGaussian(shape, jnp.full_like(shape, log_scale), jnp.zeros_like(shape))


def scoring(bias=None, **tokens):
    tokens = Tokens(jnp.arange(T, dtype=jnp.int32)[None], **tokens)
    return Scoring(prior() if bias is None else bias, tokens, tokens)


@pytest.fixture
def qkv(rng):
    return normals(rng, *[(B, T, H, D)] * 3)


@functools.cache
def program(backend):
    """Attention over several blocks on either side, compiled once for each backend."""
    tiling = Tiling() if backend == "pallas_gpu" else Tiling(block_q=4, block_k=6)

    @jax.jit
    def run(d_out, keys, segment, *operands):
        position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))

        def attend(q, k, v, bias, temperature):
            whole = Scoring(bias, Tokens(position, segment), Tokens(keys, segment), temperature)
            return attention(q, k, v, whole, backend=backend, tiling=tiling)

        return slopes(attend, *operands, d_results=d_out)

    return run


@pytest.fixture
def found(qkv, float32_on_gpus):
    """The output, and gradients of q, k, v, the temperature and the prior, of a backend and a cotangent [B, T, H, D]."""

    def run(backend, d_out, *, k=qkv[1], v=qkv[2], bias=None, keys=None, segment=None):
        keys = np.tile(np.arange(T, dtype=np.int32) if keys is None else keys, (B, 1))
        segment = np.ones((B, T), np.int32) if segment is None else segment
        return program(backend)(np.float32(d_out), keys, segment, qkv[0], k, v, bias or prior(), jnp.ones((B, H, T)))

    return run


@pytest.mark.parametrize("backend", EACH)
def test_first_row_sees_itself_whatever_the_shape(backend, qkv, found):
    """eps to the power -20 is infinite in float32; the first row has no other key to turn to."""
    first = np.broadcast_to((np.arange(T) == 0)[:, None, None], (B, T, H, D))
    out, *gradients = found(backend, first)
    np.testing.assert_allclose(out[:, 0], qkv[2][:, 0], rtol=1e-5)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(gradients))
    np.testing.assert_allclose(gradients[2][:, 0], 1)


@pytest.mark.parametrize("backend", EACH)
def test_no_bias_pushes_a_query_to_the_future(backend, found):
    """A key of its own at -8103 nats is still far above a hidden one."""
    for log_scale, t in itertools.product((0.0, 9.0), (0, 3, 4, T - 1)):
        past = np.broadcast_to((np.arange(T) <= t)[:, None, None] * np.arange(1.0, D + 1), (B, T, H, D))
        _, _, dk, dv, *_ = found(backend, past, bias=prior(log_scale=log_scale))
        assert not dk[:, t + 1 :].any() and not dv[:, t + 1 :].any()
        assert dv[:, : t + 1].any((0, 2, 3)).all()


@pytest.mark.parametrize("backend", EACH)
def test_rows_that_see_nothing_are_zero_and_pass_no_gradient_on(backend, found, rng):
    segment = np.array([[0] * 5 + [1] * 7, [0] * 12], np.int32)
    out, dq, dk, dv, *d_bias, d_temperature = found(backend, rng.normal(size=(B, T, H, D)), segment=segment)
    for x in (out, dq, dk, dv, jnp.moveaxis(d_temperature, 1, 2)):
        assert not x[0, :5].any() and not x[1].any() and jnp.isfinite(x).all()
    assert out[0, 5:].any((1, 2)).all()
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(d_bias))


@pytest.mark.parametrize("backend", EACH)
def test_what_lies_in_empty_slots_does_not_matter(backend, qkv, found, rng):
    d_out, (_, k, v) = rng.normal(size=(B, T, H, D)), qkv
    keys = np.where(np.arange(T) < 7, np.arange(T, dtype=np.int32), EMPTY)
    jax.tree.map(
        np.testing.assert_array_equal,
        found(backend, d_out, keys=keys),
        found(backend, d_out, keys=keys, k=k.at[:, 7:].set(100.0), v=v.at[:, 7:].set(1e6)),
    )


def temporaries(length, bias=None, rowwise=None, backend="auto"):
    """Bytes that attention and its gradient need beside operands and results."""
    tokens = Tokens(jnp.arange(length)[None])
    of = lambda *x: attention(*x[:3], Scoring(x[3], tokens, tokens, rowwise=x[4]), backend=backend).sum()
    x = jax.ShapeDtypeStruct((1, length, 4, 16), jnp.float32)
    compiled = jax.jit(jax.grad(of, range(5))).lower(x, x, x, bias or biases.Uniform(), rowwise).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("backend", ["reference", "chunked", full("pallas_tpu")])
def test_keys_near_the_query_are_exact_beside_some_at_the_front(backend, qkv):
    """Keys 2^26 tokens back get float32's rounding of the distance; their neighbours' distances stay whole."""
    position = jnp.asarray([[0, 1, *range(2**26 + 3, 2**26 + T + 1)]], jnp.int32)
    bias = biases.KerpleLog(*jnp.asarray([[1, 0.5, 0.1]] * 2, jnp.float32))
    scoring = Scoring(bias, Tokens(position[:, -5:]), Tokens(position))
    of = functools.partial(slopes, lambda q, *x: attention(q[:, -5:], *x, backend=backend))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(float) if jnp.issubdtype(x.dtype, jnp.floating) else x, (*qkv, scoring))
        exact = slopes(lambda q, *x: attention(q[:, -5:], *x, backend="reference"), *wide)
    close(jax.jit(of)(*qkv, scoring), exact, 1e-4)


@pytest.mark.full
def test_rows_take_memory_for_a_block_of_queries():
    short, long = (temporaries(length, rowwise=biases.CoPE(jnp.ones((8, 16)))) for length in (8192, 16384))
    assert long < 4 * 16384**2  # a quarter of the table
    assert long < 1.5 * short


def test_memory_grows_with_the_length_not_its_square():
    short, long = (temporaries(length, prior([0.5] * 4), backend="chunked") for length in (4096, 8192))
    assert long < 16 * 8192 * 4 * 16 * 4  # of operands; one table of logits has 1 GB
    assert long < 2.2 * short


@pytest.mark.parametrize("platform", ["cpu", "tpu", "gpu"])
def test_what_needs_whole_rows_runs_where_they_are(platform, qkv, monkeypatch, caplog):
    cope = dataclasses.replace(scoring(), rowwise=biases.CoPE(jnp.ones((4, D))))
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    op._announce.cache_clear()
    with caplog.at_level("INFO"):
        assert op.choose(*qkv, cope) == "rows"
        if platform == "cpu":
            assert op.choose(*qkv, scoring()) == "chunked"
    op._announce.cache_clear()
    assert f"auto chose the backend 'rows' on {platform}" in caplog.text
    if platform != "cpu":
        assert (
            f"(all logits of many rows at a time in memory, the hidden ones too), since pallas_{platform}"
            in caplog.text
        )
        assert "cannot do this: CoPE needs whole rows" in caplog.text
    with pytest.raises(Unsupported, match="'chunked' cannot do this: CoPE needs whole rows.*'reference' or 'rows'"):
        attention(*qkv, cope, backend="chunked")


def test_a_batch_may_be_symbolic_and_lengths_where_no_blocks_are_cut(qkv):
    def gradients(q, k, v, backend):
        tokens = Tokens(jnp.arange(q.shape[1], dtype=jnp.int32)[None])
        out = lambda *rows: attention(*rows, Scoring(prior(), tokens, tokens), backend=backend)
        return jax.vjp(out, q, k, v)[1](q)

    for shape, name in (("b, 12, 3, 4", "chunked"), ("b, t, 3, 4", "auto")):  # "auto" is the reference
        x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), jnp.float32)
        exported = jax.export.export(jax.jit(functools.partial(gradients, backend=name)))(x, x, x)
        close(exported.call(*qkv), gradients(*qkv, "reference"))
    with pytest.raises(Unsupported, match="symbolic sizes, but for that of a batch, have no blocks; take 'reference'"):
        jax.export.export(jax.jit(functools.partial(gradients, backend="chunked")))(x, x, x)


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


@biases.bias
class Broken(biases.Bias):
    slope: jax.Array

    def __call__(self, i, j):
        return -self.slope * jnp.zeros(7) + i - j


AT, ONES = np.arange(T)[None], np.ones(H, np.float32)
SUMS = np.zeros((B, H, T), np.float32)
FIRE = biases.FIRE(np.ones((H, 8)), ONES, np.ones(8), np.ones(7), np.ones(()), np.ones(()))
STARTS = biases.t5_starts(8, 16)
MISTAKES = [  # operands that are functions of the right ones, arguments of `attention`, fields of the scoring
    ({"q": lambda q: None}, "q must be an array, not NoneType; give jnp.asarray"),
    ({"k": lambda k: k.astype(int)}, r"bfloat16, float16, float32, float64, got.*k int32.*\(2, 12, 3, 4\)"),
    ({"q": lambda q: q[0]}, r"q \(12, 3, 4\)"),
    ({"q": lambda q: q[..., :0], "k": lambda k: k[..., :0]}, r"heads are at least 1 wide: q \(2, 12, 3, 0\)"),
    ({"v": lambda v: v[:, :-1]}, "k and v must be alike"),
    ({"k": lambda k: k[:, :, :2], "v": lambda v: v[:, :, :2]}, r"head count that divides q's: .* k \(2, 12, 2, 4\)"),
    ({"backend": "flash"}, "no attention backend 'flash': there are auto, reference, rows, chunked"),
    ({"backend": Backend(None, None, lambda q, *_: f"width {q.shape[-1]}")}, "backend given cannot do this: width 4"),
    ({"tiling": (128, 128)}, r"tiling is a Tiling\(skip, block_q, block_k\), got \(128, 128\)"),
    ({"mask": None}, "whose mask is a Mask"),
    ({"bias": None}, r"scoring.bias is a Bias, such as biases.Uniform\(\) for none, got None"),
    ({"bias": Undecorated()}, "the class Undecorated is no bias yet; put @biases.bias above it"),
    ({"bias": biases.ALiBi(None)}, "slope of ALiBi must be an array, not NoneType"),
    ({"bias": biases.ALiBi(np.ones(H, int))}, "slope of ALiBi must hold floats, not int.*; give jnp.float32"),
    ({"bias": biases.ALiBi(0.5)}, r"slope \(\), not \[H\] .*; give jnp.full\(3, ...\)"),
    ({"bias": FIRE}, r"FIRE holds b1 \(7,\), not \[n\] of the 3 heads of q .*, n = 8"),
    ({"bias": Own(np.ones((H, 2)), np.ones(5))}, r"Own holds own \(3, 2\), not \[H\] of the 3 heads"),
    ({"bias": biases.T5(np.ones((H, 8)), STARTS, True)}, "T5 holds a table of 8 values, and its starts ask for 16"),
    ({"bias": biases.T5(np.ones((H, 3)), (0, 5, 2))}, r"T5's starts ascend from 0, got \(0, 5, 2\); see biases.t5"),
    ({"bias": biases.Difference()}, "Difference cannot compare .* see the coordinates of biases.Difference"),
    ({"bias": Broken(ONES)}, "Broken cannot compare their positions .*; it raised .*incompatible"),
    ({"keys": AT}, r"scoring.keys is a Tokens\(position, ...\), got ndarray"),
    ({"keys": Tokens(None)}, "scoring.keys: position must be an array, not NoneType"),
    ({"keys": Tokens(AT, [1] * T)}, "scoring.keys: segment must be an array, not list"),
    ({"keys": Tokens(AT.astype(np.int16))}, "position holds int32 or int64, got int16"),  # others would wrap
    ({"queries": Tokens(AT, sees_to=AT.astype(np.uint32))}, "sees_to holds int32 or int64, got uint32"),
    ({"keys": Tokens(AT + 2**32)}, r"scoring.keys: position holds 4294967307, beyond int32; .* set jax_enable_x64"),
    ({"keys": Tokens(AT[:, 1:])}, r"scoring.keys holds an array \(1, 11\), not \[#B, T\] of 12 tokens in q \(2, 12"),
    ({"keys": Tokens(AT[0])}, r"scoring.keys holds an array \(12,\), not"),
    ({"keys": Tokens(AT, coordinate=SUMS[:, :2])}, r"holds an array \(2, 2, 12\), not \[#B, #H, T\]"),
    ({"keys": Tokens(AT, coordinate=SUMS[..., :1])}, r"holds an array \(2, 3, 1\), not \[#B, #H, T\]"),
    ({"temperature": [1.0] * H}, "scoring.temperature must be an array, not list"),
    ({"temperature": np.ones((B, H, T), int)}, "scoring.temperature must hold floats, not int.*; give jnp.float32"),
    ({"temperature": np.ones((B, T))}, r"temperature.*\(2, 12\).*\[#B, H, T\]"),
    ({"temperature": np.ones((3, H, T))}, r"temperature.*\(3, 3, 12\).*\[#B, H, T\]"),
    ({"sink_logits": ONES[:2]}, r"scoring.sink_logits \(2,\) is not \[H\]"),
    ({"rowwise": biases.CoPE(np.ones((4, D), int))}, "scoring.rowwise must hold floats, not int"),
    ({"rowwise": biases.Entmax(None), "sink_logits": ONES}, "Entmax makes weights, .* scoring.sink_logits"),
    (
        {"rowwise": biases.Entmax(None), "temperature": np.ones((1, 1, T))},
        "Entmax makes weights, .* scoring.temperature",
    ),
    ({"scale": float("nan")}, "scoring.scale is None or a finite number"),
    ({"scale": True}, "scoring.scale is None or a finite number"),
    ({"soft_cap": 0.0}, "scoring.soft_cap is None or a number of Python's above 0, got 0.0"),
]


@pytest.mark.parametrize(("changes", "says"), MISTAKES, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_mistakes_are_said(changes, says, qkv):
    operands = [changes.get(name, lambda x: x)(x) for name, x in zip("qkv", qkv, strict=True)]
    options = {name: changes[name] for name in ("backend", "tiling") if name in changes}
    fields = {name: x for name, x in changes.items() if name not in {*"qkv", *options}}
    with pytest.raises((TypeError, ValueError), match=says):
        attention(*operands, dataclasses.replace(scoring(), **fields), **options)


def test_numbers_of_masks_and_tilings_are_whole():
    for window in (0, "64", 6.5):
        with pytest.raises(ValueError, match=f"window={window!r}"):
            Mask(window=window)
    with pytest.raises(ValueError, match="sinks are a number of tokens, 0 for none: got sink_tokens=-1"):
        Mask(window=4, sink_tokens=-1)
    with pytest.raises(ValueError, match="sink_tokens=2 are those that a causal window does not hide: .* window=None"):
        Mask(sink_tokens=2)
    with pytest.raises(ValueError, match="causal='no'"):
        Mask(causal="no")
    with pytest.raises(ValueError, match=r"a tile has at least one query and key, whole numbers, got 2\.0 x None"):
        Tiling(block_q=2.0)
    assert Mask(window=np.int64(6), sink_tokens=np.int32(2)) == Mask(window=6, sink_tokens=2)  # and hashes alike
    assert type(Mask(window=np.int64(6)).window) is type(Tiling(block_q=np.int64(32)).block_q) is int


def test_float16_is_an_input_but_on_a_tpu(qkv):
    half = [x.astype(jnp.float16) for x in qkv]
    expected = attention(*(x.astype(jnp.float32) for x in half), scoring(), backend="reference")
    for backend in ("reference", "chunked"):
        out = attention(*half, scoring(), backend=backend)
        assert out.dtype == jnp.float16
        np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=4e-3)
    # Gradients stay within its range where those of queries times a part of the scale would not.
    q, k, v = (jnp.tile(jnp.array(x, jnp.float16), 16)[None, :, None] for x in ([[0]], [[300], [-300]], [[30], [-30]]))
    bare = Scoring(biases.Uniform(), Tokens(jnp.ones((1, 1), int)), Tokens(jnp.arange(2)[None]))
    for backend in ("reference", "chunked"):
        slope = jax.grad(lambda q, backend=backend: attention(q, k, v, bare, backend=backend).astype(jnp.float32).sum())
        np.testing.assert_array_equal(slope(q), 36_000)
    for n in range(3):
        with pytest.raises(Unsupported, match="a TPU has no float16"):
            attention(*(half[n] if n == m else x for m, x in enumerate(qkv)), scoring(), backend="pallas_tpu")


@pytest.mark.parametrize(
    ("backend", "rows", "queries", "keys"),
    [(name, B, T, 0) for name in ("reference", "rows", "chunked", "pallas_tpu")]
    + [("auto", *sizes) for sizes in ((B, T, 0), (B, 0, T), (B, 0, 0), (0, T, T))],
)
def test_no_rows_and_no_keys(backend, rows, queries, keys, qkv):
    q, k, v = (x[:rows, :n] for x, n in zip(qkv, (queries, keys, keys), strict=True))
    side = lambda n: Tokens(jnp.arange(n)[None])
    whole = lambda bias: Scoring(bias, side(queries), side(keys))
    of = lambda q, k, v, bias: attention(q, k, v, whole(bias), backend=backend, return_lse=True)
    out, lse = of(q, k, v, prior())
    np.testing.assert_array_equal(out, jnp.zeros_like(q))
    assert lse.shape == (rows, H, queries) and (lse < -1e20).all()
    for slope in jax.tree.leaves(jax.grad(lambda *x: of(*x)[0].sum(), (0, 1, 2, 3))(q, k, v, prior())):
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


@pytest.mark.parametrize("backend", ["rows", "chunked"])
def test_normalisers_alone_have_gradients_whatever_the_width_of_values(backend, qkv, rng):
    q, k, _ = qkv
    (v,) = normals(rng, (B, T, H, 2 * D + 1))

    def normalisers(q, k, backend):
        return (attend(q, k, v, prior(), backend=backend, return_lse=True)[1] ** 2).sum()

    slope = jax.jit(jax.grad(normalisers, (0, 1)), static_argnums=2)
    close(slope(q, k, backend), slope(q, k, "reference"))


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_a_row_that_sees_nothing_leaves_all_to_its_sink(backend, qkv, rng):
    (sinks,) = normals(rng, (H,))
    of = functools.partial(attend, *qkv, prior(), segments=jnp.arange(T) < 5, backend=backend)
    (out, lse), vjp = jax.vjp(lambda sinks: of(sink_logits=sinks, return_lse=True), sinks)
    assert not out[:, 5:].any()
    whole = np.broadcast_to(sinks[:, None], (B, H, T))
    np.testing.assert_array_equal(lse[:, :, 5:], whole[..., 5:])
    assert all(jnp.isfinite(x).all() for x in vjp((jnp.ones_like(out), jnp.zeros_like(lse))))
    np.testing.assert_allclose(of(sink_logits=jnp.full(H, -jnp.inf)), of(), atol=1e-6)
    q, k, v = qkv
    nothing = attend(q, k[:, :0], v[:, :0], query_positions=jnp.arange(T), sink_logits=sinks, return_lse=True)[1]
    np.testing.assert_array_equal(nothing, whole)


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
