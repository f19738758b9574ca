"""Attention with a positional bias in one line, in the shapes of `jax.nn.dot_product_attention`."""

import dataclasses
import difflib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.attention.checking import check_array, check_range, is_finite
from bam_jax.attention.logits.dropout import Dropout
from bam_jax.attention.logits.mask import Mask
from bam_jax.attention.logits.scoring import Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.logits.tokens import Tokens
from bam_jax.attention.op import DEFAULT, attention
from bam_jax.biases import Bias, Uniform

_MASK = "a dense mask takes O(T S) memory; give causal=, window=, segments= (0 for pads), sees_from= and sees_to="
_DROPOUT = "give dropout_rate= and dropout_seed=, an integer or a key of jax.random"
ELSEWHERE = {
    "is_causal": "give causal=",
    "local_window_size": "give window=, the tokens that a query sees, itself included",
    "return_residual": "give return_lse=",
    "logits_soft_cap": "give soft_cap=",
    "sinks": "give sink_logits= of learned logits, or sink_tokens= beside window=",
    "implementation": "give backend=",
    "mask": _MASK,
    "query_seq_lengths": "give query_segments=, where 0 stands for pads",
    "key_value_seq_lengths": "give segments=, where 0 stands for pads",
    "dropout": _DROPOUT,
    "dropout_p": _DROPOUT,
    "dropout_rng": _DROPOUT,
    "broadcast_dropout": "give dropout_seed= [B, H], in which rows or heads may share a seed",
    "deterministic": "give dropout_rate=0.0",
    "attn_mask": _MASK,
    "key_padding_mask": "give segments=, 1 for tokens and 0 for pads",
    "attention_mask": _MASK,
    "block_mask": _MASK,
    "softmax_scale": "give scale=",
    "window_size": "give window=, the tokens that a query sees, itself included: flash-attn's (8, 0) is 9, with causal=True",
    "cu_seqlens_q": "give query_segments=, numbers of documents from 1",
    "cu_seqlens_k": "give segments=, numbers of documents from 1",
    "alibi_slopes": "give biases.ALiBi(slopes) as the bias",
    "kernel_options": "give tiling=Tiling(block_q=, block_k=)",
    "precision": "products are of the operands' own type and summed in float32; give float32 for more",
    "s_aux": "give sink_logits=",
    "enable_gqa": "k and v may have fewer heads than q as they are",
    "score_mod": "give a bias: a class under @biases.bias with __call__(self, i, j)",
}
"""Arguments of similar functions in other libraries, and what to give here instead."""

AXES = {
    "positions": "BS",
    "segments": "BS",
    "query_positions": "BT",
    "query_segments": "BT",
    "sees_from": "BT",
    "sees_to": "BT",
    "temperature": "BHT",
    "sink_logits": "H",
}
"""Array arguments and their axes: batch rows B, heads H, queries T, keys S."""
FLOATS = ("temperature", "sink_logits")
"""The arrays of floats; the others hold positions or document numbers."""


