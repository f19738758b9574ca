"""The reference against loops in NumPy; every backend against the reference in float64, output and every gradient.

Every pair of settings meets in one of few cases, which the suites share: see `marked`. `--device=gpu` (tpu, cpu) takes those for
that device's backends, on the device: rows are longer instead of tiles smaller, nothing is interpreted, and each program gives
the same bits twice.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import random
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import BACKENDS, EMPTY, Dropout, Mask, Scoring, Tokens, attention, rows
from bam_jax.attention.cpu import chunked
from bam_jax.attention.logits.scoring import HIDDEN
from bam_jax.attention.pallas import tpu_grid, tpu_layout
from tests.attention.common import (
    BIASES,
    GATED,
    MIXTURES,
    SUMS,
    C,
    H,
    close,
    kept_by_definition,
    slopes,
    visible_by_definition,
)
from tests.marks import full

B, D = 2, 6
WHOLE, RAGGED = 16, 13
SCALE = 1  # of numbers of tokens

# Largest error over the largest value or 1, of each output and gradient. bfloat16 has 8 bits of
# mantissa, and the gradient of a prior sums what nearly cancels.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 1e-1}

# On a device: ||made - expected|| / ||expected||, of arrays as large as the operands, and of sums over rows or texts, most of
# which may cancel; floors of the norm are those of sums of terms of order one.
ON_DEVICE = {"float64": (1e-9, 1e-9), "float32": (2e-5, 1e-4), "bfloat16": (8e-3, 2e-2)}

MASKS = {
    "causal": Mask(),
    "bidirectional": Mask(causal=False),
    "window": Mask(window=5),
    "both_sides": Mask(causal=False, window=3),
}

ROWWISE = {
    "": lambda draw, causal: None,
    "dape": lambda draw, causal: biases.DAPE(
        draw(-1, 1, 3, 2 * H, 3), draw(-1, 1, 3), draw(-1, 1, H, 3, 3), draw(-1, 1, H)
    ),
    "cope": lambda draw, causal: biases.CoPE(draw(-1, 1, 4, D), symmetric=not causal),
    "shaw": lambda draw, causal: biases.RelativeKeys(draw(-1, 1, 5, D)),
    "grape_ap": lambda draw, causal: biases.PathIntegral(1),
    "path": lambda draw, causal: biases.PaTH(),
    "entmax": lambda draw, causal: biases.Entmax(biases.CoPE(draw(-1, 1, 4, D), symmetric=not causal)),
    "adaptive": lambda draw, causal: biases.AdaptiveTemperature(None),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting of everything that a backend must handle.

    kv_heads: K.  documents: whether rows are packed.  temperature: [1 or B, H, T], or none.
    rows: "whole" blocks; "ragged", a length that no block divides; "cached", the last queries of a row with empty slots
    behind; "decoding", the last one; "padded", empty slots in front of the second row.
    coordinate: the position, or own ones [1, 1, T] or [B, H, T].
    rowwise: a name in ROWWISE.  scale: of q . k; None: one divided by the root of D.  soft_cap: as in `Scoring`.
    sight: what queries see besides: "prefix", all of the first six positions; "blocks", those of four, none other.
    sinks: whether each head has a sink, and as many tokens at the front are seen beyond a window.
    width: of the values, in widths of keys.  start: the first position; float32 rounds those from 2^24 on.
    dropout: its rate.  of_lse: whether gradients are of log-normalisers, too.
    """

    backend: str
    dtype: str
    bias: str
    mask: str
    kv_heads: int
    documents: bool
    temperature: int
    rows: str
    coordinate: str
    rowwise: str = ""
    scale: float | None = None
    soft_cap: float | None = None
    sight: str = ""
    sinks: bool = False
    width: float = 1
    start: int = 0
    dropout: float = 0.0
    of_lse: bool = True


FACTORS = {
    "dtype": list(TOLERANCE),
    "bias": ["alibi", "ggd", "kerple_power", "t5_bidirectional", "cable", "k_cable"],  # every kind of field
    "mask": ["causal", "window", "both_sides"],
    "kv_heads": [4, 2, 1],
    "documents": [False, True],
    "temperature": [0, 1, B],
    "rows": ["ragged", "cached", "padded"],
    "coordinate": ["position", "shared", "each"],
    "soft_cap": [None, 1.5],
    "sight": ["", "prefix", "blocks"],
    "start": [0, 2**26 + 3, 2**30 + 5],
}
SIGHT = {
    "": lambda position, start: {},
    "prefix": lambda position, start: {"sees_to": np.maximum(position, start + 5 * SCALE)},
    "blocks": lambda position, start: {
        "sees_from": position // (4 * SCALE) * 4 * SCALE,
        "sees_to": position // (4 * SCALE) * 4 * SCALE + 4 * SCALE - 1,
    },
}


