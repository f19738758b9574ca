"""Time and memory of attention with a bias, side by side with what else computes it, in one run.

    python -m bam_jax.evals.attention_speed --bias=ggd --lengths=512,2048,8192 --out=speed.json

Every contender runs once in each repetition, one after another, so that a machine that slows down slows all of them; times
are medians. Ratios are to this package's attention, "ours", on the first backend that runs here: 3.0 takes three times as
long. What cannot run is in the table with its reason. Queries and keys have unit-variance elements; rows are causal.
`--decode` lengths are for one query at the end of so many keys. Contenders:

    ours BACKEND, SKIP     `bam_jax.attention` on every backend of this machine, in every mode of leaving tiles out
    dense                  the table of biases and that of logits in memory, as the papers' authors compute it
    jax.nn, + bias         `jax.nn.dot_product_attention` without a bias (not the same function), and with its table
    tokamax, + bias        the same of `tokamax.dot_product_attention`; needs the extra `bench`
    FlexAttention          PyTorch's, with the same generalised Gaussian and gradients to its parameters; needs torch and a GPU

Measured on two CPU cores: experiments/attention_speed_cpu.json and attention_speed_cpu_skip.json, made by

    python -m bam_jax.evals.attention_speed --lengths=4096,8192 --decode= --skip=exact --only=ours,dense --repetitions=3
    python -m bam_jax.evals.attention_speed --bias=alibi --slope=0.0625 --heads=1 --lengths=32768 --decode= --only=ours \\
        --passes=forward --repetitions=3
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import math
import os
import platform
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bam_jax import biases, errors
from bam_jax.attention import BACKENDS, Scoring, Tiling, Tokens, attention
from bam_jax.attention.scoring import HIDDEN, bias_table, visible
from bam_jax.errors import UserError, nearest

PASSES = ("forward", "forward+backward")
OURS = {"tpu": ("pallas_tpu", "chunked"), "gpu": ("pallas_gpu", "chunked"), "cpu": ("chunked",)}
"""The backends that each platform may have, its own first."""

_SHORTEST = (
    0.02  # Seconds that a repetition lasts at least, by repeating the call: clocks and dispatch have their noise.
)
_REFUSALS = (
    ImportError,
    NotImplementedError,
    ValueError,
    RuntimeError,
    ExceptionGroup,
)  # a compiler's are RuntimeErrors


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


def measure(case: Case, which: str, entrants: dict, repetitions: int, memory: float) -> list[dict]:
    """One record for each contender: median and fastest seconds and bytes, or why it did not run.

    Args:
        case: the shape.
        which: of `PASSES`.
        entrants: of `contenders`.
        repetitions: of all of them, one after another.
        memory: temporary bytes above which one does not run.
    """
    ready, records = {}, []
    for name, make in entrants.items():
        record = {"contender": name, "pass": which, **dataclasses.asdict(case), "reason": None}
        records.append(record)
        try:
            one = make(case, which)
            record["temporary_bytes"] = one.temporary_bytes
            if one.temporary_bytes is not None and one.temporary_bytes > memory:
                size = f"{one.temporary_bytes / 2**30:.3g} GiB of temporaries"
                record["reason"] = f"{size}, more than --memory={memory / 2**30:g}"
                continue
            one.wait(one.call())
            started = time.perf_counter()
            one.wait(one.call())
            calls = max(1, math.ceil(_SHORTEST / (time.perf_counter() - started)))
            record["peak_bytes"] = one.peak()
        except _REFUSALS as error:
            record["reason"] = _first_line(error)
            continue
        ready[name] = (one, calls)
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(repetitions):
        for name, (one, calls) in ready.items():
            started = time.perf_counter()
            for _ in range(calls):
                done = one.call()
            one.wait(done)
            seconds[name].append((time.perf_counter() - started) / calls)
            del done
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ours = next((median for name, median in medians.items() if name.startswith("ours")), None)
    for record in records:
        name = record["contender"]
        if name in ready:
            record |= {"seconds": medians[name], "fastest": min(seconds[name]), "repetitions": repetitions}
            record["ratio"] = medians[name] / ours if ours else None
    return records


def _first_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]


def machine() -> dict[str, Any]:
    """What the times depend on."""
    device = jax.local_devices()[0]
    names = ("jax", "jaxlib", "bam_jax", "tokamax", "torch", "libtpu", "jax-cuda13-plugin")
    installed = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in metadata.distributions()}
    key = lambda name: name.replace("_", "-")
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: installed[key(name)] for name in names if key(name) in installed},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _row(record: dict) -> str:
    start = f"{record['queries']:7} {record['length']:7} {record['pass']:17} {record['contender']:24}"
    if record["reason"] is not None:
        return f"{start} {record['reason']}"
    temporary = record["temporary_bytes"]
    size = "" if temporary is None else f"{temporary / 2**20:.1f}"
    ratio = "" if record["ratio"] is None else f"{record['ratio']:.2f}"
    return f"{start} {record['seconds'] * 1e3:10.2f} {ratio:>8} {size:>10}"


def _numbers(option: str, text: str) -> list[int]:
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"{option}={text} must be numbers of tokens with commas, as in {option}=512,8192")
    return [int(part) for part in parts]


def _skips(text: str) -> list[float | str]:
    found: list[float | str] = []
    for part in text.split(","):
        try:
            found.append(part if part in ("exact", "off") else float(part))
            Tiling(skip=found[-1])
        except ValueError as error:
            raise UserError(f'--skip={text}: "exact", "off" or a share between 0 and 1, with commas') from error
    return found


def _parser() -> argparse.ArgumentParser:
    far = jax.default_backend() != "cpu"
    lengths = ",".join(str(2**n) for n in range(9, 16 if far else 14))
    parser = errors.Parser(
        prog="python -m bam_jax.evals.attention_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bias", default="ggd", help="of " + ", ".join(BIASES))
    parser.add_argument("--slope", type=float, help="of ALiBi in every head, nats per token (the published ones)")
    parser.add_argument("--lengths", default=lengths, help=f"of rows, in tokens ({lengths})")
    parser.add_argument("--decode", default=str(2**19), help="of caches, in tokens; empty: none (524288)")
    parser.add_argument("--batch", type=int, default=1, help="rows (1)")
    parser.add_argument("--heads", type=int, default=8, help="(8)")
    parser.add_argument("--width", type=int, default=64, help="of a head (64)")
    parser.add_argument("--dtype", default="bfloat16" if far else "float32", choices=("float32", "bfloat16"))
    parser.add_argument("--skip", default="exact,off", help="what ours leaves out: exact, off or a share of the mass")
    parser.add_argument("--passes", default=",".join(PASSES), help="of " + ", ".join(PASSES))
    parser.add_argument("--only", help="contenders whose names start with one of these, with commas (all)")
    parser.add_argument("--repetitions", type=int, default=5, help="(5)")
    parser.add_argument("--memory", type=float, default=12.0, help="GiB of temporaries above which none runs (12)")
    parser.add_argument("--out", type=Path, help="a JSON file for the records")
    return parser


def _cases(given: argparse.Namespace) -> Iterator[tuple[Case, str]]:
    for name in ("batch", "heads", "width", "repetitions", "memory"):
        if getattr(given, name) <= 0:
            raise UserError(f"--{name}={getattr(given, name)} must be above 0")
    if given.bias not in BIASES:
        raise UserError(f"no bias {given.bias!r} here: {nearest(given.bias, BIASES)}")
    if given.slope is not None and given.bias != "alibi":
        raise UserError(f"--slope={given.slope} is ALiBi's: give --bias=alibi, not --bias={given.bias}")
    passes = given.passes.split(",")
    for which in passes:
        if which not in PASSES:
            raise UserError(f"no pass {which!r}: {nearest(which, PASSES)}")
    shape = {name: getattr(given, name) for name in ("batch", "heads", "width", "dtype", "bias", "slope")}
    lengths, caches = _numbers("--lengths", given.lengths), _numbers("--decode", given.decode)
    whole = [(Case(length, length, **shape), which) for length in lengths for which in passes]
    yield from whole
    yield from ((Case(length, 1, **shape), PASSES[0]) for length in caches)


def _chosen(entrants: dict, only: str | None) -> dict:
    if only is None:
        return entrants
    starts = only.split(",")
    for start in starts:
        if not any(name.startswith(start) for name in entrants):
            raise UserError(f"no contender starts with {start!r}: {nearest(start, entrants)}")
    return {name: make for name, make in entrants.items() if name.startswith(tuple(starts))}


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring."""
    given = _parser().parse_args(argv)
    cases = list(_cases(given))
    entrants = _chosen(contenders(_skips(given.skip)), given.only)
    if given.out is not None and not given.out.resolve().parent.is_dir():
        raise UserError(f"--out={given.out}: there is no folder {given.out.parent}")
    about = machine()
    print(f"{about['device']}, {about['processor']}, {about['cores']} cores; {given.bias}, {given.dtype}", flush=True)
    print(f"{'queries':>7} {'keys':>7} {'pass':17} {'contender':24} {'ms':>10} {'x ours':>8} {'MiB temp.':>10}")
    records = []
    for case, which in cases:
        for record in measure(case, which, entrants, given.repetitions, given.memory * 2**30):
            print(_row(record), flush=True)
            records.append(record)
    if given.out is not None:
        command = f"python -m bam_jax.evals.attention_speed {shlex.join(argv)}"
        given.out.write_text(json.dumps({"command": command, "machine": about, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    errors.run(main)
