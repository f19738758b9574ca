"""Random configurations of attention."""

import dataclasses
import functools
import math
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

KINDS = {"any": 200, "decoded": 40, "ring": 20, "skipped": 40}  # how many there are of each
TOLERANCE = {"float64": (1e-8, 1e-7), "float32": (5e-5, 2e-3), "float16": (5e-3, 3e-2), "bfloat16": (3e-2, 1e-1)}
"""Of results, over the largest or 1; and of an array's gradient, over its norm or 1."""
STARTS = (0, 0, 0, 7, 2**24 + 1, 2**26 + 3, 2**30 + 5)
DEVICES = 4
T5_STARTS = (0, 1, 2, 3, 4, 6, 9)
GGD = {"shape": (0.2, 1.6), "log_scale": (-2, 0), "loc": (-1, 1)}
FIRE = {"w2": (-2, 2, 3), "b2": (-1, 1), "w1": (-1, 9, 3), "b1": (-1, 1, 3), "c": (0.2, 2), "length": (5, 20)}
BIASES = {
    "uniform": (biases.Uniform, {}),
    "alibi": (biases.ALiBi, {"slope": (0.05, 1)}),
    "ggd": (biases.GeneralisedGaussian, GGD),
    "kerple_log": (biases.KerpleLog, {"r1": (0.1, 2), "r2": (0.1, 1)}),
    "kerple_power": (biases.KerplePower, {"r1": (0.1, 1), "r2": (0.2, 1.5)}),
    "gaussian": (biases.Gaussian, {"log_width": (0.5, 3)}),
    "student_t": (biases.StudentT, {"log_width": (0, 2), "log_freedom": (-1, 1)}),
    "decay": (biases.AdditiveDecay, {"linear": (0, 0.5), "logarithmic": (0, 1), "root": (0, 1)}),
    "sandwich": (functools.partial(biases.Sandwich, width=6, base=50.0), {"compression": (0.5, 2)}),
    "t5": (functools.partial(biases.T5, starts=T5_STARTS), {"table": (-1, 1, 7)}),
    "t5_both": (functools.partial(biases.T5, starts=T5_STARTS, bidirectional=True), {"table": (-1, 1, 14)}),
    "t5_distance": (biases.T5Distance, {"table": (-1, 1, 6)}),
    "fire": (biases.FIRE, FIRE),
    "difference": (biases.Difference, {}),
    "distance": (functools.partial(biases.Difference, symmetric=True), {}),
    "cable": (biases.CABLE, {}),
    "k_cable": (biases.KCABLE, {}),
    "contextual": (biases.ContextualGaussian, {"shape": (0.3, 1.5), "log_scale": (-2, 0)}),
}
"""Each bias with the ranges of its parameters: lowest, highest, and a shape."""
SHARED = ("w1", "b1", "c", "length")  # parameters of FIRE that all heads share
SUMS = ("difference", "distance", "cable", "k_cable", "contextual")  # biases of running sums
STEEP = {"alibi": {"slope": (1, 6)}, "gaussian": {"log_width": (-0.5, 1)}, "ggd": GGD, "cable": {}}
"""The biases of "skipped", and the ranges of their parameters."""


@dataclasses.dataclass
class Case:
    """A configuration; all floats are float64, with values that the case's dtypes hold."""

    bias: str
    dtype: str  # of q, k and v; the other floats are float64 beside float64, else float32
    backend: str
    tiling: Tiling
    x64: bool
    arrays: tuple[Any, Any, Any, Scoring]  # q, k, v and how they are scored

    def __post_init__(self):
        self.arrays = _cast(self.typed(), np.float64)

    def typed(self):
        *qkv, scoring = self.arrays
        narrow = tuple(x.astype(jnp.dtype(self.dtype)) for x in qkv)
        return *narrow, _cast(scoring, np.float64 if self.dtype == "float64" else np.float32)

    def __str__(self):
        *qkv, scoring = self.arrays
        has = [name for name in ("temperature", "sink_logits", "soft_cap") if getattr(scoring, name) is not None]
        settings = (
            f"{self.bias} {self.dtype} {self.backend} {self.tiling} {[x.shape for x in qkv]} {scoring.mask} {has}"
        )
        return f"{settings} packed={scoring.keys.segment is not None} from {scoring.queries.position.min()}"


