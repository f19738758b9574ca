"""How a command is called, in this process or one of its own, and how its end is judged.

A command is a list of words: a module's name and its arguments.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
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
from typing import IO, Any

from endurance.figures import ROOT

from bam_jax.system import errors

LONGEST = 2000  # characters of an error's line, at most
PATIENCE = 600  # seconds after which a command counts as one that hangs
PROGRESS = re.compile(r"\d\d:\d\d elapsed")  # in a line of progress, printed each minute


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


class _Late(BaseException):
    """A command that hangs; no command catches it."""


def run_main(main: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> Ended:
    """Runs a command's main; after `PATIENCE` seconds it ends with a traceback."""

    def late(*_: object) -> None:
        raise _Late(f"no end after {PATIENCE} s")

    with _captured() as files:
        before = signal.signal(signal.SIGALRM, late)
        signal.alarm(PATIENCE)
        try:
            errors.run(main, argv)
        except SystemExit as ended:
            status = 0 if ended.code is None else ended.code
        except (Exception, _Late):  # a process would end with it
            traceback.print_exc()
            status = None
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        for file in files:
            file.seek(0)  # writes what is left
        return Ended(status, *(file.read() for file in files))


@contextlib.contextmanager
def _captured() -> Iterator[list[IO[str]]]:
    """Captures stdout and stderr, both Python's streams and the descriptors that libraries write to."""
    with contextlib.ExitStack() as stack:
        files = []
        for number, redirect in ((1, contextlib.redirect_stdout), (2, contextlib.redirect_stderr)):
            file = tempfile.TemporaryFile("w+", buffering=1, encoding="utf-8", errors="backslashreplace")
            files.append(stack.enter_context(file))
            kept = os.dup(number)
            os.dup2(file.fileno(), number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            stack.enter_context(redirect(file))
        yield files


def start(command: Sequence[str], max_bytes: int | None = None, **options: Any) -> Ended:
    """Runs a command as a process, which may have a limit on its address space."""
    return _process([sys.executable, "-m", *command], max_bytes, **options)


def peak(command: Sequence[str], max_bytes: int | None = None) -> tuple[Ended, int]:
    """Runs a command as a process; returns its memory at the peak as well, in bytes."""
    # Linux counts what a process holds when it starts another to that one's peak: a small process stands between.
    ended = _process([sys.executable, "-S", "-c", BETWEEN, sys.executable, "-m", *command], max_bytes)
    if ended.status is None:
        return ended, 0
    err, _, kibibytes = ended.err.rstrip("\n").rpartition("\n")
    return Ended(ended.status, ended.out, f"{err}\n" if err else ""), int(kibibytes) * 1024


BETWEEN = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status if status >= 0 else 128 - status)
"""


def _process(words: list[str], max_bytes: int | None, **options: Any) -> Ended:
    if max_bytes is not None:
        # The shell sets the limit: Python would do so between fork and exec, where threads of this process hold locks.
        words = ["sh", "-c", f'ulimit -v {max_bytes // 1024} && exec "$@"', "sh", *words]
    options |= {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        made = subprocess.run(words, timeout=PATIENCE, **options)
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


def judge(
    command: Sequence[str], folder: Path, statuses: Sequence[int] = (0, 2), *, read_only: bool = False
) -> tuple[Ended, str]:
    """Calls a command, which must leave a folder as it is if it refuses or is `read_only`; returns its end and a complaint."""
    before = look(folder)
    ended = call(command)
    wrong = complaint(ended, statuses)
    if not wrong and (ended.status == 2 or read_only) and look(folder) != before:
        wrong = f"status {ended.status}, and {min(look(folder).items() ^ before.items())[0]} is changed"
    return ended, wrong


def look(folder: Path) -> dict[str, tuple[int, ...]]:
    """All below a folder except locks, opened by nobody: of files what changes where they are written."""
    found: dict[str, tuple[int, ...]] = {}
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    about = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        found[entry.path] = (about.st_mode,)
                    elif not entry.name.endswith("lock"):
                        found[entry.path] = about.st_mode, about.st_ino, about.st_size, about.st_mtime_ns
        except OSError:  # it went away meanwhile, or nobody may open it
            continue
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, which may be missing, except locks."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


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
