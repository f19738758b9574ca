"""Run a command, or list them all: `bam-jax NAME ...` is `python -m bam_jax.NAME ...`."""

import ast
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from bam_jax.system import errors
from bam_jax.system.errors import UserError, nearest

PACKAGE = Path(__file__).parent


def commands() -> Iterator[tuple[str, str]]:
    """The module of each command and the first sentence of its docstring; nothing is imported."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in text and path != Path(__file__):
            name = path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")
            said = ast.get_docstring(ast.parse(text)) or ""
            yield name.removesuffix(".__main__"), said.partition("\n")[0]


def main(argv: Sequence[str]) -> None:
    """Runs the command named by the first words; without one, prints the list."""
    words = {name.removeprefix("bam_jax.").replace(".", " "): name for name, _ in commands()}
    for count in (2, 1):  # "data prepare" before "train"
        name = " ".join(argv[:count])
        if len(argv) >= count and name in words:
            sys.argv = [f"python -m {words[name]}", *argv[count:]]
            runpy.run_module(words[name], run_name="__main__", alter_sys=True)
            return
    if argv and not argv[0].startswith("-"):
        raise UserError(f"unknown command {argv[0]!r}; {nearest(argv[0], words, 'bam-jax')}")
    width = max(map(len, words))
    listed = "\n".join(
        f"  bam-jax {name.ljust(width)}  {said}" for name, (_, said) in zip(words, commands(), strict=True)
    )
    parser = errors.Parser(prog="bam-jax", description=f"{__doc__}\n\ncommands, each with --help:\n{listed}")
    parser.parse_args(argv)
    print(parser.format_help(), end="")  # argparse's own printing would hide a broken pipe


def entry() -> NoReturn:
    """The command `bam-jax`."""
    errors.run(main)


if __name__ == "__main__":
    entry()
