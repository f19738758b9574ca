"""Print what a device holds under several meshes, by the compiler's memory analysis.

    python -m bam_jax.preflight.table --config=configs/lm_120m.py v5e:2x2,data=4 v5e:4x4,data=16 v5e:4x4,fsdp=4,context=4 ...

compiles the training step for every slice and mesh, the batch as it is and of twice as many rows, and prints a Markdown table.
Parameters and the optimiser's state are those that the compiled step takes; activations are what the second batch needs more
memory for than the first. Beside each stand how many times smaller it is than in the first row, and how many times it should be:
fsdp for the former, data x fsdp x context for the latter.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import sys
from collections.abc import Sequence

import jax

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.parallel.sharding import CONTEXT, DATA, FSDP
from bam_jax.preflight import chips
from bam_jax.preflight.compiled import Compiled, compile_step
from bam_jax.preflight.step import Model, Step
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder


def main(argv: Sequence[str]) -> int:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: the configuration, a slice or a mesh will not do, or a step does not fit.
    """
    parser = errors.Parser(prog="python -m bam_jax.preflight.table", description=__doc__)
    parser.add_argument("--config", required=True, help="a Python file with get_config()")
    parser.add_argument("slices", nargs="+", metavar="TOPOLOGY,AXIS=SIZE,...", help="such as v5e:4x4,fsdp=4,context=4")
    given, overrides = configs.parse(argv, parser)
    config = configs.load(given.config, overrides)
    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")  # libtpu only compiles
    print(
        "| devices and mesh | parameters | optimiser | smaller | fsdp | activations | smaller | data x fsdp x context |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    first = None
    for name in given.slices:
        row = _row(config, name)
        first = first or row
        less = {kind: first[kind] / row[kind] for kind in row}
        print(
            f"| {name} | {row['parameters'] / 1e6:,.1f} MB | {row['optimizer'] / 1e6:,.1f} MB "
            f"| {less['parameters']:.2f} | {1 / less[FSDP]:g} "
            f"| {row['activations'] / 1e6:,.1f} MB | {less['activations']:.2f} | {1 / less['shares']:g} |",
            flush=True,
        )
    return 0


def _row(config: Config, name: str) -> dict[str, float]:
    """Bytes of a device by kind, and the axes' sizes that they should go by."""
    topology, *axes = name.split(",")
    where = chips.find(topology)
    config = configs.override(config, configs.from_arguments([f"--config.mesh.{axis}" for axis in axes]))
    mesh = where.mesh(config.mesh)
    once = _compile(config, mesh, name)
    twice = _compile(configs.override(config, {"batch": 2 * config.batch}), mesh, name)
    size = dict(mesh.shape)
    return {
        **once.arguments,
        "activations": twice.temporaries - once.temporaries,
        FSDP: size[FSDP],
        "shares": size[DATA] * size[FSDP] * size[CONTEXT],
    }


def _compile(config: Config, mesh: jax.sharding.Mesh, name: str) -> Compiled:
    vocab = run_folder.vocabulary_size(config, find_tokenizer(config.data.tokenizer, config.data.sources()))
    print(f"compiling {config.batch} rows for {name} ...", file=sys.stderr, flush=True)
    made = compile_step(Step.of(config, mesh, Model.of(config, vocab, mesh)).lower(), mesh.size)
    if made.refused:
        raise UserError(f"{config.batch} rows do not fit {name}: {made.refused}; set a smaller config.batch")
    return made


if __name__ == "__main__":
    errors.run(main)
