"""Print the table of encodings from the code, what one of them is and takes, or compare the table with the one in a file."""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import sys
from collections.abc import Sequence
from pathlib import Path

from bam_jax.analysis.methods import COLUMNS, SHORT, about, check, names, table
from bam_jax.system.errors import UserError, nearest, shown


def main(argv: Sequence[str]) -> None:
    """Prints the table or an encoding's docstring, or compares a file's table.

    Raises:
        UserError: bad arguments, no such encoding, or another table in the file.
    """
    parser = errors.Parser(prog="python -m bam_jax.methods", description=__doc__)
    parser.add_argument("name", nargs="?", help="an encoding, whose options are explained")
    parser.add_argument("--check", type=Path, help="Markdown file that should hold the table")
    parser.add_argument(
        "--short", action="store_true", help="names, formulas and sources alone, as the README has them"
    )
    given = parser.parse_args(argv)
    if given.name is not None and (given.check or given.short):
        raise UserError(f"{given.name} is one encoding, --check and --short are of the table; give one of them")
    if given.name is not None:
        if given.name not in names():
            raise UserError(
                f"no encoding {shown(given.name)}; {nearest(given.name, names(), 'python -m bam_jax.methods')}"
            )
        sys.stdout.write(f"{about(given.name)}\n")
    elif given.check is None:
        sys.stdout.write(f"{table(SHORT if given.short else len(COLUMNS))}\n")
    else:
        check(given.check)


if __name__ == "__main__":
    errors.run(main)