def pairwise(factors):
    """Few rows in which every two values of two factors meet: greedily the best of a hundred random rows."""
    pick = random.Random(0)
    pairs = itertools.combinations(range(len(factors)), 2)
    missing = {(a, x, b, y) for a, b in pairs for x in factors[a] for y in factors[b]}
    met = lambda row: {(a, row[a], b, row[b]) for a, b in itertools.combinations(range(len(row)), 2)} & missing
    while missing:
        rows = [tuple(map(pick.choice, factors)) for _ in range(100)]
        a, x, b, y = min(missing, key=str)  # the first missing pair is in each row: the loop ends
        rows = [tuple({a: x, b: y}.get(n, value) for n, value in enumerate(row)) for row in rows]
        best = max(rows, key=lambda row: len(met(row)))
        missing -= met(best)
        yield best


PAIRS = [Case("", **dict(zip(FACTORS, row, strict=True))) for row in pairwise(list(FACTORS.values()))]
WIDEST = {"pallas_tpu": "float32", "pallas_gpu": "float32"}  # of backends that have no float64
SLOW = ("pallas_gpu",)  # interpreted thread by thread


def on(backend, case):
    """The case on a backend, in the widest dtype it has."""
    dtype = WIDEST.get(backend, case.dtype) if case.dtype == "float64" else case.dtype
    return dataclasses.replace(case, backend=backend, dtype=dtype)


OTHERS = [
    Case("", "float64", "fire", "causal", 2, True, 1, "cached", "each"),
    Case("", "float64", "t5", "window", 4, False, 0, "padded", "shared"),
    Case("", "float64", "difference", "causal", 2, True, 0, "ragged", "each"),
    Case("", "float64", "uniform", "window", 2, True, B, "ragged", "each", scale=0.7),
    Case("", "float32", "fire", "causal", 2, True, 1, "cached", "position", start=2**30 + 5),
    Case("", "float32", "kerple_log", "window", 2, False, 1, "decoding", "position", start=2**26 + 3),
    Case("", "float64", "contextual", "both_sides", 2, True, B, "padded", "each"),
    Case("", "float64", "gated", "window", 2, True, B, "cached", "each"),
    Case("", "float64", "kerple_log", "causal", 1, True, B, "padded", "each"),
    Case("", "float64", "t5_distance", "both_sides", 4, False, 1, "cached", "each"),
    Case("", "float64", "t5_distance", "causal", 2, True, 1, "ragged", "position"),
    Case("", "float64", "t5_distance", "both_sides", 1, False, 0, "cached", "position"),
    Case("", "bfloat16", "t5_distance", "window", 4, True, B, "padded", "position"),
    Case("", "float64", "ggd", "bidirectional", 2, False, 1, "whole", "position", scale=-1.5),
    Case("", "float32", "t5_bidirectional", "bidirectional", 4, True, 0, "whole", "position"),
    Case("", "float64", "sandwich", "both_sides", 2, True, B, "cached", "position"),
    Case("", "float64", "band", "causal", 2, True, 1, "cached", "position"),
    Case("", "float64", "additive_decay", "causal", 1, False, 1, "padded", "position"),
    Case("", "float64", "gaussian", "window", 2, True, 0, "ragged", "each"),
    Case("", "float64", "student_t", "both_sides", 4, False, B, "padded", "each"),
    Case("", "float64", "distance", "bidirectional", 2, True, 0, "whole", "each"),
    Case("", "float64", "ggd", "causal", 2, False, B, "decoding", "position"),
    Case("", "float64", "cable", "window", 1, False, 1, "decoding", "each", sinks=True),
    Case("", "float64", "alibi", "window", 2, True, 1, "padded", "position", sinks=True, width=0.5),
    Case("", "float64", "alibi", "causal", 2, True, 1, "padded", "position", soft_cap=1.2, sinks=True),
]

DROPOUT = [
    Case("", "float64", "ggd", "causal", 2, True, B, "ragged", "position", dropout=0.4),
    Case("", "float32", "cable", "both_sides", 4, True, 0, "cached", "each", start=2**30 + 5, dropout=0.1),
    Case("", "float64", "alibi", "window", 2, True, 1, "padded", "position", sinks=True, width=0.5, dropout=0.7),
    Case("", "float64", "ggd", "causal", 2, False, B, "decoding", "position", dropout=0.4),
    Case("", "bfloat16", "t5_distance", "window", 4, True, B, "padded", "position", dropout=0.4),
]

