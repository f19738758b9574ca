"""Errors that the user can fix, printed as one line, and how commands end."""

import argparse
import difflib
import errno
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

if sys.platform != "win32":
    import resource


class UserError(ValueError):
    """A mistake that the user can fix: one line with the value and the remedy."""


class Unwritten(UserError):
    """A write failed inside a library's thread. Such threads may never finish, so `run` exits without joining them."""


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose errors are `UserError`s: one line, without the usage."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(
            prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        """Like argparse, but options may come between positional arguments."""
        if "--" in args:  # `parse_intermixed_args` drops it before it reads the rest
            return super().parse_args(args, namespace)
        return self.parse_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises: UserError, always."""
        raise UserError(f"{message} (see --help)")


AGAIN = 75  # the exit code of a command that was stopped and can be started again (sysexits.h: EX_TEMPFAIL)
INTERRUPTED = 130  # the exit code after Ctrl-C, as in shells


class Stopped(RuntimeError):
    """A command was asked to stop, and did so at a point from which it can resume; the message is one line."""


class Interrupted(Stopped):
    """Ctrl-C asked the command to stop."""


LONGEST = 1500  # maximum characters of a message: a name in it may be as long as a command line
NAMES = 20  # maximum names in a list within a message
ALIASES: dict[str, str] = {}
"""Addresses by the temporary folders that hold copies of them. Messages name the addresses."""
LEAST = 3 * 2**30
"""Bytes of address space below which libraries do not fail cleanly: OpenBLAS retries for ever, and XLA's compiler aborts."""
LESS = (
    "give a training a smaller --config.batch, a larger --config.optimizer.accumulate, --config.model.remat=True or a smaller "
    "--config.model; an evaluation shorter --lengths or less --memory; generate fewer --tokens; heads fewer --keys"
)
"""The options that reduce memory."""
_FULL = re.compile("RESOURCE_EXHAUSTED|out[ _]of[ _]memory|can't start new thread", re.IGNORECASE)
"""Matches the RuntimeError of XLA (jax.errors.JaxRuntimeError) when a device has no memory left, or that of Python."""
_UNMAPPED = re.compile("failed to map segment|cannot allocate memory", re.IGNORECASE)
"""Matches the ImportError of a library for which there is no memory left."""


def nearest(name: str, known: Iterable[str], listing: str = "") -> str:
    """The end of a message about an unknown name: the nearest known name, and all names, or if they are many the most similar.

    `listing` is a command that lists all of them.

    >>> nearest("alibo", ["bam", "alibi"])
    "did you mean 'alibi'? known: alibi, bam"
    >>> nearest("xyz", ["bam", "alibi"])
    'known: alibi, bam'
    """
    names = sorted({name for name in known if name})
    close = difflib.get_close_matches(name, names, n=1)
    text = f"did you mean '{close[0]}'? known: " if close else "known: "
    if len(names) <= NAMES:
        return text + ", ".join(names)
    text += f"{', '.join(difflib.get_close_matches(name, names, n=NAMES, cutoff=0.0))} and {len(names) - NAMES} more"
    return f"{text} ({listing} lists all)" if listing else text


def shown(value: object) -> str:
    """The repr of a value for a one-line message, truncated if it is long.

    >>> shown("a" * 1000)[-23:]
    'a ... (1002 characters)'
    >>> shown(16**6000)
    'a value of type int that is too large to be shown'
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of more than 4,300 digits; deeply nested lists
        return f"a value of type {type(value).__name__} that is too large to be shown"
    return text if len(text) <= 200 else f"{text[:160]} ... ({len(text)} characters)"


def one_line(text: str) -> str:
    """A message as one printable line, whatever characters its names contain. The middle of a long message is omitted.

    >>> one_line("no run two\\nlines; train one")
    'no run two\\\\nlines; train one'
    """
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 500]} ... {line[-400:]}"


def aliased(text: str) -> str:
    """Replace temporary folders in a text by their addresses (`ALIASES`)."""
    for folder, address in ALIASES.items():
        text = text.replace(folder, address)
    return text


def ending(error: BaseException) -> tuple[int, str] | None:
    """The exit code and the line for an error that the user can fix, Ctrl-C or `Stopped`; None for any other.

    Paths that the system refuses, a full disk and a lack of memory also count as errors that the user can fix.

    >>> ending(UserError("config.steps=0 must be 1 or more"))
    (2, 'config.steps=0 must be 1 or more')
    """
    if isinstance(error, UserError):
        return 2, aliased(str(error))
    if is_lack_of_memory(error):
        return 2, f"not enough memory ({' '.join(str(error).split())[:160]}); {LESS}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # or a limit is reached
        path = error.filename2 or error.filename  # a copy writes to the second one
        where = f"{path}: " if path is not None else ""
        return 2, f"{where}{error.strerror}; make room on the disk, and give the same command again"
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename is not None:
        return 2, f"{error.filename}: a file or a link is in the way; give a folder, or a name that is not there yet"
    if isinstance(error, OSError) and error.filename is not None:
        return 2, f"{error.filename}: {error.strerror}; give a path that can be read and written"
    if isinstance(error, Stopped):
        return INTERRUPTED if isinstance(error, Interrupted) else AGAIN, aliased(str(error))
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    return None


def is_lack_of_memory(error: BaseException) -> bool:
    """True for an error by which Python, the system, a library's loader or XLA reports that there is no memory left."""
    match error:
        case MemoryError():
            return True
        case OSError():
            return error.errno == errno.ENOMEM
        case ImportError():
            return _UNMAPPED.search(str(error)) is not None
    return isinstance(error, RuntimeError) and _FULL.search(str(error)) is not None


def before_imports() -> None:
    """Called by a command before its imports, which take seconds: lets Ctrl-C end it at once, and checks the memory limit.

    `run` restores Python's handler. A process that ignores Ctrl-C, as a shell's background jobs do, goes on ignoring it.
    """
    # An import that is interrupted prints a traceback or swallows the signal.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)  # below LEAST some imports never end
    if limit != resource.RLIM_INFINITY and limit < LEAST:
        print(f"error: the limit of {limit >> 20} MiB (ulimit -v) is below {LEAST >> 20}; raise it", file=sys.stderr)
        sys.exit(2)


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command's `main(argv)` and exits: 2 after a `UserError` (one line on stderr), 75 when stopped, 130 after Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `before_imports`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has closed it. At exit, Python would write the rest and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except (UserError, OSError, MemoryError, ImportError, RuntimeError, KeyboardInterrupt) as error:
        end = ending(error)
        if end is None:
            raise
        status, line = end[0], one_line(end[1])
        print(f"error: {line}" if status == 2 else line, file=sys.stderr)
        if isinstance(error, Unwritten):  # orbax's threads would keep the process for ten minutes
            for child in multiprocessing.active_children():  # as Python does at a normal exit
                child.terminate()
            sys.stdout.flush()
            os._exit(status)
    sys.exit(status)
