"""Check, without the chips, whether a run fits a TPU topology or the GPUs of a machine, and bound the time of its steps.

    python -m bam_jax.preflight --config=configs/lm_1b.py --topology=v5p:4x4x4 [--config.mesh.fsdp=64 ...]
    python -m bam_jax.preflight --config=configs/lm_1b.py --topology=h100:8

compiles the training step for the slice and prints the memory of a device, as the compiler plans it, and a lower bound on the
step's time. The exit code is 1 if the step does not fit. --search finds the fewest, and so the largest, micro-batches that fit.
--read=524288 instead compiles the reading of a text of that many tokens, one chunk of it, as `evaluate` and `generate` read it.

Needs the compilers of the extra `compilers`; --topology=cpu:8 compiles for this machine with JAX_NUM_CPU_DEVICES=8.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.models import counts
from bam_jax.parallel.sharding import DATA, FSDP
from bam_jax.preflight import chips, reading, report
from bam_jax.preflight.step import Step
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder, start


def main(argv: Sequence[str]) -> int:
    """The command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m bam_jax.preflight", description=__doc__)
    parser.add_argument("--config", required=True, help="a Python file with get_config()")
    parser.add_argument("--topology", required=True, help="chips and how they stand, such as v5e:4x4; h100:8; or cpu:8")
    parser.add_argument("--search", action="store_true", help="find the fewest micro-batches that fit")
    parser.add_argument("--read", type=int, help="tokens of a text that is read through a cache, in place of a step")
    parser.add_argument("--utilisation", type=float, default=counts.UTILISATION, help="share of the peak reached (0.4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given, overrides = configs.parse(argv, parser)
    if given.read is not None and given.read < 1:
        raise UserError(f"--read={given.read} must be a number of tokens, 1 or more")
    if given.read is not None and given.search:
        raise UserError(
            f"--search finds micro-batches of a training step, which --read={given.read} has not; leave one out"
        )
    if not 0 < given.utilisation <= 1:
        raise UserError(f"--utilisation={given.utilisation} must be above 0 and at most 1")
    config = configs.load(given.config, start.sizes(overrides, "") | overrides)
    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")  # nothing runs, and compilers need no device
    where = chips.find(given.topology)
    vocab = run_folder.vocabulary_size(config, find_tokenizer(config.data.tokenizer, config.data.sources()))
    mesh = where.mesh(config.mesh)
    if given.read is not None:
        print(f"compiling the reading of {given.read:,} tokens ...", file=sys.stderr, flush=True)
        found = reading.Reading.of(config, vocab, mesh, given.read).record(where)
        print(json.dumps(found, indent=1) if given.json else report.to_text(found))
        return 0 if found["fits"] else 1

    def compiled(config: Config) -> dict[str, Any]:
        shape = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
        print(
            f"compiling {config.optimizer.accumulate} x {config.batch // config.optimizer.accumulate} rows for {shape} ...",
            file=sys.stderr,
            flush=True,
        )
        step = Step.of(config, vocab, mesh)
        return report.record(step, step.compile(), where, given.utilisation)

    found = search(config, dict(mesh.shape), compiled) if given.search else compiled(config)
    changes = {"optimizer.accumulate": found["micro_batches"], "model.remat": found["remat"]}
    if found["remat"]:
        changes["model.remat_keep"] = found["remat_keep"]
    found["options"] = configs.arguments(changes) if given.search else []
    print(json.dumps(found, indent=1) if given.json else report.to_text(found))
    if not found["fits"] and not given.search:
        print("--search finds the micro-batches that fit", file=sys.stderr)
    return 0 if found["fits"] else 1


def search(config: Config, mesh: dict[str, int], compiled: Callable[[Config], dict[str, Any]]) -> dict[str, Any]:
    """The record with the fewest micro-batches that fit, since each reads all weights; if none fit, that with the most.

    Memory shrinks as the number of micro-batches grows, so bisection finds the number. If no number fits, remat that keeps the
    products is tried, then remat that keeps nothing.
    """
    shares = mesh[DATA] * mesh[FSDP]
    numbers = [n for n in range(1, config.batch + 1) if config.batch % n == 0 and config.batch // n % shares == 0]
    if not numbers:
        raise UserError(f"--config.batch={config.batch} must be a multiple of the {shares} devices of data and fsdp")
    at = lambda n: dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, accumulate=n))
    best = compiled(at(numbers[-1]))
    if not best["fits"]:
        if config.model.remat and config.model.remat_keep == "nothing":
            return best
        keep = "nothing" if config.model.remat else "products"
        again = dataclasses.replace(config.model, remat=True, remat_keep=keep)
        return search(dataclasses.replace(config, model=again), mesh, compiled)
    low, high = 0, len(numbers) - 1  # numbers[high] fits
    while low < high:
        middle = (low + high) // 2
        found = compiled(at(numbers[middle]))
        if found["fits"]:
            best, high = found, middle
        else:
            low = middle + 1
    return best


if __name__ == "__main__":
    errors.run(main)
