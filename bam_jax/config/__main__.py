"""List the fields of a configuration with their types, defaults and meanings.

python -m bam_jax.config [--markdown]
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

from collections.abc import Sequence

from bam_jax.config import description


def main(argv: Sequence[str]) -> None:
    """Prints the list."""
    parser = errors.Parser(prog="python -m bam_jax.config", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="as the table of docs/configuration.md")
    given = parser.parse_args(argv)
    print(description.to_markdown() if given.markdown else description.to_text())


if __name__ == "__main__":
    errors.run(main)
