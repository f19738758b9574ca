"""Checks of the arguments of attention before anything is computed; each error is one line."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bam_jax.attention.logits.dropout import Dropout
from bam_jax.attention.logits.mask import Mask
from bam_jax.attention.logits.scoring import Scoring
from bam_jax.attention.logits.tokens import Tokens
from bam_jax.biases import Bias, Entmax, Relative
from bam_jax.biases.base import compares_pairs, trial

_DTYPES = ("bfloat16", "float16", "float32", "float64")


def check(q: Array, k: Array, v: Array, scoring: Scoring) -> None:
    """Reject arguments of `attention` that do not match each other."""
    for name, x in {"q": q, "k": k, "v": v}.items():
        check_array(name, x)
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if not {q.dtype.name, k.dtype.name, v.dtype.name} <= set(_DTYPES):
        dtypes = f"q {q.dtype}, k {k.dtype}, v {v.dtype}"
        raise ValueError(f"attention takes q, k and v of {', '.join(_DTYPES)}, got {dtypes} of shapes {shapes}")
    if not (isinstance(scoring, Scoring) and isinstance(scoring.mask, Mask)):
        raise ValueError("scoring is a Scoring(bias, queries, keys), whose mask is a Mask")
    if not isinstance(scoring.bias, Bias):
        raise ValueError(
            f"scoring.bias is a Bias, such as biases.Uniform() for none, got {type(scoring.bias).__name__}"
        )
    _check_fields(scoring.bias)
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise ValueError(f"attention takes q [B, T, H, D] and k, v [B, S, K, D], got {shapes}")
    if q.shape[3] == 0:
        raise ValueError(f"heads are at least 1 wide: {shapes}")
    same = k.shape[:3] == v.shape[:3] and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not same or k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(
            "k and v must be alike but for their widths, k share B and D with q, and have a head count that divides q's: "
            f"{shapes}"
        )
    _check_tokens(q, k, scoring, shapes)
    _check_numbers(scoring)
    _check_heads(q, scoring, shapes)
    if scoring.dropout is not None:
        _check_dropout(scoring.dropout, (q.shape[0], q.shape[2]))
    _check_coordinates(scoring)


def check_array(name: str, x: Any) -> None:
    """Reject anything that is not an array."""
    if not hasattr(x, "dtype"):
        raise TypeError(f"{name} must be an array, not {type(x).__name__}; give jnp.asarray(...)")


def _check_fields(bias: Bias) -> None:
    """Check that a bias is a pytree of float arrays, its parameters, and that its static fields are hashable."""
    name = type(bias).__name__
    if "__dataclass_fields__" not in vars(type(bias)):
        raise TypeError(f"the class {name} is no bias yet; put @biases.bias above it")
    for field in dataclasses.fields(bias):  # type: ignore[arg-type]  # every bias is one
        value, said = getattr(bias, field.name), f"{field.name} of {name}"
        if field.metadata.get("static"):
            try:
                hash(value)
            except TypeError as error:  # jit would have to compare it with the previous call's value
                raise TypeError(
                    f"{said} is static, so it must be a Python value that can be hashed, not {type(value).__name__}; an "
                    "array is declared without static()"
                ) from error
        elif isinstance(value, list):
            check_array(said, value)
        else:
            for leaf in jax.tree.leaves(value):
                if not hasattr(leaf, "dtype") and not isinstance(leaf, int | float):
                    raise TypeError(f"{said} must be an array, not {type(leaf).__name__}; or declare it with static()")
                _check_floats(said, leaf, "jnp.float32, or declare it with static()")


def _check_floats(name: str, x: Any, remedy: str) -> None:
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"{name} must hold floats, not {dtype}; give {remedy}")


def check_range(name: str, x: Any) -> None:
    """Raise ValueError if NumPy's int64 numbers would wrap when JAX narrows them to int32."""
    if isinstance(x, np.ndarray) and x.size and jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
        farthest = x.flat[np.abs(x).argmax()]
        if abs(int(farthest)) > np.iinfo(np.int32).max:
            raise ValueError(f"{name} holds {farthest}, beyond int32; count from a nearer start, or set jax_enable_x64")


