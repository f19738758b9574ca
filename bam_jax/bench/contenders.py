"""The contenders of `bench.attention_speed`: shapes of attention, their operands, and everything that computes them."""

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bam_jax import biases
from bam_jax.attention import BACKENDS, Scoring, Tiling, Tokens, attention
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.scoring import HIDDEN, bias_table

PASSES = ("forward", "forward+backward")
OURS = {"tpu": ("pallas_tpu", "chunked"), "gpu": ("pallas_gpu", "chunked"), "cpu": ("chunked",)}
"""The backends that each platform may have, its own first."""

_FIRE_WIDTH = 32  # numbers inside FIRE's network, as its paper has them


@dataclasses.dataclass(frozen=True)
class AttentionShape:
    """The shape of one attention, and its bias.

    Args:
        length: keys, in tokens.
        queries: the last ones of them; 1 decodes.
        batch, heads, width: rows, heads and head width.
        dtype: of q, k and v.
        bias: a name in `BIASES`.
        slope: of ALiBi in every head, in nats per token; None: the published ones.
    """

    length: int
    queries: int
    batch: int = 1
    heads: int = 8
    width: int = 64
    dtype: str = "float32"
    bias: str = "ggd"
    slope: float | None = None


class BiasOperands(NamedTuple):
    """A bias and what it compares.

    Args:
        bias: with parameters for every head.
        trained: names of the parameters that get a gradient.
        i, j: coordinates of all tokens as queries and as keys, [batch, heads, length] each; None: positions.
    """

    bias: biases.Bias
    trained: tuple[str, ...] = ()
    i: Any = None
    j: Any = None


def _ggd(shape: AttentionShape) -> BiasOperands:
    ramp = functools.partial(jnp.linspace, num=shape.heads, dtype=jnp.float32)
    prior = biases.GeneralisedGaussian(ramp(0.2, 1.0), ramp(-2.0, 0.0), jnp.zeros(shape.heads))
    return BiasOperands(prior, ("shape", "log_scale"))


def _alibi(shape: AttentionShape) -> BiasOperands:
    slopes = biases.alibi_slopes(shape.heads) if shape.slope is None else np.full(shape.heads, shape.slope)
    return BiasOperands(biases.ALiBi(jnp.asarray(slopes, jnp.float32)))


def _kerple(shape: AttentionShape) -> BiasOperands:
    return BiasOperands(biases.KerpleLog(jnp.ones(shape.heads), jnp.full(shape.heads, 0.5)), ("r1", "r2"))


def _kerple_power(shape: AttentionShape) -> BiasOperands:
    return BiasOperands(biases.KerplePower(jnp.full(shape.heads, 0.1), jnp.full(shape.heads, 0.8)), ("r1", "r2"))


def _additive_decay(shape: AttentionShape) -> BiasOperands:
    weights = (jnp.full(shape.heads, weight) for weight in (0.01, 0.5, 0.1))
    return BiasOperands(biases.AdditiveDecay(*weights), ("linear", "logarithmic", "root"))


def _gaussian(shape: AttentionShape) -> BiasOperands:
    return BiasOperands(biases.Gaussian(jnp.linspace(2.0, 6.0, shape.heads)), ("log_width",))


def _student_t(shape: AttentionShape) -> BiasOperands:
    widths = jnp.linspace(2.0, 6.0, shape.heads)
    return BiasOperands(biases.StudentT(widths, jnp.zeros(shape.heads)), ("log_width", "log_freedom"))


def _sandwich(shape: AttentionShape) -> BiasOperands:
    return BiasOperands(biases.Sandwich(jnp.linspace(1.0, 8.0, shape.heads)), ("compression",))


def _fire(shape: AttentionShape) -> BiasOperands:
    generator = np.random.default_rng(2)
    normal = lambda *sizes: jnp.asarray(generator.standard_normal(sizes), jnp.float32)
    inner = {"w1": normal(_FIRE_WIDTH), "b1": normal(_FIRE_WIDTH), "c": jnp.float32(0.1), "length": jnp.float32(64.0)}
    fire = biases.FIRE(normal(shape.heads, _FIRE_WIDTH), normal(shape.heads), **inner)
    return BiasOperands(fire, ("w2", "b2", *inner))


