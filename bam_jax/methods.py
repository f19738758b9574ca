"""Print the table of encodings from the code, or compare it with the one in a file."""

import sys
from collections.abc import Sequence
from pathlib import Path

from bam_jax.analysis.methods import COLUMNS, SHORT, check, table
from bam_jax.system import errors


def main(argv: Sequence[str]) -> None:
    """Prints the table, or compares a file's.

    Raises:
        UserError: bad arguments, or another table in the file.
    """
    parser = errors.Parser(prog="python -m bam_jax.methods", description=__doc__)
    parser.add_argument("--check", type=Path, help="Markdown file that should hold the table")
    parser.add_argument(
        "--short", action="store_true", help="names, formulas and sources alone, as the README has them"
    )
    given = parser.parse_args(argv)
    if given.check is None:
        sys.stdout.write(f"{table(SHORT if given.short else len(COLUMNS))}\n")
    else:
        check(given.check)


if __name__ == "__main__":
    errors.run(main)