# Blocks of the reference's own rows, so that few will do.
OF_ROWS = [
    Case("rows", "float64", "ggd", "window", 2, True, 1, "ragged", "each"),
    Case("rows", "float64", "cable", "causal", 2, True, B, "cached", "each", "dape"),
    Case("rows", "float64", "kerple_log", "both_sides", 1, False, 1, "padded", "shared", "dape"),
    Case("rows", "float64", "uniform", "bidirectional", 2, True, B, "padded", "position", "cope"),
    Case("rows", "bfloat16", "uniform", "window", 4, True, 0, "ragged", "position", "cope"),
    Case("rows", "float64", "cable", "window", 2, True, B, "cached", "each", "dape", sinks=True, dropout=0.4),
    Case("rows", "float64", "uniform", "window", 2, True, B, "padded", "position", "shaw"),
    Case("rows", "float64", "ggd", "window", 2, True, B, "padded", "position", "grape_ap"),
    Case("rows", "float64", "alibi", "causal", 2, True, 1, "cached", "position", "path"),
    Case(
        "rows", "float64", "uniform", "window", 2, True, 0, "padded", "position", "path", soft_cap=1.5, sight="prefix"
    ),
    Case("rows", "float64", "ggd", "causal", 2, False, 0, "ragged", "each", "entmax"),
    Case("rows", "float64", "alibi", "bidirectional", 1, True, 0, "cached", "position", "adaptive"),
]

# What the query mixes: each offset of a tile once, or each pair of it where positions leap.
MIXED = [
    Case("chunked", "float32", "mixture", "causal", 2, True, B, "ragged", "each", start=2**26 + 3),
    Case("chunked", "float64", "mixed_band", "both_sides", 4, False, 1, "padded", "each", soft_cap=1.5),
    Case("chunked", "float64", "mixture", "causal", 2, False, B, "decoding", "each"),
    Case("rows", "float32", "mixture", "window", 2, True, 1, "cached", "each", start=2**26 + 3),
    Case("pallas_tpu", "float32", "mixture", "causal", 2, True, B, "whole", "each"),
    Case("pallas_tpu", "float32", "mixed_band", "window", 4, True, 1, "cached", "shared", start=2**26 + 3),
    Case("pallas_tpu", "float32", "mixture", "both_sides", 1, False, 0, "padded", "each", soft_cap=1.5, sinks=True),
    Case("chunked", "float32", "mixed_band", "window", 1, True, 0, "cached", "shared", start=2**30 + 5),
    Case("chunked", "float64", "mixture", "window", 2, True, 1, "ragged", "each", sinks=True, width=0.5),
    Case("chunked", "bfloat16", "mixture", "bidirectional", 2, False, 0, "whole", "each", dropout=0.4),
    Case("pallas_tpu", "float32", "mixed_band", "bidirectional", 2, True, 1, "ragged", "each", dropout=0.4),
    Case("pallas_tpu", "bfloat16", "mixture", "causal", 2, True, B, "ragged", "each"),
    Case("pallas_tpu", "float32", "mixture", "causal", 2, False, B, "decoding", "each"),
    Case("pallas_gpu", "float32", "mixture", "causal", 2, True, B, "whole", "each"),
    Case("pallas_gpu", "float32", "mixed_band", "window", 4, True, 1, "cached", "shared", start=2**26 + 3),
    Case("pallas_gpu", "float32", "mixture", "both_sides", 1, False, 0, "padded", "each", soft_cap=1.5, sinks=True),
    Case("pallas_gpu", "float32", "mixed_band", "bidirectional", 2, True, 1, "ragged", "each", dropout=0.4),
    Case("pallas_gpu", "bfloat16", "mixture", "causal", 2, True, B, "ragged", "each"),
]

# Biases and masks in a table; gradients of log-normalisers are those of `rows`.
IN_A_TABLE = [
    Case("cudnn", "float64", "ggd", "causal", 2, True, B, "ragged", "position", of_lse=False),
    Case("cudnn", "float64", "uniform", "window", 2, True, B, "padded", "position", scale=-0.7, of_lse=False),
    Case("cudnn", "float64", "t5_bidirectional", "both_sides", 4, False, 0, "cached", "position", of_lse=False),
    Case("cudnn", "float64", "cable", "causal", 1, True, B, "cached", "each", sight="prefix", of_lse=False),
    Case("cudnn", "float64", "ggd", "window", 2, True, 1, "ragged", "position", sinks=True, width=0.5),
    Case("cudnn", "float32", "mixture", "causal", 2, True, B, "whole", "each", start=2**26 + 3, of_lse=False),
    Case("cudnn", "bfloat16", "kerple_log", "causal", 2, False, 1, "ragged", "position", of_lse=False),
]
BY_TILES = [name for name in BACKENDS if name not in ("reference", "rows", "cudnn")]


