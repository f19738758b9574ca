"""cuDNN's attention around its calls: when there is no table, who chooses it, what JAX's functions are given.

What is computed here is computed by XLA; tests/attention/test_parity.py has the tables.
"""

import collections
import dataclasses
import functools
import inspect
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as library

from bam_jax import biases
from bam_jax.attention import BACKENDS, Dropout, Mask, Scoring, Tokens, Unsupported, attention, cudnn, op
from bam_jax.attention.ring import ring
from tests.attention.common import close, normals, slopes

B, T, H, K, D = 2, 12, 4, 2, 8
WINDOWS = [None, 5]
GGD = biases.GeneralisedGaussian(jnp.linspace(-0.5, 0.5, H), jnp.zeros(H), jnp.zeros(H))
P = jax.sharding.PartitionSpec


@pytest.fixture
def qkv(rng):
    return normals(rng, (B, T, H, D), (B, T, K, D), (B, T, K, D))


def plain(start=0, bias=None, **fields):
    tokens = Tokens(start + jnp.arange(T)[None], consecutive=True)
    return Scoring(bias or biases.Uniform(), tokens, tokens, **fields)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_text_without_a_bias_needs_no_table(window, qkv, rng, x64, monkeypatch):
    def instead(*_):
        raise AssertionError("the mask was asked for")

    temperature = jnp.asarray(rng.uniform(0.5, 2, (1, H, T)))
    of = lambda backend: slopes(
        lambda *x: attention(*x[:3], plain(7, temperature=x[3], mask=Mask(window=window)), backend=backend),
        *(x.astype(float) for x in qkv),
        temperature,
    )
    expected = of("reference")
    close(of("cudnn"), expected, 1e-12)
    # Both branches are traced: that the other is not taken is seen where there is none.
    monkeypatch.setattr(cudnn, "_TABLE", 0)
    monkeypatch.setattr(cudnn, "visible", instead)
    assert cudnn.fits(qkv[0], plain(7))
    close(of("cudnn"), expected, 1e-12)


def test_where_positions_are_not_those_of_slots_there_is_a_mask_or_another_backend(qkv, monkeypatch):
    """Sides that start apart, as on a ring of devices, and empty slots."""
    apart = dataclasses.replace(plain(), queries=plain(4).queries)
    empty = plain()
    position = empty.keys.position.at[:, -3:].set(2**31 - 1)
    empty = dataclasses.replace(empty, queries=dataclasses.replace(empty.queries, position=position))
    for scoring in (apart, empty):
        of = lambda backend, scoring=scoring: attention(*qkv, scoring, backend=backend, return_lse=True)
        expected = of("reference")
        close(jax.jit(of, static_argnums=0)("cudnn"), expected)
        with monkeypatch.context() as small:
            small.setattr(cudnn, "_TABLE", 0)
            assert not cudnn.fits(qkv[0], scoring)
            close(of("cudnn"), expected)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("where", ["k", "v"])
def test_without_a_table_a_row_is_nan_where_what_it_sees_is(where, window, qkv):
    operands = dict(zip("qkv", qkv, strict=True))
    operands[where] = operands[where].at[1, 4, 1, 2].set(jnp.nan)
    scoring = plain(mask=Mask(window=window))
    of = lambda *x: attention(*x, scoring, backend="cudnn", return_lse=True)
    out, lse = of(*operands.values())
    _, dq, *_ = slopes(lambda *x: of(*x)[0], *operands.values())
    expected = np.zeros((B, T, H), bool)
    expected[1, 4 : 4 + window if window else T, 2:] = True
    np.testing.assert_array_equal(np.isnan(out).any(-1), expected)
    np.testing.assert_array_equal(np.isnan(lse), expected.swapaxes(1, 2))
    assert np.isnan(dq).any(-1)[expected].all()


def test_far_keys_of_a_steep_bias_are_seen_in_float16_and_hidden_ones_are_not(rng):
    """Slopes of 5,000 nats a token: float16 ends at 65,504, and hidden pairs lie at half of that."""
    q, k, v = (x.astype(jnp.float16) for x in normals(rng, (1, 2, 1, D), (1, 16, 1, D), (1, 16, 1, D)))
    sides = Tokens(jnp.asarray([[14, 15]]), sees_to=jnp.asarray([[1, 2]])), Tokens(jnp.arange(16)[None])
    scoring = Scoring(biases.ALiBi(jnp.full(1, 5e3)), *sides)
    out = attention(q, k, v.at[:, 3:].set(100), scoring, backend="cudnn")
    assert np.abs(np.asarray(out)).max() < 10


