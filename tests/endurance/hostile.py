"""A run in which something else takes the place of a file or a folder.

It may be a pipe, a socket, a device, a terminal, a sparse file of 12 GB, a link to a file or a folder outside the run, and so
on. The command must end with status 0, or in one line with status 2. It must not wait for input or change anything outside the
run; if it refuses the run, nothing inside either. A refusal may take at most two seconds of processor time more than the same
command on the unchanged run. A few cases run as separate processes, which may take at most 200 MiB more memory.
"""

import contextlib
import ctypes
import functools
import itertools
import math
import os
import pty
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
from endurance import commands, made, strangers
from endurance.figures import Figure, Outcome
from jax.experimental.compilation_cache import compilation_cache

from bam_jax.data.tokenizers.training import train_bpe

SPARSE = 12 * 2**30
LINE = 100 * 2**20
PATIENCE = 300
"""Seconds after which a command counts as one that waits."""
SLOWER = 2.0
"""Seconds of the processor that a refusal may take more than the command on the unchanged run."""
LARGER = 200 * 2**20
"""Bytes of memory that a command may take more than on the unchanged run."""
STRIDE = 331
"""Cases between one and the next, of no divisor in common with their number, so that few of them have something of all."""


class Outside(NamedTuple):
    """The things outside a run that links lead to."""

    folder: Path  # nothing in it may change
    original: Path  # what stood in the place in the run
    terminal: str  # the name of one at which nobody types
    line: Path  # a file of one long line


def _put_socket(path: Path, _: Outside) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:  # its address must be short
        bound.bind(path.name)


def _put_sparse(path: Path, _: Outside) -> None:
    path.touch()
    os.truncate(path, SPARSE)


def _put_other(path: Path, outside: Outside) -> None:
    path.write_text("{}\n") if outside.original.is_dir() else path.mkdir()


def _put_link_to_file(path: Path, outside: Outside) -> None:
    path.symlink_to(outside.folder / "victim" if outside.original.is_dir() else outside.original)


def _put_link_to_folder(path: Path, outside: Outside) -> None:
    path.symlink_to(outside.original if outside.original.is_dir() else outside.folder)


def _put_unreadable(path: Path, outside: Outside) -> None:
    copy = shutil.copytree if outside.original.is_dir() else shutil.copyfile
    copy(outside.original, path)
    path.chmod(0)


def _put_empty(path: Path, outside: Outside) -> None:
    path.mkdir() if outside.original.is_dir() else path.touch()


KINDS: dict[str, Callable[[Path, Outside], object]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "socket": _put_socket,
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "terminal": lambda path, outside: path.symlink_to(outside.terminal),
    "sparse file": _put_sparse,
    "folder or file": _put_other,
    "link to a file": _put_link_to_file,
    "dangling link": lambda path, outside: path.symlink_to(outside.folder / "nowhere"),
    "link to a folder": _put_link_to_folder,
    "loop": lambda path, _: path.symlink_to(path.name),
    "unreadable": _put_unreadable,
    "empty": _put_empty,
    "zeros": lambda path, _: path.write_bytes(bytes(2**16)),
    "long line": lambda path, outside: os.link(outside.line, path),
}
"""What stands in a place."""
PLACES = (
    "config.json",
    "metrics.jsonl",
    "results.jsonl",
    "checkpoints",
    "checkpoints/3/sums.json",
    "tokenizer",
    "tokenizer/tokenizer.json",
    ".lock",
)
COMMANDS = (
    "resume",
    "start",
    "evaluate",
    "generate",
    "heads",
    "figures biases",
    "export",
    "layout",
    "tables",
    "report",
)
"""Those of `made.OPENERS` that are called."""
CASES = [*itertools.product(KINDS, PLACES, COMMANDS)]
HEAVY = [
    *itertools.product(
        ("device", "sparse file", "long line"), PLACES[:3] + PLACES[4:], ("generate", "tables", "resume")
    )
]
"""Cases of which some are given to processes."""
PROCESSES = 3
"""Cases of every fourth part that are: a process imports for longer than most cases take."""


def _nothing_overridden() -> contextlib.AbstractContextManager[object]:
    """A block in which the permissions of files hold for root as well."""
    return contextlib.nullcontext() if os.geteuid() else _without_capabilities()


