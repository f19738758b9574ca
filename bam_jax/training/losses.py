"""Token losses as a sum and a weight, never as a mean of means."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from bam_jax.models import counts
from bam_jax.models.layers import head_logits, wide
from bam_jax.parallel.sharding import BATCH, CONTEXT, TENSOR, TEXT, ambient_mesh
from bam_jax.system.platform import device_kind, platform

_ROWS = 128  # Chunks have a multiple of this many rows, as matrix units do.


def cross_entropy(
    rows: Float[Array, "*B E"],
    kernel: Float[Array, "E V"],
    bias: Float[Array, " V"] | None,
    targets: Int[Array, "*B"],
    weights: Float[Array, "*B"],
    *,
    chunk: int,
    recompute: bool = False,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Weighted cross-entropy of a linear head, without the logits of the whole batch in memory.

    sum_n w_n (logsumexp_v(z_nv) - z_n(target_n)) with z_nv = h_n . K_v + b_v, in nats, and sum_n w_n.

    Rows go through the head `chunk` at a time, so that at most [chunk, V] logits exist. If a gradient is needed, it is
    computed with the loss, chunk by chunk, and the backward pass only scales it. Matrices keep the dtype of `rows`; logits
    and the loss are float32 (float64 for float64 rows). A weight of 0 excludes a target.

    >>> total, weight = cross_entropy(
    ...     jnp.zeros((3, 4)), jnp.ones((4, 8)), None, jnp.array([1, 2, 3]), jnp.array([1.0, 1.0, 0.0]), chunk=2)
    >>> float(weight), round(float(total / weight), 4)  # uniform over 8 tokens: log 8
    (2.0, 2.0794)
    """
    count = targets.size
    flat = rows.reshape(count, -1), targets.reshape(count), weights.reshape(count).astype(wide(rows))
    kernel = kernel.astype(rows.dtype)
    if count <= chunk:
        return _sum_of_losses(kernel, bias, *flat), flat[2].sum()
    # The same number of chunks, but of equal size, so that the last has little padding.
    alike = -(-count // -(-count // chunk))
    chunk = min(chunk, alike + -alike % _ROWS)
    pad = -count % chunk  # rows of weight 0
    blocks = [jnp.pad(x, ((0, pad),) + ((0, 0),) * (x.ndim - 1)).reshape(-1, chunk, *x.shape[1:]) for x in flat]
    one_by_one = _sum_recomputed if recompute else _sum_of_chunks
    return one_by_one(kernel, bias, *blocks), flat[2].sum()


def chunk_rows(vocab: int) -> int:
    """Rows per chunk of `cross_entropy`.

    On a chip in `counts.MEMORY`: the largest power of two whose float32 logits take at most 1/64 of the memory. Every chunk reads
    the head and adds to its gradient, so a few large chunks move fewer bytes. On other devices, the logits take 128 MiB.
    """
    memory = counts.memory(device_kind())
    if memory is None:
        return max(1, 2**25 // vocab)
    return 2 ** max(0, int(memory / 64 / 4 / vocab).bit_length() - 1)


def _sum_of_losses(kernel: Array, bias: Array | None, rows: Array, targets: Array, weights: Array) -> Array:
    """The weighted loss of rows whose logits fit into memory."""
    # Wide operands need no custom gradient, and so keep second-order gradients.
    product = head_logits(rows, kernel, None) if rows.dtype == wide(rows) else _narrow_product(rows, kernel)
    logits = product if bias is None else product + bias
    normaliser = sum(_log_of_sum(logits)) if _whole_rows_on_gpus() else jax.nn.logsumexp(logits, axis=1)
    return jnp.sum(weights * (normaliser - _chosen(logits, targets)))


@jax.custom_jvp
def _log_of_sum(logits: Float[Array, "N V"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """The two summands of `jax.nn.logsumexp` of each row, in one pass over the logits; `logsumexp` itself takes two passes.

    They are the largest logit m and log sum_v exp(z_v - m), in the logits' dtype. The derivative treats m as a constant, because
    the sum of both does not depend on it.
    """

    def merge(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
        # Each part has its largest logit m and its sum of exp(logit - m).
        (m, total), (n, summand) = one, other
        less = jnp.where(m == n, 1, jnp.exp(-jnp.abs(m - n)))  # also where both are infinite
        return jnp.maximum(m, n), jnp.where(m > n, total + summand * less, total * less + summand)

    nothing = jnp.array(-jnp.inf, logits.dtype), jnp.zeros((), logits.dtype)
    largest, total = jax.lax.reduce((logits, jnp.ones_like(logits)), nothing, merge, (1,))
    return largest, jnp.log(total)


@_log_of_sum.defjvp
def _slope_of_sum(primals: tuple[Array], tangents: tuple[Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (logits,), (slopes,) = primals, tangents
    largest, rest = _log_of_sum(logits)
    # Subtract the largest first, which loses no digits that matter: large logits would round their difference from the sum.
    weights = jnp.exp(logits - largest[:, None] - rest[:, None])
    return (largest, rest), (jnp.zeros_like(largest), jnp.sum(weights * slopes, axis=1))


@jax.custom_jvp
def _chosen(logits: Float[Array, "N V"], targets: Int[Array, " N"]) -> Float[Array, " N"]:
    """The logits of the targets."""
    if _whole_rows_on_gpus():  # a sum would read all logits once more
        return jnp.take_along_axis(logits, targets[:, None], axis=1, mode="clip")[:, 0]
    # Where devices share the vocabulary, a sum makes each device send only one number per row.
    return _sum_of_chosen(logits, targets)


def _whole_rows_on_gpus() -> bool:
    """Whether this runs on GPUs that each have whole rows of logits."""
    return platform() == "gpu" and jax.sharding.get_abstract_mesh().shape.get(TENSOR, 1) == 1


def _sum_of_chosen(logits: Array, targets: Array) -> Array:
    ids = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 1)
    return jnp.sum(jnp.where(ids == targets[:, None], logits, 0), axis=1)


@_chosen.defjvp
def _slope_of_chosen(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    # The derivative of the sum, which fuses with the rest of the logits' gradient. A lookup would be transposed to a scatter.
    return _chosen(*primals), _sum_of_chosen(tangents[0], primals[1])


@jax.custom_vjp
def _narrow_product(rows: Array, kernel: Array) -> Array:
    """The logits of narrow rows, with a gradient whose products have equally narrow operands."""
    # JAX would widen one operand of each product to float32, the dtype of the logits' cotangent, which a GPU's tensor cores
    # multiply at half the rate, by the data sheet. A TPU narrows both operands by itself.
    return head_logits(rows, kernel, None)


def _product_forward(rows: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return head_logits(rows, kernel, None), (rows, kernel)


def _product_backward(operands: tuple[Array, Array], d_logits: Array) -> tuple[Array, Array]:
    rows, kernel = operands
    d_narrow = d_logits.astype(rows.dtype)
    product = lambda a, b: jnp.matmul(a, b, preferred_element_type=d_logits.dtype).astype(rows.dtype)
    return product(d_narrow, kernel.T), product(rows.T, d_narrow)


_narrow_product.defvjp(_product_forward, _product_backward)


def _sum_recomputed(kernel: Array, bias: Array | None, *blocks: Array) -> Array:
    """The weighted loss of chunks, whose logits the backward pass recomputes."""

    @jax.checkpoint  # without it the backward pass would keep the logits of all chunks
    def add(total: Array, block: tuple[Array, ...]) -> tuple[Array, None]:
        return total + _sum_of_losses(kernel, bias, *block), None

    return jax.lax.scan(add, jnp.zeros((), wide(kernel)), blocks)[0]


@jax.custom_vjp
def _sum_of_chunks(kernel: Array, bias: Array | None, rows: Array, targets: Array, weights: Array) -> Array:
    """The weighted loss of chunks, [N, chunk, ...] each."""
    return _sum_recomputed(kernel, bias, rows, targets, weights)


def _sum_and_gradient(
    kernel: Array, bias: Array | None, rows: Array, targets: Array, weights: Array
) -> tuple[Array, tuple[Array, Array | None, Array, Array]]:
    """The weighted loss of chunks and its gradient. Two passes would need one more product with the head."""

    def add(sums: Any, block: tuple[Array, Array, Array]) -> tuple[Any, tuple[Array, Array]]:
        rows, targets, weights = block
        of_chunk = lambda kernel, bias, rows, weights: _sum_of_losses(kernel, bias, rows, targets, weights)
        loss, pull = jax.vjp(of_chunk, kernel, bias, rows, weights)
        d_kernel, d_bias, d_rows, d_weights = pull(jnp.ones_like(loss))
        return jax.tree.map(jnp.add, sums, (loss, d_kernel, d_bias)), (d_rows, d_weights)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, wide(x)), (kernel, bias))
    sums, (d_rows, d_weights) = jax.lax.scan(add, (jnp.zeros((), wide(kernel)), *zeros), (rows, targets, weights))
    loss, *of_head = sums
    d_kernel, d_bias = jax.tree.map(lambda x, like: x.astype(like.dtype), tuple(of_head), (kernel, bias))
    return loss, (d_kernel, d_bias, d_rows, d_weights)


def _scale_gradient(gradient: tuple[Array, Array | None, Array, Array], d_loss: Array) -> tuple:
    """The cotangents of the arguments of `_sum_of_chunks`; targets have none."""
    d_kernel, d_bias, d_rows, d_weights = jax.tree.map(lambda x: x * d_loss.astype(x.dtype), gradient)
    return d_kernel, d_bias, d_rows, None, d_weights


_sum_of_chunks.defvjp(_sum_and_gradient, _scale_gradient)


def sharded_cross_entropy(
    rows: Float[Array, "B T E"],
    kernel: Float[Array, "E V"],
    bias: Float[Array, " V"] | None,
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """`cross_entropy` in chunks of each device's rows, with the vocabulary sharded over tensor; without a mesh, of all rows."""
    mesh = ambient_mesh()
    if mesh is None:
        return cross_entropy(rows, kernel, bias, targets, weights, chunk=chunk_rows(kernel.shape[1]))
    sharing = (*BATCH, CONTEXT)
    chunk = chunk_rows(kernel.shape[1] // mesh.shape[TENSOR])

    def sum_over_devices(*arguments: Any) -> tuple[Array, Array]:
        # One sum over devices, after the last chunk, and one of the kernel's gradient. If chunks were cut from the rows of all
        # devices, the compiler would send both once per chunk.
        # Preflight's memory sums are fitted to the form that recomputes.
        return jax.lax.psum(cross_entropy(*arguments, chunk=chunk, recompute=True), sharing)

    return jax.shard_map(
        sum_over_devices, in_specs=(TEXT, P(), P(), TEXT, TEXT), out_specs=P(), axis_names=set(sharing), check_vma=False
    )(rows, kernel, bias, targets, weights)
