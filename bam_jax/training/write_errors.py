"""The one line for a checkpoint that cannot be written, out of what libraries raise and log."""

import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bam_jax.system.errors import Unwritten

CLOSED = "Event loop is closed"
"""The words of asyncio for what comes after an error has ended a loop."""
_CODE = re.compile(r"os_error_code='(\d+)'")


@contextlib.contextmanager
def naming_what_cannot_be_written(path: Path) -> Iterator[None]:
    """Say in one line why the system does not let a checkpoint be written.

    Args:
        path: of the checkpoint.

    Raises:
        Unwritten: instead of what orbax and tensorstore raise.
    """
    for name in ("absl", "concurrent.futures"):
        logging.getLogger(name).addFilter(_is_not_raised_as_well)
    _leave_out_closed_loops()
    try:
        yield
    except TimeoutError as error:  # orbax waits for 20 minutes by the time of day
        raise Unwritten(
            f"checkpoint {path} was not written in time: the disk hangs, or the clock was set meanwhile; give the same command "
            "again: it goes on from the checkpoint before"
        ) from error
    except (OSError, ValueError) as error:  # a ValueError of tensorstore has the system's code in its text
        codes = [code for code in map(_system_code, causes(error)) if code is not None]
        if not codes:
            raise
        raise Unwritten(
            f"checkpoint {path} cannot be written: {os.strerror(codes[0])}; make room or get leave to write there, and give "
            "the same command again: it goes on from the checkpoint before"
        ) from error


def _system_code(error: BaseException) -> int | None:
    """The errno of an error, which may be in its text."""
    if isinstance(error, OSError):
        return error.errno
    code = _CODE.search(str(error))
    return int(code[1]) if code else None


@functools.cache
def _leave_out_closed_loops() -> None:
    """Has Python say nothing of callbacks of tensorstore that find their event loop closed: orbax raises what closed it."""
    usual = sys.unraisablehook

    def say(given: Any) -> None:
        if CLOSED not in str(given.exc_value):
            usual(given)

    sys.unraisablehook = say


def _is_not_raised_as_well(record: logging.LogRecord) -> bool:
    """True for a log record, unless orbax's threads write it of an error that orbax raises as well."""
    closed = record.exc_info is not None and CLOSED in str(record.exc_info[1])
    return not closed and (record.levelno < logging.ERROR or "orbax" not in Path(record.pathname).parts)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it followed.

    Args:
        error: the last of them.
    """
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