def refused(backend, bias, coordinate):
    """A lookup or many cosines, inside a kernel; outside one they can be evaluated for all offsets of positions."""
    return (
        bias in ("t5_distance", "band", "sandwich")
        and backend in ("pallas_tpu", "pallas_gpu")
        and coordinate != "position"
    )


CASES = [on(name, case) for name in BY_TILES for case in PAIRS]
CASES += [
    *(Case("reference", "bfloat16", name, "causal", 2, True, B, "cached", "each") for name in ("ggd", "cable")),
    *(Case("reference", "float32", name, "both_sides", 1, True, 0, "padded", "each") for name in ("ggd", "cable")),
    *(on(name, case) for name in BY_TILES for case in (*OTHERS, *DROPOUT)),
    *OF_ROWS,
    *MIXED,
    *IN_A_TABLE,
    Case("pallas_tpu", "float32", "sandwich", "causal", 2, True, 1, "ragged", "position"),
    Case("chunked", "float64", "alibi", "window", 2, True, 0, "ragged", "position", "", None, 1.2, "", True, 1.5),
]
CASES = [case for case in CASES if not refused(case.backend, case.bias, case.coordinate)]


def inputs(case):
    """q, k, v and a scoring for a case, as NumPy arrays that its dtype holds exactly; and d_out."""
    rng = np.random.default_rng(0)
    wide = np.float64 if case.dtype == "float64" else np.float32
    draw = lambda low, high, *shape: rng.uniform(low, high, shape).astype(wide)
    length = SCALE * (WHOLE if case.rows == "whole" else RAGGED)
    position = np.arange(length)[None]
    if case.rows == "padded":
        position = np.stack([np.arange(length), np.arange(length) - 3 * SCALE])
    position = np.where(position < 0, EMPTY, case.start + position)
    segment = None
    if case.documents:
        ends = [[5, 11], [2, 3]]
        segment = np.stack([1 + (np.arange(length)[:, None] >= SCALE * np.array(e)).sum(1) for e in ends])
        segment[0, -2 * SCALE :] = 0
    if case.documents and case.sinks and case.rows == "ragged":  # each document has first tokens of its own
        starts = np.where(np.diff(segment, axis=1, prepend=-1) != 0, position, 0)
        position = position - np.maximum.accumulate(starts, axis=1)
    slots, rows = length, {"cached": 5 * SCALE, "decoding": 1}.get(case.rows, length)
    if rows < length:
        slots = length + 2 * SCALE
        fill = lambda x, value: np.concatenate([x, np.full((x.shape[0], 2 * SCALE), value)], 1)
        position, segment = fill(position, EMPTY), None if segment is None else fill(segment, 0)
    queries = slice(length - rows, length)

    own_i = own_j = None
    if case.bias in SUMS:
        sums = lambda t: (np.cumsum(draw(0, 1, B, H, t), -1), draw(-1e-3, 1e-3, B, H, t))
        own_i, own_j = sums(rows), sums(slots)
        own_i = (draw(0, 2, B, H, rows), own_i) if case.bias in GATED else own_i
        own_j = (draw(0, 2, B, H, slots), own_j) if case.bias == "gated" else own_j
    elif case.bias in MIXTURES:
        axes = (1, 1) if case.coordinate == "shared" else (B, H)
        own_i = tuple(draw(-1, 1, *axes, rows) for _ in range(C))
    elif case.coordinate != "position":
        axes = (1, 1) if case.coordinate == "shared" else (B, H)
        own_j = np.arange(slots) + draw(-0.4, 0.4, *axes, slots)
        own_i = (own_j[..., queries] + wide(0.25)).astype(wide)
        own_j = own_j.astype(wide)

    temperature = draw(-0.5, 2, case.temperature, H, rows) if case.temperature else None
    integers = lambda x: None if x is None else x.astype(np.int32)
    side = lambda at, own: Tokens(integers(position[:, at]), None if segment is None else integers(segment[:, at]), own)
    of_queries, mask = side(queries, own_i), MASKS[case.mask]
    sight = {
        name: integers(x) for name, x in SIGHT[case.sight](position[:, queries].astype(np.int64), case.start).items()
    }
    if mask.window:
        sinks = 2 * SCALE if case.sinks and mask.causal else 0
        mask = dataclasses.replace(mask, window=SCALE * mask.window, sink_tokens=sinks)
    scoring = Scoring(
        BIASES[case.bias](draw),
        dataclasses.replace(of_queries, **sight),
        side(slice(None), own_j),
        temperature,
        mask,
        ROWWISE[case.rowwise](draw, mask.causal),
        case.scale,
        case.soft_cap,
        draw(-1, 1, H) if case.sinks else None,
        Dropout(case.dropout, np.uint32(9)),
    )
    narrow = lambda *shape: rng.normal(size=shape).astype(case.dtype)
    of_keys = D + (case.rowwise == "path")  # 3 of a key, 3 of a direction, and a number
    of_values = int(case.width * of_keys)
    q, d_out = narrow(B, rows, H, of_keys), narrow(B, rows, H, of_values)
    return (q, *(narrow(B, slots, case.kv_heads, width) for width in (of_keys, of_values)), scoring), d_out


