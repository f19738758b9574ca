"""Dropout of attention weights as a formula of indices, which every backend evaluates tile by tile."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Key, UInt32

from bam_jax.attention.logits.tokens import Tokens

_STEP = np.uint32(0x9E3779B9)  # 2^32 divided by the golden ratio: added first, since the hash of 0 is 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """Dropout of attention weights. No mask is stored: forward and backward passes compute the same bits where they need them.

        out_i = sum_j keep_ij p_ij v_j / (1 - rate),   keep_ij = (u(seed, row, head, document, i, j) >= rate)

    p is the softmax over all visible keys; dropout does not change its normaliser. u is uniform on [0, 1): 32 bits of a hash of
    the batch row, the query head, the query's document number if there are documents, and the positions of query and key. All
    backends, devices and ring steps therefore drop the same weights.

    Args:
        rate: share of the weights that are dropped, a Python number from 0 to below 1. 0 is the same program as no dropout.
        seed: an integer, of which the lower 32 bits are used, or a key of `jax.random`. Use another one for each layer and step.
            If it is an array, a new seed does not recompile. [B, H]: a seed for each row and query head, as from `per_head`.

    Example:
      >>> from bam_jax import attend
      >>> x = jnp.ones((1, 4, 1, 2))
      >>> attend(x, x, x, dropout_rate=0.5, dropout_seed=jax.random.key(0)).shape
      (1, 4, 1, 2)

    Source: Srivastava et al. 2014. Random numbers as hashes of counters: Salmon et al. 2011, Parallel random numbers: as easy as
    1, 2, 3. The hash: Wellons 2018, lowbias32 of Hash Prospector.
    """

    rate: float = dataclasses.field(metadata={"static": True})
    seed: int | Integer[Array, ""] | Integer[Array, "B H"] | Key[Array, ""] | None = None

    def per_head(self, batch: int, heads: int) -> "Dropout":
        """The same dropout with a seed for each row and query head, uint32 [B, H].

        Inside `jax.shard_map` a device counts its rows and heads from 0. Call this outside, and shard the seeds like q.
        """
        assert self.seed is not None
        if jnp.ndim(self.seed) == 2:
            return self
        if isinstance(self.seed, int):
            seed = jnp.uint32(self.seed % 2**32)
        else:
            key = jnp.issubdtype(self.seed.dtype, jax.dtypes.prng_key)
            seed = jax.random.bits(self.seed) if key else self.seed.astype(jnp.uint32)
        rows, columns = (jnp.arange(size, dtype=jnp.uint32) for size in (batch, heads))
        return dataclasses.replace(self, seed=_mix(_mix(seed, rows)[:, None], columns))

    def query_code(self, tokens: Tokens) -> UInt32[Array, "B H T"]:
        """A random number for each query and head; needs the seeds of `per_head`."""
        assert not isinstance(self.seed, int | None)
        code = self.seed.astype(jnp.uint32)[:, :, None]
        if tokens.segment is not None:
            code = _mix(code, tokens.segment.astype(jnp.uint32)[:, None])
        return _mix(code, tokens.position.astype(jnp.uint32)[:, None])

    def factor(self, queries: Tokens, keys: Tokens, dtype: jnp.dtype) -> Float[Array, "B H T S"]:
        """The factor of each weight: 1 / (1 - rate), or 0 if it is dropped."""
        return factor(self.query_code(queries)[..., None], key_code(keys)[:, :, None], self.rate, dtype)


def key_code(tokens: Tokens) -> UInt32[Array, "#B 1 S"]:
    """A random number for each key, the same in all heads."""
    return _hash(tokens.position.astype(jnp.uint32) + _STEP)[:, None]


def factor(code_i: UInt32[Array, "..."], code_j: UInt32[Array, "..."], rate: float, dtype: jnp.dtype) -> Array:
    """The factor of each weight, from the codes of query and key; arrays of any shapes that broadcast."""
    least = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    kept = _hash(code_i ^ code_j) >= least
    return jnp.where(kept, jnp.asarray(1 / (1 - rate), dtype), jnp.asarray(0, dtype))


def drop(weights: Array, factor: Array | None) -> Array:
    """Weights, or their cotangents, times `factor`; None: unchanged. This is a product, so NaN stays NaN."""
    return weights if factor is None else weights * factor


def _mix(code: Array, word: Array) -> Array:
    return _hash((code ^ word) + _STEP)


def _hash(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """lowbias32: a bijection of 32 bits; each output bit depends on all input bits."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
