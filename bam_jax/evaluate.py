"""Evaluate a trained model: passkeys, perplexity, RULER, synthetic tasks, questions, retrieval.

    python -m bam_jax.evaluate --run=runs/x --eval=passkey --lengths=64,4096 [--config.a.b=value ...]
    python -m bam_jax.evaluate --run runs/a runs/b --eval=passkey,perplexity --lengths=64,4096

It appends one line per cell to `results.jsonl` in the run's folder. Running the same command again does only what is missing.
Several processes can evaluate one model on a mesh (--config.mesh.*): give --processes=0 in a scheduler's job, otherwise
--coordinator, --processes and --process.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import glob
from collections.abc import Sequence

from bam_jax import config as configs
from bam_jax.evals.measuring import check_run, evaluate, summarise
from bam_jax.evals.registry import add_options, from_options
from bam_jax.models.generate import prune_option, tolerance
from bam_jax.parallel import processes
from bam_jax.system import console, files, programs


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: see `evaluate`.
    """
    parser = errors.Parser(prog="python -m bam_jax.evaluate", description=__doc__)
    parser.add_argument(
        "--run",
        nargs="+",
        action="extend",
        required=True,
        help="the folder of a trained run, here or at gs://... or s3://..., or of several, also as a pattern such as 'runs/x-*'",
    )
    add_options(parser)
    parser.add_argument("--memory", type=float, default=2.0, help="for activations, GiB (2)")
    parser.add_argument(
        "--skip",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute no pair whose weight is below rounding",
    )
    prune_option(parser)
    configs.allow_option(parser)
    console.progress_option(parser)
    processes.options(parser, "evaluate", default=1)
    given, overrides = configs.parse(argv, parser)
    prune_cache = tolerance(given.prune_cache)
    evaluations, allow = from_options(given, overrides), configs.allowed(given.allow)
    runs = [run for pattern in given.run for run in _matching(pattern)]
    programs.keep()
    with processes.joined(given.coordinator, given.processes, given.process):
        for run in runs:  # check all before evaluating the first
            check_run(run)
        for run in runs:
            for each in evaluations:
                records = evaluate(
                    *(run, each),
                    memory=given.memory,
                    skip=given.skip,
                    prune_cache=prune_cache,
                    allow=allow,
                    progress=given.progress,
                )
                if processes.is_first():
                    for line in summarise(run, each, records):
                        print(line, flush=True)


def _matching(pattern: str) -> list[str]:
    """The runs that `--run` names."""
    found = files.matching(pattern)
    if not found and glob.has_magic(pattern):
        raise errors.UserError(f"--run={pattern} matches nothing; give the folder of a run, or another pattern")
    return found or [pattern]


if __name__ == "__main__":
    errors.run(main)
