"""List the commands: `python -m bam_jax`."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from bam_jax.system import errors

PACKAGE = Path(__file__).parent


def commands() -> Iterator[tuple[str, str]]:
    """The name of each command and the first sentence of its docstring; nothing is imported."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in text and path != Path(__file__):
            name = path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")
            said = ast.get_docstring(ast.parse(text)) or ""
            yield name.removesuffix(".__main__"), said.partition("\n")[0]


def main(argv: Sequence[str]) -> None:
    """Prints the list."""
    errors.Parser(prog="python -m bam_jax", description=__doc__).parse_args(argv)
    found = list(commands())
    width = max(len(name) for name, _ in found)
    print("commands, each with --help:")
    for name, said in found:
        print(f"  python -m {name.ljust(width)}  {said}")


if __name__ == "__main__":
    errors.run(main)
