"""cuDNN's attention around its call: when there is no table, who chooses it, what it is given; tests/attention/test_parity.py has
the table. What is computed here is computed by XLA.
"""

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


@pytest.fixture
def qkv(rng):
    return normals(rng, (B, T, H, D), (B, T, K, D), (B, T, K, D))


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each call of cuDNN."""
    made, compute = [], cudnn._by_definition

    def recorded(*operands, **options):
        made.append((*operands, options))
        return compute(*operands, **options)

    monkeypatch.setattr(cudnn, "_by_definition", recorded)
    return made


def plain(start=0, bias=None, **fields):
    tokens = Tokens(start + jnp.arange(T)[None], consecutive=True)
    return Scoring(bias or biases.Uniform(), tokens, tokens, **fields)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_text_without_a_bias_needs_no_table(window, qkv, calls, rng, x64):
    temperature = jnp.asarray(rng.uniform(0.5, 2, (1, H, T)))
    of = lambda backend: slopes(
        lambda *x: attention(*x[:3], plain(7, temperature=x[3], mask=Mask(window=window)), backend=backend),
        *(x.astype(float) for x in qkv),
        temperature,
    )
    expected = of("reference")
    close(of("cudnn"), expected, 1e-12)
    assert calls
    for *_, bias, mask, options in calls:
        assert bias is mask is None
        assert options == {"scale": 1 / math.sqrt(D), "causal": True, "window": window}


def test_positions_that_are_not_those_of_slots_go_elsewhere(qkv):
    """Sides that start apart, as on a ring of devices, and empty slots."""
    apart = dataclasses.replace(plain(), queries=plain(4).queries)
    position = plain().keys.position.at[:, -3:].set(2**31 - 1)
    empty = plain()
    empty = dataclasses.replace(empty, queries=dataclasses.replace(empty.queries, position=position))
    for scoring in (apart, empty):
        of = lambda backend, scoring=scoring: attention(*qkv, scoring, backend=backend, return_lse=True)
        close(jax.jit(of, static_argnums=0)("cudnn"), of("reference"))


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
    np.testing.assert_array_equal(np.isnan(dq).any(-1), expected)


def gpu(monkeypatch, kind, capability):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    device = types.SimpleNamespace(platform="gpu", device_kind=kind, compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda *_: [device])
    stand_in = types.SimpleNamespace(check_cudnn_version=lambda: 91000, MaskType=library.MaskType)

    def attend(q, k, v, bias, mask, **options):
        inspect.signature(library.dot_product_attention).bind(q, k, v, bias, mask, **options)
        assert options["return_residual"]
        causal = options["mask_type"] is library.MaskType.CAUSAL
        scale, window = options["scale"], options["sliding_window_length"]
        return cudnn._by_definition(q, k, v, bias, mask, scale=scale, causal=causal, window=window)

    stand_in.dot_product_attention = attend
    monkeypatch.setattr(cudnn, "_library", lambda: stand_in)
    op._announce.cache_clear()


def in_bfloat16(qkv):
    return [x.astype(jnp.bfloat16) for x in qkv]


def test_auto_takes_it_on_other_gpus_than_hopper(qkv, monkeypatch, caplog):
    gpu(monkeypatch, "NVIDIA A100-SXM4-80GB", "8.0")
    ggd = biases.GeneralisedGaussian(*jnp.zeros((3, H)))
    with caplog.at_level("INFO"):
        for bias in (biases.Uniform(), ggd):
            assert op.choose(*in_bfloat16(qkv), plain(bias=bias)) == "cudnn"
    assert "auto chose the backend 'cudnn' on gpu (biases and masks in a table of the operands' type" in caplog.text
    assert "since pallas_gpu cannot do this: it is made for Hopper (H100, H200), not for NVIDIA A100" in caplog.text
    assert op.choose(*in_bfloat16(qkv), plain(), ring=True) == "rows"
    # And what it gives cuDNN is what JAX's function takes.
    for bias, mask in ((biases.Uniform(), Mask()), (ggd, Mask(window=4)), (biases.Uniform(), Mask(causal=False))):
        scoring = plain(bias=bias, mask=mask)
        made = attention(*in_bfloat16(qkv), scoring)
        close(made, attention(*in_bfloat16(qkv), scoring, backend="reference"), 2e-2)


REFUSED = {
    "it has no soft cap": {"soft_cap": 2.0},
    "its dropout is not the formula": {"dropout": Dropout(0.5, 1)},
    "CoPE needs whole rows of logits": {"rowwise": biases.CoPE(jnp.ones((4, D)))},
    r"all bfloat16 or all float16 there, not float32": {"dtype": jnp.float32},
    "at most 128 wide and a multiple of 8, not 12": {"width": 12},
    "at most 128 wide and a multiple of 8, not 256": {"width": 256},
    "made for Ampere and later GPUs, not for Tesla T4": {"capability": "7.5"},
    "even sides, not 11 x 11": {"length": 11, "bias": biases.ALiBi(jnp.ones(H))},
    "one query": {"length": 1},
    r"would take 2.5 GiB, above 2": {"length": 2**14 + 2**11, "bias": biases.ALiBi(jnp.ones(H))},
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cudnn_cannot_do_is_said(says, monkeypatch):
    changes = dict(REFUSED[says])
    capability = changes.pop("capability", "8.6")
    gpu(monkeypatch, "Tesla T4" if capability == "7.5" else "NVIDIA RTX A6000", capability)
    length, width, dtype = changes.pop("length", T), changes.pop("width", D), changes.pop("dtype", jnp.bfloat16)
    tokens = Tokens(jnp.arange(length)[None], consecutive=True)
    x = jax.ShapeDtypeStruct((1, length, H, width), dtype)
    scoring = dataclasses.replace(plain(**changes), queries=tokens, keys=tokens)
    with pytest.raises(Unsupported, match=f"'cudnn' cannot do this: .*{says}"):
        jax.eval_shape(functools.partial(attention, scoring=scoring, backend="cudnn"), x, x, x)


def test_a_ring_does_not_take_it():
    with pytest.raises(Unsupported, match="'cudnn' computes no gradients of a part of a text"):
        ring(BACKENDS["cudnn"], "context")