@pytest.mark.parametrize("bias", [biases.Uniform(), GGD], ids=["mask", "bias"])
def test_vmap_makes_one_call_of_a_larger_batch(bias, qkv, x64):
    """Of rows of a batch, and of models with parameters of their own."""
    tokens = Tokens(jnp.arange(T)[None])

    def of(backend, q, k, v, prior):
        return attention(q, k, v, Scoring(prior, tokens, tokens, mask=Mask(window=5)), backend=backend)

    rows = lambda backend: slopes(
        jax.vmap(lambda *x: of(backend, *(y[None] for y in x), bias)[0]), *(x.astype(float) for x in qkv)
    )
    close(rows("cudnn"), rows("reference"), 1e-12)
    many = jax.tree.map(lambda x: jnp.stack([x, x + 0.5, x - 0.5]), bias)
    operands = [jnp.stack([x, 2 * x, x - 1]).astype(float) for x in qkv]
    models = lambda backend: slopes(jax.vmap(functools.partial(of, backend)), *operands, many)
    close(models("cudnn"), models("reference"), 1e-12)


@pytest.fixture
def gpu(monkeypatch):
    """JAX as it is on a GPU of some kind, as far as it can be traced."""
    if tuple(inspect.signature(library._dot_product_attention_bwd_rule).parameters) != cudnn._RULE:
        pytest.skip(f"jax {jax.__version__} has another interface, which is refused")

    def pretend(kind="NVIDIA A100-SXM4-80GB", capability="8.0", version=91100, client="cuda 12090"):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(cudnn, "platform", lambda: "gpu")  # also under a mesh, whose devices are CPUs
        client = types.SimpleNamespace(platform_version=client)
        device = types.SimpleNamespace(platform="gpu", device_kind=kind, compute_capability=capability, client=client)
        monkeypatch.setattr(jax, "devices", lambda *_: [device])

        def installed():
            if version is None:
                raise RuntimeError("cuDNN is not detected.")
            return version

        monkeypatch.setattr(library, "check_cudnn_version", installed)
        op._announce.cache_clear()

    return pretend


def calls(function, *operands):
    """The names and parameters of cuDNN's calls in a program."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if "dot_product_attention" in name and name.endswith("_wrapper"):
                yield name.split("_")[-2], equation.params
            else:
                for inner in jax.extend.core.jaxprs_in_params(equation.params):
                    yield from walk(inner)

    return [*walk(jax.make_jaxpr(function)(*operands).jaxpr)]


CASES = {
    "none": (biases.Uniform(), Mask(), {"causal": 1, "mask": 1}),
    "window": (biases.Uniform(), Mask(window=4), {"causal": 1, "mask": 1}),
    "both sides": (biases.Uniform(), Mask(causal=False), {"mask": 1}),
    "bias": (GGD, Mask(window=4), {"bias": 1}),
}


@pytest.mark.parametrize("around", ["jit", "remat", "vmap", "shard_map", "shard_map, unchecked"])
@pytest.mark.parametrize("case", CASES)
def test_jax_takes_what_it_is_given(case, around, qkv, gpu):
    """One call forward and one with gradients, in JAX's own words for each."""
    gpu()
    bias, mask, expected = CASES[case]

    def loss(prior, *operands):
        attend = lambda *x: attention(*x, plain(bias=prior, mask=mask), backend="cudnn")
        if around == "remat":
            attend = jax.checkpoint(
                attend, policy=jax.checkpoint_policies.save_only_these_names("attention_out", "attention_lse")
            )
        if around == "vmap":
            attend = jax.vmap(lambda *x, attend=attend: attend(*(y[None] for y in x))[0])
        if around.startswith("shard_map"):
            mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
            attend = jax.shard_map(
                attend, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=around == "shard_map"
            )
        return attend(*operands).astype(jnp.float32).sum()

    operands = [x.astype(jnp.bfloat16) for x in qkv]
    found = collections.Counter()
    for name, options in calls(jax.grad(loss, range(4)), bias, *operands):
        has_bias, has_gradient = options["variadic_args"]
        assert options["scale"] == pytest.approx(1 / math.sqrt(D))
        causal = options["mask_type"] is library.MaskType.CAUSAL
        assert options["sliding_window_length"] == (mask.window if causal else None)
        assert causal is not has_bias
        if name == "bwd":
            assert has_gradient is (bias is GGD)
        found[name, "causal" if causal else "bias" if bias is GGD else "mask"] += 1
    assert found == {(name, kind): number for name in ("fwd", "bwd") for kind, number in expected.items()}


def test_a_bias_that_is_not_trained_has_no_gradient_of_its_table(qkv, gpu):
    gpu()
    q, k, v = (x.astype(jnp.bfloat16) for x in qkv)
    loss = lambda q: attention(q, k, v, plain(bias=GGD), backend="cudnn").astype(jnp.float32).sum()
    (back,) = (options for name, options in calls(jax.grad(loss), q) if name == "bwd")
    assert back["variadic_args"] == (True, False)


