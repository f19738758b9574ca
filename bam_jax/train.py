"""Train a model, or resume an interrupted training.

    python -m bam_jax.train --config=configs/lm_120m.py [--config.a.b=value ...] [--workdir=runs/x]
    python -m bam_jax.train --config=configs/quickstart.py --seeds=0..4 --workdir=runs/x    # runs/x-seed0, runs/x-seed1 ...

Running the same command again resumes an interrupted run, on a CPU with the same bits. It verifies a finished run and leaves it
unchanged; with a larger --config.steps it trains that run longer, with the rates of the new schedule from there on.
--config.start=RUN starts from another run's parameters, with its model sizes and tokenizer. On SIGTERM it saves a checkpoint
after the current step and exits with code 75, on Ctrl-C with 130; while the first step is compiled, or at a second signal, it
exits at once. Several processes train together if a scheduler starts them, or with --coordinator, --processes and --process.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

from collections.abc import Sequence
from pathlib import Path

from bam_jax import config as configs
from bam_jax.config import description
from bam_jax.parallel import processes
from bam_jax.system import console, programs
from bam_jax.system.errors import UserError
from bam_jax.training import loop, start

MOST = 1000
"""The largest number of seeds of a command."""


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m bam_jax.train", description=__doc__)
    # The epilog is built from the source of all fields, which takes longer than the rest of the parsing.
    if not {"-h", "--help"}.isdisjoint(argv):
        parser.epilog = description.to_text()
    parser.add_argument("--config", required=True, help="a Python file with get_config()")
    parser.add_argument(
        "--workdir", help="the folder of the run, or gs://..., s3://...; default: runs/, then the config's name"
    )
    parser.add_argument("--seeds", help="0..4, or 0,3: a run for each, one after another, in WORKDIR-seedN")
    console.progress_option(parser)
    processes.options(parser, "train", default=0)
    given, overrides = configs.parse(argv, parser)
    if given.workdir == "":
        raise UserError("--workdir= is empty; give the folder of the run, or leave the option out")
    workdir = given.workdir or str(Path("runs") / Path(given.config).stem)
    runs = {workdir: overrides}
    if given.seeds is not None:
        if "seed" in overrides or given.coordinator or given.processes > 1:
            other = "--config.seed" if "seed" in overrides else "several processes"
            raise UserError(
                f"--seeds={given.seeds} trains one run after another, and {other} one run; leave one of both out"
            )
        runs = {f"{workdir.rstrip('/')}-seed{seed}": {**overrides, "seed": seed} for seed in _seeds(given.seeds)}
    made = {
        folder: configs.load(given.config, start.sizes(changes, folder) | changes) for folder, changes in runs.items()
    }
    programs.keep()
    for folder, config in made.items():
        loop.train(
            config,
            folder,
            progress=given.progress,
            longer=True,
            coordinator=given.coordinator,
            count=given.processes,
            process=given.process,
        )


def _seeds(text: str) -> list[int]:
    """The seeds in 0..4 or 0,3.

    >>> _seeds("0..2"), _seeds("7,3")
    ([0, 1, 2], [7, 3])
    """
    first, dots, last = text.partition("..")
    try:
        # At most one more than allowed, because the range may not fit in memory.
        seeds = list(range(int(first), int(last) + 1)[: MOST + 1]) if dots else [int(each) for each in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or len(seeds) > MOST or len({*seeds}) < len(seeds):
        raise UserError(f"--seeds={text} must be seeds such as 0..4 or 0,3, each once, {MOST} at most")
    return seeds


if __name__ == "__main__":
    errors.run(main)
