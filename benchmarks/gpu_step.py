"""Compile a training step for the Hopper GPUs of one machine, without one, and count its kernels, traffic and memory.

    python -m benchmarks.gpu_step --config=configs/lm_120m.py --out=benchmarks/records/gpu_step.json [--topology=h100:8]

For each of `VARIANTS`, or for your own variant (`--config.KEY=VALUE`), it counts the kernels that a step launches, the bytes that
they read and write on one device, and temporary memory. Nothing runs. The reported seconds are those of the bytes at the chip's
full bandwidth, and of the operations, without recomputation, at its peak rate. It needs the extra `compilers`, but no GPU.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bam_jax import config as configs
from bam_jax.models import counts
from bam_jax.preflight import chips
from bam_jax.preflight.step import Step
from bam_jax.system import files, jsonl
from benchmarks import hlo

NOTE = "Compiled on a CPU by `python -m benchmarks.gpu_step`. Nothing ran on a chip."
VOCAB = 32_768
"""The vocabulary size of the papers' models."""
VARIANTS: Sequence[Mapping[str, Any]] = tuple(
    {"model.scan": scan, **remat}
    for scan in (True, False)
    for remat in ({"model.remat": True}, {"model.remat": True, "model.remat_keep": "products"}, {"model.remat": False})
)
"""Changes of the configuration that are compared."""


def measure(path: str, overrides: Mapping[str, Any], where: chips.Slice) -> dict[str, Any]:
    """Compile one step and count."""
    config = configs.load(path, dict(overrides))
    step = Step.of(config, VOCAB, where.mesh(config.mesh))
    start = time.perf_counter()
    compiled = step.lowered.compile()
    seconds, text, memory = time.perf_counter() - start, compiled.as_text(), compiled.memory_analysis()
    assert text is not None and memory is not None and where.chip is not None
    program = hlo.Program(text)
    gigabytes = lambda number: round(number / 1e9, 2)
    operations = counts.step_operations(config, counts.parameters(config)) / len(where.devices)
    return {
        "changes": dict(overrides),
        "launches": program.launches(),
        "traffic": gigabytes(program.traffic()),
        "temporary": gigabytes(memory.temp_size_in_bytes),
        "seconds_of_traffic": round(program.traffic() / where.chip.bandwidth, 3),
        "seconds_of_operations": round(operations / where.peak, 3),
        "seconds_to_compile": round(seconds, 1),
        "loops": [{**each, "traffic": gigabytes(each["traffic"])} for each in program.loops()],
    }


def main(argv: Sequence[str]) -> None:
    """Compile the step in each variant, and print the counts and write them as JSON."""
    parser = errors.Parser(prog="python -m benchmarks.gpu_step", description=__doc__)
    parser.add_argument("--config", required=True, help="a Python file with get_config()")
    parser.add_argument("--topology", default="h100:1", help="GPUs of one machine, such as h200:8 (h100:1)")
    parser.add_argument("--out", type=files.local_path, required=True, help="JSON file to write")
    given, overrides = configs.parse(argv, parser)
    files.keep_other(given.out, NOTE)
    jax.config.update("jax_platforms", "cpu")
    where = chips.find(given.topology)
    if where.kind not in ("h100", "h200"):
        raise errors.UserError(f"--topology={given.topology} must be of GPUs: give h100:1 to h200:8")
    records = []
    for changes in [overrides] if overrides else VARIANTS:
        records.append(measure(given.config, changes, where))
        print("  ".join(f"{key} {value}" for key, value in records[-1].items() if key != "loops"), flush=True)
    head = {"note": NOTE, "jax": jax.__version__, "config": given.config, "topology": where.name, "vocab": VOCAB}
    given.out.write_text(jsonl.by_lines({**head, "steps": records}))


if __name__ == "__main__":
    errors.run(main)
