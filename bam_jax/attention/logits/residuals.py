"""The one argument of every backward pass, left by the forward pass, and the gradients that come of it."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.logits.scoring import FLOOR, Differentiable, Scoring


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residuals:
    """The operands of an attention and its results.

    Args:
        q, k, v, scoring: the operands.
        out: as the backend's `forward` gave it, in q's dtype or in the logits'.
        lse: logarithms of the rows' normalisers, `HIDDEN` where a row sees nothing.
        wanted: for each differentiable part of the scoring a flag for each of its leaves: whether anybody will look at its
            cotangent, which may be anything if not.
        d_lse: the cotangent of `lse`; None: 0.
    """

    q: Float[Array, "B T H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    scoring: Scoring
    out: Float[Array, "B T H D"]
    lse: Float[Array, "B H T"]
    wanted: Differentiable = dataclasses.field(metadata={"static": True})
    d_lse: Float[Array, "B H T"] | None = None

    def row_terms(self, d_out: Float[Array, "B T H D"]) -> tuple[Float[Array, "B H T"], Float[Array, "B H T"]]:
        """Two numbers of each row that the gradient of its logits needs: d_logit = exp(logit - lse) (d_weight - delta)."""
        delta = jnp.einsum("bthd,bthd->bht", self.out, d_out, preferred_element_type=self.lse.dtype)
        delta = delta if self.d_lse is None else delta - self.d_lse
        # A row that sees nothing has no normaliser: any finite one gives it zero weights.
        return jnp.where(self.lse <= FLOOR, 0, self.lse), delta


class Gradients(NamedTuple):
    """Cotangents of the operands; that of the scoring has None for each array of integers."""

    q: Float[Array, "B T H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    scoring: Scoring