def _t5(shape: AttentionShape, bidirectional: bool = False) -> BiasOperands:
    starts = biases.t5_starts(16 if bidirectional else 32)
    table = jnp.tile(jnp.linspace(0.0, -4.0, len(starts)), (shape.heads, 2 if bidirectional else 1))
    return BiasOperands(biases.T5(table, starts=starts, bidirectional=bidirectional), ("table",))


def _t5_distance(shape: AttentionShape) -> BiasOperands:
    table = jnp.tile(jnp.linspace(0.0, -4.0, 129), (shape.heads, 1))
    return BiasOperands(biases.T5Distance(table), ("table",))


def _running_sum(shape: AttentionShape, step: float) -> tuple[Array, Array]:
    steps = np.random.default_rng(1).exponential(step, (shape.batch, shape.heads, shape.length))
    # Two float32 numbers hold the sum of a long row as one float64 would: a rounded one would lose the last tokens' steps.
    total = np.cumsum(steps, -1)
    high = total.astype(np.float32)
    return jnp.asarray(high), jnp.asarray((total - high).astype(np.float32))


def _cable(shape: AttentionShape, bias: biases.Bias = biases.CABLE()) -> BiasOperands:
    total = _running_sum(shape, 0.5)
    return BiasOperands(bias, i=(jnp.full_like(total[0], 0.1), total), j=total)


def _fox(shape: AttentionShape, bias: biases.Bias = biases.Difference()) -> BiasOperands:
    total = jax.tree.map(jnp.negative, _running_sum(shape, 0.05))
    return BiasOperands(bias, i=total, j=total)


def _contextual(shape: AttentionShape) -> BiasOperands:
    power, log_scale, _ = jax.tree.leaves(_ggd(shape).bias)
    total = _running_sum(shape, 0.5)
    return BiasOperands(biases.ContextualGaussian(power, log_scale), ("shape", "log_scale"), i=total, j=total)


BIASES: dict[str, Callable[[AttentionShape], BiasOperands]] = {
    "nope": lambda shape: BiasOperands(biases.Uniform()),
    "alibi": _alibi,
    "ggd": _ggd,
    "kerple_log": _kerple,
    "t5": _t5,
    "cable": _cable,
    "fox": _fox,
    "contextual": _contextual,
    "fire": _fire,
    "t5_bidirectional": functools.partial(_t5, bidirectional=True),
    "k_cable": functools.partial(_cable, bias=biases.KCABLE()),
    "distance": functools.partial(_fox, bias=biases.Difference(symmetric=True)),
    "kerple_power": _kerple_power,
    "additive_decay": _additive_decay,
    "gaussian": _gaussian,
    "student_t": _student_t,
    "t5_distance": _t5_distance,
    "sandwich": _sandwich,
}
"""Every bias of `bam_jax.biases` that needs no whole rows of logits, the most used ones first."""


