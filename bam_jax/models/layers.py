"""The parts of models besides attention: linear maps, norms, MLPs and heads, and how a family combines them."""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.config import ModelConfig
from bam_jax.parallel.sharding import BATCH, CONTEXT, TENSOR, ambient_mesh
from bam_jax.system.platform import platform


def product_dtype(name: str) -> jnp.dtype:
    """The dtype of matrix products."""
    if name == "auto":
        name = "float32" if platform() == "cpu" else "bfloat16"
    return jnp.dtype(name)


def rngs_of(rngs: nnx.Rngs, name: str) -> nnx.Rngs:
    """The random numbers of a part of a model, which depend only on the seed and its name.

    Models with the same seed share the initial values of every part that they have in common, whatever else they draw. Models
    with two encodings then differ only in the encoding.

    >>> first, second = (rngs_of(nnx.Rngs(0), name).params() for name in ("query", "query"))
    >>> bool(first == second)
    True
    """
    return nnx.Rngs(params=jax.random.fold_in(rngs.params.key[...], zlib.crc32(name.encode())))


@dataclasses.dataclass(frozen=True)
class Family:
    """The design choices that all layers of a model share."""

    norm: Callable[..., nnx.Module]  # (width, epsilon=, dtype=, rngs=) -> module
    mlp: Callable[..., nnx.Module]  # (width, hidden, layers, family=, dtype=, rngs=) -> module
    bias: bool  # of linear maps
    tied: bool  # the head is always the transposed embedding
    embedding_std: float
    # Of the initial kernels; times (2 layers)^-1/2 for those that write to the residual stream, unless norms follow.
    # None: LeCun's, 1 / sqrt(inputs), for all.
    std: float | None
    post_norm: bool = False  # norms follow the sums of a layer, and the embeddings
    masked: bool = False  # the head is a `MaskedHead`
    sandwich: bool = False  # norms follow a layer's attention and MLP as well, before the sums
    scaled_embedding: bool = False  # token embeddings are multiplied by sqrt(width); the tied head uses them unscaled

    def linear(
        self,
        inputs: int,
        outputs: int,
        *,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        residual_layers: int | None = None,
        bias: bool = False,
    ) -> "Linear":
        """A linear map [..., inputs] -> [..., outputs].

        `residual_layers`: number of the decoder's layers, if the map writes to its residual stream. `bias`: whether it has a bias
        where the family has none.
        """
        options: dict[str, Any] = {}
        if self.std is not None:
            # A norm after the sum undoes the stream's growth.
            scale = 1.0 if residual_layers is None or self.post_norm else (2 * residual_layers) ** -0.5
            options["kernel_init"] = nnx.initializers.normal(self.std * scale)
        return Linear(inputs, outputs, use_bias=self.bias or bias, dtype=dtype, rngs=rngs, **options)

    def build_head(
        self, config: ModelConfig, vocab: int, *, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> "Linear | MaskedHead | None":
        """The head's own parameters; None where it is the transposed embedding and nothing else."""
        if self.masked:
            return MaskedHead(config.width, vocab, family=self, dtype=dtype, rngs=rngs)
        return None if self.tied or config.tied else self.linear(config.width, vocab, dtype=dtype, rngs=rngs)

    def build_norm(self, config: ModelConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Module:
        """A norm of rows of the model's width."""
        epsilon = {"epsilon": config.norm_epsilon} if config.norm_epsilon else {}
        return self.norm(config.width, dtype=dtype, rngs=rngs, **epsilon)


class Linear(nnx.Linear):
    """x K + b. b is added in at least float32, so that its gradient, a sum over all tokens, is not computed in bfloat16."""

    def __init__(self, inputs: int, outputs: int, *, use_bias: bool, dtype: jnp.dtype, rngs: nnx.Rngs, **initial: Any):
        super().__init__(
            inputs, outputs, use_bias=use_bias, dtype=dtype, dot_general=_dot_general_of_rows, rngs=rngs, **initial
        )

    def __call__(self, inputs: Float[Array, "*B E"], out_sharding: Any = None) -> Float[Array, "*B F"]:
        x, kernel = inputs.astype(self.dtype), self.kernel[...].astype(self.dtype)
        y = self.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())), out_sharding=out_sharding)
        return y if self.bias is None else (y.astype(wide(y)) + self.bias[...]).astype(y.dtype)