@contextlib.contextmanager
def _without_capabilities() -> Iterator[None]:
    system, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    usual = (ctypes.c_uint32 * 6)()
    system.capget(header, usual)
    fewer = (ctypes.c_uint32 * 6)(*usual)
    fewer[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    system.capset(header, fewer)
    try:
        yield
    finally:
        system.capset(header, usual)


def _seen(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that is below a folder, opened by nobody; locks count for nothing."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        if not path.name.endswith("lock"):
            about_file = () if stat.S_ISDIR(about.st_mode) else (about.st_size, about.st_mtime_ns)
            found[path.relative_to(folder).as_posix()] = (about.st_mode, *about_file)
    return found


def _trained(folder: Path) -> dict[str, bytes]:
    """The files of a run with a tokenizer of its own and a record; writes what else the commands read."""
    strangers.write_inputs(folder)
    text = Path(made.values(folder)["data"]["source"]).read_text()
    (folder / "bpe.json").write_text(train_bpe([text], 280))
    run = made.train(folder, data={"tokenizer": f"bpe:{folder / 'bpe.json'}"})
    return commands.contents(run) | {".lock": b""}


@contextlib.contextmanager
def _placed(files: dict[str, bytes], folder: Path, kind: str, place: str) -> Iterator[dict[str, Path]]:
    """The places of a run in which something else stands, of what lies outside it, and of a command's output."""
    case, line = folder / "case", folder / "line"
    places = {"run": case / "runs" / made.RUN, "outside": case / "outside", "out": case / "out", "folder": folder}
    commands.put(places["run"], files)
    places["outside"].mkdir()
    places["out"].mkdir()
    (places["outside"] / "victim").write_text("mine\n")
    if not line.exists():
        line.write_bytes(b'{"step": 1, "note": "' + b"x" * LINE + b'"}\n')
    terminal = pty.openpty()
    if kind:
        path = places["run"] / place
        original = path.rename(places["outside"] / path.name.lstrip("."))
        KINDS[kind](path, Outside(places["outside"], original, os.ttyname(terminal[1]), line))
    yield places
    for each in terminal:
        os.close(each)
    shutil.rmtree(case)


@contextlib.contextmanager
def _compiled_once(folder: Path) -> Iterator[None]:
    """A block whose compiled programs are kept in a folder; otherwise each command compiles the same ones again."""
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    with contextlib.ExitStack() as stack:
        stack.callback(compilation_cache.reset_cache)
        for name, value in settings.items():
            stack.callback(jax.config.update, name, getattr(jax.config, name))
            jax.config.update(name, value)
        yield


def measure(seed: int, count: int, folder: Path) -> Outcome:
    with _compiled_once(folder / "programs"):
        return _measure(seed, count, folder)


def _measure(seed: int, count: int, folder: Path) -> Outcome:
    assert math.gcd(STRIDE, len(CASES)) == 1
    failures: list[str] = []
    files = _trained(folder)

    def give(command: str, kind: str = "", place: str = "") -> tuple[commands.Ended, float, str]:
        """How a command ended, the seconds of the processor, and what it changed that it must not."""
        with _placed(files, folder, kind, place) as places:
            words = commands.fill(made.OPENERS[command], **places)
            beside, within = _seen(places["outside"]), _seen(places["run"])
            commands.main_of(words[0])  # imports take time once
            start = time.process_time()
            with mock.patch.object(commands, "PATIENCE", PATIENCE), _nothing_overridden():
                ended = commands.call(words)
            seconds = time.process_time() - start
            changed = [name for name, _ in _seen(places["outside"]).items() ^ beside.items()]
            wrong = f"{min(changed)} outside of it is changed" if changed else ""
            if ended.status == 2 and _seen(places["run"]) != within:
                changed = sorted(name for name, _ in _seen(places["run"]).items() ^ within.items())
                wrong = wrong or f"refused, and {changed[0]} in it is changed"
            return ended, seconds, wrong

    @functools.cache
    def usual(command: str) -> float:
        """The seconds of a command on the unchanged run."""
        ended, seconds, wrong = give(command)
        if wrong := commands.complaint(ended, (0,)) or wrong:
            failures.append(f"{command} of the unchanged run: {wrong}")
        return seconds

    def resident(command: str, kind: str = "", place: str = "") -> int:
        """The bytes that a command takes as a process."""
        with _placed(files, folder, kind, place) as places:
            words = commands.fill(made.OPENERS[command], **places)
            given = ["timeout", str(2 * PATIENCE), sys.executable, "-m", *words]
            process = subprocess.Popen(
                given, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            return os.wait4(process.pid, 0)[2].ru_maxrss * 1024

    refused, slowest, largest = dict.fromkeys(KINDS, 0), 0.0, 0
    for number in range(seed * FIGURE.part, seed * FIGURE.part + count):
        kind, place, command = CASES[number * STRIDE % len(CASES)]
        limit = usual(command) + SLOWER
        ended, seconds, wrong = give(command, kind, place)
        wrong = commands.complaint(ended) or wrong
        if ended.status == 2:
            refused[kind] += 1
            slowest = max(slowest, seconds)
            if seconds > limit:
                wrong = wrong or f"{seconds:.1f} s, {limit - SLOWER:.1f} s on the unchanged run"
        if wrong:
            failures.append(f"{command} of a run with {kind} as {place}: {wrong}")
    unchanged = functools.cache(resident)
    processes = 0 if seed % 4 else min(PROCESSES, count // 20)
    for number in range(seed * PROCESSES, seed * PROCESSES + processes):
        kind, place, command = HEAVY[number * 29 % len(HEAVY)]
        more = resident(command, kind, place) - unchanged(command)
        largest = max(largest, more // 2**20)
        if more > LARGER:
            failures.append(f"{command} of a run with {kind} as {place}: {more // 2**20} MiB more")
    more = {"refused": refused, "slowest": round(slowest, 1), "processes": processes, "mib_more": largest}
    return Outcome(count, failures, more)


FIGURE = Figure(
    what="pipes, devices, outside links, 12 GB in place of a run's files: at most one line, no waiting, no change elsewhere",
    unit="runs",
    wanted=len(CASES),
    part=140,
    short=10,
    minutes=40,
    measure=measure,
)
