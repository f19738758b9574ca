"""Tell, without a TPU, if a run fits a slice of TPUs and how long its steps take.

    python -m bam_jax.preflight --config=configs/lm_1b.py --topology=v5p:4x4x4 [--config.mesh.fsdp=64 ...]

compiles the training step for the slice and prints what each device holds, a sum beside what the compiler says, what devices
send one another, and a bound on the step's time. If it does not fit, it says what would and ends with status 1. With --search
it proposes the mesh, micro-batches and remat that the sums find quickest, having compiled the best few.

Needs libtpu, of the extra `compilers`; --topology=cpu:8 compiles for this machine with JAX_NUM_CPU_DEVICES=8.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import json
import sys
from collections.abc import Sequence

import jax

from bam_jax import config as configs
from bam_jax.config import Config, MeshConfig
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.models import counts
from bam_jax.preflight import chips, report, search
from bam_jax.preflight.compiled import Compiled, compile_step
from bam_jax.preflight.step import Model, Step
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder

TRIES = 3
"""Proposals of a search that are compiled."""


def main(argv: Sequence[str]) -> int:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Returns:
        0 if the step fits, 1 if not.

    Raises:
        UserError: the configuration, the mesh or the topology will not do.
    """
    parser = errors.Parser(prog="python -m bam_jax.preflight", description=__doc__)
    parser.add_argument("--config", required=True, help="a Python file with get_config()")
    parser.add_argument("--topology", required=True, help="a chip and how they stand, such as v5e:4x4; or cpu:8")
    parser.add_argument("--search", action="store_true", help="propose a mesh, micro-batches and remat that fit")
    parser.add_argument("--utilisation", type=float, default=counts.UTILISATION, help="share of the peak reached (0.4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given, overrides = configs.parse(argv, parser)
    if not 0 < given.utilisation <= 1:
        raise UserError(f"--utilisation={given.utilisation} must be above 0 and at most 1")
    config = configs.load(given.config, overrides)
    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")  # libtpu only compiles
    where = chips.find(given.topology)
    vocab = run_folder.vocabulary_size(config, find_tokenizer(config.data.tokenizer, config.data.sources()))
    judge = _search if given.search else _check
    found = judge(config, vocab, where, given.utilisation)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print(report.to_text(found))
        for line in found["proposals"]:
            print(f"  {line}")
    return 0 if found["fits"] else 1


def _check(config: Config, vocab: int, where: chips.Slice, utilisation: float) -> dict:
    """The record of the configuration as it is; its proposals are the smallest changes that would fit if it does not."""
    mesh = where.mesh(config.mesh)
    step = Step.of(config, mesh, Model.of(config, vocab, mesh))
    found = report.record(step, _compile(step), where, utilisation)
    lines = []
    if not found["fits"]:
        others = search.proposals(config, step.model, where, utilisation, mesh=dict(mesh.shape))
        best = others[:1] or search.proposals(config, step.model, where, utilisation)[:1]
        lines = [f"by the sum this fits: {best[0].arguments()}" if best else "no mesh of these devices fits"]
    return {**found, "proposals": lines}


def _search(config: Config, vocab: int, where: chips.Slice, utilisation: float) -> dict:
    """The record of the quickest proposal that fits, of those compiled; its proposals are all of those."""
    model = Model.of(config, vocab, where.mesh(MeshConfig(data=1)))
    others = search.proposals(config, model, where, utilisation)
    if not others:
        raise UserError(
            f"no mesh of {where.name} fits {config.batch} rows of {config.context} tokens; take more devices"
        )
    best, lines = None, []
    for other in others[:TRIES]:
        mesh = where.mesh(other.config.mesh)
        step = Step.of(other.config, mesh, Model.of(other.config, vocab, mesh))
        found = report.record(step, _compile(step), where, utilisation)
        seconds = "" if found["seconds"] is None else f", {found['seconds']['step']:.3g} s a step"
        lines.append(f"{'fits' if found['fits'] else 'does not fit'}{seconds}: {other.arguments()}")
        if best is None or _is_better(found, best):
            best = found
    assert best is not None
    return {**best, "proposals": lines}


def _is_better(one: dict, other: dict) -> bool:
    """True for a record that fits and takes less time; on a CPU, which has no times, fitting alone counts."""
    if one["fits"] != other["fits"] or one["seconds"] is None:
        return one["fits"] and not other["fits"]
    return one["seconds"]["step"] < other["seconds"]["step"]


def _compile(step: Step) -> Compiled:
    shape = " ".join(f"{axis}={size}" for axis, size in step.mesh.shape.items())
    print(f"compiling for {shape} ...", file=sys.stderr, flush=True)
    return compile_step(step.lower(), step.mesh.size)


if __name__ == "__main__":
    errors.run(main)
