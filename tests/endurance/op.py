"""Random configurations of attention, compared with an independent reference.

The reference is a few lines of plain JAX in float64: it computes biases, masks and softmax over whole matrices, has its
gradients from JAX, and imports nothing of the package's attention. There are four kinds of cases:

- any: bias, mask, documents, window, sinks, soft cap, temperature, sizes, dtype, backend, and a first position up to 2^30.
- decoded: a prompt and then one token after another from a cache, compared with the whole text.
- ring: a text split over four devices.
- skipped: steep biases in small tiles, with content that outweighs them at distant keys. A wrong bound would lose mass.

Each case compares outputs, log-normalisers, and the gradient of every array.

The parts measured at commit feb934a compared with loops in NumPy, and their gradients with finite differences.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from endurance.figures import Outcome
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bam_jax import biases
from bam_jax.attention import BACKENDS, EMPTY, Cache, Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention.ring import ring, zigzag

WHAT = "random configurations of attention: outputs, normalisers and gradients agree with an independent reference"
KINDS = {"any": 200, "decoded": 40, "ring": 20, "skipped": 40}  # how many there are of each
TOLERANCE = {"float64": (1e-8, 1e-7), "float32": (5e-5, 2e-3), "float16": (5e-3, 3e-2), "bfloat16": (3e-2, 1e-1)}
"""Of results, over the largest or 1; and of an array's gradient, over its length or 1."""
STARTS = (0, 0, 0, 7, 2**24 + 1, 2**26 + 3, 2**30 + 5)
DEVICES = 4
STEPS = (0, 1, 2, 3, 4, 6, 9)  # the first distance of each of T5's buckets


# The biases of a head, by its parameters and two coordinates.


def _ggd(p: dict, i: Any, j: Any) -> Any:
    mu = jnp.exp(p["loc"]) - jnp.exp(-p["loc"])
    return -jnp.minimum(jnp.exp(p["log_scale"]) * (abs(j - i - mu) + 1e-5) ** p["shape"], jnp.exp(9.0))


def _student(p: dict, i: Any, j: Any) -> Any:
    nu = jnp.exp(p["log_freedom"])
    return -(nu + 1) / 2 * jnp.log(1 + ((i - j) / jnp.exp(p["log_width"])) ** 2 / nu)


def _decay(p: dict, i: Any, j: Any) -> Any:
    d = abs(i - j)
    return -(p["linear"] * d + p["logarithmic"] * jnp.log(1 + d) + p["root"] * jnp.sqrt(d))


def _t5(p: dict, i: Any, j: Any) -> Any:
    bucket = lambda d: jnp.maximum(jnp.searchsorted(jnp.asarray(STEPS), d, side="right") - 1, 0)
    if len(p["table"]) == len(STEPS):
        return p["table"][bucket(i - j)]
    return jnp.where(j > i, p["table"][len(STEPS) + bucket(j - i)], p["table"][bucket(i - j)])


def _fire(p: dict, i: Any, j: Any) -> Any:
    psi = lambda x: jnp.log(p["c"] * x + 1)
    progress = psi(abs(i - j)) / psi(jnp.maximum(p["length"], jnp.maximum(i, j)))
    return jnp.maximum(progress[..., None] * p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]


def _apart(i: tuple, j: tuple) -> Any:
    return (i[0] - j[0]) + (i[1] - j[1])


def _sandwich(p: dict, i: Any, j: Any) -> Any:
    return sum(jnp.cos((i - j) / 50.0 ** (2 * n / 6)) - 1 for n in range(3)) / p["compression"]


@dataclasses.dataclass(frozen=True)
class Formula:
    """A bias by its parameters, of which those in `shared` belong to all heads; `sums`: its coordinates are running sums."""

    ranges: dict[str, tuple]
    make: Callable[..., biases.Bias]
    value: Callable[[dict, Any, Any], Any]
    shared: tuple[str, ...] = ()
    sums: bool = False


