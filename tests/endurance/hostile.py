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
import os
import pty
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from endurance import commands, made, strangers
from endurance.figures import FIGURES, Outcome

from bam_jax.data.tokenizers.training import train_bpe

WHAT = (
    "pipes, devices, outside links, 12 GB in place of a run's files: at most one line, no waiting, no change elsewhere"
)
SPARSE = 12 * 2**30
LINE = 100 * 2**20
SLOWER = 2.0  # seconds of the processor that a refusal may take more than the command on the unchanged run
LARGER = 200 * 2**20  # bytes of memory that a command may take more than on the unchanged run
# Cases between one and the next, of no divisor in common with their number: few of them have something of all.
STRIDE = 331


class Outside(NamedTuple):
    """The things outside a run that links lead to."""

    folder: Path  # nothing in it may change
    original: Path  # what stood in the place in the run
    terminal: str  # the name of one at which nobody types
    line: Path  # a file of one long line


def put(kind: str, path: Path, outside: Outside) -> None:
    """Puts something in a place of a run."""
    original, is_folder = outside.original, outside.original.is_dir()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:  # its address must be short
                bound.bind(path.name)
        case "device":
            path.symlink_to("/dev/zero")
        case "terminal":
            path.symlink_to(outside.terminal)
        case "sparse file":
            path.touch()
            os.truncate(path, SPARSE)
        case "folder or file":
            path.write_text("{}\n") if is_folder else path.mkdir()
        case "link to a file":
            path.symlink_to(outside.folder / "victim" if is_folder else original)
        case "dangling link":
            path.symlink_to(outside.folder / "nowhere")
        case "link to a folder":
            path.symlink_to(original if is_folder else outside.folder)
        case "loop":
            path.symlink_to(path.name)
        case "unreadable":
            shutil.copytree(original, path) if is_folder else shutil.copyfile(original, path)
            path.chmod(0)
        case "empty":
            path.mkdir() if is_folder else path.touch()
        case "zeros":
            path.write_bytes(bytes(2**16))
        case "long line":
            os.link(outside.line, path)


LINKS = ("link to a file", "dangling link", "link to a folder", "loop")
KINDS = ("pipe", "socket", "device", "terminal", "sparse file", "folder or file", *LINKS)
KINDS = (*KINDS, "unreadable", "empty", "zeros", "long line")
FILES = ("config.json", "metrics.jsonl", "results.jsonl")
FOLDERS = ("checkpoints", "checkpoints/3/sums.json", "tokenizer", "tokenizer/tokenizer.json", ".lock")
OPENERS = ("resume", "start", "evaluate", "generate", "heads", "figures biases", "export", "layout", "tables", "report")
CASES = [*itertools.product(KINDS, (*FILES, *FOLDERS), OPENERS)]
LARGE = ("device", "sparse file", "long line")
HEAVY = [*itertools.product(LARGE, (*FILES, *FOLDERS[1:]), ("generate", "tables", "resume"))]
"""Cases of which some are given to processes, three in every fourth part: a process imports for longer than most cases take."""


@contextlib.contextmanager
def _permissions_hold() -> Iterator[None]:
    """A block in which the permissions of files hold for root as well."""
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


def _trained(folder: Path) -> dict[str, bytes]:
    """The files of a run with a tokenizer of its own and a record; writes what else the commands read."""
    strangers.write_inputs(folder)
    text = Path(made.values(folder)["data"]["source"]).read_text()
    (folder / "bpe.json").write_text(train_bpe([text], 280))
    run = made.train(folder, data={"tokenizer": f"bpe:{folder / 'bpe.json'}"})
    (folder / "line").write_bytes(b'{"step": 1, "note": "' + b"x" * LINE + b'"}\n')
    return commands.contents(run) | {".lock": b""}


@contextlib.contextmanager
def _placed(files: dict[str, bytes], folder: Path, command: str, kind: str, place: str) -> Iterator[tuple]:
    """A command, a run in a place of which something else stands, and the folder of what lies outside it."""
    case = folder / "case"
    run, outside, out = case / "runs" / made.RUN, case / "outside", case / "out"
    commands.put(run, files)
    commands.put(outside, {"victim": b"mine\n"})
    out.mkdir()
    terminal = pty.openpty()
    if kind:
        path = run / place
        original = path.rename(outside / path.name.lstrip("."))
        put(kind, path, Outside(outside, original, os.ttyname(terminal[1]), folder / "line"))
    yield commands.fill(made.OPENERS[command], run=run, out=out, folder=folder), run, outside
    for each in terminal:
        os.close(each)
    shutil.rmtree(case)


def measure(seed: int, count: int, folder: Path) -> Outcome:
    outcome, files = Outcome(), _trained(folder)

    def give(command: str, kind: str = "", place: str = "") -> tuple[commands.Ended, float, str]:
        """How a command ended, the seconds of the processor, and what is wrong."""
        with _placed(files, folder, command, kind, place) as (words, run, outside):
            beside = commands.look(outside)
            commands.main_of(words[0])  # imports take time once
            start = time.process_time()
            with _permissions_hold():
                ended, wrong = commands.judge(words, run, (0, 2) if kind else (0,))
            seconds = time.process_time() - start
            if not wrong and commands.look(outside) != beside:
                wrong = "what is outside of it is changed"
            return ended, seconds, wrong

    @functools.cache
    def usual(command: str) -> float:
        """The seconds of a command on the unchanged run."""
        _, seconds, wrong = give(command)
        if wrong:
            outcome.failures.append(f"{command} of the unchanged run: {wrong}")
        return seconds

    @functools.cache
    def resident(command: str, kind: str = "", place: str = "") -> int:
        """The bytes that a command takes as a process."""
        with _placed(files, folder, command, kind, place) as (words, *_):
            return commands.peak(words)[1]

    refused, slowest, largest = dict.fromkeys(KINDS, 0), 0.0, 0
    for number in range(seed * FIGURES["hostile"].part, seed * FIGURES["hostile"].part + count):
        kind, place, command = CASES[number * STRIDE % len(CASES)]
        before = usual(command)
        ended, seconds, wrong = give(command, kind, place)
        if ended.status == 2:
            refused[kind] += 1
            slowest = max(slowest, seconds)
            if seconds > before + SLOWER:
                wrong = wrong or f"{seconds:.1f} s, {before:.1f} s on the unchanged run"
        outcome.add(f"{command} of a run with {kind} as {place}", wrong)
    processes = 0 if seed % 4 else min(3, count // 20)
    for number in range(seed * 3, seed * 3 + processes):
        kind, place, command = HEAVY[number * 29 % len(HEAVY)]
        more = resident(command, kind, place) - resident(command)
        largest = max(largest, more // 2**20)
        if more > LARGER:
            outcome.failures.append(f"{command} of a run with {kind} as {place}: {more // 2**20} MiB more")
    outcome.more = {"refused": refused, "slowest": round(slowest, 1), "processes": processes, "mib_more": largest}
    return outcome