def is_finite(x: Any) -> bool:
    """Whether x is a finite Python number."""
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def _check_tokens(q: Array, k: Array, scoring: Scoring, shapes: str) -> None:
    batch, _, heads, _ = q.shape
    for side, tokens, length in (("queries", scoring.queries, q.shape[1]), ("keys", scoring.keys, k.shape[1])):
        if not isinstance(tokens, Tokens):
            raise ValueError(f"scoring.{side} is a Tokens(position, ...), got {type(tokens).__name__}")
        check_array(f"scoring.{side}: position", tokens.position)
        named = {name: getattr(tokens, name) for name in ("position", "segment", "sees_from", "sees_to")}
        arrays = {name: x for name, x in named.items() if x is not None}
        for name, x in arrays.items():
            check_array(f"scoring.{side}: {name}", x)
            # Other integers wrap around when compared with -1 or with an empty slot's position.
            if not (jnp.issubdtype(x.dtype, jnp.signedinteger) and x.dtype.itemsize >= 4):
                raise ValueError(f"scoring.{side} counts tokens: {name} holds int32 or int64, got {x.dtype}")
            check_range(f"scoring.{side}: {name}", x)
        numbers = [(x, (batch, length), "[#B, T]") for x in arrays.values()]
        coordinates = [(x, (batch, heads, length), "[#B, #H, T]") for x in jax.tree.leaves(tokens.coordinate)]
        for x, sizes, axes in numbers + coordinates:
            alike = len(x.shape) == len(sizes) and all(n in (1, size) for n, size in zip(x.shape, sizes, strict=True))
            if not alike or x.shape[-1] != length:
                raise ValueError(f"scoring.{side} holds an array {x.shape}, not {axes} of {length} tokens in {shapes}")


def _check_numbers(scoring: Scoring) -> None:
    for name in ("temperature", "sink_logits"):
        if getattr(scoring, name) is not None:
            check_array(f"scoring.{name}", getattr(scoring, name))
    for name in ("temperature", "rowwise", "sink_logits"):
        for leaf in jax.tree.leaves(getattr(scoring, name)):
            _check_floats(f"scoring.{name}", leaf, "jnp.float32")
    if isinstance(scoring.rowwise, Entmax):
        for name in ("temperature", "sink_logits"):
            if getattr(scoring, name) is not None:
                raise ValueError(
                    f"Entmax makes weights, not logits that scoring.{name} could change; scale the queries"
                )
    if scoring.scale is not None and not is_finite(scoring.scale):
        raise ValueError(f"scoring.scale is None or a finite number of Python's, got {scoring.scale!r}")
    if scoring.soft_cap is not None and not (is_finite(scoring.soft_cap) and scoring.soft_cap > 0):
        raise ValueError(f"scoring.soft_cap is None or a number of Python's above 0, got {scoring.soft_cap!r}")


def _check_dropout(dropout: Any, heads: tuple[int, int]) -> None:
    if not isinstance(dropout, Dropout):
        raise TypeError(f"scoring.dropout is a Dropout(rate, seed), got {dropout!r:.100}")
    rate, seed = dropout.rate, dropout.seed
    if not (is_finite(rate) and 0 <= rate < 1):
        raise ValueError(f"dropout's rate is a number of Python's from 0 to below 1, got {rate!r:.100}")
    if rate == 0:
        return
    if seed is None:
        raise ValueError(f"dropout's rate {rate} needs a seed: an integer or a key, such as jax.random.key(0)")
    shape = jnp.shape(seed)
    if not isinstance(seed, int):
        check_array("dropout's seed", seed)
        key = jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)
        if not (key or jnp.issubdtype(seed.dtype, jnp.integer)):
            raise ValueError(f"dropout's seed is an integer or a key of jax.random, not {seed.dtype}")
        if shape and (key or shape != heads):
            raise ValueError(
                f"dropout's seed {shape} is neither one number or key, nor numbers [B, H] = {list(heads)}; "
                "of a raw key give jax.random.bits(key)"
            )
    if not shape and jax.sharding.get_abstract_mesh().manual_axes:
        raise ValueError(
            "inside jax.shard_map, where devices count their rows and heads from 0, dropout's seed is numbers [B, H]; call "
            "Dropout(rate, seed).per_head(B, H) outside, and cut its seeds as q is cut"
        )