def _cast(tree, dtype):
    return jax.tree.map(lambda x: x if np.issubdtype(x.dtype, np.integer) else x.astype(dtype), tree)


def reference(q, k, v, scoring):
    """Outputs [B, T, H, E] and log-normalisers [B, H, T], -inf of rows that see nothing."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scale = 1 / math.sqrt(k.shape[3]) if scoring.scale is None else scoring.scale
    scores = scale * jnp.einsum("bthe,bshe->bhts", q, k)
    if scoring.soft_cap is not None:
        scores = scoring.soft_cap * jnp.tanh(scores / scoring.soft_cap)
    logits = scores + bias_of(scoring)
    if scoring.temperature is not None:
        logits = logits * scoring.temperature[..., None]
    seen = jnp.asarray(visible(scoring))[:, None]
    if scoring.sink_logits is not None:
        sinks = jnp.broadcast_to(scoring.sink_logits[:, None, None], (*logits.shape[:3], 1))
        logits, seen = jnp.concatenate([logits, sinks], 3), jnp.pad(seen, [(0, 0)] * 3 + [(0, 1)], constant_values=True)
    top = jnp.where(seen, logits, -1e300).max(3, keepdims=True)
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, logits - top, 0)), 0)
    total = weights.sum(3)
    some = jnp.where(total > 0, total, 1)
    lse = jnp.where(total > 0, top[..., 0] + jnp.log(some), -jnp.inf)
    return jnp.einsum("bhts,bshe->bthe", weights[..., : k.shape[1]] / some[..., None], v), lse


def bias_of(scoring):
    """The bias of every query and key; of an empty place any."""
    own = lambda x: np.where(x.position < EMPTY, x.position, 0).astype(float)[:, None]
    i, j = (own(x) if x.coordinate is None else x.coordinate for x in (scoring.queries, scoring.keys))
    return biases.table(scoring.bias, i, j)


def visible(scoring):
    """The keys that each query sees, [B, T, S]."""
    queries, keys, mask = scoring.queries, scoring.keys, scoring.mask
    i, j = queries.position.astype(np.int64)[:, :, None], keys.position.astype(np.int64)[:, None]
    seen = (i < EMPTY) & (j < EMPTY)
    if mask.causal:
        seen &= j <= i
    if mask.window is not None:
        seen &= (abs(i - j) < mask.window) | (j < mask.sink_tokens)
    if keys.segment is not None:
        seen &= (queries.segment[:, :, None] == keys.segment[:, None]) & (keys.segment > 0)[:, None]
    return seen


def results(attend, arrays, d_out, d_lse):
    """Outputs, log-normalisers, and the gradient of every array of floats by its path."""
    leaves, tree = jax.tree.flatten(arrays)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(arrays)]
    named = dict(zip(paths, leaves, strict=True))

    @jax.jit
    def run(floats, d_out, d_lse):
        whole = lambda floats: attend(*jax.tree.unflatten(tree, (named | floats).values()))
        (out, lse), vjp = jax.vjp(whole, floats)
        return out, lse, vjp((d_out.astype(out.dtype), d_lse.astype(lse.dtype)))[0]

    floats = {path: x for path, x in named.items() if not np.issubdtype(x.dtype, np.integer)}
    return jax.tree.map(lambda x: np.asarray(x, np.float64), run(floats, d_out, d_lse))


def complaint(case, attend, rng):
    """What is wrong with outputs, normalisers or gradients of a case; "" where nothing is."""
    of_results, of_gradients = TOLERANCE[case.dtype]
    q, _, v, scoring = case.arrays
    seen = visible(scoring).any(2)[:, None] | (scoring.sink_logits is not None)
    seen = np.broadcast_to(seen, (q.shape[0], q.shape[2], q.shape[1]))
    d_out = rng.normal(size=(*q.shape[:3], v.shape[3])).astype(jnp.dtype(case.dtype))
    d_lse = np.where(seen, rng.normal(size=seen.shape), 0).astype(np.float32)
    with jax.enable_x64(case.x64):
        out, lse, gradients = results(attend, case.typed(), d_out, d_lse)
    wanted_out, wanted_lse, wanted = results(reference, case.arrays, d_out, d_lse)
    if wrong := _far(out, wanted_out, of_results):
        return f"output {wrong}"
    if (lse[~seen] > -1e29).any() or (wrong := _far(lse[seen], wanted_lse[seen], of_results)):
        return f"normalisers {wrong}"
    for path, right in wanted.items():
        error = np.linalg.norm(gradients[path] - right) / max(1, np.linalg.norm(right))
        if not error <= of_gradients:  # NaN is too far, too
            return f"gradient of {path} errs by {error:.2g}"
    return ""


def _far(made, wanted, tolerance):
    """How far two arrays are apart, where it is too far."""
    if made.shape != wanted.shape:
        return f"{made.shape}, not {wanted.shape}"
    error = np.abs(made - wanted).max(initial=0) / max(1, np.abs(wanted).max(initial=0))
    return "" if error <= tolerance else f"errs by {error:.2g}"


def drawn(
    rng,
    *,
    queries,
    keys,
    bias,
    batch,
    heads,  # of queries and of keys
    widths=(8, 8),  # of keys and of values
    start=0,
    rows="whole",
    ranges=None,
    mask=None,
    **options,
):
    """Random q, k and v, and a scoring with options of `Scoring`; the queries are the last of the keys' tokens."""
    make, usual = BIASES[bias]
    parameters = {
        name: rng.uniform(low, high, shape if name in SHARED else (heads[0], *shape))
        for name, (low, high, *shape) in (usual if ranges is None else ranges).items()
    }
    own_i = own_j = None
    if bias in SUMS:
        high = np.cumsum(rng.uniform(-0.6, -0.05, (batch, heads[0], keys)), -1)
        low = rng.uniform(-1e-4, 1e-4, high.shape)
        own_j = (high, low)
        # Not quite the keys' own: where both are the same, the absolute value has no slope.
        own_i = (high[..., keys - queries :] - 0.01, low[..., keys - queries :])
        if bias in ("cable", "k_cable"):
            own_i = (rng.uniform(0.2, 2, (batch, heads[0], queries)), own_i)

    position, segment = start + np.tile(np.arange(keys, dtype=np.int32), (batch, 1)), None
    if rows in ("packed", "restarted"):
        ends = np.sort(rng.integers(0, keys + 1, (batch, 3)))
        index = np.arange(keys)[None]
        number = 1 + (index[..., None] >= ends[:, None, :2]).sum(-1)
        segment = np.where(index < ends[:, 2:], number, 0).astype(np.int32)  # pads behind the last
        if rows == "restarted":
            position = position - np.choose(number - 1, [0, ends[:, :1], ends[:, 1:2]]).astype(np.int32)
    elif rows == "empty in front":
        position[-1, : rng.choice([1, keys])] = EMPTY
    last = lambda x: None if x is None else x[:, keys - queries :].copy()
    of_queries = Tokens(last(position), last(segment), own_i)
    if rows == "empty behind":
        position[-1, -rng.choice([1, 2]) :] = EMPTY

    normal = lambda *shape: rng.normal(size=shape)
    temperature = rng.uniform(0.3, 2, (batch, heads[0], queries)) if rng.random() < 0.3 else None
    sinks = normal(heads[0]) if rng.random() < 0.3 else None
    scoring = Scoring(
        make(**parameters), of_queries, Tokens(position, segment, own_j), temperature, mask or Mask(), **options
    )
    q, k, v = (
        normal(batch, rows, *of)
        for rows, of in ((queries, (heads[0], widths[0])), (keys, (heads[1], widths[0])), (keys, (heads[1], widths[1])))
    )
    return q, k, v, dataclasses.replace(scoring, sink_logits=sinks)


