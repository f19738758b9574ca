"""Random configurations of attention, compared with an independent reference in NumPy.

The reference computes biases, masks and softmax in float64, and imports nothing of the package's attention. There are four kinds
of cases:

- any: bias, mask, documents, window, sinks, soft cap, temperature, sizes, dtype, backend, and a first position up to 2^30.
- decoded: a prompt and then one token after another from a cache, compared with the whole text.
- ring: a text split over four devices.
- skipped: steep biases in small tiles, with content that outweighs them at distant keys. A wrong bound would lose mass.

Each case compares outputs, log-normalisers, and the gradient of every array along a random direction with finite differences of
the reference.
"""

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from endurance.figures import Figure, Outcome
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bam_jax import biases
from bam_jax.attention import BACKENDS, EMPTY, Cache, Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention.ring import ring, zigzag

KINDS = {"any": 200, "decoded": 40, "ring": 20, "skipped": 40}
"""The kinds of cases, and how many there are of each."""
TOLERANCE = {"float64": (1e-8, 1e-5), "float32": (5e-5, 2e-3), "float16": (5e-3, 3e-2), "bfloat16": (3e-2, 1e-1)}
"""Of results, over the largest or 1; and of slopes along directions of length 1, over the gradient's length or 1."""
STARTS = (0, 0, 0, 7, 2**24 + 1, 2**26 + 3, 2**30 + 5)
DEVICES = 4

# The biases: how parameters are drawn, what makes the package's bias of them, and the formula of a head in NumPy.
STEPS = (0, 1, 2, 3, 4, 6, 9)


