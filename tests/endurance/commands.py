"""How a command is called, in this process or one of its own, and how its end is judged.

A command is a list of words: a module's name and its arguments.
"""

import contextlib
import dataclasses
import importlib
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import traceback

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


def fill(template, **places):
    """A command from words with {places}."""
    return [word.format(**places) for word in template.split()]


def main_of(module):
    found = importlib.import_module(module)
    return found.main if hasattr(found, "main") else importlib.import_module(f"{module}.__main__").main


def call(command):
    """Runs a command in this process, as its module would."""
    return run_main(main_of(command[0]), command[1:])


class _Late(BaseException):
    """A command that hangs; no command catches it."""


def run_main(main, argv):
    """Runs a command's main; after `PATIENCE` seconds it ends with a traceback."""

    def late(*_):
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
def _captured():
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


def start(command, max_bytes=None, **options):
    """Runs a command as a process, which may have a limit on its address space."""
    return _process([sys.executable, "-m", *command], max_bytes, **options)


def peak(command, max_bytes=None):
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


def _process(words, max_bytes, **options):
    if max_bytes is not None:
        # The shell sets the limit: Python would do so between fork and exec, where threads of this process hold locks.
        words = ["sh", "-c", f'ulimit -v {max_bytes // 1024} && exec "$@"', "sh", *words]
    options |= {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        made = subprocess.run(words, timeout=PATIENCE, **options)
    except subprocess.TimeoutExpired as late:
        return Ended(None, "", f"no end after {late.timeout} s\n")
    return Ended(made.returncode, made.stdout, made.stderr)


def complaint(ended, statuses=(0, 2)):
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


def judge(command, folder, statuses=(0, 2), *, read_only=False):
    """Calls a command, which must leave a folder as it is if it refuses or is `read_only`; returns its end and a complaint."""
    before = look(folder)
    ended = call(command)
    wrong = complaint(ended, statuses)
    if not wrong and (ended.status == 2 or read_only) and look(folder) != before:
        wrong = f"status {ended.status}, and {min(look(folder).items() ^ before.items())[0]} is changed"
    return ended, wrong


def look(folder):
    """All below a folder except locks, opened by nobody: of files what changes where they are written."""
    found = {}
    for parent, folders, names in os.walk(folder):
        for path in (os.path.join(parent, name) for name in (*folders, *names) if not name.endswith("lock")):
            with contextlib.suppress(OSError):  # it went away meanwhile
                about = os.lstat(path)
                own = (about.st_ino, about.st_size, about.st_mtime_ns) if not stat.S_ISDIR(about.st_mode) else ()
                found[path] = (about.st_mode, *own)
    return found


def contents(folder):
    """Every file below a folder, which may be missing, except locks."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def put(folder, files):
    """Writes files below a folder."""
    for name, written in files.items():
        path = folder / name
        os.makedirs(path.parent, exist_ok=True)
        path.write_bytes(written)
