"""Sharper alternatives to the softmax of a row: 1.5-entmax, and a temperature that depends on the row's entropy."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.biases.base import bias, shared
from bam_jax.biases.rowwise import Rows, Rowwise

_HALVINGS = 24  # of an interval of 1 nat: to a unit in the last place of float32


class Sharpened(Rowwise):
    """A function of the logits of another row-wise method, `inner`; None: of scores + bias."""

    inner: Rowwise | None

    @property
    def mixes_heads(self) -> bool:  # type: ignore[override]
        """Whether `inner` does."""
        return self.inner is not None and self.inner.mixes_heads

    def made(self, rows: Rows) -> Float[Array, "B H T S"]:
        """The logits of `inner`."""
        return rows.scores + rows.bias if self.inner is None else self.inner(rows)


@bias
class Entmax(Sharpened):
    """1.5-entmax in place of softmax: keys far below the maximum of a row get a weight of exactly 0.

        softmax(logits)_j = max(z_j / 2 - tau, 0) ** 2,   tau such that these sum to 1

    Source: Peters et al. 2019 (arXiv 1905.05702); in attention Correia et al. 2019 and Vasylenko et al. 2026 (arXiv 2506.16640).
    """

    inner: Rowwise | None = shared()

    def __call__(self, rows: Rows) -> Float[Array, "B H T S"]:
        """The logarithms of the weights, which the softmax that follows turns back into the weights; see `Rowwise`."""
        made = self.made(rows)
        top = jnp.max(made, axis=-1, where=rows.visible, initial=-1e30, keepdims=True)
        z = jnp.where(rows.visible, made - jax.lax.stop_gradient(top), -3.0)  # 2 below the maximum all weights are 0
        root = jnp.maximum(z / 2 - _threshold(z), 0)
        none = root <= 0  # false for NaN, which stays
        return jnp.where(none, -1e30, 2 * jnp.log(jnp.where(none, 1, root)))


@jax.custom_jvp
def _threshold(z: Float[Array, "*B S"]) -> Float[Array, "*B 1"]:
    """tau of rows whose maximum is 0, by bisection: the sum of weights falls with tau, from at least 1 at -1 to 0 at 0."""

    def halve(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, step = state
        weights = jnp.square(jnp.maximum(z / 2 - (low + step), 0)).sum(-1, keepdims=True)
        return jnp.where(weights >= 1, low + step, low), step / 2

    start = jnp.full_like(z[..., :1], -1), jnp.asarray(0.5, z.dtype)
    return jax.lax.fori_loop(0, _HALVINGS, halve, start)[0]


@_threshold.defjvp
def _threshold_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """The derivative of sum_j max(z_j / 2 - tau, 0)^2 = 1."""
    (z,), (dz,) = primals, tangents
    tau = _threshold(z)
    root = jnp.maximum(z / 2 - tau, 0)
    total = root.sum(-1, keepdims=True)
    return tau, (root * dz).sum(-1, keepdims=True) / 2 / jnp.where(total > 0, total, 1)


@bias
class AdaptiveTemperature(Sharpened):
    """Multiplies a row by a number of at least 1 that depends on the entropy of its softmax.

        logits = beta(H) * z,   H = the entropy of softmax(z) in nats
        beta(H) = max(-0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791, 1) where H > 0.5, and 1 elsewhere

    The polynomial is above 1 only for H between 0.85 and 5.95. Rows that are spread evenly over more than about 380 keys
    are therefore unchanged.

    Source: Velickovic et al. 2024 (arXiv 2410.01104), section 5, for trained models.
    """

    inner: Rowwise | None = shared()

    def __call__(self, rows: Rows) -> Float[Array, "B H T S"]:
        """See `Rowwise`."""
        z = self.made(rows)
        shown = jnp.where(rows.visible, z, -1e30)
        log_weights = jax.nn.log_softmax(shown, axis=-1)
        entropy = -jnp.where(rows.visible, jnp.exp(log_weights) * log_weights, 0).sum(-1, keepdims=True)
        factor = jnp.polyval(jnp.asarray([-0.037, 0.481, -2.3, 4.917, -1.791], z.dtype), entropy)
        return z * jnp.where(entropy > 0.5, jnp.maximum(factor, 1), 1)
