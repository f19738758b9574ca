"""Attention with a positional bias in one line, in the shapes of `jax.nn.dot_product_attention`."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.attention.logits.mask import Mask
from bam_jax.attention.logits.scoring import Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.logits.tokens import Tokens
from bam_jax.attention.op import DEFAULT, attention
from bam_jax.biases import Bias, Uniform

ELSEWHERE = {
    "is_causal": "give causal=",
    "local_window_size": "give window=, the tokens that a query sees, itself included",
    "return_residual": "give return_lse=",
    "implementation": "give backend=",
    "mask": "a dense mask takes O(T S) memory; give causal=, window= and segments=, where 0 stands for pads",
    "query_seq_lengths": "give query_segments=, where 0 stands for pads",
    "key_value_seq_lengths": "give segments=, where 0 stands for pads",
    "dropout": "no backend drops weights; drop what attend gives, as most models do now",
    "dropout_rate": "no backend drops weights; drop what attend gives, as most models do now",
}
"""Arguments that other functions of this kind have, and what stands for them here."""


def attend(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    v: Float[Array, "*B S K D"],
    bias: Bias | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    positions: Int[Array, "... S"] | None = None,
    segments: Int[Array, "... S"] | None = None,
    query_positions: Int[Array, "... T"] | None = None,
    query_segments: Int[Array, "... T"] | None = None,
    temperature: Float[Array, "#B H T"] | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    backend: str = "auto",
    tiling: Tiling = DEFAULT,
    **others: Any,
) -> Any:
    """Softmax attention with a positional bias, without the words of `Scoring`.

        out_i = sum_j softmax_j(temperature_i * (scale * q_i . k_j + bias(i, j))) v_j,   j visible from i

    Without positions keys stand at 0, 1, ... S - 1 and queries are the last T of them. `attention` takes the same as a
    `Scoring`, which also has coordinates other than positions, such as CABLE's running sums.

    Args:
        q, k, v: as in `attention`, or without the batch axis.
        bias: of `bam_jax.biases`, with parameters [H] or [H, n]; None: none.
        causal: whether a query sees no key behind it.
        window: only keys fewer than this many tokens away; None: no limit.
        positions: of the keys, [S] or [B, S].
        segments: numbers of the keys' documents, from 1, ascending; 0 pads. A query sees its own document.
        query_positions, query_segments: of the queries, [T] or [B, T]; None: the last T of the keys'.
        temperature, scale: see `Scoring`.
        return_lse, backend, tiling: as in `attention`.
        others: none; those that `jax.nn.dot_product_attention` has are named with what stands for them.

    Returns:
        As `attention`, in q's shape.

    Raises:
        ValueError: as in `attention`, or more queries than keys where nothing says at which positions they stand.
        TypeError: an unknown argument.

    >>> import jax.numpy as jnp
    >>> from bam_jax import attend, biases
    >>> x = jnp.ones((2, 128, 4, 32))
    >>> attend(x, x, x, biases.ALiBi(biases.alibi_slopes(4)), window=64).shape
    (2, 128, 4, 32)
    """
    for name in others:
        remedy = f"; {ELSEWHERE[name]}" if name in ELSEWHERE else ""
        raise TypeError(f"attend() has no argument {name!r}{remedy}")
    unbatched = q.ndim == k.ndim == v.ndim == 3
    if unbatched:
        q, k, v = q[None], k[None], v[None]
    queries, keys = q.shape[1], k.shape[1]
    if queries > keys and query_positions is None:
        raise ValueError(f"{queries} queries are not the last of {keys} keys; give query_positions=")
    of_keys = _tokens(jnp.arange(keys, dtype=jnp.int32) if positions is None else positions, segments)
    last = jax.tree.map(lambda x: x[:, keys - queries :], of_keys)
    of_queries = _tokens(
        last.position if query_positions is None else query_positions,
        last.segment if query_segments is None else query_segments,
    )
    mask = Mask(causal=causal, window=window)
    scoring = Scoring(Uniform() if bias is None else bias, of_queries, of_keys, temperature, mask, scale=scale)
    found = attention(q, k, v, scoring, backend=backend, tiling=tiling, return_lse=return_lse)
    return jax.tree.map(lambda x: x[0], found) if unbatched else found


def _tokens(position: Int[Array, "... T"], segment: Int[Array, "... T"] | None) -> Tokens:
    """The tokens of a side, with a batch axis."""
    return Tokens(jnp.atleast_2d(position), None if segment is None else jnp.atleast_2d(segment))
