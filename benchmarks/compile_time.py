"""Time the compiler on a training step: layers of a pattern beside as many equal layers of each of its places.

    python -m benchmarks.compile_time --config=configs/lm_120m.py --config.model.layers=48 --config.model.vocab=32768 \\
        --config.ssmax=off --pattern=rope:window=128/rope:window=128/rope:window=128/nope --pattern=rope/rope/rope/bam

Tracing is part of it; nothing runs, and no parameter is drawn. Seconds are those of the processor, all threads
added up, so that other work of the machine counts little; instructions are those of the program that comes out, inner ones
included. In each of the --rounds every model has its turn with nothing left of the others; a value is the median. Ratios are to
the mean of the models of equal layers, and to each of them.

With --chip=v5e (v5p, v6e) the program is one for that TPU, which need not be there; that needs libtpu, of the extras
`compilers` and `tpu`. Else it is one for this machine.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import use_abstract_mesh

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.system.errors import UserError
from bam_jax.training.step import define_training, make_step
from benchmarks.tpu_static import compile_for, mesh_for

ROUNDS = 5
"""Turns of all models."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """The compiler's work on one model: seconds of the processor, and instructions of the program."""

    seconds: float
    instructions: float


def compile_once(config: Config, chip: str | None = None) -> Cost:
    """Compile a model's training step, as a new process would."""
    vocab = config.model.vocab or find_tokenizer(config.data.tokenizer, config.data.sources()).padded
    there: contextlib.AbstractContextManager = contextlib.nullcontext()
    if chip is not None:
        there = use_abstract_mesh(mesh_for(chip))
    with there:  # which decides the type of matrix products
        graph, initialise, tx = define_training(config, vocab)
        state = jax.eval_shape(initialise)
    step: Any = make_step(config, graph, tx)
    rows = lambda dtype: jax.ShapeDtypeStruct((config.batch, config.context), dtype)
    batch = {"tokens": rows(jnp.int32), "targets": rows(jnp.int32), "weights": rows(jnp.float32)}
    jax.clear_caches()
    started = time.process_time()
    made = step.lower(state, batch).compile() if chip is None else compile_for(chip, step, state, batch)
    seconds = time.process_time() - started
    text: Any = made.as_text()
    return Cost(seconds, sum(" = " in line for line in text.splitlines()))


def medians(entrants: Mapping[str, Callable[[], Cost]], rounds: int) -> dict[str, Cost]:
    """The medians of what each costs, by turns."""
    found: dict[str, list[Cost]] = {name: [] for name in entrants}
    for _ in range(rounds):
        for name, cost in entrants.items():
            found[name].append(cost())
    median = lambda costs, field: statistics.median(getattr(cost, field) for cost in costs)
    return {name: Cost(median(costs, "seconds"), median(costs, "instructions")) for name, costs in found.items()}


def equal_layers(pattern: str) -> list[str]:
    """The places of a pattern, each once: what models of equal layers have.

    >>> equal_layers("rope:window=8/rope:window=8/nope")
    ['rope:window=8', 'nope']
    """
    return list(dict.fromkeys(pattern.split("/")))


def report(patterns: Sequence[str], costs: Mapping[str, Cost]) -> Iterator[str]:
    """The lines of the table."""
    for name, cost in costs.items():
        yield f"{cost.seconds:8.2f} s {cost.instructions:8,.0f} instructions  {name}"
    for pattern in patterns:
        yield f"{pattern}, times equal layers:"
        each = {place: costs[place] for place in equal_layers(pattern)}
        mean = Cost(*(statistics.mean(getattr(cost, field) for cost in each.values()) for field in _FIELDS))
        for name, cost in {"their mean": mean, **each}.items():
            seconds, instructions = (getattr(costs[pattern], field) / getattr(cost, field) for field in _FIELDS)
            yield f"{seconds:8.2f}   {instructions:8.2f}               {name}"


_FIELDS = ("seconds", "instructions")


def main(argv: Sequence[str]) -> None:
    """Run the command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("--config", required=True, help="a Python file with get_config()")
    parser.add_argument("--pattern", action="append", required=True, help="of encodings; again for each")
    parser.add_argument("--chip", help="a TPU that need not be there: v5e, v5p or v6e (this machine)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of all models ({ROUNDS})")
    given, shared = configs.parse(argv, parser)
    if given.rounds < 1:
        raise UserError(f"--rounds={given.rounds} must be 1 or more")
    names = dict.fromkeys(name for pattern in given.pattern for name in (*equal_layers(pattern), pattern))
    base = configs.load(given.config, shared)  # all patterns have its SSMax
    made = {name: configs.override(base, {"encoding_options": {}} | shared | {"encoding": name}) for name in names}
    cost = lambda config: lambda: compile_once(config, given.chip)
    layers = next(iter(made.values())).model.layers
    print(
        f"a training step of {layers} layers for {given.chip or jax.default_backend()}, jax {jax.__version__}",
        flush=True,
    )
    for line in report(given.pattern, medians({name: cost(config) for name, config in made.items()}, given.rounds)):
        print(line, flush=True)


if __name__ == "__main__":
    errors.run(main)