FORMULAS = {
    "uniform": Formula({}, biases.Uniform, lambda p, i, j: 0 * (i - j)),
    "alibi": Formula({"slope": (0.05, 1)}, biases.ALiBi, lambda p, i, j: -p["slope"] * abs(i - j)),
    "ggd": Formula({"shape": (0.2, 1.6), "log_scale": (-2, 0), "loc": (-1, 1)}, biases.GeneralisedGaussian, _ggd),
    "kerple_log": Formula(
        {"r1": (0.1, 2), "r2": (0.1, 1)}, biases.KerpleLog, lambda p, i, j: -p["r1"] * jnp.log(1 + p["r2"] * abs(i - j))
    ),
    "kerple_power": Formula(
        {"r1": (0.1, 1), "r2": (0.2, 1.5)}, biases.KerplePower, lambda p, i, j: -p["r1"] * abs(i - j) ** p["r2"]
    ),
    "gaussian": Formula(
        {"log_width": (0.5, 3)}, biases.Gaussian, lambda p, i, j: -(((i - j) / jnp.exp(p["log_width"])) ** 2) / 2
    ),
    "student_t": Formula({"log_width": (0, 2), "log_freedom": (-1, 1)}, biases.StudentT, _student),
    "decay": Formula({"linear": (0, 0.5), "logarithmic": (0, 1), "root": (0, 1)}, biases.AdditiveDecay, _decay),
    "sandwich": Formula({"compression": (0.5, 2)}, functools.partial(biases.Sandwich, width=6, base=50.0), _sandwich),
    "t5": Formula({"table": (-1, 1, 7)}, functools.partial(biases.T5, starts=STEPS), _t5),
    "t5_both": Formula({"table": (-1, 1, 14)}, functools.partial(biases.T5, starts=STEPS, bidirectional=True), _t5),
    "t5_distance": Formula(
        {"table": (-1, 1, 6)}, biases.T5Distance, lambda p, i, j: p["table"][jnp.minimum(abs(i - j), 5).astype(int)]
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
    "k_cable": Formula({}, biases.KCABLE, lambda p, i, j: -jnp.log((i[0] * _apart(i[1], j)) ** 2 + 1), sums=True),
    "contextual": Formula(
        {"shape": (0.3, 1.5), "log_scale": (-2, 0)},
        biases.ContextualGaussian,
        lambda p, i, j: -jnp.exp(p["log_scale"]) * (abs(_apart(i, j)) + 1e-5) ** p["shape"],
        sums=True,
    ),
}
STEEP = {"alibi": {"slope": (1, 6)}, "gaussian": {"log_width": (-0.5, 1)}, "ggd": FORMULAS["ggd"].ranges, "cable": {}}
"""The biases of "skipped", and the ranges of their parameters."""


@dataclasses.dataclass
class Case:
    """A configuration."""

    bias: str
    dtype: str
    backend: str
    tiling: Tiling
    floats: dict  # q, k, v, parameters, temperature, sinks, coordinates: float64, of which gradients are taken
    i: np.ndarray  # positions [B, T]; `EMPTY`: no token
    j: np.ndarray  # [B, S]
    i_segment: np.ndarray | None = None  # documents
    j_segment: np.ndarray | None = None
    causal: bool = True
    window: int | None = None
    sink_tokens: int = 0
    scale: float | None = None
    soft_cap: float | None = None
    wide_mode: bool = False

    def __str__(self) -> str:
        floats = {name: self.floats[name].shape for name in "qkv"}
        own = [name for name in ("temperature", "sinks") if self.floats[name] is not None]
        mask = f"causal={self.causal}, window={self.window}, sinks={self.sink_tokens}, cap={self.soft_cap}"
        packed = ", packed" if self.i_segment is not None else ""
        return (
            f"{self.bias} {self.dtype} {self.backend} {self.tiling} {floats}, {mask}{packed}, from {self.i.min()} {own}"
        )


def expected(case: Case, floats: dict) -> tuple[jax.Array, jax.Array]:
    """The reference: outputs [B, T, H, E] and log-normalisers [B, H, T], -inf of rows that see nothing."""
    heads = floats["q"].shape[2]
    k, v = (jnp.repeat(floats[name], heads // floats[name].shape[2], 2) for name in "kv")
    scale = 1 / math.sqrt(k.shape[3]) if case.scale is None else case.scale
    scores = scale * jnp.einsum("bthe,bshe->bhts", floats["q"], k)
    if case.soft_cap is not None:
        scores = case.soft_cap * jnp.tanh(scores / case.soft_cap)
    logits = scores + bias_of(case, floats)
    if floats["temperature"] is not None:
        logits = logits * floats["temperature"][..., None]
    seen = jnp.asarray(visible(case))[:, None]
    if floats["sinks"] is not None:
        sinks = jnp.broadcast_to(floats["sinks"][:, None, None], (*logits.shape[:3], 1))
        logits, seen = jnp.concatenate([logits, sinks], 3), jnp.pad(seen, [(0, 0)] * 3 + [(0, 1)], constant_values=True)
    top = jnp.where(seen, logits, -1e300).max(3, keepdims=True)
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, logits - top, 0)), 0)
    total = weights.sum(3)
    some = jnp.where(total > 0, total, 1)
    lse = jnp.where(total > 0, top[..., 0] + jnp.log(some), -jnp.inf)
    return jnp.einsum("bhts,bshe->bthe", weights[..., : k.shape[1]] / some[..., None], v), lse


