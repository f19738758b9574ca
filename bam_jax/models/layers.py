"""The parts of decoders besides attention: linear maps, norms and MLPs, and which of them a family puts together."""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bam_jax.system.platform import platform


def product_dtype(name: str) -> jnp.dtype:
    """The dtype of matrix products.

    Args:
        name: `config.model.dtype`.
    """
    if name == "auto":
        name = "float32" if platform() == "cpu" else "bfloat16"
    return jnp.dtype(name)


def rngs_of(rngs: nnx.Rngs, name: str) -> nnx.Rngs:
    """The random numbers of a part of a model, by its name alone.

    Models of one seed share the initial values of every part that they have in common, whatever else they draw: what
    differs between two encodings is then the encoding.

    Args:
        rngs: of the whole; nothing is drawn from them.
        name: of the part within the whole.

    >>> first, second = (rngs_of(nnx.Rngs(0), name).params() for name in ("query", "query"))
    >>> bool(first == second)
    True
    """
    return nnx.Rngs(params=jax.random.fold_in(rngs.params.key[...], zlib.crc32(name.encode())))


@dataclasses.dataclass(frozen=True)
class Family:
    """A way to build decoders that their layers share.

    Args:
        norm: (width, dtype=, rngs=) -> module.
        mlp: (width, hidden, layers, family=, dtype=, rngs=) -> module.
        bias: whether linear maps have one.
        tied: whether the head is the transposed embedding.
        embedding_std: of the embedding's initial values.
        std: of the initial kernels; those that write to the residual stream have (2 layers)^-1/2 of it. None: LeCun's,
            1 / sqrt(inputs), for all.
    """

    norm: Callable[..., nnx.Module]
    mlp: Callable[..., nnx.Module]
    bias: bool
    tied: bool
    embedding_std: float
    std: float | None

    def linear(
        self, inputs: int, outputs: int, *, dtype: jnp.dtype, rngs: nnx.Rngs, residual_layers: int | None = None
    ) -> nnx.Linear:
        """A linear map [..., inputs] -> [..., outputs].

        Args:
            residual_layers: of the decoder, where the map writes to its residual stream.
        """
        options: dict[str, Any] = {}
        if self.std is not None:
            scale = 1.0 if residual_layers is None else (2 * residual_layers) ** -0.5
            options["kernel_init"] = nnx.initializers.normal(self.std * scale)
        return nnx.Linear(
            inputs, outputs, use_bias=self.bias, dtype=dtype, dot_general=_dot_general_of_rows, rngs=rngs, **options
        )


class SwiGLU(nnx.Module):
    """down(silu(gate(x)) * up(x)). Source: Shazeer 2020."""

    def __init__(self, width: int, hidden: int, layers: int, *, family: Family, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.gate = family.linear(width, hidden, dtype=dtype, rngs=rngs_of(rngs, "gate"))
        self.up = family.linear(width, hidden, dtype=dtype, rngs=rngs_of(rngs, "up"))
        self.down = family.linear(hidden, width, dtype=dtype, rngs=rngs_of(rngs, "down"), residual_layers=layers)

    def __call__(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class GELU(nnx.Module):
    """down(gelu(up(x))), with the tanh approximation. Source: Radford et al. 2019."""

    def __init__(self, width: int, hidden: int, layers: int, *, family: Family, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.up = family.linear(width, hidden, dtype=dtype, rngs=rngs_of(rngs, "up"))
        self.down = family.linear(hidden, width, dtype=dtype, rngs=rngs_of(rngs, "down"), residual_layers=layers)

    def __call__(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self.down(jax.nn.gelu(self.up(x), approximate=True))


def _rms_norm(width: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Module:
    return nnx.RMSNorm(width, epsilon=1e-5, dtype=dtype, rngs=rngs)


def _layer_norm(width: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Module:
    return nnx.LayerNorm(width, epsilon=1e-5, dtype=dtype, rngs=rngs)


FAMILIES = {
    "llama": Family(_rms_norm, SwiGLU, bias=False, tied=False, embedding_std=1.0, std=None),
    "gpt2": Family(_layer_norm, GELU, bias=True, tied=True, embedding_std=0.02, std=0.02),
}
"""By `config.model.family`: BAM's (appendix C, table 1; Touvron et al. 2023), and CABLE's (section 4; Radford et al. 2019)."""


def _dot_general_of_rows(x: Array, kernel: Array, dimension_numbers: tuple, **options: Any) -> Array:
    """`lax.dot_general` of [..., E] and [E, F], as one matrix product on a CPU.

    XLA's CPU backend computes the kernel's gradient, a contraction over two axes, four times slower than over one. (Of
    rows and tokens that are both cut over devices, one axis cannot be made.)
    """
    if platform() != "cpu" or jax.sharding.get_abstract_mesh().size > 1:
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    y = jax.lax.dot_general(x.reshape(-1, x.shape[-1]), kernel, (((1,), (0,)), ((), ())), **options)
    return y.reshape(*x.shape[:-1], kernel.shape[1])