def d_lse_of(d_out):
    """A cotangent of the log-normalisers, [B, H, T]."""
    return d_out[..., 1].swapaxes(1, 2)


def run(backend, q, k, v, scoring, d_out, *, of_lse=True):
    """Output and log-normalisers, 0 of rows that see nothing; gradients of q, k, v and of all that is real in the scoring."""

    def forward(*operands):
        out, lse = attention(*operands, backend=backend, return_lse=True)
        lse = jnp.where(lse > HIDDEN, lse, 0)
        return out, lse if of_lse else jax.lax.stop_gradient(lse)

    d_lse = jnp.asarray(d_lse_of(d_out), jnp.promote_types(q.dtype, jnp.float32))
    (out, lse), *gradients = slopes(forward, q, k, v, scoring, d_results=(d_out, d_lse))
    return out, lse, *gradients


def seen(scoring):
    table = visible_by_definition(scoring.queries, scoring.keys, scoring.mask)
    return np.broadcast_to(table, (B, *table.shape[1:]))


def by_definition(q, k, v, scoring):
    """Attention and its log-normalisers as nested loops over float64."""
    visible, out, lse = seen(scoring), np.zeros((*q.shape[:3], v.shape[3])), np.zeros((B, H, q.shape[1]))
    own = lambda tokens: np.float64(tokens.position)[:, None] if tokens.coordinate is None else tokens.coordinate
    i, j = own(scoring.queries), own(scoring.keys)
    if isinstance(scoring.bias, biases.Mixture):
        i = np.float64(scoring.queries.position)[:, None], i
    bias = np.asarray(biases.table(scoring.bias, *jax.tree.map(jnp.asarray, (i, j))))
    bias = np.broadcast_to(bias, (B, H, q.shape[1], k.shape[1]))
    scale = 1 / math.sqrt(q.shape[-1]) if scoring.scale is None else scoring.scale
    cap = scoring.soft_cap
    capped = lambda x: x if cap is None else cap * np.tanh(x / cap)
    scores, key_head = np.zeros(bias.shape), lambda h: h // (H // k.shape[2])
    for n, h, t, s in np.ndindex(scores.shape):
        scores[n, h, t, s] = q[n, t, h] @ k[n, s, key_head(h)] * scale
    scores = capped(scores)
    table = scores + bias
    if scoring.rowwise is not None:  # tests/biases has it as loops
        i, j = scoring.queries.position[:, None, :, None], scoring.keys.position[:, None, None]
        scored = lambda product: capped(np.asarray(product) * scale)
        rows = biases.Rows(q, k, scores, jnp.asarray(bias), visible[:, None], i, j, scored)
        table = np.asarray(scoring.rowwise(rows))
    of_row = lambda x, n: np.broadcast_to(x, (B, x.shape[1]))[n]
    for n, t, h in np.ndindex(out.shape[:3]):
        keys = np.flatnonzero(visible[n, t])
        logits = table[n, h, t, keys]
        if scoring.temperature is not None:
            logits = logits * np.broadcast_to(scoring.temperature, (B, *scoring.temperature.shape[1:]))[n, h, t]
        sink = [] if scoring.sink_logits is None else [scoring.sink_logits[h]]
        lse[n, h, t] = np.logaddexp.reduce([*logits, *sink]) if keys.size or sink else 0
        words = [] if scoring.queries.segment is None else [of_row(scoring.queries.segment, n)[t]]
        words, rate = [n, h, *words, of_row(scoring.queries.position, n)[t]], scoring.dropout.rate
        for logit, s in zip(logits, keys, strict=True):
            if kept_by_definition(rate, int(scoring.dropout.seed), *words, key=of_row(scoring.keys.position, n)[s]):
                out[n, t, h] += np.exp(logit - lse[n, h, t]) * v[n, s, key_head(h)] / (1 - rate)
    return out, lse


