"""What `bam_jax.bench.attention_speed` measures: shapes of attention, their operands, and everything that computes them."""

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
from bam_jax.attention import BACKENDS, Scoring, Tiling, Tokens, attention
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.scoring import HIDDEN, bias_table

PASSES = ("forward", "forward+backward")
OURS = {"tpu": ("pallas_tpu", "chunked"), "gpu": ("pallas_gpu", "chunked"), "cpu": ("chunked",)}
"""The backends that each platform may have, its own first."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape of attention.

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


Made = tuple[biases.Bias, tuple[str, ...], Any, Any]
"""A bias, the names of its parameters that are trained, and the coordinates of all tokens as queries and as keys."""


def _ggd(case: Case) -> Made:
    ramp = functools.partial(jnp.linspace, num=case.heads, dtype=jnp.float32)
    prior = biases.GeneralisedGaussian(ramp(0.2, 1.0), ramp(-2.0, 0.0), jnp.zeros(case.heads))
    return prior, ("shape", "log_scale"), None, None


def _alibi(case: Case) -> Made:
    slopes = biases.alibi_slopes(case.heads) if case.slope is None else np.full(case.heads, case.slope)
    return biases.ALiBi(jnp.asarray(slopes, jnp.float32)), (), None, None


def _kerple(case: Case) -> Made:
    return biases.KerpleLog(jnp.ones(case.heads), jnp.full(case.heads, 0.5)), ("r1", "r2"), None, None


def _t5(case: Case) -> Made:
    starts = biases.t5_starts()
    table = jnp.linspace(0.0, -4.0, len(starts))
    return biases.T5(jnp.tile(table, (case.heads, 1)), starts=starts), ("table",), None, None


def _running_sum(case: Case, step: float) -> tuple[Array, Array]:
    steps = np.random.default_rng(1).exponential(step, (case.batch, case.heads, case.length))
    total = np.cumsum(steps, -1)
    high = total.astype(np.float32)
    return jnp.asarray(high), jnp.asarray((total - high).astype(np.float32))


def _cable(case: Case) -> Made:
    total = _running_sum(case, 0.5)
    return biases.CABLE(), (), (jnp.full_like(total[0], 0.1), total), total


def _fox(case: Case) -> Made:
    total = jax.tree.map(jnp.negative, _running_sum(case, 0.05))
    return biases.Difference(), (), total, total


BIASES: dict[str, Callable[[Case], Made]] = {
    "nope": lambda case: (biases.Uniform(), (), None, None),
    "alibi": _alibi,
    "ggd": _ggd,
    "kerple_log": _kerple,
    "t5": _t5,
    "cable": _cable,
    "fox": _fox,
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """The operands of a case: q, d_out [B, T, H, D], k, v [B, S, H, D], and everything of the bias that is trained."""

    q: Array
    k: Array
    v: Array
    d_out: Array
    learned: dict[str, Any]
    bias: biases.Bias

    @classmethod
    def of(cls, case: Case) -> "Problem":
        """Draw the operands."""
        draw = np.random.default_rng(0)
        rows = lambda n: jnp.asarray(
            draw.standard_normal((case.batch, n, case.heads, case.width), np.float32), case.dtype
        )
        bias, names, i, j = BIASES[case.bias](case)
        learned = {name: getattr(bias, name) for name in names}
        if i is not None:
            learned |= {"i": jax.tree.map(lambda x: x[..., -case.queries :], i), "j": j}
        return cls(rows(case.queries), rows(case.length), rows(case.length), rows(case.queries), learned, bias)

    def scoring(self, learned: dict[str, Any]) -> Scoring:
        """How queries score keys, with these for what is trained."""
        position = jnp.arange(self.k.shape[1], dtype=jnp.int32)[None]
        parameters = {name: x for name, x in learned.items() if name not in ("i", "j")}
        of = lambda name: learned[name] if name in learned else None
        queries = Tokens(position[:, -self.q.shape[1] :], coordinate=of("i"))
        bias = dataclasses.replace(self.bias, **parameters)  # type: ignore[type-var]
        return Scoring(bias, queries, Tokens(position, coordinate=of("j")))


@dataclasses.dataclass(frozen=True)
class Ready:
    """A contender about to run.

    Args:
        call: starts the computation and returns what `wait` waits for.
        wait: until it is done.
        temporary_bytes: memory beside operands and results; None: not known before it runs.
        peak: (-> bytes), the device's peak during the run, where it is known.
    """

    call: Callable[[], Any]
    wait: Callable[[Any], Any]
    temporary_bytes: int | None
    peak: Callable[[], int | None]


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
    """`jax.nn.dot_product_attention`, or tokamax's of the same signature. One query sees all keys."""

    def attend(q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
        table = bias_table(scoring, jnp.dtype(jnp.float32)).astype(q.dtype) if with_bias else None
        shape = (1, q.shape[2], q.shape[1], k.shape[1])
        table = None if table is None else jnp.broadcast_to(table, (table.shape[0], *shape[1:]))
        return function(q, k, v, bias=table, is_causal=q.shape[1] > 1, **options)

    return attend


def _ours(backend: str, skip: float | str) -> Attend:
    return functools.partial(attention, backend=backend, tiling=Tiling(skip=skip))


def contenders(skips: Sequence[float | str]) -> dict[str, Callable[[Case, str], Ready]]:
    """Everything that may run here: name -> (case, pass) -> `Ready`, which raises one of `_REFUSALS` where it cannot."""
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
    made = {name: lambda case, which, make=make: _compiled(make(), case, which) for name, make in programs.items()}
    return {**made, "FlexAttention": _flex}


def _tokamax() -> Callable:
    if importlib.util.find_spec("tokamax") is None:
        raise ImportError("tokamax is not installed: pip install 'bam_jax[bench]'")
    import tokamax

    return tokamax.dot_product_attention


def _compiled(attend: Attend, case: Case, which: str) -> Ready:
    problem = Problem.of(case)

    def forward(q: Array, k: Array, v: Array, learned: dict) -> Array:
        return attend(q, k, v, problem.scoring(learned))

    def both(q: Array, k: Array, v: Array, learned: dict, d_out: Array) -> tuple:
        out, vjp = jax.vjp(forward, q, k, v, learned)
        return out, vjp(d_out)

    operands: tuple = (problem.q, problem.k, problem.v, problem.learned)
    if which == PASSES[1]:
        program, operands = jax.jit(both), (*operands, problem.d_out)
    else:
        program = jax.jit(forward)
    compiled = program.lower(*operands).compile()
    analysis = compiled.memory_analysis()
    temporary = None if analysis is None else analysis.temp_size_in_bytes

    def peak() -> int | None:
        stats = jax.local_devices()[0].memory_stats()  # of the process so far
        return stats["peak_bytes_in_use"] if stats and "peak_bytes_in_use" in stats else None

    return Ready(lambda: compiled(*operands), jax.block_until_ready, temporary, peak)


def _flex(case: Case, which: str) -> Ready:
    """PyTorch's FlexAttention with the generalised Gaussian of `_ggd`, its shape and log_scale being learned."""
    if jax.default_backend() != "gpu" or importlib.util.find_spec("torch") is None:
        raise ImportError("it needs torch and a GPU")
    if case.bias != "ggd" or case.queries != case.length:
        raise NotImplementedError("it is written for the bias ggd and whole rows")
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    problem = Problem.of(case)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[case.dtype]
    tensor = lambda x, dtype=dtype: torch.tensor(np.asarray(x, np.float32), device="cuda", dtype=dtype)
    q, k, v, d_out = (tensor(x).transpose(1, 2).contiguous() for x in (problem.q, problem.k, problem.v, problem.d_out))
    shape, log_scale = (tensor(problem.learned[name], torch.float32) for name in ("shape", "log_scale"))
    backward = which == PASSES[1]
    trained = (q, k, v, shape, log_scale)
    for x in trained:
        x.requires_grad_(backward)

    def score(logit: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        distance = (j - i).abs().to(torch.float32) + 1e-5
        return logit - torch.exp(torch.clamp(log_scale[h] + shape[h] * torch.log(distance), max=biases.CAP))

    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, case.length, case.length, device="cuda")
    compiled = torch.compile(flex_attention)

    def call() -> Any:
        out = compiled(q, k, v, score_mod=score, block_mask=causal)
        return (out, torch.autograd.grad(out, trained, d_out)) if backward else out

    def peak() -> int:
        return torch.cuda.max_memory_allocated()

    return Ready(call, lambda _: torch.cuda.synchronize(), None, peak)