def attends(case):
    return functools.partial(attention, backend=case.backend, tiling=case.tiling, return_lse=True)


def any_case(rng, pick):
    queries, causal, window, width = (
        pick(1, 2, 5, 13, 24),
        rng.random() < 0.6,
        pick(None, None, 1, 3, 8),
        pick(4, 7, 16),
    )
    sinks = pick(0, 1, 3) if causal and window is not None else 0
    bias, dtype = pick(*BIASES), pick("float32", "float32", "float64", "float64", "bfloat16", "float16")
    arrays = drawn(
        rng,
        queries=queries,
        keys=queries + pick(0, 0, 1, 7, 16),
        bias=bias,
        batch=pick(1, 2),
        heads=pick((1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (6, 2)),
        widths=(width, pick(width, width, 3, 9)),
        start=0 if sinks else pick(*STARTS),
        rows=pick("whole", "packed", "restarted", "empty behind", "empty in front"),
        mask=Mask(causal=bool(causal), window=window, sink_tokens=sinks),
        scale=pick(None, None, 0.5, -0.3, 1.0),
        soft_cap=pick(None, None, 2.0),
    )
    backend = pick("chunked", "chunked", "chunked", "rows", "reference")
    small = backend != "reference" and rng.random() < 0.7
    tiling = Tiling(block_q=pick(1, 4, 8), block_k=pick(3, 8, 16)) if small else Tiling()
    case = Case(bias, dtype, backend, tiling, dtype == "float64" or bool(rng.random() < 0.25), arrays)
    return case, attends(case)


def decoded_case(rng, pick):
    """A prompt at once, then one token after another, of a cache that may have more slots."""
    length, prompt, slots, window = 12, pick(1, 5, 8), 12 + pick(0, 3), pick(None, None, 4)
    bias, dtype = pick(*BIASES), pick("float32", "float64", "bfloat16")
    sizes = {"queries": length, "keys": length, "batch": pick(1, 2), "heads": pick((2, 2), (4, 2), (3, 1))}
    mask = Mask(window=window, sink_tokens=pick(0, 2) if window else 0)
    start = 0 if window else pick(*STARTS)
    arrays = drawn(rng, bias=bias, start=start, mask=mask, soft_cap=pick(None, 2.0), **sizes)
    backend = pick("chunked", "chunked", "rows", "reference")
    case = Case(bias, dtype, backend, Tiling(), dtype == "float64", arrays)

    def attend(q, k, v, scoring):
        def step(cache, at, size=1):
            take = lambda tree, axis: jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, at, size, axis), tree)
            side = lambda of: Tokens(take(of.position, 1), None, take(of.coordinate, 2))
            cache = cache.append(take(k, 1), take(v, 1), side(scoring.keys))
            now = {"queries": side(scoring.queries), "keys": cache.tokens, "temperature": take(scoring.temperature, 2)}
            return cache, attends(case)(take(q, 1), cache.k, cache.v, dataclasses.replace(scoring, **now))

        cache, (out, lse) = step(Cache.empty(k, jax.tree.map(jnp.asarray, scoring.keys), slots), 0, prompt)
        _, (outs, lses) = jax.lax.scan(step, cache, jnp.arange(prompt, length))
        outs, lses = jnp.moveaxis(outs[:, :, 0], 0, 1), jnp.moveaxis(lses[..., 0], 0, 2)
        return jnp.concatenate([out, outs], 1), jnp.concatenate([lse, lses], 2)

    return case, attend


