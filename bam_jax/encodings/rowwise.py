"""Encodings that need whole rows of scores: DAPE V2 over another method's bias, CoPE, and Shaw's relative keys.

They run on the attention backends "reference" and "rows", which "auto" selects for them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from bam_jax import biases
from bam_jax.encodings.base import ROWS, Dims, Encoding, within
from bam_jax.encodings.context_aware import CABLE
from bam_jax.encodings.prior import KerpleLog
from bam_jax.system.errors import UserError


class Convolutions(nnx.Module):
    """The two convolutions of DAPE V2, initialised as in PyTorch: uniform within +-1 / sqrt(number of terms in a sum)."""

    def __init__(self, dims: Dims, *, features: int, kernel: int, rngs: nnx.Rngs):
        features, kernel = within("features", features, 1, 4096), within("kernel", kernel, 1, 1025)
        if kernel % 2 == 0:
            raise UserError(f"DAPE's kernels have a middle: encoding_options.kernel={kernel} must be odd")

        def uniform(*shape: int, terms: int) -> nnx.Param:
            return nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-(terms**-0.5), maxval=terms**-0.5))

        self.w1 = uniform(features, 2 * dims.heads, kernel, terms=2 * dims.heads * kernel)
        self.b1 = uniform(features, terms=2 * dims.heads * kernel)
        self.w2 = uniform(dims.heads, features, kernel, terms=features * kernel)
        self.b2 = uniform(dims.heads, terms=features * kernel)

    def __call__(self) -> biases.DAPE:
        """The function with these parameters."""
        return biases.DAPE(self.w1[...], self.b1[...], self.w2[...], self.b2[...])


class DAPEKerple(KerpleLog):
    """DAPE V2 over Kerple's logarithmic form. Options: features (32) of the hidden layer, kernel (3) in keys.

    Source: Zheng et al. 2024 (arXiv 2410.04798), section 3.2; Chi et al. 2022.
    """

    def __init__(self, dims: Dims, *, features: int = 32, kernel: int = 3, rngs: nnx.Rngs):
        super().__init__(dims, rngs=rngs)
        self.convolutions = Convolutions(dims, features=features, kernel=kernel, rngs=rngs)

    def rowwise(self) -> biases.Rowwise:
        return self.convolutions()


class DAPECABLE(CABLE):
    """DAPE V2 over CABLE. Options: features (32) and kernel (3), as over Kerple; gate and step_bias, as in CABLE.

    Source: Zheng et al. 2024 (arXiv 2410.04798), section 3.2; CABLE section 5.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        features: int = 32,
        kernel: int = 3,
        gate: str = "relu",
        step_bias: bool = False,
        rngs: nnx.Rngs,
    ):
        super().__init__(dims, gate=gate, step_bias=step_bias, rngs=rngs)
        self.convolutions = Convolutions(dims, features=features, kernel=kernel, rngs=rngs)

    def rowwise(self) -> biases.Rowwise:
        return self.convolutions()


class CoPE(Encoding):
    """CoPE: positions count the tokens that a query's gates let pass; the vectors of positions start at 0.

    Options: positions, the number of vectors in a layer (64); the last one is used for all keys farther away.

    Source: Golovneva et al. 2024 (arXiv 2405.18719), section 4 (64 positions in its language models).
    """

    extrapolates = "in part"

    def __init__(self, dims: Dims, *, positions: int = 64, rngs: nnx.Rngs):
        positions = within("positions", positions, 2, 2**16)
        self.symmetric = not dims.causal
        self.vectors = nnx.Param(jnp.zeros((positions, dims.head_width)))

    def rowwise(self) -> biases.Rowwise:
        return biases.CoPE(self.vectors[...], self.symmetric)


class Shaw(Encoding):
    """Relative position representations, the first relative encoding: a trained vector for each offset, added to keys.

    The vectors are initially normal with a standard deviation of D ** -0.5, as in tensor2tensor.

    Options: clip, K (16): keys farther away have the vector of distance K.

    Source: Shaw et al. 2018, section 3.2.
    """

    extrapolates = "untested"

    def __init__(self, dims: Dims, *, clip: int = 16, rngs: nnx.Rngs):
        shape = 2 * within("clip", clip, 1, ROWS // 2 - 1) + 1, dims.head_width
        self.vectors = nnx.Param(jax.random.normal(rngs.params(), shape) * dims.head_width**-0.5)

    def rowwise(self) -> biases.Rowwise:
        return biases.RelativeKeys(self.vectors[...])