def bias_of(case: Case, floats: dict) -> jax.Array:
    """The bias of every head, query and key, [B, H, T, S]."""
    formula, (i, j) = FORMULAS[case.bias], coordinates(case, floats)
    heads = jax.vmap(formula.value, ({name: None if name in formula.shared else 0 for name in formula.ranges}, 0, 0))
    down, across = (jax.tree.map(lambda x, at=at: jnp.expand_dims(x, at), x) for x, at in ((i, -1), (j, -2)))
    return jax.vmap(heads, (None, 0, 0))(floats["parameters"], down, across)


def coordinates(case: Case, floats: dict) -> tuple[Any, Any]:
    """What the bias compares, [B, H, T] and [B, H, S] or tuples of such."""
    if FORMULAS[case.bias].sums:
        return floats["own_i"], floats["own_j"]
    # A hidden pair may have any bias.
    known = lambda x: np.where(x < EMPTY, x, case.i.min()).astype(float)[:, None]
    return tuple(np.repeat(known(x), floats["q"].shape[2], 1) for x in (case.i, case.j))


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
    of_results, of_gradients = TOLERANCE[case.dtype]
    seen = visible(case).any(2)[:, None] | (case.floats["sinks"] is not None)
    shape = (*case.floats["q"].shape[:3], case.floats["v"].shape[3])
    seen = np.broadcast_to(seen, (shape[0], shape[2], shape[1]))
    d_out = rng.normal(size=shape).astype(jnp.dtype(case.dtype))
    d_lse = np.where(seen, rng.normal(size=seen.shape), 0).astype(np.float32)

    def results(function: Callable, floats: dict) -> tuple[np.ndarray, np.ndarray, dict]:
        @jax.jit
        def run(floats: dict, d_out: jax.Array, d_lse: jax.Array) -> tuple:
            (out, lse), vjp = jax.vjp(function, floats)
            return out, lse, vjp((d_out.astype(out.dtype), d_lse.astype(lse.dtype)))[0]

        return jax.tree.map(lambda x: np.asarray(x, np.float64), run(floats, d_out, d_lse))

    with jax.enable_x64(case.wide_mode):
        out, lse, gradients = results(attend, typed(case, case.floats))
    wanted_out, wanted_lse, wanted = results(functools.partial(expected, case), case.floats)
    if wrong := _far(out, wanted_out, of_results):
        return f"output {wrong}"
    if (lse[~seen] > -1e29).any() or (wrong := _far(lse[seen], wanted_lse[seen], of_results)):
        return f"normalisers {wrong}"
    for (path, right), gradient in zip(jax.tree.leaves_with_path(wanted), jax.tree.leaves(gradients), strict=True):
        error = np.linalg.norm(gradient - right) / max(1, np.linalg.norm(right))
        if not error <= of_gradients:  # NaN is too far, too
            return f"gradient of {jax.tree_util.keystr(path)} errs by {error:.2g}"
    return ""