def wide(x: Float[Array, "..."]) -> jnp.dtype:
    """The dtype for sums of such numbers: at least float32."""
    return jnp.promote_types(x.dtype, jnp.float32)


def look_up(table: Float[Array, "V E"], index: Int[Array, "*B"]) -> Float[Array, "*B E"]:
    """Rows of a table, whose gradient is summed in at least float32.

    JAX would sum it in the table's dtype. In bfloat16 a sum of equal terms stops growing after 256 of them, and a batch has
    thousands of spaces.
    """
    return jnp.take(table, index, axis=0) if table.dtype == wide(table) else _narrow_rows(table, index)


@jax.custom_vjp
def _narrow_rows(table: Array, index: Array) -> Array:
    return jnp.take(table, index, axis=0)


def _rows_forward(table: Array, index: Array) -> tuple[Array, tuple[Array, Array]]:
    return jnp.take(table, index, axis=0), (index, table[:, :0])  # an array without columns keeps rows and dtype


def _rows_backward(residuals: tuple[Array, Array], d_rows: Array) -> tuple[Array, None]:
    index, like = residuals
    flat = jnp.where(index < 0, index + like.shape[0], index).reshape(-1)  # -1 also means the last row
    # With sorted indices, a GPU sums a run in registers. Otherwise its threads wait for each other to add to the same row.
    order = jnp.argsort(flat)
    summands = d_rows.reshape(flat.size, -1)[order].astype(wide(d_rows))
    total = jax.ops.segment_sum(summands, flat[order], like.shape[0], indices_are_sorted=True)
    return total.astype(like.dtype), None


_narrow_rows.defvjp(_rows_forward, _rows_backward)


