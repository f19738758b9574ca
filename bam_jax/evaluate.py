"""Evaluation: `python -m bam_jax.evaluate --run=runs/x --eval=passkey --lengths=64,4096 [--config.a.b=value ...]`.

Appends to `results.jsonl` in the run's folder, a line for each cell; the same command again does only what is missing.
"""

import argparse
import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from bam_jax import config as configs
from bam_jax.evals.running import EVALS, evaluate
from bam_jax.experiments import summary
from bam_jax.system import console, errors


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: see `evaluate`.
    """
    parser = errors.Parser(prog="python -m bam_jax.evaluate", description=__doc__)
    parser.add_argument("--run", required=True, help="the folder of a trained run")
    parser.add_argument("--eval", required=True, help=", ".join(EVALS))
    parser.add_argument("--lengths", required=True, help="tokens of a prompt, sequence or question, as in 64,4096")
    helps: dict[str, list[str]] = defaultdict(list)
    kinds: dict[str, type] = {}
    for name, module in EVALS.items():
        for field in dataclasses.fields(module.Options):
            default = "" if field.default is None else f" ({field.default})"
            helps[field.name].append(f"{name}: {field.metadata['help']}{default}")
            kinds[field.name] = str if field.default is None else type(field.default)
    for option, said in helps.items():
        parser.add_argument(f"--{option}", type=kinds[option], help="; ".join(said))
    parser.add_argument("--memory", type=float, default=2.0, help="for activations, GiB (2)")
    parser.add_argument(
        "--skip",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute no pair whose weight is below rounding",
    )
    configs.allow_option(parser)
    console.progress_option(parser)
    given, overrides = configs.parse(argv, parser)
    lengths = configs.lengths_of(given.lengths)
    found = evaluate(
        given.run,
        given.eval,
        lengths,
        memory=given.memory,
        skip=given.skip,
        overrides=overrides,
        allow=configs.allowed(given.allow),
        progress=given.progress,
        **{option: value for option in helps if (value := getattr(given, option)) is not None},
    )
    for line in summary.lines(given.run, given.eval, lengths, found, tasks=given.tasks, patience=given.patience):
        print(line)


if __name__ == "__main__":
    errors.run(main)
