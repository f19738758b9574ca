"""Commands of the package called in this process, and what is wrong with how one ended."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from bam_jax.system import errors

ROOT = Path(__file__).parents[2]
LONGEST = 2000
"""Characters of the line of an error, at most."""
PATIENCE = 600
"""Seconds after which a command counts as one that hangs."""
PROGRESS = re.compile(r"\d\d:\d\d elapsed")
"""In a line of progress, which comes each minute."""

Main = Callable[[Sequence[str]], int | None]


@dataclasses.dataclass(frozen=True)
class Ended:
    """A command that has ended.

    Args:
        status: its exit status; None: it raised something else than errors of one line.
        out: its stdout.
        err: its stderr, also of libraries that write to the descriptor.
    """

    status: int | str | None
    out: str
    err: str


def call(main: Main, argv: Sequence[str]) -> Ended:
    """Runs a command's main as its module would, in this process; one that takes longer than `PATIENCE` ends with a traceback.

    Args:
        main: of the command.
        argv: its arguments.
    """
    with _captured() as files, _in_time():
        try:
            errors.run(main, argv)
        except SystemExit as ended:
            status = 0 if ended.code is None else ended.code
        except (Exception, _Late):  # what a process would end with; the harness tells it as a failure
            traceback.print_exc()
            status = None
    out, err = files
    return Ended(status, out.getvalue(), err.getvalue())


def limited(module: str, argv: Sequence[str], limit: int) -> list[str]:
    """A command in a process that has so much address space at most.

    The shell sets the limit: Python would have to do it between fork and exec, where threads of this process hold locks.

    Args:
        module: of the command.
        argv: its arguments.
        limit: bytes.
    """
    return ["sh", "-c", f'ulimit -v {limit // 1024} && exec "$@"', "sh", sys.executable, "-m", module, *argv]


def start(module: str, argv: Sequence[str], limit: int | None = None, **options: object) -> Ended:
    """Runs a command as a process.

    Args:
        module: of the command.
        argv: its arguments.
        limit: see `limited`; None: there is none.
        options: of `subprocess.run`.
    """
    command = [sys.executable, "-m", module, *argv] if limit is None else limited(module, argv, limit)
    try:
        made = subprocess.run(command, capture_output=True, text=True, **{"timeout": PATIENCE, **options})
    except subprocess.TimeoutExpired as late:
        return Ended(None, "", f"no end after {late.timeout} s\n")
    return Ended(made.returncode, made.stdout, made.stderr)


def complaint(ended: Ended, statuses: Sequence[int] = (0, 2)) -> str:
    """The way in which a command's end is not as it should be; "" where it is.

    It is right where the status is 0, or where it is 2 and stderr is one line that begins with "error: ".

    Args:
        ended: the command.
        statuses: that are allowed.
    """
    lines = [line for line in ended.err.split("\n") if line.strip() and not PROGRESS.search(line)]
    if "Traceback" in ended.err:
        return f"traceback: {lines[-1][:300]}"
    if ended.status not in statuses:
        return f"status {ended.status}: {' | '.join(lines)[-300:]}"
    if ended.status != 2:
        return ""
    if len(lines) != 1:
        return f"{len(lines)} lines: {' | '.join(lines)[-300:]}"
    line = lines[0]
    if not line.startswith("error: ") or not line.isprintable() or len(line) > LONGEST:
        return f"not a line of an error: {line[:300]!r}"
    return ""


def snapshot(folder: Path) -> dict[str, str]:
    """The digest of each file below a folder; locks and empty folders count for nothing.

    Args:
        folder: it may be missing.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def of_test(name: str) -> ModuleType:
    """A module of the tests, whose strategies and inputs the harness shares.

    Args:
        name: its path below tests, without the suffix.
    """
    path = ROOT / "tests" / f"{name}.py"
    known = f"shared_{re.sub('[^a-z_]', '_', name)}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, path)
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


class _Late(BaseException):
    """A command that hangs; no command catches it."""


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Raises `_Late` where the body takes longer than `PATIENCE`."""

    def late(*_: object) -> None:
        raise _Late(f"no end after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _captured() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Stdout and stderr, by Python's streams and by the descriptors that libraries write to."""
    texts = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        files = []
        for number, redirect in ((1, contextlib.redirect_stdout), (2, contextlib.redirect_stderr)):
            file = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace"))
            kept = os.dup(number)
            os.dup2(file.fileno(), number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            stack.enter_context(
                redirect(os.fdopen(os.dup(file.fileno()), "w", encoding="utf-8", errors="backslashreplace"))
            )
            files.append(file)
        try:
            yield texts
        finally:
            for stream, file, text in zip((sys.stdout, sys.stderr), files, texts, strict=True):
                stream.close() if stream.fileno() > 2 else stream.flush()
                file.seek(0)
                text.write(file.read())