def attend(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    v: Float[Array, "*B S K E"],
    bias: Bias | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    positions: Int[Array, "... S"] | None = None,
    segments: Int[Array, "... S"] | None = None,
    query_positions: Int[Array, "... T"] | None = None,
    query_segments: Int[Array, "... T"] | None = None,
    sees_from: Int[Array, "... T"] | None = None,
    sees_to: Int[Array, "... T"] | None = None,
    sink_tokens: int = 0,
    sink_logits: Float[Array, " H"] | None = None,
    temperature: Float[Array, "#B H T"] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_seed: Any = None,
    return_lse: bool = False,
    backend: str = "auto",
    tiling: Tiling = DEFAULT,
    **others: Any,
) -> Any:
    """Softmax attention with a positional bias, without building a `Scoring`.

        out_i = sum_j softmax_j(temperature_i * (scale * q_i . k_j + bias(i, j))) v_j,   j visible from i

    Without positions, keys have the positions 0, 1, ... S - 1, and causal queries are the last T of these tokens, as with a
    cache. If causal=False and T differs from S, the queries could also be a decoder's that reads an encoder's keys. Then
    query_positions are required, unless nothing depends on them. For coordinates other than positions, such as CABLE's running
    sums, build a `Scoring` and call `attention`.

    Args:
        q, k, v: as in `attention`, or without the batch axis.
        bias: a bias of `bam_jax.biases`, with parameters [H] or [H, n]; None: no bias.
        causal, window, sink_tokens: see `Mask`.
        positions: of the keys, [S] or [B, S].
        segments: document numbers of the keys, from 1, ascending; 0 or less is padding. A query sees only its own document.
        query_positions, query_segments: those of the queries, [T] or [B, T]; None: the last T of the keys', if causal or T = S.
        sees_from, sees_to: the lowest and highest position that each query sees, [T] or [B, T]; see `Tokens`.
        sink_logits, temperature, scale, soft_cap: see `Scoring`.
        dropout_rate, dropout_seed: see `Dropout`; a rate above 0 needs a seed.
        return_lse, backend, tiling: as in `attention`.
        others: none. The error for an argument of `jax.nn.dot_product_attention` names its equivalent here.

    Returns:
        As `attention`; without the batch axis if q has none.

    Raises:
        ValueError: as in `attention`; or the queries' positions or documents are neither given nor implied; or
            query_segments are given without segments.
        TypeError: an unknown argument.

    >>> import jax.numpy as jnp
    >>> from bam_jax import attend, biases
    >>> x = jnp.ones((2, 128, 4, 32))
    >>> attend(x, x, x, biases.ALiBi(biases.alibi_slopes(4)), window=64).shape
    (2, 128, 4, 32)
    """
    _check_arrays(locals())
    _refuse(others)
    _check_numbers(scale=scale, soft_cap=soft_cap)
    unbatched = q.ndim == 3
    if unbatched:
        q, k, v = q[None], k[None], v[None]
    bias = Uniform() if bias is None else _checked(bias)
    length, slots = q.shape[1], k.shape[1]
    if not causal and length != slots:
        anywhere = isinstance(bias, Uniform) and all(x is None for x in (window, positions, sees_from, sees_to))
        if anywhere and query_positions is None:
            query_positions = jnp.arange(length, dtype=jnp.int32)  # any will do
        _check_cross(length, slots, positions, segments, query_positions, query_segments)
    queries, keys = _sides(length, slots, positions, segments, query_positions, query_segments)
    sees_from, sees_to = (None if x is None else jnp.atleast_2d(x) for x in (sees_from, sees_to))
    queries = dataclasses.replace(queries, sees_from=sees_from, sees_to=sees_to)
    mask = Mask(causal=causal, window=window, sink_tokens=sink_tokens)
    dropout = Dropout(dropout_rate, dropout_seed)
    scoring = Scoring(bias, queries, keys, temperature, mask, None, scale, soft_cap, sink_logits, dropout)
    found = attention(q, k, v, scoring, backend=backend, tiling=tiling, return_lse=return_lse)
    return jax.tree.map(lambda x: x[0], found) if unbatched else found


def _refuse(others: dict[str, Any]) -> None:
    """For an unknown argument, raise a TypeError that names what to give instead."""
    for name in others:
        near = difflib.get_close_matches(name, inspect.signature(attend).parameters, n=1)
        remedy = f"; {ELSEWHERE[name]}" if name in ELSEWHERE else f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"attend() has no argument {name!r}{remedy}")


def _checked(bias: Any) -> Bias:
    """The bias, or a TypeError that names what to give instead."""
    if isinstance(bias, Bias):
        return bias
    remedy = "a formula of your own is a class under @biases.bias with __call__(self, i, j)"
    if isinstance(bias, type) and issubclass(bias, Bias):
        remedy = f"that is the class; give one with its parameters, {bias.__name__}(...)"
    elif hasattr(bias, "ndim"):
        remedy = "a table of all pairs takes O(T S) memory; " + remedy
    raise TypeError(f"attend: bias must be a Bias of bam_jax.biases, not {type(bias).__name__}; {remedy}")


