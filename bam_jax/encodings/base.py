"""The hooks of a positional encoding, all identities by default."""

import dataclasses
from collections.abc import Collection
from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.biases import Bias, Rowwise, Uniform
from bam_jax.biases.base import Coordinate
from bam_jax.system.errors import UserError, nearest, shown

TOKENS = 2**31 - 1
"""The largest number of tokens, because positions are int32. As a position, it means no token."""
ROWS = 2**24
"""The largest number of rows of a table."""


@dataclasses.dataclass(frozen=True)
class Dims:
    """The properties of a model that an encoding may need.

    Args:
        heads: query heads.
        width: of the residual stream.
        context: training context in tokens.
        causal: whether queries see only what comes before them. Otherwise, in an encoder, biases are symmetric (T5's is
            bidirectional).
        head_dim: the width of a head; 0: width / heads.
    """

    heads: int
    width: int
    context: int
    causal: bool = True
    head_dim: int = 0

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.head_dim or self.width // self.heads


class Placed(Protocol):
    """Positions and documents of tokens.

    Args:
        position: [#B, T], index of each token in its row or document; `TOKENS`: no token.
        segment: [#B, T] or None, document number of the token in a packed row, from 1; 0 is padding.
    """

    @property
    def position(self) -> Int[Array, "#B T"]: ...
    @property
    def segment(self) -> Int[Array, "#B T"] | None: ...


class Frozen(nnx.Variable):
    """A prior parameter that is not trained: counted and saved, without a gradient."""


class Encoding(nnx.Module):
    """One layer's positional encoding. Override the hooks that it needs; options are keyword arguments of `__init__`.

    Class attributes:
        embedding: a module made once per model, `embedding(dims, rngs=rngs, **options)`, that adds positions to the token
            embeddings (`__call__(x [B, T, E], position [#B, T])`), and whose `limit` is the longest context, or None.
        ssmax_prior: where the authors put the prior when Scalable Softmax is on, "inside" or "outside" its factor.
        window: tokens that a query may see, itself included, or None.
        extrapolates: results beyond the training context in its paper, or in papers that compare it.
    """

    embedding: ClassVar[type[nnx.Module] | None] = None
    ssmax_prior: ClassVar[str] = "outside"
    window: int | None = None
    extrapolates: ClassVar[str] = "untested"

    def __init__(self, dims: Dims, *, rngs: nnx.Rngs):
        pass

    def turn(
        self,
        q: Float[Array, "B T H D"],
        k: Float[Array, "B T K D"],
        x: Float[Array, "B T E"],
        tokens: Placed,
        before: Any,
    ) -> tuple[Float[Array, "B T H W"], Float[Array, "B T K W"], Any]:
        """Queries and keys as attention compares them (RoPE rotates them by their positions), and the state after these tokens.

        The width of both may change together. Logits are still scaled by 1 / sqrt(D).

        Args:
            x: the layer's normalised input, the same that q, k and v are made of.
            tokens: their positions and documents. Padding precedes a text (position = `TOKENS`) and must not change the state.
            before: the state after the preceding tokens; see `initial_state`. An encoding without a state returns `before`.

        If only the logits of the last tokens are needed, earlier rows of q are zero. Compute the state from x and k, never
        from q.
        """
        return q, k, before

    def initial_state(self, batch: int) -> Any:
        """The state of `turn` before the first token of `batch` rows: arrays [B, ...]; None: there is none.

        During decoding, the cache carries it.
        """
        return None

    def coordinate(
        self, x: Float[Array, "B T E"], filled: Array, before: Coordinate, axis: str | None = None
    ) -> tuple[Coordinate, Coordinate]:
        """Coordinates of queries and of keys, computed from the layer's input (CABLE, FoX); None: the token's position.

        Args:
            x: the layer's normalised input, the same that q, k and v are made of.
            filled: [#B, T], false where the row is padded.
            before: the key coordinate of the token before the first, [B, #H, 1], when decoding with a cache; else None.
            axis: the mesh axis that shards the sequence, inside `jax.shard_map`; x is then this device's part. Else None.
        """
        return None, None

    def bias(self) -> Bias:
        """The bias with this layer's parameters."""
        return Uniform()

    def rowwise(self) -> Rowwise | None:
        """The function from whole rows of scores and biases to logits (DAPE, CoPE); None: their sum."""
        return None


def wide(x: Array) -> Array:
    """x in float32; float64 stays."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def linear(width: int, out: int, rngs: nnx.Rngs, *, bias: float | None = None) -> nnx.Linear:
    """A linear map. Weights are initially normal with a standard deviation of 0.02; the bias starts at `bias` (None: no bias)."""
    return nnx.Linear(
        width,
        out,
        use_bias=bias is not None,
        kernel_init=nnx.initializers.normal(0.02),
        bias_init=nnx.initializers.constant(bias or 0.0),
        rngs=rngs,
    )


def within[N: (int, float)](option: str, value: N, low: N, high: N) -> N:
    """The value of an option that must lie between two others, or a UserError."""
    if not low <= value <= high:
        raise UserError(f"encoding_options.{option}={shown(value)} must be between {low} and {high}")
    return value


def among(option: str, value: str, known: Collection[str]) -> str:
    """The value of an option that must be one of some names, or a UserError."""
    if value not in known:
        raise UserError(f"encoding_options.{option}={shown(value)} is unknown; {nearest(value, known)}")
    return value


def positive(option: str, value: float) -> float:
    """The value of an option that must be above 0, and neither so small nor so large that float32 loses it, or a UserError."""
    if not value > 0:
        raise UserError(f"encoding_options.{option}={value} must be above 0")
    return within(option, value, 1e-9, 1e18)


def learned(formula: type[Bias], **initial: Any) -> type[Encoding]:
    """An encoding that trains every parameter of a bias.

    Args:
        formula: a class made by `biases.bias`.
        initial: the initial value of each parameter: a number for every head, a vector [n] for a parameter [H, n], or the whole
            value of a `shared()` parameter.

    Raises:
        TypeError: the names are not those of the parameters.
    """
    fields = dataclasses.fields(formula)  # type: ignore[arg-type]  # every bias is one
    parameters = {field.name: field for field in fields if not field.metadata.get("static")}
    if initial.keys() != parameters.keys():
        wanted, given = (", ".join(names) or "none" for names in (parameters, initial))
        raise TypeError(f"learned({formula.__name__}) takes an initial value for each parameter, {wanted}: got {given}")

    class Learned(Encoding):
        def __init__(self, dims: Dims, *, rngs: nnx.Rngs):
            for name, value in initial.items():
                value = jnp.asarray(value, jnp.float32)
                heads = () if parameters[name].metadata.get("shared") else (dims.heads,)
                setattr(self, name, nnx.Param(jnp.broadcast_to(value, (*heads, *value.shape))))

        def bias(self) -> Bias:
            return formula(**{name: getattr(self, name)[...] for name in initial})

    Learned.__name__ = Learned.__qualname__ = formula.__name__
    Learned.__doc__ = formula.__doc__
    return Learned
