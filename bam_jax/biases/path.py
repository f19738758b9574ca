"""Methods whose logits depend on every token between the key and the query: GRAPE's path integral, PaTH.

What they need of each token is stored in its query and key, which `Encoding.turn` widens; see `bam_jax.encodings.path`.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bam_jax.biases.base import bias, static
from bam_jax.biases.rowwise import Rows, Rowwise


@bias
class PathIntegral(Rowwise):
    """GRAPE-AP: each token after the key, up to and including the query, adds a penalty that depends on the query.

        logits = s + b + slope_h * sum_{l = j+1..i} log sigmoid(p_i . r_l / P),   s_ij = q_i . k_j / sqrt(D)

    Only tokens that the query sees count. Logits and slope are in nats; b is the bias of the coordinates. Queries are
    [B, T, H, D + 2 P + 2], laid out as [q, p, 1, slope, zeros(P)], and keys [B, S, K, D + 2 P + 2], laid out as
    [k, zeros(P + 2), r], so their product is q . k. Scalable Softmax scales the whole query: p and slope are divided by the
    number that was 1. Where that is 0, as in padding rows, there is no penalty.

    Args:
        width: P.

    Source: Zhang et al. 2025 (arXiv 2512.07805), equations 5.1 and 5.2.
    """

    width: int = static()
    mixes_heads: ClassVar[bool] = False

    def __call__(self, rows: Rows) -> Float[Array, "B H T S"]:
        """See `Rowwise`."""
        queries, keys = _wide(rows)
        p = queries[..., -2 * self.width - 2 : -self.width - 2]
        factor, slope = (queries[..., n, None] for n in (-self.width - 2, -self.width - 1))
        known = factor != 0  # false in padding rows, whose outputs are unused
        p, slope = (jnp.where(known, x / jnp.where(known, factor, 1), 0) for x in (p, slope))
        product = jnp.einsum("bkgtp,bskp->bkgts", p, keys[..., -self.width :], precision="highest")
        edges = slope * jax.nn.log_sigmoid(product / self.width)
        edges = jnp.where(_behind(rows), edges.reshape(rows.scores.shape), 0)
        return rows.scores + rows.bias + jax.lax.cumsum(edges, axis=3, reverse=True) - edges


@bias
class PaTH(Rowwise):
    """PaTH: each token after the key, up to and including the query, applies a Householder-like matrix to the query.

        logits = q_i^T A_i A_{i-1} ... A_{j+1} k_j / sqrt(D) + b,   A_t = I - beta_t w_t w_t^T

    Logits are in nats; b is the bias of the coordinates. Keys are [B, S, K, 2 D + 1], laid out as [k, w, beta], with w of unit
    length and beta from 0 to 2; queries are [B, T, H, 2 D + 1], laid out as [q, zeros(D + 1)]. Unlike in `PathIntegral`, tokens
    hidden by a window count, too.

    Applying n such matrices to q subtracts a combination of the n vectors w_t. Its coefficients solve a triangular system:

        q - sum_t c_t w_t,   c_t = beta_t (w_t . q - sum_{u > t} (w_t . w_u) c_u)

    The scan visits chunks of keys from the last to the first and carries the transformed q.

    Source: Yang et al. 2025 (arXiv 2505.16381). The order of the product follows the authors' code (flash-linear-attention).
    """

    mixes_heads: ClassVar[bool] = False
    CHUNK: ClassVar[int] = 64

    def __call__(self, rows: Rows) -> Float[Array, "B H T S"]:
        """See `Rowwise`."""
        queries, keys = _wide(rows)
        width, slots = queries.shape[-1] // 2, keys.shape[1]
        chunk = min(self.CHUNK, 1 << (slots - 1).bit_length())  # a power of two, for `_inverse`
        chunks = lambda x, axis: jnp.moveaxis(
            _filled(x, axis, chunk).reshape(*x.shape[:axis], -1, chunk, *x.shape[axis + 1 :]), axis, 0
        )
        k, matrices = keys[..., :width], keys[..., width:]
        # A key that is not finite makes its own logit NaN, and does not affect those of other keys.
        matrices = jnp.where(jnp.isfinite(keys).all(-1, keepdims=True), matrices, 0)
        k, w, beta = (
            chunks(x.swapaxes(1, 2), 2) for x in (k, matrices[..., :-1], matrices[..., -1:])
        )  # [N, B, K, C, ...]

        later = jnp.triu(jnp.ones((chunk, chunk), bool), 1)
        gram = _dot("nbktd,nbkud->nbktu", w, w)
        system = jnp.eye(chunk, dtype=w.dtype) + jnp.where(later, beta * gram, 0)
        solved = _inverse(system) * beta.swapaxes(3, 4)
        taken = jnp.where(later.T, _dot("nbkud,nbkjd->nbkuj", w, k), 0)  # from the logit of j by a later u

        behind = _behind(rows)
        last = jnp.max(jnp.where(behind, jnp.arange(slots), -1), axis=-1, keepdims=True)
        between = chunks((jnp.arange(slots) <= last)[:, :, None], 4)  # [N, B, 1, 1, T, C]

        def one(q: Array, part: tuple[Array, ...]) -> tuple[Array, Array]:
            k, w, solved, taken, between = part
            met = jnp.where(between, _dot("bkgtd,bkcd->bkgtc", q, w), 0)
            c = _dot("bkgtu,bkcu->bkgtc", met, solved)
            logits = _dot("bkgtd,bkjd->bkgtj", q, k) - _dot("bkgtu,bkuj->bkgtj", c, taken)
            return q - _dot("bkgtc,bkcd->bkgtd", c, w), logits

        _, logits = jax.lax.scan(one, queries[..., :width], (k, w, solved, taken, between), reverse=True)
        logits = jnp.moveaxis(logits, 0, 4).reshape(*rows.scores.shape[:3], -1)[..., :slots]
        return rows.scored(logits) + rows.bias


def _dot(spec: str, *operands: Array) -> Array:
    return jnp.einsum(spec, *operands, precision="highest")  # logits are float32 everywhere


@jax.custom_jvp
def _inverse(x: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    """Invert upper triangular matrices with ones on the diagonal, C a power of two.

    A triangular solver does the same. On a CPU it calls LAPACK once for each matrix, whose threads wait for each other each time.
    """
    half = x.shape[-1] // 2
    if not half:
        return jnp.ones_like(x)
    first, last = _inverse(jnp.stack([x[..., :half, :half], x[..., half:, half:]]))
    corner = -_dot("...ij,...jk,...kl->...il", first, x[..., :half, half:], last)
    return jnp.block([[first, corner], [jnp.zeros_like(corner), last]])


@_inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    inverse = _inverse(*primals)  # X^-1, whose differential is -X^-1 dX X^-1
    return inverse, -_dot("...ij,...jk,...kl->...il", inverse, *tangents, inverse)


def _filled(x: Array, axis: int, chunk: int) -> Array:
    """x with zeros behind it along an axis, up to whole chunks."""
    return jnp.pad(x, [(0, -x.shape[n] % chunk if n == axis else 0) for n in range(x.ndim)])


def _wide(rows: Rows) -> tuple[Float[Array, "B K G T W"], Float[Array, "B S K W"]]:
    """Queries by the keys' heads, and keys, both in the logits' type."""
    queries, keys = (x.astype(rows.scores.dtype) for x in (rows.queries, rows.keys))
    batch, length, heads, width = queries.shape
    by_key = queries.reshape(batch, length, keys.shape[2], heads // keys.shape[2], width)
    return by_key.transpose(0, 2, 3, 1, 4), keys


def _behind(rows: Rows) -> Bool[Array, "#B 1 T S"]:
    """The keys that the query sees up to its own position; in a prefix it sees later ones, too."""
    return rows.visible & (rows.j <= rows.i)