@pytest.mark.parametrize(
    "case",
    [
        Case("reference", "float64", "ggd", "causal", 2, True, B, "ragged", "position", soft_cap=0.9, sight="prefix"),
        Case("reference", "float64", "cable", "both_sides", 1, False, 1, "cached", "each", scale=0.3, dropout=0.4),
        Case("reference", "float64", "kerple_log", "window", 2, True, B, "padded", "position", "dape", scale=-0.8),
        Case("reference", "float64", "uniform", "both_sides", 1, True, 1, "ragged", "position", "cope"),
        Case("reference", "float64", "alibi", "window", 2, True, 1, "padded", "position", sinks=True, dropout=0.2),
        Case("reference", "float64", "uniform", "causal", 2, True, 0, "cached", "position", "path", soft_cap=1.2),
        Case("reference", "float64", "mixture", "causal", 2, True, B, "padded", "each"),
        full(Case("reference", "float64", "fire", "bidirectional", 4, True, 0, "padded", "shared")),
    ],
    ids=str,
)
def test_reference_is_the_definition_and_its_slopes(case, x64):
    arguments, d_out = inputs(case)
    out, lse, *gradients = jax.jit(functools.partial(run, "reference"))(*arguments, d_out)
    for made, expected in zip((out, lse), by_definition(*arguments), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-11, atol=1e-13)

    # Along a random direction of everything at once, the gradient is the difference of the loops' outputs.
    leaves, whole = jax.tree.flatten(arguments)
    places = [n for n, x in enumerate(leaves) if x.dtype == np.float64]
    rng = np.random.default_rng(1)
    direction = [rng.normal(size=leaves[n].shape) for n in places]

    def moved(step):
        there = list(leaves)
        for n, d in zip(places, direction, strict=True):
            there[n] = leaves[n] + step * d
        out, lse = by_definition(*jax.tree.unflatten(whole, there))
        return (out * d_out).sum() + (lse * d_lse_of(d_out)).sum()

    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    np.testing.assert_allclose(slope, (moved(1e-5) - moved(-1e-5)) / 2e-5, rtol=1e-7, atol=1e-7)


@pytest.fixture
def device(request):
    """The name of the device that is tested, or None."""
    name = request.config.getoption("--device")
    assert name in (None, jax.default_backend()), f"--device={name}: jax has a {jax.default_backend()} here"
    if name:  # programs as users get them, and products as exact as their operands, where accelerators round float32
        jax.config.update("jax_disable_most_optimizations", False)
        jax.config.update("jax_default_matmul_precision", "highest")
    return name


@pytest.fixture
def tiles(device, request, monkeypatch):
    """Small ones, and what a kernel walks over in two pieces; every other case takes head after head.

    On a device tiles are those that it takes, so rows are longer, and heads of widths that users have.
    """
    if device:
        monkeypatch.setattr(sys.modules[__name__], "SCALE", 32)
        monkeypatch.setattr(sys.modules[__name__], "D", (64, 128, 48)[zlib.crc32(request.node.name.encode()) % 3])
        return
    request.getfixturevalue("small_tiles")
    together = zlib.crc32(request.node.name.encode()) % 2
    monkeypatch.setattr(chunked, "_TABLE", chunked._TABLE * together)
    monkeypatch.setattr(tpu_grid, "_MANY_BLOCKS", 100 * together)
    monkeypatch.setattr(rows, "_TABLE", B * H * RAGGED * 3)
    monkeypatch.setattr(tpu_layout, "_KEYS_AT_ONCE", 4)
    monkeypatch.setattr(tpu_layout, "_QUERIES_AT_ONCE", 3)


def near(made, expected, tolerances, name):
    made, expected = (np.asarray(x, np.float64) for x in (made, expected))
    assert made.shape == expected.shape, name
    norm = np.linalg.norm(expected)
    own = name in ("out", "lse", "q", "k", "v")
    error = np.linalg.norm(made - expected) / (norm if own and norm else max(norm, math.sqrt(expected.size)))
    assert error <= tolerances[0 if own else 1], f"{name}: {error:.2g} is above {tolerances[0 if own else 1]:g}"


