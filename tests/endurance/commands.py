"""How a command is called, in this process or one of its own, and how its end is judged.

A command is a list of words: a module's name and its arguments.
"""

import contextlib
import dataclasses
import hashlib
import importlib
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
from typing import Any

from endurance.figures import ROOT

from bam_jax.system import errors

LONGEST = 2000
"""Characters of an error's line, at most."""
PATIENCE = 600
"""Seconds after which a command counts as one that hangs."""
PROGRESS = re.compile(r"\d\d:\d\d elapsed")
"""In a line of progress, printed each minute."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """A command's exit status (None: an exception or no end) and output, also of libraries that write to descriptors."""

    status: int | str | None
    out: str
    err: str


def fill(template: str, **places: object) -> list[str]:
    """A command from words with {places}."""
    return [word.format(**places) for word in template.split()]


def main_of(module: str) -> Callable[[Sequence[str]], int | None]:
    found = importlib.import_module(module)
    return found.main if hasattr(found, "main") else importlib.import_module(f"{module}.__main__").main


def call(command: Sequence[str]) -> Ended:
    """Runs a command in this process, as its module would."""
    return run_main(main_of(command[0]), command[1:])


def run_main(main: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> Ended:
    """Runs a command's main; after `PATIENCE` seconds it ends with a traceback."""
    with _captured() as files, _in_time():
        try:
            errors.run(main, argv)
        except SystemExit as ended:
            status = 0 if ended.code is None else ended.code
        except (Exception, _Late):  # a process would end with it
            traceback.print_exc()
            status = None
    out, err = files
    return Ended(status, out.getvalue(), err.getvalue())


def limited(command: Sequence[str], max_bytes: int) -> list[str]:
    """The words of a process for a command with a limit on its address space."""
    # The shell sets the limit: Python would do so between fork and exec, where threads of this process hold locks.
    return ["sh", "-c", f'ulimit -v {max_bytes // 1024} && exec "$@"', "sh", sys.executable, "-m", *command]


def start(command: Sequence[str], max_bytes: int | None = None, **options: Any) -> Ended:
    """Runs a command as a process."""
    words = [sys.executable, "-m", *command] if max_bytes is None else limited(command, max_bytes)
    try:
        made = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, **options)
    except subprocess.TimeoutExpired as late:
        return Ended(None, "", f"no end after {late.timeout} s\n")
    return Ended(made.returncode, made.stdout, made.stderr)


def complaint(ended: Ended, statuses: Sequence[int] = (0, 2)) -> str:
    """What is wrong with a command's end; "" for an allowed status, which with 2 needs one line that begins with "error: "."""
    lines = [line for line in ended.err.split("\n") if line.strip() and not PROGRESS.search(line)]
    if "Traceback" in ended.err:
        return f"traceback: {lines[-1][:300]}"
    if ended.status not in statuses:
        return f"status {ended.status}: {' | '.join(lines)[-300:]}"
    if ended.status != 2:
        return ""
    if len(lines) != 1:
        return f"{len(lines)} lines: {' | '.join(lines)[-300:]}"
    if not lines[0].startswith("error: ") or not lines[0].isprintable() or len(lines[0]) > LONGEST:
        return f"not a line of an error: {lines[0][:300]!r}"
    return ""


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, which may be missing, except locks."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def snapshot(folder: Path) -> dict[str, str]:
    """The digest of every file below a folder."""
    return {name: hashlib.sha256(written).hexdigest() for name, written in contents(folder).items()}


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Writes files below a folder."""
    for name, written in files.items():
        path = folder / name
        os.makedirs(path.parent, exist_ok=True)
        path.write_bytes(written)


def of_test(name: str) -> ModuleType:
    """A module of tests/, by its path without the suffix: the harness shares its strategies and inputs."""
    known = f"shared_{re.sub('[^a-z_]', '_', name)}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, ROOT / "tests" / f"{name}.py")
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


class _Late(BaseException):
    """A command that hangs; no command catches it."""


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
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
    """Captures stdout and stderr, both Python's streams and the descriptors that libraries write to."""
    texts = io.StringIO(), io.StringIO()
    encoding = {"encoding": "utf-8", "errors": "backslashreplace"}
    with contextlib.ExitStack() as stack:
        files = []
        for number, redirect in ((1, contextlib.redirect_stdout), (2, contextlib.redirect_stderr)):
            file = stack.enter_context(tempfile.TemporaryFile("w+", **encoding))
            kept = os.dup(number)
            os.dup2(file.fileno(), number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            stack.enter_context(redirect(os.fdopen(os.dup(file.fileno()), "w", **encoding)))
            files.append(file)
        try:
            yield texts
        finally:
            for stream, file, text in zip((sys.stdout, sys.stderr), files, texts, strict=True):
                stream.close() if stream.fileno() > 2 else stream.flush()
                file.seek(0)
                text.write(file.read())