def _check_arrays(arguments: dict[str, Any]) -> None:
    """Check that array arguments are arrays of the right dtype, with one number for each head and token."""
    q, k, v = (arguments[name] for name in "qkv")
    others = {name: arguments[name] for name in AXES if arguments[name] is not None}
    for name, x in {"q": q, "k": k, "v": v, **others}.items():
        if name == "temperature" and jnp.ndim(x) == 0:
            raise ValueError("attend: temperature is an array [#B, H, T]; for a single number give scale=")
        check_array(f"attend: {name}", x)
        if name in (*"qkv", *FLOATS):
            if not jnp.issubdtype(x.dtype, jnp.floating):
                raise ValueError(f"attend: {name} must hold floats, not {x.dtype}; give {name}.astype(jnp.float32)")
        elif x.dtype == bool and name.endswith("segments"):  # rows with padding
            continue
        # Other integers wrap around when compared with -1 or with an empty slot's position.
        elif not (jnp.issubdtype(x.dtype, jnp.signedinteger) and x.dtype.itemsize >= 4):
            raise ValueError(f"attend: {name} must hold int32 or int64, not {x.dtype}; give {name}.astype(jnp.int32)")
        else:
            check_range(f"attend: {name}", x)
    if not (q.ndim == k.ndim == v.ndim and q.ndim in (3, 4)):
        shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
        raise ValueError(f"attend takes q [B, T, H, D] and k, v [B, S, K, D], or all three without B, got {shapes}")
    sizes = {"B": q.shape[0] if q.ndim == 4 else 1, "T": q.shape[-3], "H": q.shape[-2], "S": k.shape[-3]}
    for name, x in others.items():
        _check_shape(name, x.shape, sizes)


def _check_shape(name: str, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Check the axes of an array. The batch axis may have length one, and integer arrays may lack it."""
    axes = AXES[name]
    full = (1, *shape) if name not in FLOATS and len(shape) == 1 else shape
    alike = [n == sizes[axis] or (axis, n) == ("B", 1) for axis, n in zip(axes, full, strict=False)]
    if len(full) != len(axes) or not all(alike):
        wanted = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes)
        remedy = f"; those of the queries are query_{name}=" if f"query_{name}" in AXES else ""
        raise ValueError(f"attend: {name} has the shape {shape}, not [{', '.join(axes)}] with {wanted}{remedy}")


def _check_numbers(**options: Any) -> None:
    """Check that options are Python numbers."""
    for name, x in options.items():
        if x is not None and not (is_finite(x) and (x > 0 or name == "scale")):
            which = "a finite number" if name == "scale" else "a finite number above 0"
            remedy = f"; give {name}=float(...)" if hasattr(x, "dtype") else ""
            raise ValueError(f"attend: {name} must be {which} of Python's, not {x!r:.100}{remedy}")


def _sides(
    length: int, slots: int, position: Any, segment: Any, query_position: Any, query_segment: Any
) -> tuple[Tokens, Tokens]:
    """The tokens of `length` queries and of `slots` keys; see `attend`."""
    if segment is None and query_segment is not None:
        raise ValueError("attend: query_segments= are compared with those of the keys; give segments= as well")
    unsaid = {"positions": query_position is None, "segments": segment is not None and query_segment is None}
    for name, missing in unsaid.items():
        if length > slots and missing:
            raise ValueError(f"{length} queries are not the last of {slots} keys; give query_{name}=")
    index, consecutive = jnp.arange(slots, dtype=jnp.int32)[None], position is None
    keys = Tokens(index if position is None else jnp.atleast_2d(position), _documents(segment), consecutive=consecutive)
    last = jax.tree.map(lambda x: x[:, slots - length :], keys)
    own = lambda x, otherwise: otherwise if x is None else jnp.atleast_2d(x)
    return Tokens(
        own(query_position, last.position),
        _documents(query_segment, last.segment),
        consecutive=consecutive and query_position is None,
    ), keys


def _check_cross(length: int, slots: int, position: Any, segment: Any, query_position: Any, query_segment: Any) -> None:
    """Reject queries that could belong to the keys' text or to another one: the results would silently differ."""
    both = f"attend: {length} queries of {slots} keys with causal=False"
    if query_position is None:
        last = f"jnp.arange({slots - length}, {slots})" if position is None else f"positions[..., -{length}:]"
        as_last = f"query_positions={last} for the last {length} tokens of the keys' text, or " * (length < slots)
        raise ValueError(
            f"{both}: give {as_last}query_positions=jnp.arange({length}) for cross attention from its start"
        )
    if segment is not None and query_segment is None:
        raise ValueError(f"{both} and segments=: give query_segments=, such as jnp.ones({length}, int)")


def _documents(segment: Any, otherwise: Array | None = None) -> Array | None:
    """Document numbers with a batch axis; numbers below 1 are padding and become 0."""
    return otherwise if segment is None else jnp.maximum(jnp.atleast_2d(segment), 0)