class SwiGLU(nnx.Module):
    """down(silu(gate(x)) * up(x)). Source: Shazeer 2020."""

    activation = staticmethod(jax.nn.silu)

    def __init__(self, width: int, hidden: int, layers: int, *, family: Family, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.gate = family.linear(width, hidden, dtype=dtype, rngs=rngs_of(rngs, "gate"))
        self.up = family.linear(width, hidden, dtype=dtype, rngs=rngs_of(rngs, "up"))
        self.down = family.linear(hidden, width, dtype=dtype, rngs=rngs_of(rngs, "down"), residual_layers=layers)

    def __call__(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        if self.gate.bias is not None or not _are_many(math.prod(x.shape[:-1]), self.gate.out_features):
            return self.down(self.activation(self.gate(x)) * self.up(x))
        # One product for both maps reads the rows once, and gives the rows one gradient instead of a sum of two. Stacking the
        # kernels between their axes keeps their sharding.
        kernels = jnp.stack([self.gate.kernel[...], self.up.kernel[...]], axis=1).astype(self.gate.dtype)
        both = self.gate.dot_general(x.astype(self.gate.dtype), kernels, (((x.ndim - 1,), (0,)), ((), ())))
        return self.down(self.activation(both[..., 0, :]) * both[..., 1, :])


def _are_many(tokens: Any, hidden: int) -> bool:
    """Whether a device has enough tokens to justify copying two kernels; False if the size of the batch is unknown."""
    mesh = ambient_mesh()
    if mesh is not None:
        tokens //= math.prod(mesh.shape[axis] for axis in (*BATCH, CONTEXT))
        hidden //= mesh.shape[TENSOR]
    return isinstance(tokens, int) and tokens >= 4 * hidden


class GEGLU(SwiGLU):
    """down(gelu(gate(x)) * up(x)), with the tanh approximation. Source: Shazeer 2020."""

    activation = staticmethod(functools.partial(jax.nn.gelu, approximate=True))


class GELU(nnx.Module):
    """down(gelu(up(x))), exact or with the tanh approximation. Source: Devlin et al. 2019; Radford et al. 2019."""

    def __init__(
        self,
        width: int,
        hidden: int,
        layers: int,
        *,
        family: Family,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        approximate: bool = True,
    ):
        self.approximate = approximate
        self.up = family.linear(width, hidden, dtype=dtype, rngs=rngs_of(rngs, "up"))
        self.down = family.linear(hidden, width, dtype=dtype, rngs=rngs_of(rngs, "down"), residual_layers=layers)

    def __call__(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self.down(jax.nn.gelu(self.up(x), approximate=self.approximate))


class MaskedHead(nnx.Module):
    """The head of masked language modelling: logits = norm(gelu(dense(x))) . embedding + bias. Source: Devlin et al. 2019."""

    def __init__(self, width: int, vocab: int, *, family: Family, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.dense = family.linear(width, width, dtype=dtype, rngs=rngs_of(rngs, "dense"))
        self.norm = family.norm(width, dtype=dtype, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(vocab))

    def transform(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        """The rows that are multiplied by the embedding."""
        return self.norm(jax.nn.gelu(self.dense(x), approximate=False))


def head_logits(
    rows: Float[Array, "*B E"], kernel: Float[Array, "E V"], bias: Float[Array, " V"] | None
) -> Float[Array, "*B V"]:
    """Logits of rows, in at least float32."""
    logits = jnp.matmul(rows, kernel, preferred_element_type=wide(rows))
    return logits if bias is None else logits + bias


_layer_norm = functools.partial(nnx.LayerNorm, epsilon=1e-5)
FAMILIES = {
    "llama": Family(
        functools.partial(nnx.RMSNorm, epsilon=1e-5), SwiGLU, bias=False, tied=False, embedding_std=1.0, std=None
    ),
    "gpt2": Family(_layer_norm, GELU, bias=True, tied=True, embedding_std=0.02, std=0.02),
    # No token types: a text is one segment, whose row would be added to every token. That would shift all embeddings, and so
    # all logits of a tied head, equally.
    "bert": Family(
        functools.partial(_layer_norm, epsilon=1e-12),
        functools.partial(GELU, approximate=False),
        bias=True,
        tied=True,
        embedding_std=0.02,
        std=0.02,
        post_norm=True,
        masked=True,
    ),
    "mpt": Family(
        functools.partial(_layer_norm, use_bias=False),
        functools.partial(GELU, approximate=False),
        bias=False,
        tied=True,
        embedding_std=0.02,
        std=0.02,
    ),
    "gemma": Family(
        functools.partial(nnx.RMSNorm, epsilon=1e-6),
        GEGLU,
        bias=False,
        tied=True,
        embedding_std=0.02,
        std=0.02,
        sandwich=True,
        scaled_embedding=True,
    ),
}
"""By `config.model.family`: BAM's (appendix C, table 1; Touvron et al. 2023), CABLE's two (section 4, Radford et al. 2019;
section 5.5, Devlin et al. 2019), MosaicML's MPT, and Gemma 3 (both as transformers has them)."""


def _dot_general_of_rows(x: Array, kernel: Array, dimension_numbers: tuple, **options: Any) -> Array:
    """`lax.dot_general` of [..., E] and [E, ...], as one matrix product on a CPU."""
    # XLA's CPU backend computes the kernel's gradient, a contraction over two axes, four times slower than over one. Rows and
    # tokens that are both sharded cannot be merged into one axis.
    if platform() != "cpu" or jax.sharding.get_abstract_mesh().size > 1:
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    y = jax.lax.dot_general(x.reshape(-1, x.shape[-1]), kernel, (((1,), (0,)), ((), ())), **options)
    return y.reshape(*x.shape[:-1], *kernel.shape[1:])