def _ggd(p: dict, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    mu = np.exp(p["loc"]) - np.exp(-p["loc"])
    return -np.minimum(np.exp(p["log_scale"]) * (abs(j - i - mu) + 1e-5) ** p["shape"], np.exp(9.0))


def _student(p: dict, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    nu = np.exp(p["log_freedom"])
    return -(nu + 1) / 2 * np.log(1 + ((i - j) / np.exp(p["log_width"])) ** 2 / nu)


def _decay(p: dict, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    d = abs(i - j)
    return -(p["linear"] * d + p["logarithmic"] * np.log(1 + d) + p["root"] * np.sqrt(d))


def _t5(p: dict, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    bucket = lambda d: np.maximum(np.searchsorted(STEPS, d, side="right") - 1, 0)
    if len(p["table"]) == len(STEPS):
        return p["table"][bucket(i - j)]
    return np.where(j > i, p["table"][len(STEPS) + bucket(j - i)], p["table"][bucket(i - j)])


def _fire(p: dict, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    psi = lambda x: np.log(p["c"] * x + 1)
    progress = psi(abs(i - j)) / psi(np.maximum(p["length"], np.maximum(i, j)))
    return np.maximum(progress[..., None] * p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]


def _apart(i: tuple, j: tuple) -> np.ndarray:
    return (i[0] - j[0]) + (i[1] - j[1])


def _sandwich(p: dict, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return sum(np.cos((i - j) / 50.0 ** (2 * n / 6)) - 1 for n in range(3)) / p["compression"]


@dataclasses.dataclass(frozen=True)
class Formula:
    """A bias by its parameters, of which those in `shared` belong to all heads; `sums`: its coordinates are running sums."""

    ranges: dict[str, tuple]
    make: Callable[..., biases.Bias]
    value: Callable[[dict, Any, Any], np.ndarray]
    shared: tuple[str, ...] = ()
    sums: bool = False


FORMULAS = {
    "uniform": Formula({}, biases.Uniform, lambda p, i, j: 0 * (i - j)),
    "alibi": Formula({"slope": (0.05, 1)}, biases.ALiBi, lambda p, i, j: -p["slope"] * abs(i - j)),
    "ggd": Formula({"shape": (0.2, 1.6), "log_scale": (-2, 0), "loc": (-1, 1)}, biases.GeneralisedGaussian, _ggd),
    "kerple_log": Formula(
        {"r1": (0.1, 2), "r2": (0.1, 1)}, biases.KerpleLog, lambda p, i, j: -p["r1"] * np.log(1 + p["r2"] * abs(i - j))
    ),
    "kerple_power": Formula(
        {"r1": (0.1, 1), "r2": (0.2, 1.5)}, biases.KerplePower, lambda p, i, j: -p["r1"] * abs(i - j) ** p["r2"]
    ),
    "gaussian": Formula(
        {"log_width": (0.5, 3)}, biases.Gaussian, lambda p, i, j: -(((i - j) / np.exp(p["log_width"])) ** 2) / 2
    ),
    "student_t": Formula({"log_width": (0, 2), "log_freedom": (-1, 1)}, biases.StudentT, _student),
    "decay": Formula({"linear": (0, 0.5), "logarithmic": (0, 1), "root": (0, 1)}, biases.AdditiveDecay, _decay),
    "sandwich": Formula({"compression": (0.5, 2)}, functools.partial(biases.Sandwich, width=6, base=50.0), _sandwich),
    "t5": Formula({"table": (-1, 1, 7)}, functools.partial(biases.T5, starts=STEPS), _t5),
    "t5_both": Formula({"table": (-1, 1, 14)}, functools.partial(biases.T5, starts=STEPS, bidirectional=True), _t5),
    "t5_distance": Formula(
        {"table": (-1, 1, 6)}, biases.T5Distance, lambda p, i, j: p["table"][np.minimum(abs(i - j), 5).astype(int)]
    ),
    "fire": Formula(
        {"w2": (-2, 2, 3), "b2": (-1, 1), "w1": (-1, 9, 3), "b1": (-1, 1, 3), "c": (0.2, 2), "length": (5, 20)},
        biases.FIRE,
        _fire,
        shared=("w1", "b1", "c", "length"),
    ),
    "difference": Formula({}, biases.Difference, lambda p, i, j: _apart(i, j), sums=True),
    "distance": Formula(
        {}, functools.partial(biases.Difference, symmetric=True), lambda p, i, j: -abs(_apart(i, j)), sums=True
    ),
    "cable": Formula({}, biases.CABLE, lambda p, i, j: -i[0] * abs(_apart(i[1], j)), sums=True),
    "k_cable": Formula({}, biases.KCABLE, lambda p, i, j: -np.log((i[0] * _apart(i[1], j)) ** 2 + 1), sums=True),
    "contextual": Formula(
        {"shape": (0.3, 1.5), "log_scale": (-2, 0)},
        biases.ContextualGaussian,
        lambda p, i, j: -np.exp(p["log_scale"]) * (abs(_apart(i, j)) + 1e-5) ** p["shape"],
        sums=True,
    ),
}
STEEP = {"alibi": {"slope": (1, 6)}, "gaussian": {"log_width": (-0.5, 1)}, "ggd": FORMULAS["ggd"].ranges, "cable": {}}
"""The biases of "skipped", and the ranges of their parameters."""


@dataclasses.dataclass
class Case:
    """A configuration; its floats are what gradients are taken of.

    Args:
        floats: q, k, v, parameters, temperature, sinks, coordinates: a tree of float64 that the dtypes hold exactly.
        i, j: positions [B, T] and [B, S]; `EMPTY`: no token.
        i_segment, j_segment: documents, or None.
    """

    bias: str
    dtype: str
    backend: str
    tiling: Tiling
    floats: dict
    i: np.ndarray
    j: np.ndarray
    i_segment: np.ndarray | None = None
    j_segment: np.ndarray | None = None
    causal: bool = True
    window: int | None = None
    sink_tokens: int = 0
    scale: float | None = None
    soft_cap: float | None = None
    wide_mode: bool = False

    def __str__(self) -> str:
        sizes = f"q {self.floats['q'].shape}, k {self.floats['k'].shape}, v {self.floats['v'].shape}"
        mask = f"causal={self.causal}, window={self.window}, sinks={self.sink_tokens}, cap={self.soft_cap}"
        own = [name for name in ("temperature", "sinks") if self.floats[name] is not None]
        packed = ", packed" if self.i_segment is not None else ""
        return (
            f"{self.bias} {self.dtype} {self.backend} {self.tiling} {sizes}, {mask}{packed}, from {self.i.min()} {own}"
        )


def expected(case: Case, floats: dict) -> tuple[np.ndarray, np.ndarray]:
    """The reference: outputs [B, T, H, E] and log-normalisers [B, H, T], -inf of rows that see nothing."""
    q, k, v, formula = floats["q"], floats["k"], floats["v"], FORMULAS[case.bias]
    seen = visible(case)
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf)
    for b, h in np.ndindex(q.shape[0], q.shape[2]):
        key_head = h // (q.shape[2] // k.shape[2])
        parameters = {name: x if name in formula.shared else x[h] for name, x in floats["parameters"].items()}
        down, across = _coordinates(case, floats, b, h)
        scores = q[b, :, h] @ k[b, :, key_head].T * (1 / math.sqrt(q.shape[3]) if case.scale is None else case.scale)
        if case.soft_cap is not None:
            scores = case.soft_cap * np.tanh(scores / case.soft_cap)
        column, row = (jax.tree.map(lambda x, at=at: np.expand_dims(x, at), x) for x, at in ((down, 1), (across, 0)))
        logits = scores + formula.value(parameters, column, row)
        if floats["temperature"] is not None:
            logits = logits * floats["temperature"][b, h][:, None]
        logits = np.where(seen[b], logits, -np.inf)
        if floats["sinks"] is not None:
            logits = np.concatenate([logits, np.full((len(logits), 1), floats["sinks"][h])], 1)
        top = logits.max(1, keepdims=True)
        weights = np.exp(logits - np.where(np.isfinite(top), top, 0))
        total = weights.sum(1)
        some = total > 0
        lse[b, h, some] = top[some, 0] + np.log(total[some])
        out[b, some, h] = (weights[some, : k.shape[1]] / total[some, None]) @ v[b, :, key_head]
    return out, lse


def _coordinates(case: Case, floats: dict, b: int, h: int) -> tuple[Any, Any]:
    """What the bias compares in a row and a head, [T] and [S] or tuples of such."""
    if FORMULAS[case.bias].sums:
        return jax.tree.map(lambda x: x[b, h], floats["own_i"]), jax.tree.map(lambda x: x[b, h], floats["own_j"])
    # A hidden pair may have any bias.
    known = lambda x: np.where(x < EMPTY, x, case.i.min()).astype(float)
    return known(case.i[b]), known(case.j[b])


def visible(case: Case) -> np.ndarray:
    """The keys that each query sees, [B, T, S]."""
    i, j = case.i.astype(np.int64)[:, :, None], case.j.astype(np.int64)[:, None, :]
    seen = (i < EMPTY) & (j < EMPTY)
    if case.causal:
        seen &= j <= i
    if case.window is not None:
        seen &= (abs(i - j) < case.window) | (j < case.sink_tokens)
    if case.i_segment is not None and case.j_segment is not None:
        seen &= (case.i_segment[:, :, None] == case.j_segment[:, None, :]) & (case.j_segment > 0)[:, None]
    return seen


def scoring(case: Case, floats: dict, tokens: tuple[Tokens, Tokens] | None = None) -> Scoring:
    """The package's scoring of a case."""
    integers = lambda x: None if x is None else jnp.asarray(x, jnp.int32)
    queries, keys = tokens or (
        Tokens(integers(case.i), integers(case.i_segment), floats["own_i"]),
        Tokens(integers(case.j), integers(case.j_segment), floats["own_j"]),
    )
    mask = Mask(causal=case.causal, window=case.window, sink_tokens=case.sink_tokens)
    bias = FORMULAS[case.bias].make(**floats["parameters"])
    return Scoring(bias, queries, keys, floats["temperature"], mask, None, case.scale, case.soft_cap, floats["sinks"])


def attended(case: Case, floats: dict, backend: Any = None) -> tuple[jax.Array, jax.Array]:
    """The package's outputs and log-normalisers."""
    rows = (floats[name] for name in "qkv")
    backend = case.backend if backend is None else backend
    return attention(*rows, scoring(case, floats), backend=backend, tiling=case.tiling, return_lse=True)


def typed(case: Case, floats: dict) -> dict:
    """The floats in their dtypes."""
    wide = np.float64 if case.dtype == "float64" else np.float32
    narrow = {name: floats[name].astype(jnp.dtype(case.dtype)) for name in "qkv"}
    return {**jax.tree.map(lambda x: x.astype(wide), floats), **narrow}


def rounded(case: Case) -> Case:
    """The case with floats that its dtypes hold."""
    case.floats = jax.tree.map(lambda x: x.astype(np.float64), typed(case, case.floats))
    return case


def complaint(case: Case, attend: Callable[[dict], tuple], rng: np.random.Generator) -> str:
    """What is wrong with outputs, normalisers or gradients of a case; "" where nothing is."""
    of_results, of_slopes = TOLERANCE[case.dtype]
    wanted, wanted_lse = expected(case, case.floats)
    blind = np.isinf(wanted_lse)
    d_out = rng.normal(size=wanted.shape).astype(jnp.dtype(case.dtype))
    d_lse = np.where(blind, 0, rng.normal(size=wanted_lse.shape)).astype(np.float32)

    @jax.jit
    def results(floats: dict, d_out: jax.Array, d_lse: jax.Array) -> tuple:
        (out, lse), vjp = jax.vjp(attend, floats)
        return out, lse, vjp((d_out, d_lse.astype(lse.dtype)))[0]

    out, lse, gradients = results(typed(case, case.floats), d_out, d_lse)
    out, lse = np.asarray(out, np.float64), np.asarray(lse, np.float64)
    if wrong := _far(out, wanted, of_results):
        return f"output {wrong}"
    if (lse[blind] > -1e29).any() or (wrong := _far(lse[~blind], wanted_lse[~blind], of_results)):
        return f"normalisers {wrong}"

    def total(floats: dict) -> float:
        out, lse = expected(case, floats)
        return (out * d_out.astype(float)).sum() + (np.where(blind, 0, lse) * d_lse).sum()

    leaves, tree = jax.tree.flatten(case.floats)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(case.floats)]
    for n, (name, gradient) in enumerate(zip(names, jax.tree.leaves(gradients), strict=True)):
        gradient = np.asarray(gradient, np.float64)
        if not np.isfinite(gradient).all():
            return f"gradient of {name} is not finite"
        direction = rng.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)
        moved = lambda step, n=n, d=direction: total(
            tree.unflatten([*leaves[:n], leaves[n] + step * d, *leaves[n + 1 :]])
        )
        slope, made = (moved(1e-5) - moved(-1e-5)) / 2e-5, (gradient * direction).sum()
        if not abs(slope - made) <= of_slopes * max(1, np.linalg.norm(gradient)):
            return f"gradient of {name} along a direction is {made:.6g}, not {slope:.6g}"
    return ""


def _far(made: np.ndarray, wanted: np.ndarray, tolerance: float) -> str:
    """How far two arrays are apart, where it is too far."""
    if made.shape != wanted.shape:
        return f"{made.shape}, not {wanted.shape}"
    error = np.abs(made - wanted).max(initial=0) / max(1, np.abs(wanted).max(initial=0))
    return "" if error <= tolerance else f"errs by {error:.2g}"  # NaN is too far, too


def drawn(
    rng: np.random.Generator,
    *,
    queries: int,
    keys: int,
    bias: str,
    start: int = 0,
    dtype: str = "float32",
    backend: str = "chunked",
    batch: int = 1,
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (8, 8),
    ranges: dict | None = None,
    extras: bool = True,
    **options: Any,
) -> Case:
    """A case with random floats, whose queries are the last of its keys' tokens.

    Args:
        heads: of queries and of keys.
        widths: of keys and of values.
        ranges: of parameters; None: the usual ones.
        extras: whether a temperature and sinks may be drawn.
        options: of `Case`.
    """
    formula = FORMULAS[bias]
    parameters = {}
    for name, (low, high, *shape) in (formula.ranges if ranges is None else ranges).items():
        parameters[name] = rng.uniform(low, high, shape if name in formula.shared else (heads[0], *shape))
    own_i = own_j = None
    if formula.sums:
        high = np.cumsum(rng.uniform(-0.6, -0.05, (batch, heads[0], keys)), -1)
        low = rng.uniform(-1e-4, 1e-4, high.shape)
        own_j = (high, low)
        # Not quite the keys' own: where both are the same, the absolute value has no slope.
        own_i = (high[..., keys - queries :] - 0.01, low[..., keys - queries :])
        if bias in ("cable", "k_cable"):
            own_i = (rng.uniform(0.2, 2, (batch, heads[0], queries)), own_i)
    position = start + np.tile(np.arange(keys), (batch, 1))
    floats = {
        "q": rng.normal(size=(batch, queries, heads[0], widths[0])),
        "k": rng.normal(size=(batch, keys, heads[1], widths[0])),
        "v": rng.normal(size=(batch, keys, heads[1], widths[1])),
        "parameters": parameters,
        "temperature": rng.uniform(0.3, 2, (batch, heads[0], queries)) if extras and rng.random() < 0.3 else None,
        "sinks": rng.normal(size=heads[0]) if extras and rng.random() < 0.3 else None,
        "own_i": own_i,
        "own_j": own_j,
    }
    case = Case(bias, dtype, backend, Tiling(), floats, position[:, keys - queries :].copy(), position, **options)
    case.wide_mode = dtype == "float64"
    return case


def any_case(rng: np.random.Generator) -> Case:
    """A case of "any"."""
    pick = lambda *values: values[rng.integers(len(values))]
    heads = pick((1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (6, 2))
    queries = pick(1, 2, 5, 13, 24)
    keys = queries + pick(0, 0, 1, 7, 16)
    causal = bool(rng.random() < 0.6)
    window = pick(None, None, 1, 3, 8)
    sinks = pick(0, 1, 3) if causal and window is not None else 0
    width = pick(4, 7, 16)
    case = drawn(
        rng,
        queries=queries,
        keys=keys,
        bias=pick(*FORMULAS),
        start=0 if sinks else pick(*STARTS),
        dtype=pick("float32", "float32", "float64", "float64", "bfloat16", "float16"),
        backend=pick("chunked", "chunked", "chunked", "rows", "reference"),
        batch=pick(1, 2),
        heads=heads,
        widths=(width, pick(width, width, 3, 9)),
        causal=causal,
        window=window,
        sink_tokens=sinks,
        scale=pick(None, None, 0.5, -0.3, 1.0),
        soft_cap=pick(None, None, 2.0),
    )
    case.wide_mode |= bool(rng.random() < 0.25)
    if case.backend != "reference" and rng.random() < 0.7:
        case.tiling = Tiling(block_q=pick(1, 4, 8), block_k=pick(3, 8, 16))
    batch = len(case.j)
    rows = pick("whole", "packed", "restarted", "empty behind", "empty in front")
    if rows in ("packed", "restarted"):
        ends = np.sort(rng.integers(0, keys + 1, (batch, 3)))
        index = np.arange(keys)[None]
        segment = 1 + (index[..., None] >= ends[:, None, :2]).sum(-1)
        case.j_segment = np.where(index < ends[:, 2:], segment, 0)  # pads behind the last
        if rows == "restarted":
            first = np.where(segment == 1, 0, np.where(segment == 2, ends[:, :1], ends[:, 1:2]))
            case.j = case.j - first
            case.i = case.j[:, keys - queries :].copy()
        case.i_segment = case.j_segment[:, keys - queries :]
    elif rows == "empty behind":
        case.j[-1, -pick(1, 2) :] = EMPTY
    elif rows == "empty in front":
        case.j[-1, : pick(1, keys)] = EMPTY
        case.i = case.j[:, keys - queries :].copy()
    return rounded(case)


def any_complaint(rng: np.random.Generator) -> tuple[Case, str]:
    """A case of "any", and what is wrong with it."""
    case = any_case(rng)
    with jax.enable_x64(case.wide_mode):
        return case, complaint(case, functools.partial(attended, case), rng)


def decoded_complaint(rng: np.random.Generator) -> tuple[Case, str]:
    """A case of "decoded": a prompt at once, then one token after another, of a cache that may have more slots."""
    pick = lambda *values: values[rng.integers(len(values))]
    length, prompt = 12, pick(1, 5, 8)
    window = pick(None, None, 4)
    start = 0 if window else pick(*STARTS)
    dtype, backend = pick("float32", "float64", "bfloat16"), pick("chunked", "chunked", "rows", "reference")
    sizes = {"queries": length, "keys": length, "batch": pick(1, 2), "heads": pick((2, 2), (4, 2), (3, 1))}
    options = {"window": window, "sink_tokens": pick(0, 2) if window else 0, "soft_cap": pick(None, 2.0)}
    case = drawn(rng, bias=pick(*FORMULAS), start=start, dtype=dtype, backend=backend, **sizes, **options)
    case, slots = rounded(case), length + pick(0, 3)

    def step(cache: Cache, floats: dict, at: Any, size: int) -> tuple[Cache, tuple]:
        take = lambda x, axis: jax.lax.dynamic_slice_in_dim(x, at, size, axis)
        queries, keys = (
            Tokens(take(jnp.asarray(case.j, jnp.int32), 1), None, jax.tree.map(lambda x: take(x, 2), floats[name]))
            for name in ("own_i", "own_j")
        )
        cache = cache.append(take(floats["k"], 1), take(floats["v"], 1), keys)
        temperature = None if floats["temperature"] is None else take(floats["temperature"], 2)
        of_step = scoring(case, {**floats, "temperature": temperature}, (queries, cache.tokens))
        return cache, attention(take(floats["q"], 1), cache.k, cache.v, of_step, backend=case.backend, return_lse=True)

    def attend(floats: dict) -> tuple[jax.Array, jax.Array]:
        tokens = Tokens(jnp.asarray(case.j, jnp.int32), None, floats["own_j"])
        cache, (out, lse) = step(Cache.empty(floats["k"], tokens, slots), floats, 0, prompt)
        one = lambda cache, at: step(cache, floats, at, 1)
        _, (outs, lses) = jax.lax.scan(one, cache, jnp.arange(prompt, length))
        outs, lses = jnp.moveaxis(outs[:, :, 0], 0, 1), jnp.moveaxis(lses[..., 0], 0, 2)
        return jnp.concatenate([out, outs], 1), jnp.concatenate([lse, lses], 2)

    with jax.enable_x64(case.wide_mode):
        return case, complaint(case, attend, rng)


def ring_complaint(rng: np.random.Generator) -> tuple[Case, str]:
    """A case of "ring", on this process's first four devices."""
    pick = lambda *values: values[rng.integers(len(values))]
    length, causal = pick(8, 16, 32), bool(rng.random() < 0.7)
    sizes = {"queries": length, "keys": length, "batch": pick(1, 2), "heads": pick((2, 2), (4, 2))}
    options = {"causal": causal, "window": pick(None, 6), "soft_cap": pick(None, 2.0)}
    backend, dtype = pick("chunked", "chunked", "rows", "reference"), pick("float32", "float64")
    case = drawn(rng, bias=pick(*FORMULAS), start=pick(*STARTS), dtype=dtype, backend=backend, **sizes, **options)
    if rng.random() < 0.4:
        case.i_segment = case.j_segment = np.tile(1 + (np.arange(length) >= length // 3), (len(case.j), 1))
    case.tiling, case = Tiling(block_q=4, block_k=4), rounded(case)
    mesh = jax.make_mesh((DEVICES,), ("context",), devices=jax.devices()[:DEVICES], axis_types=(AxisType.Auto,))
    around = ring(BACKENDS[backend], "context")
    around = zigzag(around, "context") if rng.random() < 0.5 else around
    cut = {"q": 1, "k": 1, "v": 1, "temperature": 2, "own_i": 2, "own_j": 2}
    spec = lambda axis: P() if axis is None else P(*[None] * axis, "context")
    alike = lambda tree, each: jax.tree.map(lambda _: each, tree)
    of_floats = {name: alike(x, spec(cut.get(name))) for name, x in case.floats.items()}
    numbers = {name: getattr(case, name) for name in ("i", "j", "i_segment", "j_segment")}
    of_numbers = alike(numbers, spec(1))

    def part(floats: dict, numbers: dict) -> tuple[jax.Array, jax.Array]:
        return attended(dataclasses.replace(case, **numbers), floats, around)

    attend = jax.shard_map(part, mesh=mesh, in_specs=(of_floats, of_numbers), out_specs=(spec(1), spec(2)))
    with jax.enable_x64(case.wide_mode):
        numbers = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), numbers)
        return case, complaint(case, lambda floats: attend(floats, numbers), rng)


def skipped_complaint(rng: np.random.Generator) -> tuple[Case, str]:
    """A case of "skipped": a few distant keys have as much content as the bias takes from them, give or take some nats."""
    pick = lambda *values: values[rng.integers(len(values))]
    bias, keys, width = pick(*STEEP), 96, 8
    queries = pick(1, 96)
    options = {"window": pick(None, None, 64), "causal": bool(rng.random() < 0.7)}
    sizes = {"queries": queries, "keys": keys, "start": pick(*STARTS), "ranges": STEEP[bias]}
    case = drawn(rng, bias=bias, dtype=pick("float32", "float64"), widths=(width, width), **sizes, **options)
    case.tiling = Tiling(block_q=pick(4, 8), block_k=pick(4, 8))
    floats, axis = case.floats, np.eye(width)[0]
    if bias == "cable":  # a step of the sum as long as several tokens of other texts
        floats["own_i"], floats["own_j"] = jax.tree.map(lambda x: 5 * x, (floats["own_i"], floats["own_j"]))
    strength = rng.uniform(2, 6)
    floats["q"] = 0.1 * floats["q"] + strength * axis
    floats["k"] = 0.1 * floats["k"]
    if rng.random() < 0.3:  # near keys push away, so that nothing is sure of its mass
        floats["k"] -= rng.uniform(0, 2) * axis
    formula = FORMULAS[bias]
    for b, head in np.ndindex(len(case.j), 2):
        for key in rng.integers(0, keys, 4):
            query, h = rng.integers(queries), 2 * head + rng.integers(2)
            down, across = _coordinates(case, floats, b, h)
            i, j = (jax.tree.map(lambda x, at=at: x[at], x) for x, at in ((down, query), (across, key)))
            lost = -float(formula.value({name: x[h] for name, x in floats["parameters"].items()}, i, j))
            floats["k"][b, key, head] = (lost + rng.normal() * 3) * math.sqrt(width) / strength * axis
    case = rounded(case)
    with jax.enable_x64(case.wide_mode):
        return case, complaint(case, functools.partial(attended, case), rng)


TRY = {
    "any": any_complaint,
    "decoded": decoded_complaint,
    "ring": ring_complaint,
    "skipped": skipped_complaint,
}


def tried(kind: str, seed: int, count: int) -> list[str]:
    """A line for each of so many cases of a kind that is wrong."""
    failures = []
    for n in range(count):
        try:
            case, wrong = TRY[kind](np.random.default_rng([list(KINDS).index(kind), seed, n]))
        except Exception as error:
            case, wrong = "", f"{type(error).__name__}: {str(error)[:200]}"
        if wrong:
            failures.append(f"{kind} {seed}.{n}: {wrong} ({case})")
        if n % 20 == 19:
            jax.clear_caches()
    return failures


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Tries so many cases, of each kind its share; see `figures.Figure`."""
    failures, cases = [], {}
    for kind, wanted in KINDS.items():
        cases[kind] = max(1, count * wanted // sum(KINDS.values()))
        if kind == "ring" and jax.device_count() < DEVICES:
            failures += _elsewhere(kind, seed, cases[kind])
        else:
            failures += tried(kind, seed, cases[kind])
    wrong = {kind: sum(line.startswith(f"{kind} ") for line in failures) for kind in KINDS}
    return Outcome(sum(cases.values()), failures, {"cases": cases, "wrong": wrong})


def _elsewhere(kind: str, seed: int, count: int) -> list[str]:
    """`tried` in a process with four devices, since this one has fewer."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, __file__, kind, str(seed), str(count)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


FIGURE = Figure(
    what="random configurations of attention: outputs, normalisers and gradients agree with an independent reference",
    unit="configurations",
    wanted=sum(KINDS.values()),
    part=75,
    short=15,
    minutes=15,
    measure=measure,
)

if __name__ == "__main__":
    print(json.dumps(tried(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
