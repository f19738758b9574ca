"""Count what the compiler makes of a training step for H100s of one machine, without one.

    python -m benchmarks.gpu_step --config=configs/lm_120m.py --out=benchmarks/records/gpu_step.json [--devices=8]

For each of the variants (those of `VARIANTS`, or one of your own by `--config.KEY=VALUE`) it counts the kernels that a step
starts, the bytes that they read and write on one device, and its temporary memory. Nothing runs: bytes bound the time from
below, and so do the operations beside them. It needs the plugin of the extra `compilers`, and no GPU.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bam_jax import config as configs
from bam_jax.models import counts
from bam_jax.parallel.sharding import make_mesh
from bam_jax.preflight import chips
from bam_jax.preflight.step import Step
from bam_jax.system import files
from benchmarks import hlo

NOTE = "Compiled on a CPU for H100s by `python -m benchmarks.gpu_step`. Nothing ran on a chip."
VOCAB = 32_768
"""Tokens of the tokenizer of the papers' models."""
VARIANTS: Sequence[Mapping[str, Any]] = tuple(
    {"model.scan": scan, **remat}
    for scan in (True, False)
    for remat in ({"model.remat": True}, {"model.remat": True, "model.remat_keep": "products"}, {"model.remat": False})
)
"""Changes of the configuration that are counted side by side."""


def measure(path: str, overrides: Mapping[str, Any], devices: int) -> dict[str, Any]:
    """Compile one step and count."""
    config = configs.load(path, dict(overrides))
    step = Step.of(config, VOCAB, make_mesh(config.mesh, chips.gpus("h100", devices)))
    start = time.perf_counter()
    compiled = step.lowered.compile()
    seconds, text, memory = time.perf_counter() - start, compiled.as_text(), compiled.memory_analysis()
    assert text is not None and memory is not None
    program = hlo.Program(text)
    gigabytes = lambda number: round(number / 1e9, 2)
    bandwidth = counts.BANDWIDTHS["h100"]
    return {
        "changes": dict(overrides),
        "launches": program.launches(),
        "traffic": gigabytes(program.traffic()),
        "temporary": gigabytes(memory.temp_size_in_bytes),
        "seconds_of_traffic": round(program.traffic() / bandwidth, 3),
        "seconds_of_operations": round(
            counts.step_operations(config, counts.parameters(config)) / counts.CHIPS["h100"] / devices, 3
        ),
        "seconds_to_compile": round(seconds, 1),
        "loops": [{**each, "traffic": gigabytes(each["traffic"])} for each in program.loops()],
    }


def main(argv: Sequence[str]) -> None:
    """Compile the step in each variant, print what was counted and write it as JSON."""
    parser = errors.Parser(prog="python -m benchmarks.gpu_step", description=__doc__)
    parser.add_argument("--config", required=True, help="a Python file with get_config()")
    parser.add_argument("--devices", type=int, default=1, help="H100s of one machine (1)")
    parser.add_argument("--out", type=files.local_path, required=True, help="JSON file to write")
    given, overrides = configs.parse(argv, parser)
    files.keep_other(given.out, NOTE)
    jax.config.update("jax_platforms", "cpu")
    records = []
    for changes in [overrides] if overrides else VARIANTS:
        records.append(measure(given.config, changes, given.devices))
        print("  ".join(f"{key} {value}" for key, value in records[-1].items() if key != "loops"), flush=True)
    head = {"note": NOTE, "jax": jax.__version__, "config": given.config, "devices": given.devices, "vocab": VOCAB}
    given.out.write_text(json.dumps({**head, "steps": records}, indent=2) + "\n")


if __name__ == "__main__":
    errors.run(main)