def ring_case(rng, pick):
    """A text on this process's first four devices."""
    length, bias, dtype = pick(8, 16, 32), pick(*BIASES), pick("float32", "float64")
    sizes = {"queries": length, "keys": length, "batch": pick(1, 2), "heads": pick((2, 2), (4, 2))}
    mask, rows = Mask(causal=bool(rng.random() < 0.7), window=pick(None, 6)), pick("whole", "packed")
    *qkv, scoring = drawn(rng, bias=bias, start=pick(*STARTS), rows=rows, mask=mask, soft_cap=pick(None, 2.0), **sizes)
    backend = pick("chunked", "chunked", "rows", "reference")
    case = Case(bias, dtype, backend, Tiling(block_q=4, block_k=4), dtype == "float64", (*qkv, scoring))
    around = ring(BACKENDS[backend], "context")
    around = zigzag(around, "context") if rng.random() < 0.5 else around
    mesh = jax.make_mesh((DEVICES,), ("context",), devices=jax.devices()[:DEVICES], axis_types=(AxisType.Auto,))
    cut = lambda tree, axis: jax.tree.map(lambda _: P(*[None] * axis, "context"), tree)
    side = lambda tokens: dataclasses.replace(cut(tokens, 1), coordinate=cut(tokens.coordinate, 2))
    specs = dataclasses.replace(
        jax.tree.map(lambda _: P(), scoring),
        queries=side(scoring.queries),
        keys=side(scoring.keys),
        temperature=cut(scoring.temperature, 2),
    )
    part = functools.partial(attention, backend=around, tiling=case.tiling, return_lse=True)
    out_specs = (P(None, "context"), P(None, None, "context"))
    return case, jax.shard_map(part, mesh=mesh, in_specs=(*cut(tuple(qkv), 1), specs), out_specs=out_specs)


