"""Evaluation: `python -m bam_jax.evaluate --run=runs/x --eval=passkey --lengths=64,4096 [--config.a.b=value ...]`.

Appends to `results.jsonl` in the run's folder, a line for each cell; the same command again does only what is missing.
"""

import argparse
import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bam_jax import config as configs
from bam_jax.evals.running import EVALS, evaluate, names
from bam_jax.experiments import results
from bam_jax.system import console, errors, host


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
    host.keep_freed_memory()
    found = evaluate(
        given.run,
        given.eval,
        configs.lengths_of(given.lengths),
        memory=given.memory,
        skip=given.skip,
        overrides=overrides,
        allow=configs.allowed(given.allow),
        progress=given.progress,
        **{option: value for option in helps if (value := getattr(given, option)) is not None},
    )
    tables: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for record in found:
        for name in names(record, given.tasks):
            tables[name, record["length"]].append(record)
    for (task, length), cells in sorted(tables.items()):
        n = sum(cell["n"] for cell in cells)
        value = results.mean(cells)
        what = f"{task} {cells[0]['unit']}".strip()
        print(f"{given.run}: {what} at {length} tokens: {value:.3f} ({n} {EVALS[given.eval].SAMPLES})")
    left_out = sorted(set(configs.lengths_of(given.lengths)) - {length for _, length in tables})
    if left_out:
        why = (
            f"after {given.patience} lengths without any" if given.patience else "for which every question is too long"
        )
        print(f"{given.run}: not measured: {', '.join(map(str, left_out))} tokens, {why}")


if __name__ == "__main__":
    errors.run(main)
