"""The contenders of `benchmarks.attention_speed`: the operands of a shape of attention, and all implementations."""

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bam_jax import biases
from bam_jax.attention import Cache, Scoring, Tiling, Tokens, attention
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.scoring import HIDDEN, bias_table
from bam_jax.system.extras import import_extra
from benchmarks.attention_shapes import BIASES, AttentionShape

PASSES = ("forward", "forward+backward")
OURS = {"tpu": ("pallas_tpu", "chunked"), "gpu": ("pallas_gpu", "rows"), "cpu": ("chunked",)}
"""The backends that "auto" may choose on each platform, its own first."""


def own_backends(platform: str) -> tuple[str, ...]:
    """The backends of ours that run here, of which the first is required; on a GPU without our kernels, that is "auto"."""
    other = platform == "gpu" and getattr(jax.devices()[0], "compute_capability", "") != "9.0"
    return ("auto", "rows") if other else OURS[platform]


@dataclasses.dataclass(frozen=True)
class Operands:
    """The operands of a shape.

    Args:
        q, d_out: queries and the output's cotangent, [B, T, H, D].
        k, v: keys and values, [B, S, H, D].
        learned: further arrays that have a gradient: parameters of the bias by name, coordinates as "i" and "j".
        bias: the bias with its initial parameters.
    """

    q: Array
    k: Array
    v: Array
    d_out: Array
    learned: dict[str, Any]
    bias: biases.Bias

    @classmethod
    def draw(cls, shape: AttentionShape) -> "Operands":
        """Draw the operands of a shape, with unit variance and always the same."""
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
        """The scoring with these values of everything that is learned."""
        position = jnp.arange(self.k.shape[1], dtype=jnp.int32)[None]
        parameters = {name: x for name, x in learned.items() if name not in ("i", "j")}
        of = lambda name: learned[name] if name in learned else None
        queries = Tokens(position[:, -self.q.shape[1] :], coordinate=of("i"), consecutive=True)
        bias = dataclasses.replace(self.bias, **parameters)  # type: ignore[type-var]
        return Scoring(bias, queries, Tokens(position, coordinate=of("j"), consecutive=True))


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """A contender compiled for one shape, ready to run.

    Args:
        call: starts the computation and returns the argument of `wait`.
        wait: returns when the computation is done.
        temporary_bytes: memory besides operands and results; None: not known before it runs.
        peak: returns the device's peak memory so far, in bytes; None if the device does not report it.
    """

    call: Callable[[], Any]
    wait: Callable[[Any], Any]
    temporary_bytes: int | None
    peak: Callable[[], int | None]


# The contenders of a shape share its operands: at half a million tokens, drawing them takes longer than attention.
_draw_once = functools.lru_cache(maxsize=1)(Operands.draw)

Attend = Callable[[Array, Array, Array, Scoring], Array]


