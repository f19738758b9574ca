"""Print the table of encodings, or the formula and options of one."""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import sys
from collections.abc import Sequence

from bam_jax.analysis.methods import about, names, table
from bam_jax.system.errors import UserError, nearest, shown


def main(argv: Sequence[str]) -> None:
    """Prints the table, or an encoding's docstring."""
    parser = errors.Parser(prog="python -m bam_jax.methods", description=__doc__)
    parser.add_argument("name", nargs="?", help="an encoding, whose options are explained")
    name = parser.parse_args(argv).name
    if name is None:
        sys.stdout.write(f"{table()}\n")
    elif name in names():
        sys.stdout.write(f"{about(name)}\n")
    else:
        raise UserError(f"no encoding {shown(name)}; {nearest(name, names(), 'python -m bam_jax.methods')}")


if __name__ == "__main__":
    errors.run(main)
