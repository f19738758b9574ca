"""What the heads of a trained model do: `python -m bam_jax.heads --run=runs/x [--keys=64,32000] [--tokens=256]`.

Prints a line for each head, and writes `heads.jsonl` into the run's folder: how far each head's prior reaches, what BAM's
shapes make of it, and what content and position add along a held-out text.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from bam_jax import config as configs
from bam_jax.analysis.heads import FILE, measure, table
from bam_jax.system import console, errors, files


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: see `measure`.
    """
    parser = errors.Parser(prog="python -m bam_jax.heads", description=__doc__)
    parser.add_argument("--run", required=True, help="the folder of a trained run")
    parser.add_argument("--keys", default="", help="of the queries whose priors are measured, as in 64,32000")
    parser.add_argument("--tokens", type=int, default=0, help="of held-out text (four training contexts)")
    configs.allow_option(parser)
    console.progress_option(parser)
    given, overrides = configs.parse(argv, parser)
    keys = configs.lengths_of(given.keys, "--keys") if given.keys else ()
    allow = configs.allowed(given.allow)
    records = measure(
        given.run, keys=keys, tokens=given.tokens, overrides=overrides, allow=allow, progress=given.progress
    )
    files.write_atomically(Path(given.run) / FILE, "".join(json.dumps(record) + "\n" for record in records))
    head, lines = table(records)
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print("distances in tokens within which the prior holds 50, 90, 99% of its mass;")
    print(f"divergences in nats, means over {records[0]['tokens']} tokens of held-out text")
    print(f"wrote {Path(given.run) / FILE}")


if __name__ == "__main__":
    errors.run(main)
