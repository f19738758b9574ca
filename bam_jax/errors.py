"""What a user did wrong, said in one line."""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn


class UserError(ValueError):
    """A mistake that the user can mend: one line with the value and the remedy."""


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose complaints are `UserError`s, thus one line without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raises: UserError, always."""
        raise UserError(f"{message} (see --help)")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the name probably meant, and all known ones.

    >>> nearest("alibo", ["bam", "alibi"])
    "did you mean 'alibi'? known: alibi, bam"
    >>> nearest("xyz", ["bam", "alibi"])
    'known: alibi, bam'
    """
    names = sorted(known)
    listing = f"known: {', '.join(names)}"
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'? {listing}" if close else listing


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command's `main(argv)` and exits: 2 after a `UserError` (one line on stderr), 130 after Ctrl-C.

    A path that the system refuses, such as one in a read-only folder, is the user's to mend as well.

    Args:
        main: takes the arguments; its return value is the exit status (None: 0).
        argv: the arguments; None means those of the process.

    Raises:
        SystemExit: always.
    """
    try:
        status = main(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; give a path that can be read and written", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)