@dataclasses.dataclass(frozen=True)
class Operands:
    """The operands of a shape.

    Args:
        q, d_out: queries and the output's cotangent, [B, T, H, D].
        k, v: keys and values, [B, S, H, D].
        learned: what gets a gradient besides: parameters of the bias by name, coordinates as "i" and "j".
        bias: with its first parameters.
    """

    q: Array
    k: Array
    v: Array
    d_out: Array
    learned: dict[str, Any]
    bias: biases.Bias

    @classmethod
    def draw(cls, shape: AttentionShape) -> "Operands":
        """Draw the operands of a shape, the same ones each time: unit-variance numbers."""
        generator = np.random.default_rng(0)

        def normal(tokens: int) -> Array:
            sizes = (shape.batch, tokens, shape.heads, shape.width)
            return jnp.asarray(generator.standard_normal(sizes, np.float32), shape.dtype)

        bias, trained, i, j = BIASES[shape.bias](shape)
        learned = {name: getattr(bias, name) for name in trained}
        if i is not None:
            learned |= {"i": jax.tree.map(lambda x: x[..., -shape.queries :], i), "j": j}
        return cls(
            normal(shape.queries), normal(shape.length), normal(shape.length), normal(shape.queries), learned, bias
        )

    def scoring(self, learned: dict[str, Any]) -> Scoring:
        """Put numbers in the place of everything that is learned: how queries score keys then.

        Args:
            learned: as the field.
        """
        position = jnp.arange(self.k.shape[1], dtype=jnp.int32)[None]
        parameters = {name: x for name, x in learned.items() if name not in ("i", "j")}
        of = lambda name: learned[name] if name in learned else None
        queries = Tokens(position[:, -self.q.shape[1] :], coordinate=of("i"))
        bias = dataclasses.replace(self.bias, **parameters)  # type: ignore[type-var]
        return Scoring(bias, queries, Tokens(position, coordinate=of("j")))


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """A contender compiled for one shape, about to run.

    Args:
        call: starts the computation and returns what `wait` is given.
        wait: returns when it is done.
        temporary_bytes: memory beside operands and results; None: not known before it runs.
        peak: gives the most bytes that the device had in use so far; None where it counts none.
    """

    call: Callable[[], Any]
    wait: Callable[[Any], Any]
    temporary_bytes: int | None
    peak: Callable[[], int | None]


# The contenders of a shape share its operands: at half a million tokens to draw them takes longer than to attend.
_draw_once = functools.lru_cache(maxsize=1)(Operands.draw)

Attend = Callable[[Array, Array, Array, Scoring], Array]