def _far(made: np.ndarray, wanted: np.ndarray, tolerance: float) -> str:
    """How far two arrays are apart, where it is too far."""
    if made.shape != wanted.shape:
        return f"{made.shape}, not {wanted.shape}"
    error = np.abs(made - wanted).max(initial=0) / max(1, np.abs(wanted).max(initial=0))
    return "" if error <= tolerance else f"errs by {error:.2g}"


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
    heads: tuple[int, int] = (4, 2),  # of queries and of keys
    widths: tuple[int, int] = (8, 8),  # of keys and of values
    ranges: dict | None = None,
    **options: Any,
) -> Case:
    """A case with random floats, whose queries are the last of its keys' tokens; ranges of parameters, options of `Case`."""
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
        "temperature": rng.uniform(0.3, 2, (batch, heads[0], queries)) if rng.random() < 0.3 else None,
        "sinks": rng.normal(size=heads[0]) if rng.random() < 0.3 else None,
        "own_i": own_i,
        "own_j": own_j,
    }
    case = Case(bias, dtype, backend, Tiling(), floats, position[:, keys - queries :].copy(), position, **options)
    case.wide_mode = dtype == "float64"
    return case


Attend = Callable[[dict], tuple[jax.Array, jax.Array]]


def any_case(rng: np.random.Generator) -> tuple[Case, Attend]:
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
    case = rounded(case)
    return case, functools.partial(attended, case)


def decoded_case(rng: np.random.Generator) -> tuple[Case, Attend]:
    """A prompt at once, then one token after another, of a cache that may have more slots."""
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

    return case, attend


def ring_case(rng: np.random.Generator) -> tuple[Case, Attend]:
    """A text on this process's first four devices."""
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
    numbers = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), numbers)
    return case, lambda floats: attend(floats, numbers)


def skipped_case(rng: np.random.Generator) -> tuple[Case, Attend]:
    """A few distant keys have as much content as the bias takes from them, give or take some nats."""
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
    lost = -np.asarray(bias_of(case, floats))
    for b, head in np.ndindex(len(case.j), 2):
        for key in rng.integers(0, keys, 4):
            query, h = rng.integers(queries), 2 * head + rng.integers(2)
            content = lost[b, h, query, key] + rng.normal() * 3
            floats["k"][b, key, head] = content * math.sqrt(width) / strength * axis
    case = rounded(case)
    return case, functools.partial(attended, case)


MAKE = {"any": any_case, "decoded": decoded_case, "ring": ring_case, "skipped": skipped_case}


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Tries so many cases, of each kind its share."""
    outcome, cases, wrong = Outcome(), {}, dict.fromkeys(KINDS, 0)
    for number, (kind, wanted) in enumerate(KINDS.items()):
        cases[kind] = max(1, count * wanted // sum(KINDS.values()))
        for n in range(cases[kind]):
            rng, case = np.random.default_rng([number, seed, n]), None
            try:
                with jax.enable_x64(True):
                    case, attend = MAKE[kind](rng)
                    found = complaint(case, attend, rng)
            except Exception as error:
                found = f"{type(error).__name__}: {str(error)[:200]}"
            wrong[kind] += bool(found)
            outcome.add(f"{kind} {seed}.{n} ({case})", found)
            if n % 20 == 19:
                jax.clear_caches()
    outcome.more = {"cases": cases, "wrong": wrong}
    return outcome