def _check_heads(q: Array, scoring: Scoring, shapes: str) -> None:
    heads, temperature = q.shape[2], scoring.temperature
    _check_parameters(scoring.bias, heads)
    if scoring.sink_logits is not None and scoring.sink_logits.shape != (heads,):
        raise ValueError(f"scoring.sink_logits {scoring.sink_logits.shape} is not [H] of {shapes}")
    if temperature is not None:
        if (
            temperature.ndim != 3
            or temperature.shape[0] not in (1, q.shape[0])
            or temperature.shape[1:] != q.shape[2:0:-1]
        ):
            raise ValueError(f"scoring.temperature {temperature.shape} is not [#B, H, T] of {shapes}")


def _check_parameters(bias: Bias, heads: int) -> None:
    """Check that parameters have the axes of their annotations, such as "*H n", or else a head axis."""
    sizes, name = {"H": heads}, type(bias).__name__
    for field in dataclasses.fields(bias):  # type: ignore[arg-type]  # every bias is one
        if field.metadata.get("static"):
            continue
        shared, value = field.metadata.get("shared", False), getattr(bias, field.name)
        if hasattr(field.type, "dim_str") and not isinstance(value, int | float):
            check_array(f"{field.name} of {name}", value)
        axes = [axis.removeprefix("*") for axis in getattr(field.type, "dim_str", "").split()]
        said = hasattr(field.type, "dim_str") and all(map(str.isidentifier, axes)) and (shared or axes[:1] == ["H"])
        for x in jax.tree.leaves(value):
            shape = jnp.shape(x)
            if said:
                fits = len(shape) == len(axes)
                fits = fits and all(sizes.setdefault(axis, n) == n for axis, n in zip(axes, shape, strict=True))
            else:
                fits = shared or shape[:1] == (heads,)
            if not fits:
                wanted = f"[{', '.join(axes)}]" if said else "[H] or [H, n]"
                others = "".join(f", {axis} = {sizes[axis]}" for axis in axes if axis in sizes.keys() - {"H"})
                remedy = f"; give jnp.full({heads}, ...)" if shape == () and axes == ["H"] else ""
                raise ValueError(
                    f"the bias {name} holds {field.name} {shape}, not {wanted} of the {heads} heads of q [B, T, H, D]"
                    f"{others}{remedy}"
                )


def _check_coordinates(scoring: Scoring) -> None:
    """Try the formula on a row of 2 queries and 3 keys, because arrays where it expects a pair may broadcast to anything."""
    of_queries, of_keys = scoring.queries.coordinate, scoring.keys.coordinate
    if isinstance(scoring.bias, Relative) and of_queries is None and of_keys is None:
        return

    shape: tuple = ()
    failure: Exception | None = None
    try:
        shape = trial(scoring.bias, of_queries, of_keys).shape
    except (TypeError, ValueError, IndexError) as error:
        failure = error
    if not compares_pairs(shape):
        name, shapes = type(scoring.bias).__name__, lambda tree: jax.tree.map(jnp.shape, tree) or "their positions"
        ours = type(scoring.bias).__module__.partition(".")[0] == "bam_jax"
        remedy = f": see the coordinates of biases.{name}, which the Tokens of a Scoring carry" if ours else ""
        if failure is not None:  # the formula itself may be at fault
            remedy += f"; it raised {type(failure).__name__}: {str(failure).partition('\n')[0]}"
            remedy += "" if ours else "; a formula takes arrays: jnp.where stands for if, jnp.exp for math.exp"
        elif not ours:
            remedy = f"; of 2 queries and 3 keys it makes {list(shape)}"
        raise ValueError(
            f"the bias {name} cannot compare {shapes(of_queries)} of queries with {shapes(of_keys)} of keys{remedy}"
        ) from failure