def dense(q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
    """Attention with its bias as a table, all heads and logits in memory, as the papers' authors compute it.

    Args:
        q: [B, T, H, D].
        k, v: [B, S, H, D].
        scoring: the bias, tokens and mask; no temperature.

    Returns:
        [B, T, H, D].
    """
    logits = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    seen = visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    weights = jax.nn.softmax(jnp.where(seen, logits + bias_table(scoring, jnp.dtype(jnp.float32)), HIDDEN))
    return jnp.einsum("bhts,bshd->bthd", weights.astype(v.dtype), v)


def _library(function: Callable, with_bias: bool, **options: Any) -> Attend:
    """Attention by `jax.nn.dot_product_attention`, or by tokamax's of the same signature. One query sees all keys."""

    def attend(q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
        table = None
        if with_bias:
            table = bias_table(scoring, jnp.dtype(jnp.float32)).astype(q.dtype)
            table = jnp.broadcast_to(table, (table.shape[0], q.shape[2], q.shape[1], k.shape[1]))
        return function(q, k, v, bias=table, is_causal=q.shape[1] > 1, **options)

    return attend


def _ours(backend: str, skip: float | str) -> Attend:
    return functools.partial(attention, backend=backend, tiling=Tiling(skip=skip))


def preparers(skips: Sequence[float | str]) -> dict[str, Callable[[AttentionShape, str], PreparedRun]]:
    """Name everything that may run here, with the function that prepares it for a shape and one of `PASSES`.

    Such a function raises where the contender cannot run: ImportError, NotImplementedError, ValueError, or a compiler's
    RuntimeError.

    Args:
        skips: what this package's attention leaves out, one contender for each; see `Tiling.skip`.
    """
    backend = jax.default_backend()
    fused = {"implementation": "cudnn"} if backend == "gpu" else {}
    programs: dict[str, Callable[[], Attend]] = {}
    for name in OURS[backend]:
        if name in BACKENDS:
            programs |= {f"ours {name}, {skip}": functools.partial(_ours, name, skip) for skip in skips}
    programs["dense"] = lambda: dense
    for label, with_bias in (("", False), (" + bias", True)):
        programs[f"jax.nn{label}"] = lambda b=with_bias: _library(jax.nn.dot_product_attention, b, **fused)
        programs[f"tokamax{label}"] = lambda b=with_bias: _library(_tokamax(), b)
    compiled = {name: functools.partial(_compile, program) for name, program in programs.items()}
    return {**compiled, "FlexAttention": _compile_flex}


def tile_preparers(
    backend: str, sizes: Sequence[tuple[int, int] | None]
) -> dict[str, Callable[[AttentionShape, str], PreparedRun]]:
    """Name tiles of attention, such as "ours 128 x 256", with the function that prepares each, as of `preparers`.

    Args:
        backend: a name in `BACKENDS`.
        sizes: queries and keys of a tile; None: the backend's choice, "ours default".
    """
    tilings = {f"ours {size[0]} x {size[1]}" if size else "ours default": Tiling("exact", *size or ()) for size in sizes}
    return {
        name: functools.partial(_compile, lambda tiling=tiling: functools.partial(attention, backend=backend, tiling=tiling))
        for name, tiling in tilings.items()
    }


def _tokamax() -> Callable:
    if importlib.util.find_spec("tokamax") is None:
        raise ImportError("tokamax is not installed: pip install 'bam_jax[bench]'")
    import tokamax

    return tokamax.dot_product_attention


def _compile(program: Callable[[], Attend], shape: AttentionShape, which: str) -> PreparedRun:
    attend = program()
    operands = _draw_once(shape)

    def forward(q: Array, k: Array, v: Array, learned: dict) -> Array:
        return attend(q, k, v, operands.scoring(learned))

    def both(q: Array, k: Array, v: Array, learned: dict, d_out: Array) -> tuple:
        out, vjp = jax.vjp(forward, q, k, v, learned)
        return out, vjp(d_out)

    arguments: tuple = (operands.q, operands.k, operands.v, operands.learned)
    function: Callable = forward
    if which == PASSES[1]:
        function, arguments = both, (*arguments, operands.d_out)
    compiled = jax.jit(function).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    temporary = None if analysis is None else analysis.temp_size_in_bytes

    def peak() -> int | None:
        stats = jax.local_devices()[0].memory_stats()  # of the process so far
        return stats["peak_bytes_in_use"] if stats and "peak_bytes_in_use" in stats else None

    return PreparedRun(lambda: compiled(*arguments), jax.block_until_ready, temporary, peak)


def _compile_flex(shape: AttentionShape, which: str) -> PreparedRun:
    """PyTorch's FlexAttention with the generalised Gaussian of `_ggd`, its shape and log_scale being learned."""
    if jax.default_backend() != "gpu" or importlib.util.find_spec("torch") is None:
        raise ImportError("it needs torch and a GPU")
    if shape.bias != "ggd" or shape.queries != shape.length:
        raise NotImplementedError("it is written for the bias ggd and whole rows")
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    operands = _draw_once(shape)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[shape.dtype]
    tensor = lambda x, dtype=dtype: torch.tensor(np.asarray(x, np.float32), device="cuda", dtype=dtype)
    q, k, v, d_out = (
        tensor(x).transpose(1, 2).contiguous() for x in (operands.q, operands.k, operands.v, operands.d_out)
    )
    power, log_scale = (tensor(operands.learned[name], torch.float32) for name in ("shape", "log_scale"))
    backward = which == PASSES[1]
    trained = (q, k, v, power, log_scale)
    for x in trained:
        x.requires_grad_(backward)

    def score(logit: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        distance = (j - i).abs().to(torch.float32) + 1e-5
        return logit - torch.exp(torch.clamp(log_scale[h] + power[h] * torch.log(distance), max=biases.CAP))

    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, shape.length, shape.length, device="cuda")
    compiled = torch.compile(flex_attention)

    def call() -> Any:
        out = compiled(q, k, v, score_mod=score, block_mask=causal)
        return (out, torch.autograd.grad(out, trained, d_out)) if backward else out

    def peak() -> int:
        return torch.cuda.max_memory_allocated()

    return PreparedRun(call, lambda _: torch.cuda.synchronize(), None, peak)