def compare(case, arguments, made, expected, device=None):
    scoring = arguments[3]
    paths = [
        jax.tree_util.keystr(path)
        for path, x in jax.tree_util.tree_leaves_with_path(scoring)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    names = ["out", "lse", "q", "k", "v", *paths]
    check, limit = (near, ON_DEVICE) if device else (close, TOLERANCE)
    for name, a, b in zip(names, made, expected, strict=True):
        check(a, summed(b, a.shape), limit[case.dtype], name)
    out, _, dq, dk, dv, *_ = made
    assert out.dtype == dq.dtype == dk.dtype == dv.dtype == case.dtype
    visible = seen(scoring)
    blind, unseen = ~visible.any(2), ~visible.any(1)
    for x, nothing in ((out, blind), (dq, blind), (dk, unseen), (dv, unseen)):
        assert not np.asarray(x, np.float32)[nothing].any(), "a row that sees nothing, or a key that nothing sees"


def float64(tree):
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.integer) else np.asarray(x, np.float64), tree)


def expectation(q, k, v, scoring, d_out, *, of_lse=True):
    """The reference in float64, with nothing left to broadcast: what is shared gets the sum of its copies' gradients."""

    def spread(tree, *axes):
        return jax.tree.map(lambda x: np.broadcast_to(x, (*axes, x.shape[-1])), tree)

    def side(tokens):
        of_rows = {name: spread(getattr(tokens, name), B) for name in ("position", "segment", "sees_from", "sees_to")}
        return Tokens(**of_rows, coordinate=spread(tokens.coordinate, B, H))

    k, v = (np.repeat(np.asarray(x), H // x.shape[2], axis=2) for x in (k, v))
    whole = dataclasses.replace(
        scoring,
        queries=side(scoring.queries),
        keys=side(scoring.keys),
        temperature=spread(scoring.temperature, B, H),
    )
    with on_cpu():
        return jax.jit(functools.partial(run, "reference", of_lse=of_lse))(*float64((q, k, v, whole)), float64(d_out))


@contextlib.contextmanager
def on_cpu():
    """Where the reference runs: no accelerator has float64."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def summed(x, shape):
    """The gradient of what was spread (or, for key heads, repeated) from `shape`."""
    x = np.asarray(x, np.float64)
    if x.ndim == 4:
        return x.reshape(*x.shape[:2], shape[2], -1, shape[3]).sum(3)
    axes = tuple(n for n, size in enumerate(shape) if size != x.shape[n])
    return x.sum(axes, keepdims=True)


def default_numbers(backend, device=None):
    """64 bits, except for accelerators and the interpreter of GPU kernels, whose threads do not hear of them."""
    return jax.enable_x64(device in (None, "cpu") and backend != "pallas_gpu")


# The devices whose users get a backend: by choice, or for what the kernels refuse.
DEVICES = {
    "chunked": ["cpu"],
    "pallas_gpu": ["gpu"],
    "cudnn": ["gpu"],
    "pallas_tpu": ["tpu"],
    "rows": ["cpu", "gpu"],
    "reference": [],
}


def devices(backend):
    return [getattr(pytest.mark, f"on_{device}") for device in DEVICES[backend]]


def there(case, device):
    """The case as a device runs it: kernels of GPUs and cuDNN refuse float32."""
    if device not in ("gpu", "tpu"):
        return case
    return dataclasses.replace(
        case, dtype="bfloat16" if case.backend in ("pallas_gpu", "cudnn") else on("pallas_tpu", case).dtype
    )


def marked(case):
    """The case with the suite that takes it.

    The default run takes every eighth case of `PAIRS` and `OTHERS` on `chunked` and every ninth on `pallas_tpu`. Of the rest, and
    of all on `pallas_gpu`, a sixth belongs to `full` (`hopper`), the others to `endurance`.
    """
    pairs = [on(case.backend, pair) for pair in (*PAIRS, *OTHERS)]
    place = pairs.index(case) if case in pairs else 0
    slow = case.backend in SLOW
    later = place % (9 if case.backend in WIDEST else 8) > 0
    later |= case in [on(case.backend, other) for other in DROPOUT[1 + (case.backend == "chunked") :]]
    later |= case in MIXED[7:]
    suite = pytest.mark.endurance if place % 6 else pytest.mark.hopper if slow else pytest.mark.full
    return pytest.param(case, marks=[*[suite] * (later or slow), *devices(case.backend)])


def skip_on_other_chips(backend, device, arguments):
    if device == "gpu" and " made for " in (reason := BACKENDS[backend].reason(*arguments) or ""):
        pytest.skip(reason)


def disturb(made):
    """Fill as much free memory with NaN as a program's results take, and more: it must not read what it has not written."""
    size = sum(x.size for x in jax.tree.leaves(made))
    jax.block_until_ready([jnp.full(2 * size + 2**16, jnp.nan, jnp.float32), jnp.full(2**18, jnp.nan, jnp.float32)])


@pytest.mark.parametrize(
    "case", list(map(marked, CASES)), ids=lambda case: "-".join(map(str, dataclasses.astuple(case)))
)
def test_every_backend_agrees_with_the_reference(case, device, tiles, x64):
    case = there(case, device)
    arguments, d_out = inputs(case)
    skip_on_other_chips(case.backend, device, arguments)
    with default_numbers(case.backend, device):
        compiled = jax.jit(functools.partial(run, case.backend, of_lse=case.of_lse))
        made = compiled(*arguments, d_out)
        disturb(made)
        again = compiled(*arguments, d_out) if device or case.backend not in SLOW else made
    compare(case, arguments, made, expectation(*arguments, d_out, of_lse=case.of_lse), device)
    if not (device and case.backend == "cudnn"):  # which adds up in no fixed order
        jax.tree.map(np.testing.assert_array_equal, made, again)


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("chunked", marks=devices("chunked")),
        pytest.param("rows", marks=[pytest.mark.full, *devices("rows")]),
        pytest.param("pallas_tpu", marks=[pytest.mark.full, *devices("pallas_tpu")]),
        pytest.param("pallas_gpu", marks=[pytest.mark.hopper, *devices("pallas_gpu")]),
    ],
)
def test_a_steep_prior_has_its_gradient_in_bfloat16(backend, device, x64):
    """Nearly all weight on one key: what the gradient sums is smaller than what the output loses when it is rounded."""
    arguments, exact = in_bfloat16(2, 32, 2, 16, shape=[0.5, 0.5], log_scale=1.5)
    skip_on_other_chips(backend, device, arguments[:4])
    with default_numbers(backend, device):
        _, _, _, _, _, *made = jax.jit(functools.partial(run, backend))(*arguments)
    share = 2e-3 if device else 3e-4  # an output rounded to bfloat16 costs 9e-4
    for a, b in zip(made, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=share * float(np.abs(b).max()))