def skipped_case(rng, pick):
    """A few distant keys have as much content as the bias takes from them, give or take some nats."""
    bias, keys, width, queries = pick(*STEEP), 96, 8, pick(1, 96)
    mask = Mask(causal=bool(rng.random() < 0.7), window=pick(None, None, 64))
    sizes = {"queries": queries, "keys": keys, "batch": 1, "heads": (4, 2), "start": pick(*STARTS)}
    q, k, v, scoring = drawn(rng, bias=bias, ranges=STEEP[bias], mask=mask, **sizes)
    if bias == "cable":  # a step of the sum as long as several tokens of other texts
        steeper = lambda of: dataclasses.replace(of, coordinate=jax.tree.map(lambda x: 5 * x, of.coordinate))
        scoring = dataclasses.replace(scoring, queries=steeper(scoring.queries), keys=steeper(scoring.keys))
    axis, strength = np.eye(width)[0], rng.uniform(2, 6)
    q, k = 0.1 * q + strength * axis, 0.1 * k
    if rng.random() < 0.3:  # near keys push away, so that nothing is sure of its mass
        k -= rng.uniform(0, 2) * axis
    lost = np.broadcast_to(-np.asarray(bias_of(scoring)), (1, 4, queries, keys))
    for head in range(2):
        for key in rng.integers(0, keys, 4):
            content = lost[0, 2 * head + rng.integers(2), rng.integers(queries), key] + rng.normal() * 3
            k[0, key, head] = content * math.sqrt(width) / strength * axis
    tiling, dtype = Tiling(block_q=pick(4, 8), block_k=pick(4, 8)), pick("float32", "float64")
    case = Case(bias, dtype, "chunked", tiling, dtype == "float64", (q, k, v, scoring))
    return case, attends(case)


MAKE = {"any": any_case, "decoded": decoded_case, "ring": ring_case, "skipped": skipped_case}


def op(seed, count, folder):
    """Random configurations of attention: outputs, normalisers and gradients agree with an independent reference."""
    outcome, cases, wrong = Outcome(), {}, dict.fromkeys(KINDS, 0)
    for number, (kind, wanted) in enumerate(KINDS.items()):
        cases[kind] = max(1, count * wanted // sum(KINDS.values()))
        for n in range(cases[kind]):
            rng, case = np.random.default_rng([number, seed, n]), None
            try:
                with jax.enable_x64(True):
                    case, attend = MAKE[kind](rng, lambda *values, rng=rng: values[rng.integers(len(values))])
                    found = complaint(case, attend, rng)
            except Exception as error:
                found = f"{type(error).__name__}: {str(error)[:200]}"
            wrong[kind] += bool(found)
            outcome.add(f"{kind} {seed}.{n} ({case})", found)
            if n % 20 == 19:
                jax.clear_caches()
    outcome.more = {"cases": cases, "wrong": wrong}
    return outcome