def test_auto_takes_it_on_other_gpus_than_hopper(qkv, gpu, caplog):
    gpu()
    operands = [x.astype(jnp.bfloat16) for x in qkv]
    with caplog.at_level("INFO"):
        for bias in (biases.Uniform(), GGD):
            assert op.choose(*operands, plain(bias=bias)) == "cudnn"
    assert "auto chose the backend 'cudnn' on gpu (biases and masks in a table of the operands' type" in caplog.text
    assert "since pallas_gpu cannot do this: it is made for Hopper (H100, H200), not for NVIDIA A100" in caplog.text
    gpu("AMD Instinct MI300X", "gfx942", client="rocm 60300")
    assert op.choose(*operands, plain()) == "rows"


RTX = {"kind": "NVIDIA RTX A6000", "capability": "8.6"}
REFUSED = {
    "it has no soft cap": {"soft_cap": 2.0},
    "its dropout is not the formula": {"dropout": Dropout(0.5, 1)},
    "CoPE needs whole rows of logits": {"rowwise": biases.CoPE(jnp.ones((4, D)))},
    "all bfloat16 or all float16 there, not float32": {"dtype": jnp.float32},
    "at most 128 wide and a multiple of 8, not 12": {"width": 12},
    "at most 128 wide and a multiple of 8, not 256": {"width": 256},
    "from Ampere on, not for Tesla T4": {"gpu": {"kind": "Tesla T4", "capability": "7.5"}},
    "from Ampere on, not for AMD": {"gpu": {"kind": "AMD", "capability": "gfx942", "client": "rocm 60300"}},
    "cuDNN 9.11 or later is needed, and 91001 is installed": {"gpu": RTX | {"version": 91001}},
    "cuDNN is not detected": {"gpu": RTX | {"version": None}},
    "even lengths, not 11 x 11": {"length": 11},
    "one query": {"length": 1},
    "would take 2.5 GiB, above 2": {"length": 2**14 + 2**11, "bias": biases.ALiBi(jnp.ones(H))},
    "would take 4.0 GiB, above 2": {"length": 2**14, "batch": 8, "prefix": True, "mask": Mask()},
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cudnn_cannot_do_is_said(says, gpu):
    changes = dict(REFUSED[says])
    gpu(**changes.pop("gpu", RTX))
    length, width, dtype = changes.pop("length", T), changes.pop("width", D), changes.pop("dtype", jnp.bfloat16)
    tokens = Tokens(jnp.arange(length)[None], consecutive=True)
    batch, prefix = changes.pop("batch", 1), changes.pop("prefix", False)  # of each row of the batch
    x = jax.ShapeDtypeStruct((batch, length, H, width), dtype)
    queries = dataclasses.replace(tokens, sees_to=jnp.zeros((batch, length), jnp.int32)) if prefix else tokens
    scoring = dataclasses.replace(plain(**changes), queries=queries, keys=tokens)
    with pytest.raises(Unsupported, match=f"'cudnn' cannot do this: .*{says}"):
        jax.eval_shape(functools.partial(attention, scoring=scoring, backend="cudnn"), x, x, x)


def test_another_interface_of_jax_is_refused(qkv, gpu, monkeypatch):
    gpu()
    monkeypatch.setattr(library, "_dot_product_attention_bwd_rule", lambda scale, seed: None)
    with pytest.raises(Unsupported, match=f"jax {jax.__version__} calls it in another way"):
        attention(*(x.astype(jnp.bfloat16) for x in qkv), plain(), backend="cudnn")


@pytest.mark.parametrize("bias", [biases.Uniform(), GGD], ids=["mask", "bias"])
def test_on_a_ring_each_device_has_a_part_of_the_keys(bias, qkv, x64):
    mesh = jax.make_mesh((2,), ("context",), axis_types=(jax.sharding.AxisType.Auto,))
    text = P(None, "context")
    position = jnp.arange(T)[None]

    def around(q, k, v, prior, position):
        tokens = Tokens(position, consecutive=True)
        return attention(q, k, v, Scoring(prior, tokens, tokens), backend=ring(BACKENDS["cudnn"], "context"))

    cut = jax.shard_map(around, mesh=mesh, in_specs=(text, text, text, P(), text), out_specs=text)
    operands = jax.tree.map(lambda x: x.astype(float), (*qkv, bias))
    made = slopes(jax.jit(lambda *x: cut(*x, position)), *operands)
    expected = slopes(lambda *x: attention(*x[:3], plain(bias=x[3]), backend="reference"), *operands)
    close(made, expected, 1e-12)
