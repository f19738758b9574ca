"""Python files of the user's own: what they raise is one line."""

import contextlib
import os
import traceback
from collections.abc import Iterator

from bam_jax.system.errors import UserError


@contextlib.contextmanager
def named_where_it_fails(path: str | os.PathLike, kind: str) -> Iterator[None]:
    """Says of a file which line of it failed, and how."""
    try:
        yield
    except UserError:
        raise
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"{kind} {path} is not Python: {error}") from error
    except Exception as error:  # the user's own code raises anything
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" at line {lines[-1]}" if lines else ""
        words = " ".join(str(error).split())[:300]
        raise UserError(f"{kind} {path} fails{where}: {type(error).__name__}: {words}; mend that file") from error
