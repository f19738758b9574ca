"""Small problems of attention that put kernels to the test: every bias, every mask, packed, padded and cached rows.

Inputs are drawn anew for each problem, of unit variance, and hold in bfloat16, so that every type computes the same one.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bam_jax.attention import EMPTY, Mask, Scoring, Tokens
from benchmarks.attention_shapes import BIASES, AttentionShape

BATCH, HEADS, KEY_HEADS = 2, 4, 2

MASKS: dict[str, Callable[[int], Mask]] = {
    "causal": lambda length: Mask(),
    "window": lambda length: Mask(window=length // 3),
    "bidirectional": lambda length: Mask(causal=False),
    "both sides": lambda length: Mask(causal=False, window=length // 4),
}

LAYOUTS = ("packed", "plain", "padded", "cached")
"""Rows of several documents with a temperature for each token; of one, with scores of content below a soft cap; with empty
slots in front and the logits of sinks; the last queries of a cache with empty slots behind, and a temperature that rows share."""

SOFT_CAP = 1.5
"""The cap of scores of content, whose variance is 1: it bends most of them."""


class Problem(NamedTuple):
    """An attention to compute.

    Args:
        bias: a name in `BIASES`.
        mask: a name in `MASKS`.
        layout: of `LAYOUTS`.
        length: tokens.
        width: of a head.
    """

    bias: str
    mask: str
    layout: str
    length: int
    width: int


class Inputs(NamedTuple):
    """Operands as NumPy arrays, and what comes back to them.

    Args:
        q, k, v: [B, T, H, D], [B, S, K, D], [B, S, K, D].
        scoring: with a bias for every head.
        d_out, d_lse: cotangents, [B, T, H, D] and [B, H, T].
    """

    q: Any
    k: Any
    v: Any
    scoring: Scoring
    d_out: Any
    d_lse: Any


def problems(length: int, widths: Sequence[int]) -> Iterator[Problem]:
    """Every bias with every mask, the first masks first; layouts and widths change from one to the next.

    Every bias meets every layout, and so does every mask.

    Args:
        length: tokens.
        widths: of heads.
    """
    for m, mask in enumerate(MASKS):
        for n, bias in enumerate(BIASES):
            yield Problem(bias, mask, LAYOUTS[(n + m) % len(LAYOUTS)], length, widths[(n + m) % len(widths)])


def draw(problem: Problem) -> Inputs:
    """Draw the inputs of a problem, the same ones each time, others for each problem.

    Args:
        problem: what is computed.
    """
    rng = np.random.default_rng(zlib.crc32(repr(tuple(problem)).encode()))
    length, slots = problem.length, problem.length + (16 if problem.layout == "cached" else 0)
    rows = slice(length // 2, length) if problem.layout == "cached" else slice(0, length)
    position = np.broadcast_to(np.arange(slots, dtype=np.int32), (BATCH, slots)).copy()
    position[:, length:] = EMPTY
    segment = None
    if problem.layout == "padded":
        shifted = position[1] - length // 5
        position[1] = np.where(shifted < 0, EMPTY, shifted)
    if problem.layout == "packed":
        ends = np.sort(rng.choice(np.arange(1, length), (BATCH, 3)), axis=1)
        segment = 1 + (np.arange(length)[:, None] >= ends[:, None]).sum(-1, dtype=np.int32)
        segment[0, -length // 16 :] = 0  # a pad sees nothing

    shape = AttentionShape(slots, slots, BATCH, HEADS, problem.width, bias=problem.bias)
    bias, _, i, j = BIASES[problem.bias](shape)
    vary = lambda x: np.asarray(x) * rng.uniform(0.8, 1.2, np.shape(x)).astype(np.float32)
    bias, own_i, own_j = jax.tree.map(vary, bias), *(jax.tree.map(np.asarray, x) for x in (i, j))
    count = slice(None) if problem.layout == "packed" else slice(1)
    temperature: Any = rng.uniform(0.5, 2.0, (BATCH, HEADS, rows.stop - rows.start)).astype(np.float32)[count]

    def side(at: slice, own: Any) -> Tokens:
        part = lambda x: x[..., at]
        return Tokens(part(position), None if segment is None else part(segment), jax.tree.map(part, own))

    scoring = Scoring(
        bias,
        side(rows, own_i),
        side(slice(None), own_j),
        temperature if problem.layout in ("packed", "cached") else None,
        MASKS[problem.mask](length),
    )
    normal = lambda *sizes: np.asarray(rng.standard_normal(sizes, np.float32), jnp.bfloat16)
    queries = temperature.shape[-1]
    keys = (BATCH, slots, KEY_HEADS, problem.width)
    q, d_out = normal(BATCH, queries, HEADS, problem.width), normal(BATCH, queries, HEADS, problem.width)
    drawn = Inputs(q, normal(*keys), normal(*keys), scoring, d_out, normal(BATCH, HEADS, queries))
    if problem.layout == "plain":
        return drawn._replace(scoring=dataclasses.replace(scoring, soft_cap=SOFT_CAP))
    if problem.layout == "padded":
        sinks: Any = rng.standard_normal(HEADS).astype(np.float32)
        return drawn._replace(scoring=dataclasses.replace(scoring, sink_logits=sinks))
    return drawn


def floating(x: Any, dtype: Any) -> Any:
    """The array in this type if it holds numbers with a fraction, else as it is.

    Args:
        x: of any shape.
        dtype: floating-point.
    """
    return jnp.asarray(x, dtype if jnp.issubdtype(x.dtype, jnp.floating) else None)