def dense(q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
    """Attention with the bias as a table, and all heads and logits in memory, as the papers' authors compute it.

    Args:
        q: [B, T, H, D].
        k, v: [B, S, H, D].

    Returns:
        [B, T, H, D].
    """
    logits = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    seen = visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    weights = jax.nn.softmax(jnp.where(seen, logits + bias_table(scoring, jnp.dtype(jnp.float32)), HIDDEN))
    return jnp.einsum("bhts,bshd->bthd", weights.astype(v.dtype), v)


def _library(function: Callable, with_bias: bool, **options: Any) -> Attend:
    """Attention by `jax.nn.dot_product_attention`, or by tokamax's with the same signature. A single query sees all keys."""

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
    """All contenders that may run here by name, with the function that prepares each for a shape and one of `PASSES`.

    Such a function raises an error if the contender cannot run: ImportError, NotImplementedError, ValueError, or a compiler's
    RuntimeError.
    """
    backend = jax.default_backend()
    fused = {"implementation": "cudnn"} if backend == "gpu" else {}
    programs: dict[str, Callable[[], Attend]] = {}
    for name in own_backends(backend):
        programs |= {f"ours {name}, {skip}": functools.partial(_ours, name, skip) for skip in skips}
    programs["dense"] = lambda: dense
    for label, with_bias in (("", False), (" + bias", True)):
        programs[f"jax.nn{label}"] = lambda b=with_bias: _library(jax.nn.dot_product_attention, b, **fused)
        programs[f"tokamax{label}"] = lambda b=with_bias: _library(_tokamax(), b)
    compiled = {name: functools.partial(_compile, program) for name, program in programs.items()}
    steps = {
        f"{name}, cache": functools.partial(_compile_step, program)
        for name, program in programs.items()
        if name.startswith("ours")
    }
    return {**compiled, **steps, "dense, cache": _compile_dense_step, "FlexAttention": _compile_flex}


def tile_preparers(
    backend: str, sizes: Sequence[tuple[int, int] | None]
) -> dict[str, Callable[[AttentionShape, str], PreparedRun]]:
    """Tile sizes by name, such as "ours 128 x 256", with the function that prepares each, as in `preparers`."""
    tilings = {
        f"ours {size[0]} x {size[1]}" if size else "ours default": Tiling("exact", *size or ()) for size in sizes
    }
    return {
        name: functools.partial(
            _compile, lambda tiling=tiling: functools.partial(attention, backend=backend, tiling=tiling)
        )
        for name, tiling in tilings.items()
    }


def _tokamax() -> Callable:
    return import_extra("tokamax", "the contender", "bench").dot_product_attention


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
    return PreparedRun(lambda: compiled(*arguments), jax.block_until_ready, _temporary_bytes(compiled), peak_bytes)


def _temporary_bytes(compiled: Any) -> int | None:
    analysis = compiled.memory_analysis()
    return None if analysis is None else analysis.temp_size_in_bytes


def peak_bytes() -> int | None:
    """The device's peak memory so far, in bytes."""
    stats = jax.local_devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats and "peak_bytes_in_use" in stats else None


def _compile_step(program: Callable[[], Attend], shape: AttentionShape, which: str) -> PreparedRun:
    """A whole decoding step: the last token is written into a cache of the others, and its query sees all of them."""
    if shape.queries != 1:
        raise NotImplementedError("a step of decoding has one query")
    attend, operands = program(), Operands.draw(shape)
    keys = operands.scoring(operands.learned).keys
    before, last = slice(None, -1), slice(-1, None)
    of = lambda at: (operands.k[:, at], operands.v[:, at], jax.tree.map(lambda x: x[..., at], keys))

    @jax.jit
    def fill(k: Array, v: Array, tokens: Tokens) -> Cache:
        return Cache.empty(k, tokens, shape.length).append(k, v, tokens)

    def step(cache: Cache, q: Array, k: Array, v: Array, tokens: Tokens, learned: dict) -> tuple[Array, Cache]:
        longer = cache.append(k, v, tokens)
        scoring = dataclasses.replace(operands.scoring(learned), keys=longer.tokens)
        # The next call writes the same slot, so all calls see the same number of keys.
        return attend(q, longer.k, longer.v, scoring), dataclasses.replace(longer, length=cache.length)

    cache = fill(*of(before))
    arguments = operands.q, *of(last), operands.learned
    compiled = jax.jit(step, donate_argnums=0).lower(cache, *arguments).compile()
    caches = [cache]

    def call() -> Array:
        out, longer = compiled(caches.pop(), *arguments)
        caches.append(longer)
        return out

    return PreparedRun(call, jax.block_until_ready, _temporary_bytes(compiled), peak_bytes)


def _compile_dense_step(shape: AttentionShape, which: str) -> PreparedRun:
    """A decoding step in plain JAX: keys are stored head by head, [B, H, S, D], and each is read."""
    if shape.queries != 1:
        raise NotImplementedError("a step of decoding has one query")
    operands = Operands.draw(shape)
    by_heads = jax.jit(lambda x: x.swapaxes(1, 2))

    def step(cache: tuple[Array, Array], q: Array, k: Array, v: Array, learned: dict) -> tuple[Array, tuple]:
        write = lambda room, x: jax.lax.dynamic_update_slice_in_dim(room, x, shape.length - 1, 2)
        # Without the barrier, XLA's CPU backend would copy both in each step.
        keys, values = jax.lax.optimization_barrier((write(cache[0], k), write(cache[1], v)))
        logits = jnp.einsum("bhtd,bhsd->bhts", q, keys, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
        weights = jax.nn.softmax(logits + bias_table(operands.scoring(learned), logits.dtype))
        out = jnp.einsum("bhts,bhsd->bhtd", weights.astype(v.dtype), values)
        return out.swapaxes(1, 2), (keys, values)

    last = [by_heads(x[:, -1:]) for x in (operands.k, operands.v)]
    arguments = by_heads(operands.q), *last, operands.learned
    caches = [tuple(by_heads(x).at[:, :, -1].set(0) for x in (operands.k, operands.v))]  # the last is to be written
    compiled = jax.jit(step, donate_argnums=0).lower(caches[0], *arguments).compile()

    def call() -> Array:
        out, longer = compiled(caches.pop(), *arguments)
        caches.append(longer)
        return out

    return PreparedRun(call, jax.block_until_ready, _temporary_bytes(compiled), peak_bytes)


def _compile_flex(shape: AttentionShape, which: str) -> PreparedRun:
    """PyTorch's FlexAttention with the generalised Gaussian of `_ggd`, whose shape and log_scale are learned."""
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