@pytest.mark.full
def test_a_hot_prior_on_a_tpu_has_as_exact_a_gradient_as_on_a_cpu(x64):
    """Temperature 8: what the kernels lose of a prior's gradient is at most half more than blocks lose."""
    hot = np.full((1, 4, 128), 8, np.float32)
    arguments, exact = in_bfloat16(1, 128, 4, 64, shape=np.linspace(-0.5, 1.5, 4), log_scale=-1, temperature=hot)

    def error(backend):
        _, _, _, _, _, *made = jax.jit(functools.partial(run, backend))(*arguments)
        return np.sqrt(sum(np.square(a - b).sum() for a, b in zip(made, exact, strict=True)))

    assert error("pallas_tpu") < 1.5 * error("chunked")


def in_bfloat16(*sizes, shape, log_scale, temperature=None):
    """Arguments of `run` behind the backend, and the exact gradients of the scoring."""
    rng = np.random.default_rng(0)
    tokens = Tokens(np.arange(sizes[1])[None])
    prior = biases.GeneralisedGaussian(*(np.full(sizes[2], x, np.float32) for x in (shape, log_scale, 0)))
    *rows, d_out = (jnp.asarray(rng.normal(size=sizes), jnp.bfloat16) for _ in range(4))
    arguments = *rows, Scoring(prior, tokens, tokens, temperature), d_out
    with on_cpu():
        _, _, _, _, _, *exact = jax.jit(functools.partial(run, "reference"))(*float64(arguments))
    return arguments, exact


def test_every_bias_and_everything_rowwise_is_compared():
    draw = lambda low, high, *shape: np.zeros(shape)
    made = {type(BIASES[case.bias](draw)) for case in CASES if case.backend == "chunked"}
    made |= {type(ROWWISE[case.rowwise](draw, True)) for case in OF_ROWS if case.rowwise}
    kinds = biases.Bias, biases.Rowwise, biases.Monotone, biases.Relative, biases.Sharpened
    public = {x for x in map(biases.__dict__.get, biases.__all__) if isinstance(x, type) and issubclass(x, kinds)}
    assert made == public - {*kinds}
