"""The user's own Python files; their errors become one-line messages."""

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bam_jax.system.errors import UserError


@contextlib.contextmanager
def named_where_it_fails(path: str | os.PathLike, kind: str) -> Iterator[None]:
    """Turns an error of a file into a `UserError` with the line that failed and the reason."""
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


@contextlib.contextmanager
def run_file(path: str | os.PathLike, kind: str) -> Iterator[dict[str, Any]]:
    """Runs a file. Within the block it can import the modules in its own folder, as with `python PATH`."""
    folder, before = str(Path(path).resolve().parent), {*sys.modules}
    with named_where_it_fails(path, kind):
        sys.path.insert(0, folder)
        try:
            yield runpy.run_path(str(path))
        finally:
            sys.path.remove(folder)
            # The next file's folder may have other modules of the same names.
            for name in sys.modules.keys() - before:
                file = getattr(sys.modules[name], "__file__", None)
                if file and "." not in name and os.path.dirname(file) == folder:
                    del sys.modules[name]
