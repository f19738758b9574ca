"""Features built on top of every backend: attention sinks, windows with sink tokens, values of another width than keys."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.logits.mask import Mask
from bam_jax.attention.logits.merge import merge
from bam_jax.attention.logits.scoring import Scoring

type Run = Callable[[Array, Array, Array, Scoring], tuple[Array, Array]]


def attend(
    run: Run,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    scoring: Scoring,
    *,
    whole_rows: bool,
    own_width: bool,
) -> tuple[Float[Array, "B T H E"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser for any scoring and width of values, from `run`, which does not support sink logits.

    With `whole_rows`, `run` computes whole rows of logits, and its masks include sink tokens. With `own_width`, its values may
    be wider or narrower than keys. Without, the scoring must have its own scale, because q may be widened.
    """
    plain, width = dataclasses.replace(scoring, sink_logits=None), v.shape[-1]
    if not own_width and q.shape[-1] != width:
        # Padding with zeros does not change the products, and the columns that it adds to the output are removed again.
        widest = max(q.shape[-1], width)
        q, k, v = (jnp.pad(x, ((0, 0),) * 3 + ((0, widest - x.shape[-1]),)) for x in (q, k, v))
    out, lse = run(q, k, v, plain) if whole_rows else _with_sink_tokens(run, q, k, v, plain)
    out = out[..., :width]
    if scoring.sink_logits is None:
        return out, lse
    whole = jnp.logaddexp(lse, scoring.sink_logits.astype(lse.dtype)[:, None])
    share = jnp.exp(lse - whole).swapaxes(1, 2)[..., None]
    return (out * share).astype(out.dtype), whole


def _with_sink_tokens(run: Run, q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    """Attention to a window and to the sink tokens outside it, merged by their normalisers."""
    mask, queries = scoring.mask, scoring.queries
    if not mask.sink_tokens:
        return run(q, k, v, scoring)
    near = dataclasses.replace(scoring, mask=dataclasses.replace(mask, sink_tokens=0))
    limits = near.mask.limits(queries)
    assert limits.lowest is not None
    last = jnp.minimum(jnp.minimum(limits.lowest - 1, limits.highest), mask.sink_tokens - 1)
    behind = dataclasses.replace(queries, sees_from=None, sees_to=last)
    results = run(q, k, v, near), run(q, k, v, dataclasses.replace(scoring, mask=Mask(), queries=behind))
    outs, normalisers = (jnp.stack(parts) for parts in zip(*results, strict=True))
    out, lse = merge(outs.swapaxes(2, 3).astype(normalisers.dtype), normalisers, axis=0)
    return out.swapaxes(1, 2).astype(q.dtype), lse
