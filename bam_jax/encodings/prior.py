"""Encodings whose bias compares token positions: BAM's priors, and those that the papers compare with them."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from bam_jax import biases
from bam_jax.encodings.base import ROWS, Dims, Encoding, Frozen, among, learned, positive, within
from bam_jax.system.errors import UserError


class NoPE(Encoding):
    """No positional encoding: a uniform prior. Source: Kazemnejad et al. 2023; BAM Lemma 1."""

    extrapolates = "in part"


class ALiBi(Encoding):
    """ALiBi: a Laplace prior with fixed scales.

        b(i, j) = -slope_h * abs(i - j) / factor,   slope_h = 2 ** (-8 h / H)

    Options:
      factor: divides the slopes at evaluation, which interpolates texts of factor times the training context.

    Source: Press et al. 2022, section 3; BAM Lemma 2; factor: Al-Khateeb et al. 2023 (arXiv 2310.13017).
    """

    extrapolates = "yes"

    def __init__(self, dims: Dims, *, factor: float = 1.0, rngs: nnx.Rngs):
        self.heads, self.factor = dims.heads, positive("factor", factor)

    def slopes(self) -> Array:
        """[H], in nats per token, before the division by factor."""
        return jnp.asarray(biases.alibi_slopes(self.heads), jnp.float32)

    def bias(self) -> biases.Bias:
        return biases.ALiBi(self.slopes() / self.factor)


class LearnedALiBi(ALiBi):
    """ALiBi with trained slopes, which start at the published ones and stay positive, because their logarithms are trained.

        b(i, j) = -exp(log_slope_h) * abs(i - j) / factor

    Options: factor, as in ALiBi.

    Source: Press et al. 2022, section 3, which finds that trained slopes extrapolate less; the logarithm is ours.
    """

    extrapolates = "less"

    def __init__(self, dims: Dims, *, factor: float = 1.0, rngs: nnx.Rngs):
        super().__init__(dims, factor=factor, rngs=rngs)
        self.log_slope = nnx.Param(jnp.log(super().slopes()))

    def slopes(self) -> Array:
        return jnp.exp(self.log_slope[...])


class NAPE(Encoding):
    """NAPE: ALiBi in some heads, no positions in the others.

        b(i, j) = -slope_h * abs(i - j),   slope_h = 1 / h or 2 ** (1 - h) for h = 1 to A, 0 for the other heads

    Options:
      alibi_heads: A, half of the heads by default.
      slopes: "linear", 1 / h, or "exponential", 2 ** (1 - h).

    Its authors use a sparse softmax, `config.ssmax="asentmax"`, and scale the scores with the length of the text only in the
    heads without positions. ssmax="effective" comes close to that scaling: it leaves short-range heads nearly unchanged.

    Source: Vasylenko et al. 2026 (arXiv 2506.16640), and their code.
    """

    extrapolates = "with entmax"

    def __init__(self, dims: Dims, *, alibi_heads: int | None = None, slopes: str = "linear", rngs: nnx.Rngs):
        count = within("alibi_heads", dims.heads // 2 if alibi_heads is None else alibi_heads, 0, dims.heads)
        kinds = {"linear": lambda h: 1 / h, "exponential": lambda h: 2.0 ** (1 - h)}
        slope = kinds[among("slopes", slopes, kinds)]
        self.slopes = tuple(slope(h) if h <= count else 0.0 for h in range(1, dims.heads + 1))

    def bias(self) -> biases.Bias:
        return biases.ALiBi(jnp.asarray(self.slopes, jnp.float32))


class Sandwich(Encoding):
    """Sandwich: inner products of sinusoidal position vectors, without parameters.

    Options: width of a position vector, 128 in the paper, and base.  Source: Chi et al. 2023, section 6.
    """

    extrapolates = "yes"

    def __init__(self, dims: Dims, *, width: int = 128, base: float = 10_000.0, rngs: nnx.Rngs):
        if width % 2:
            raise UserError(f"Sandwich's position vectors hold pairs: encoding_options.width={width} must be even")
        self.heads, self.width, self.base = dims.heads, within("width", width, 2, 4096), positive("base", base)

    def bias(self) -> biases.Bias:
        compression = jnp.asarray(biases.sandwich_compression(self.heads), jnp.float32)
        return biases.Sandwich(compression, self.width, self.base)


class AdditiveDecay(Encoding):
    """A learned mixture of linear, logarithmic and square-root decay; softplus keeps its weights non-negative.

    Options: initial weights of a head, linear (0.01 nats per token), logarithmic and root (0.1 nats).

    Source: Vetcha 2026 (arXiv 2601.06113), the additive part of Adaptive Positional Encoding; softplus and the initial values
    are ours.
    """

    extrapolates = "yes"

    def __init__(
        self, dims: Dims, *, linear: float = 0.01, logarithmic: float = 0.1, root: float = 0.1, rngs: nnx.Rngs
    ):
        inverse = lambda x: x + math.log(-math.expm1(-x))  # of softplus, at any x
        weight = lambda name, value: nnx.Param(jnp.full(dims.heads, inverse(positive(name, value))))
        self.linear = weight("linear", linear)
        self.logarithmic = weight("logarithmic", logarithmic)
        self.root = weight("root", root)

    def bias(self) -> biases.Bias:
        return biases.AdditiveDecay(*(jax.nn.softplus(x[...]) for x in (self.linear, self.logarithmic, self.root)))


Gaussian = learned(biases.Gaussian, log_width=math.log(16.0))
StudentT = learned(biases.StudentT, log_width=math.log(16.0), log_freedom=0.0)


def far_and_near(dims: Dims, near_decay: float | None = 16.0, near_shape: float = 1.0) -> tuple[Array, Array]:
    """The initialisation "ladder": shape and log_scale of one long-range head and of short-range heads, each [H].

    The first head has shape -1: it penalises nearby keys, and not distant ones. The others have shapes from 1, as in ALiBi, to
    near_shape, and widths from 1 token up. A head of shape s and width w penalises a key d tokens away by (d / w) ** s nats.

    Args:
        near_decay: the penalty of the widest short-range head for a key one training context away, in nats. None: that head's
            scale is exp(-3), whatever the training context.
        near_shape: the shape of the widest short-range head. The larger it is, the more that head resembles a window.

    Source: ours, docs/prior_study.md.
    """
    near_shape, widest = within("near_shape", near_shape, 0.1, 100.0), 3.0
    if near_decay is not None:
        widest = math.log(dims.context) - math.log(positive("near_decay", near_decay)) / near_shape
    shapes = jnp.linspace(1.0, near_shape, dims.heads - 1)
    log_widths = jnp.linspace(0.0, widest, dims.heads - 1)
    return jnp.concatenate([-jnp.ones(1), shapes]), jnp.concatenate([jnp.zeros(1), -shapes * log_widths])


class BAM(Encoding):
    """GGD-BAM: a generalised Gaussian prior for each head of each layer; under SSMax, inside the factor.

    Options:
      init: initial shape theta_beta and log_scale theta_alpha of the H heads of a layer:
        "uniform": 0 and 0, the paper's choice;  "alibi": 1 and log(slope);  "sampled": standard normal and 0;
        "linspace": from 0 to 1 and 0;  "spread": from -spread to spread and 0 (ours: some heads start with
        negative shapes, which are long-range);
        "ladder": see `far_and_near`.
      spread: the largest shape of "spread".
      near_decay, near_shape: options of "ladder", see `far_and_near`.
      train_shape, train_scale, train_loc: which parameters are trained; the paper fixes loc at 0.

    Source: BAM section 2.3, appendices C and H.1; one prior per head per layer.
    """

    extrapolates = "yes, with SSMax"
    ssmax_prior = "inside"

    def __init__(
        self,
        dims: Dims,
        *,
        init: str = "uniform",
        spread: float = 1.0,
        near_decay: float | None = 16.0,
        near_shape: float = 1.0,
        train_shape: bool = True,
        train_scale: bool = True,
        train_loc: bool = False,
        rngs: nnx.Rngs,
    ):
        heads, zeros = dims.heads, jnp.zeros(dims.heads)
        spread = within("spread", spread, -100.0, 100.0)
        inits = {
            "uniform": lambda: (zeros, zeros),
            "alibi": lambda: (zeros + 1, jnp.log(jnp.asarray(biases.alibi_slopes(heads), jnp.float32))),
            "sampled": lambda: (jax.random.normal(rngs.params(), (heads,)), zeros),
            "linspace": lambda: (jnp.linspace(0.0, 1.0, heads), zeros),
            "spread": lambda: (jnp.linspace(-spread, spread, heads), zeros),
            "ladder": lambda: far_and_near(dims, near_decay, near_shape),
        }
        shape, log_scale = inits[among("init", init, inits)]()
        variable = lambda value, train: (nnx.Param if train else Frozen)(value)
        self.shape = variable(shape, train_shape)
        self.log_scale = variable(log_scale, train_scale)
        self.loc = variable(zeros, train_loc)

    def bias(self) -> biases.GeneralisedGaussian:
        return biases.GeneralisedGaussian(self.shape[...], self.log_scale[...], self.loc[...])


class KerpleLog(Encoding):
    """Kerple, logarithmic form. r1 starts in (0, 2) and r2 in (0, 1); both stay positive, because their logarithms are trained.

    Source: Chi et al. 2022, section 4; CABLE section 2.
    """

    extrapolates = "yes"

    def __init__(self, dims: Dims, *, rngs: nnx.Rngs):
        draw = lambda top: jnp.log(jax.random.uniform(rngs.params(), (dims.heads,), minval=0.01, maxval=top))
        self.log_r1, self.log_r2 = nnx.Param(draw(2.0)), nnx.Param(draw(1.0))

    def bias(self) -> biases.Bias:
        return biases.KerpleLog(jnp.exp(self.log_r1[...]), jnp.exp(self.log_r2[...]))


class KerplePower(Encoding):
    """Kerple, power form. r1 starts in (0, 2); r2 = 2 sigmoid(logit_r2) stays in (0, 2).

    Source: Chi et al. 2022, section 4; CABLE section 2.
    """

    extrapolates = "yes"

    def __init__(self, dims: Dims, *, rngs: nnx.Rngs):
        draw = lambda low, top: jax.random.uniform(rngs.params(), (dims.heads,), minval=low, maxval=top)
        self.log_r1 = nnx.Param(jnp.log(draw(0.01, 2.0)))
        self.logit_r2 = nnx.Param(jax.scipy.special.logit(draw(0.01, 0.99)))

    def bias(self) -> biases.Bias:
        return biases.KerplePower(jnp.exp(self.log_r1[...]), 2 * jax.nn.sigmoid(self.logit_r2[...]))


class FIRE(Encoding):
    """FIRE: a network with one hidden layer of the relative distance; their absolute values keep c and L positive.

    CABLE's paper mentions only "an MLP", and its public code has no FIRE. As a baseline there, we use FIRE's own network: two
    linear layers with a relu between them. L starts at the training context; Li et al. start at 512.

    Options: hidden units, 32 in the paper.  Source: Li et al. 2023, section 3.3 and appendix B (c starts at 0.1).
    """

    extrapolates = "yes"

    def __init__(self, dims: Dims, *, hidden: int = 32, rngs: nnx.Rngs):
        self.length, hidden = dims.context, within("hidden", hidden, 1, 2**16)
        uniform = lambda shape, fan_in: jax.random.uniform(
            rngs.params(), shape, minval=-(fan_in**-0.5), maxval=fan_in**-0.5
        )
        self.w1, self.b1 = nnx.Param(uniform((hidden,), 1)), nnx.Param(uniform((hidden,), 1))
        self.w2, self.b2 = nnx.Param(uniform((dims.heads, hidden), hidden)), nnx.Param(uniform((dims.heads,), hidden))
        self.c, self.length_scale = nnx.Param(jnp.array(0.1)), nnx.Param(jnp.array(1.0))

    def bias(self) -> biases.Bias:
        return biases.FIRE(
            w1=self.w1[...],
            b1=self.b1[...],
            w2=self.w2[...],
            b2=self.b2[...],
            c=jnp.abs(self.c[...]),
            length=jnp.abs(self.length_scale[...]) * self.length,
        )


class T5(Encoding):
    """T5's logarithmic buckets; in an encoder, half of them are for keys after the query.

    Options: buckets (32), max_distance in tokens (128).  Source: Raffel et al. 2020.
    """

    extrapolates = "in part"

    def __init__(self, dims: Dims, *, buckets: int = 32, max_distance: int = 128, rngs: nnx.Rngs):
        self.bidirectional = not dims.causal
        sides = 2 if self.bidirectional else 1
        buckets = within("buckets", buckets, 2 * sides, 2**16)
        each = buckets // sides
        if not each // 2 < within("max_distance", max_distance, 1, 2**20):
            raise UserError(
                f"T5's last buckets are logarithmic: encoding_options.max_distance={max_distance} must be above {each // 2}, "
                f"for encoding_options.buckets={buckets}"
            )
        self.starts = biases.t5_starts(each, max_distance)
        init = nnx.initializers.normal(dims.width**-0.5)
        self.table = nnx.Param(init(rngs.params(), (dims.heads, buckets)))

    def bias(self) -> biases.Bias:
        return biases.T5(self.table[...], starts=self.starts, bidirectional=self.bidirectional)


class T5Distance(Encoding):
    """T5 bias with one value per distance, clipped. Options: clip in tokens, the training context by default.

    Source: CABLE section 2.
    """

    extrapolates = "in part"

    def __init__(self, dims: Dims, *, clip: int | None = None, rngs: nnx.Rngs):
        init = nnx.initializers.normal(dims.width**-0.5)
        farthest = within("clip", dims.context if clip is None else clip, 1, ROWS)
        self.table = nnx.Param(init(rngs.params(), (dims.heads, farthest + 1)))

    def bias(self) -> biases.Bias:
        return biases.T5Distance(self.table[...])
