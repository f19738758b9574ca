"""Sampling of the next token from its logits: temperature, top-k and top-p."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bam_jax.system.errors import UserError, shown


def whole_number(name: str, value: int, largest: int = 2**31 - 1) -> None:
    """Raise a UserError unless the value is a whole number from 0 to `largest`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= largest:
        raise UserError(f"{name}={shown(value)} must be a whole number from 0 to {largest}")


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The distribution from which the next token is drawn.

        p = softmax(logits / temperature) over the k most likely tokens, and of those over the fewest whose p add up to top_p

    Tokens that are as likely as the last of those are kept as well.

    Args:
        temperature: 0 gives the most likely token.
        top_k: number of tokens; 0: all.
        top_p: share of the probability, 1: all. Source: Holtzman et al. 2020 (nucleus sampling).

    >>> Sampling(temperature=0)(jnp.array([[0.0, 2.0, 1.0]]), jax.random.key(0))
    Array([1], dtype=int32)
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int | float | np.number):
                raise UserError(f"{name}={shown(value)} must be a number, not {type(value).__name__}")
        whole_number("top_k", self.top_k)
        if not 0 <= self.temperature < math.inf:  # NaN fails as well
            raise UserError(
                f"temperature={self.temperature} must be 0, for the most likely token, or a finite number above, as in 0.8"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} must be a share above 0 and at most 1, for all tokens")

    def __call__(self, logits: Float[Array, "B V"], key: Array) -> Int[Array, " B"]:
        """Draw a token for each row."""
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return jax.random.categorical(key, self.restrict(logits), axis=-1).astype(jnp.int32)

    def restrict(self, logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
        """Logits whose softmax is the distribution, for a temperature above 0; -inf for tokens that are left out."""
        logits = logits.astype(jnp.float32)
        # The maximum is subtracted first, so that a temperature close to 0 does not lead to inf - inf.
        logits = (logits - logits.max(-1, keepdims=True)) / max(self.temperature, float(jnp.finfo(jnp.float32).tiny))
        if 0 < self.top_k < logits.shape[-1]:
            least = jax.lax.top_k(logits, self.top_k)[0][..., -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p < 1:
            falling = jnp.sort(logits, axis=-1, descending=True)
            p = jax.nn.softmax(falling, axis=-1)
            share = max(self.top_p, float(jnp.finfo(jnp.float32).tiny))  # less is 0 in float32, and keeps no token
            kept = jnp.cumsum(p, axis=-1) - p < share  # the tokens before it do not yet make up the share
            least = jnp.where(kept, falling, jnp.inf).min(-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        return logits


GREEDY = Sampling(temperature=0.0)
"""The most likely token."""
