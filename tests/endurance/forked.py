"""Commands in processes that a warm one forks: imports take seconds, and a trial that is killed takes less.

The warm process has imported a command and what it imports later. No backend of JAX has begun in it, and it has no thread but
those of NumPy's products, which survive a fork. A child is a process like any other: it has a session of its own, and ends as a
command does. Programs come compiled from a folder, which an undisturbed child has filled.
"""

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from endurance import commands
from endurance.figures import ROOT

from bam_jax.system import errors

LATER = ("tqdm", "safetensors.numpy", "pyarrow.parquet", "matplotlib.pyplot")  # imported while commands run
ENTRY = f"import sys; sys.path[0] = {str(ROOT / 'tests')!r}; from endurance import forked; forked.serve(*sys.argv[1:])"
PR_SET_CHILD_SUBREAPER = 36  # prctl.h: what children leave behind comes to this process


def serve(module: str) -> None:
    """Forks a child for each line on stdin; writes its number and, when nothing of it is left, its status."""
    main = commands.main_of(module)
    for each in LATER:
        importlib.import_module(each)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    print("ready", flush=True)
    for line in sys.stdin:
        argv, said, prelude = json.loads(line)
        child = os.fork()
        if not child:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number in (1, 2):
                os.dup2(os.open(f"{said}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
            exec(prelude, {})
            errors.run(main, argv)
        print(child, flush=True)
        with contextlib.suppress(ChildProcessError):  # until no child is left
            while True:
                number, status = os.wait()
                if number == child:
                    ended = os.waitstatus_to_exitcode(status)
        print(ended, flush=True)


@dataclasses.dataclass
class Child:
    """A command that runs."""

    pid: int  # also of its session
    warm: "Warm"
    said: Path  # its output, without the suffix
    status: int | None = None

    def wait(self, seconds: float) -> bool:
        """Waits for its end and that of all that it started; True if it has come."""
        if self.status is None and select.select([self.warm.process.stdout], [], [], max(0, seconds))[0]:
            self.status = int(self.warm.read())
        return self.status is not None

    def send(self, number: int) -> None:
        """Sends a signal to it and all that it started; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end(self, seconds: float = commands.PATIENCE) -> commands.Ended:
        """Waits for its end; one that hangs is killed, and its status is None."""
        late = not self.wait(seconds)
        if late:
            self.send(signal.SIGKILL)
            self.wait(60)
        out, err = (Path(f"{self.said}.{number}").read_text(errors="backslashreplace") for number in (1, 2))
        return commands.Ended(None if late else self.status, out, f"{err}hangs\n" if late else err)


class Warm:
    """A process that has imported a command; a context manager. The folder is for output and compiled programs."""

    def __init__(self, module: str, folder: Path) -> None:
        self.folder = folder
        settings = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PLATFORMS": "cpu"}
        settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        (folder / "compiled").mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENTRY, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **settings},
        )
        assert self.read() == "ready"

    def read(self) -> str:
        return self.process.stdout.readline().decode().strip()

    def start(self, argv: Sequence[str], prelude: str = "") -> Child:
        """Starts the command in a child, which runs the code of the prelude first."""
        said = self.folder / "said"
        self.process.stdin.write(json.dumps([list(map(str, argv)), str(said), prelude]).encode() + b"\n")
        return Child(int(self.read()), self, said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


FROZEN = "import jax; jax.config.update('jax_persistent_cache_min_compile_time_secs', 1e9)\n"
"""The prelude of a child that may be killed: half a compiled program must not be left."""


def first_write(child: Child, folder: Path, before: dict[str, tuple[int, ...]]) -> float | None:
    """Waits until a command has written; the time of that, or None where it ends before."""
    hangs = time.monotonic() + commands.PATIENCE
    while not child.wait(0.001) and time.monotonic() < hangs:
        if commands.look(folder) != before:
            return time.monotonic()
    return None
