"""Runs that hold something else than was written, opened by the commands that open runs."""

import contextlib
import ctypes
import functools
import importlib
import itertools
import json
import os
import pty
import random
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from endurance import commands, made
from endurance.figures import FIGURES, Outcome
from endurance.spoil import spoilt

from bam_jax.data.tokenizers.training import train_bpe

# Cases between one and the next, of no divisor in common with their number: few of them have something of all.
STRIDE = 331
FIRST = ("import", "exec", "os.system", "os.exec", "os.posix_spawn", "socket.getaddrinfo")
SECOND = ("subprocess.Popen", "socket.connect")
"""Events of Python's whose first, or second, value tells what it was."""
_heard = set()


@functools.cache
def _listen():
    """Hears of these events from now on, once in a process."""

    def hear(event, given):
        if event in FIRST or event in SECOND:
            what = given[event in SECOND]
            _heard.add(f"{event} {getattr(what, 'co_filename', what)}")

    sys.addaudithook(hear)


class Opened(NamedTuple):
    """How a command ended that opened a run."""

    ended: commands.Ended
    wrong: str
    seconds: float  # of the processor
    heard: set[str]  # what it imported, executed, started and looked up


@contextlib.contextmanager
def _case(files, folder, command, change):
    """A command, a changed run, and the folder of what lies outside it."""
    case = folder / "case"
    run, outside, out = case / "runs" / made.RUN, case / "outside", case / "out"
    commands.put(run, files)
    commands.put(outside, {"victim": b"mine\n"})
    out.mkdir()
    change(run, outside)
    yield commands.fill(command, run=run, out=out, folder=folder), run, outside
    shutil.rmtree(case)


def open_run(files, folder, command, change=lambda run, outside: None, *, whole=False):
    """Calls a command on a changed run, or on a whole one, which it must accept; `folder` has its other inputs.

    `change(run, outside)` changes the run, and may lead to a folder outside of it, in which nothing may change.
    """
    with _case(files, folder, command, change) as (words, run, outside):
        commands.main_of(words[0])  # its own imports are not the run's, and take time once
        modules, beside, start = {*sys.modules}, commands.look(outside), time.process_time()
        with contextlib.chdir(run), mock.patch.object(sys, "path", [str(run), *sys.path]), _permissions_hold():
            importlib.invalidate_caches()  # Python remembers folders that were not there
            _heard.clear()
            ended, wrong = commands.judge(words, run, (0,) if whole else (0, 2))
            heard = {*_heard}
        seconds = time.process_time() - start
        heard |= {f"import {module}" for module in sys.modules.keys() - modules}  # import_module has no event
        heard |= {f"trap {path.relative_to(run)}" for path in run.rglob("ran")}
        if not wrong and commands.look(outside) != beside:
            wrong = "what is outside of it is changed"
    return Opened(ended, wrong, seconds, heard)


@contextlib.contextmanager
def _permissions_hold():
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


def write_inputs(folder):
    """Writes what commands read besides a run."""
    (folder / "mine.py").write_text(made.experiment("Mine", folder / "small.py", "Run"))
    (folder / "claims.toml").write_text(made.CLAIMS.format(paper="Mine", file="mine", row="Run"))
    asked = {"query_id": "q", "query": "a", "positive_passages": [{"docid": "d"}]}
    for name, record in (("corpus", {"docid": "d", "text": "a b"}), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text(json.dumps(record) + "\n")


TRAP = b"""
import pathlib
(pathlib.Path(__file__).parent / "ran").write_text("x")
from bam_jax.encodings import NoPE
class Enc(NoPE):
    pass
"""
TRAPS = dict.fromkeys(("evilmod.py", "evilmod/__init__.py", "evilmod/inner.py"), TRAP)
NAMES = ("evilmod:Enc", "evilmod.inner:Enc", "os:system", "./evilmod.py:Enc", "rope:window=8/evilmod:Enc")
CHANGES = {
    "encoding": {"config.json": {"encoding": "{}"}},
    "encoding's option": {"config.json": {"encoding_options.init": "{}"}},
    "tokenizer": {"config.json": {"data.tokenizer": "{}"}, "tokenizer/identity.json": {"spec": "{}", "name": "{}"}},
    "tokenizer's file": {
        "config.json": {"data.tokenizer": "bpe:{}"},
        "tokenizer/identity.json": {"spec": "bpe:{}", "name": "{}"},
    },
    "source": {"config.json": {"data.source": "tfds:{}"}},
    "held-out source": {"config.json": {"data.held_out_source": "{}://corpus"}},
    "source's address": {"config.json": {"data.source": "http://localhost:9/{}"}},
    "start": {"config.json": {"start": "{}"}},
    "logger": {"config.json": {"logger": "{}"}},
    "task": {"config.json": {"data.task": "{}"}},
    "record": {"results.jsonl": {"overrides.encoding": "{}"}},
}
"""Fields of a run's files, and what is put there of a name."""
ENCODER = ("retrieve", "retrieval_speed")
"""Commands that open an encoder; the others open a decoder."""


def _naming(change, name):
    """Leaves modules in a run and puts a name into fields of its files; a stranger leaves their checksums out."""

    def edit(run, outside):
        commands.put(run, TRAPS)
        for file, fields in CHANGES[change].items() if change else ():
            tree = json.loads((run / file).read_text())
            tree.pop("crc32", None)
            for field, value in fields.items():
                *above, last = field.split(".")
                functools.reduce(dict.__getitem__, above, tree)[last] = value.format(name)
            (run / file).write_text(json.dumps(tree) + "\n")

    return edit


def strangers(seed, count, folder):
    """Strangers' runs that name code and addresses, opened by every command: nothing imported, started or fetched."""
    outcome, refused, cases = Outcome(), 0, [*itertools.product(NAMES, CHANGES, made.OPENERS)]
    write_inputs(folder)
    importlib.import_module("tokenizers")  # of every run whose tokenizer has a file
    changes = {"measure": "masked_perplexity", "model": {"causal": False}, "data": {"task": "masked"}}
    (folder / "encoder").mkdir()
    encoder = commands.contents(made.train(folder / "encoder", ssmax="on", **changes))
    decoder = commands.contents(made.train(folder, ssmax="on"))  # its configuration is one that commands name
    _listen()

    @functools.cache
    def give(command, change="", name="", allow=""):
        files = encoder if command in ENCODER else decoder
        opened = open_run(files, folder, made.OPENERS[command] + allow, _naming(change, name), whole=not change)
        for module in [module for module in sys.modules if module.partition(".")[0] == "evilmod"]:
            del sys.modules[module]  # for the next import to be heard
        return opened

    for number in range(seed * count, (seed + 1) * count):
        name, change, command = cases[number * STRIDE % len(cases)]
        usual, opened = give(command), give(command, change, name)
        own = sorted(opened.heard - usual.heard)
        wrong = f"it does what it does with no other run: {own[:4]}" if own else opened.wrong or usual.wrong
        outcome.add(f"{command} of a run whose {change} is {name!r}", wrong)
        refused += opened.ended.status == 2
    heard = give("generate", "encoding", "evilmod:Enc", " --allow=evilmod").heard
    if not {"import evilmod", "trap evilmod/ran"} <= heard:
        outcome.failures.append(f"of a module that is allowed the harness hears only {sorted(heard)}")
    outcome.more = {"refused": refused, "commands": len(made.OPENERS), "all_cases": len(cases)}
    return outcome


class Outside(NamedTuple):
    """The things outside a run that links lead to."""

    folder: Path  # nothing in it may change
    original: Path  # what stood in the place in the run
    terminal: str  # the name of one at which nobody types
    line: Path  # a file of one long line

    def either(self, of_folder, of_file):
        """One of two things, by what stood in the place."""
        return of_folder if self.original.is_dir() else of_file


def _bind(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:  # its address must be short
        bound.bind(path.name)


def _sparse(path, size=12 * 2**30):
    path.touch()
    os.truncate(path, size)


def _unreadable(path, outside):
    outside.either(shutil.copytree, shutil.copyfile)(outside.original, path)
    path.chmod(0)


PUT = {
    "pipe": lambda path, outside: os.mkfifo(path),
    "socket": lambda path, outside: _bind(path),
    "device": lambda path, outside: path.symlink_to("/dev/zero"),
    "terminal": lambda path, outside: path.symlink_to(outside.terminal),
    "sparse file": lambda path, outside: _sparse(path),
    "folder or file": lambda path, outside: outside.either(path.touch, path.mkdir)(),
    "link to a file": lambda path, outside: path.symlink_to(
        outside.either(outside.folder / "victim", outside.original)
    ),
    "dangling link": lambda path, outside: path.symlink_to(outside.folder / "nowhere"),
    "link to a folder": lambda path, outside: path.symlink_to(outside.either(outside.original, outside.folder)),
    "loop": lambda path, outside: path.symlink_to(path.name),
    "unreadable": _unreadable,
    "empty": lambda path, outside: outside.either(path.mkdir, path.touch)(),
    "zeros": lambda path, outside: path.write_bytes(bytes(2**16)),
    "long line": lambda path, outside: os.link(outside.line, path),
}
"""What puts something in a place of a run."""
PLACES = ("config.json", "metrics.jsonl", "results.jsonl", "checkpoints", "checkpoints/3/sums.json")
PLACES = (*PLACES, "tokenizer", "tokenizer/tokenizer.json", ".lock")
OPENERS = ("resume", "start", "evaluate", "generate", "heads", "figures biases", "export", "layout", "tables", "report")
CASES = [*itertools.product(PUT, PLACES, OPENERS)]
FILES = [place for place in PLACES if place != "checkpoints"]
HEAVY = [*itertools.product(("device", "sparse file", "long line"), FILES, ("generate", "tables", "resume"))]
"""Cases of which some are given to processes, three in every fourth part: a process imports for longer than most cases take."""
SLOWER = 2.0  # seconds of the processor that a refusal may take more than the command on the unchanged run
LARGER = 200 * 2**20  # bytes of memory that a command may take more than on the unchanged run


def _put(kind, place, terminal, line, run, outside):
    path = run / place
    original = path.rename(outside / path.name.lstrip("."))
    PUT[kind](path, Outside(outside, original, terminal, line))


def hostile(seed, count, folder):
    """Pipes, devices, outside links, 12 GB in place of a run's files: at most one line, no waiting, no change elsewhere."""
    outcome, refused, slowest, largest = Outcome(), dict.fromkeys(PUT, 0), 0.0, 0
    write_inputs(folder)
    text = Path(made.values(folder)["data"]["source"]).read_text()
    (folder / "bpe.json").write_text(train_bpe([text], 280))
    run = made.train(folder, data={"tokenizer": f"bpe:{folder / 'bpe.json'}"})
    (folder / "line").write_bytes(b'{"step": 1, "note": "' + b"x" * 100 * 2**20 + b'"}\n')
    files = commands.contents(run) | {".lock": b""}
    terminal = pty.openpty()
    putting = lambda kind, place: functools.partial(_put, kind, place, os.ttyname(terminal[1]), folder / "line")

    @functools.cache
    def usual(command):
        return open_run(files, folder, made.OPENERS[command], whole=True)

    @functools.cache
    def resident(command, *change):
        """The bytes that a command takes as a process."""
        with _case(files, folder, made.OPENERS[command], *(change or [lambda run, outside: None])) as (words, *_):
            return commands.peak(words)[1]

    for number in range(seed * FIGURES["hostile"].part, seed * FIGURES["hostile"].part + count):
        kind, place, command = CASES[number * STRIDE % len(CASES)]
        before, opened = usual(command), open_run(files, folder, made.OPENERS[command], putting(kind, place))
        wrong = opened.wrong or before.wrong
        if opened.ended.status == 2:
            refused[kind] += 1
            slowest = max(slowest, opened.seconds)
            if opened.seconds > before.seconds + SLOWER:
                wrong = wrong or f"{opened.seconds:.1f} s, {before.seconds:.1f} s on the unchanged run"
        outcome.add(f"{command} of a run with {kind} as {place}", wrong)
    processes = 0 if seed % 4 else min(3, count // 20)
    for number in range(seed * 3, seed * 3 + processes):
        kind, place, command = HEAVY[number * 29 % len(HEAVY)]
        more = resident(command, putting(kind, place)) - resident(command)
        largest = max(largest, more // 2**20)
        if more > LARGER:
            outcome.failures.append(f"{command} of a run with {kind} as {place}: {more // 2**20} MiB more")
    outcome.more = {"refused": refused, "slowest": round(slowest, 1), "processes": processes, "mib_more": largest}
    return outcome


DAMAGED = {
    "train": made.OPENERS["resume"],
    "finished": made.TRAIN,
    **{name: made.OPENERS[name] for name in ("start", "export", "layout", "evaluate", "generate")},
}
# Training does not resume in an exported folder; in a finished one it has nothing to do.
DAMAGED_CASES = [case for case in itertools.product(DAMAGED, ("run", "exported")) if case != ("train", "exported")]


def _damaging(files, chance, done):
    """Damages one or two files that are read, and adds to `done` what it did."""
    read = sorted(name for name in files if not name.startswith("checkpoints/2/"))  # 3 is there

    def damage(run, outside):
        while commands.contents(run) == files:
            for _ in range(chance.choice([1, 1, 2])):
                path = run / chance.choice(read)
                above = [folder for folder in path.parents if run in folder.parents]
                kind = chance.choice(
                    ["spoilt", "spoilt", "spoilt", "gone", "empty", "another", *["group"] * bool(above)]
                )
                done.append(f"{kind} {path.relative_to(run)}")
                if not path.is_file():  # gone already
                    continue
                before = path.read_bytes()
                path.unlink()
                if kind == "group":
                    shutil.rmtree(chance.choice(above))
                elif kind != "gone":
                    another = {"spoilt": spoilt(before, chance), "another": files[chance.choice(sorted(files))]}
                    path.write_bytes(another.get(kind, b""))

    return damage


def malformed_runs(seed, count, folder):
    """Damaged runs: refused in one line, with nothing overwritten."""
    outcome, refused = Outcome(), dict.fromkeys(DAMAGED, 0)
    files = {of: commands.contents(made.common() / of) for of in ("run", "exported")}
    shutil.copy(made.common() / "small.py", folder)
    for number in (*range(-len(DAMAGED_CASES), 0), *range(count)):  # the negative ones are undamaged
        (name, of), done = DAMAGED_CASES[number % len(DAMAGED_CASES)], []
        changes = [_damaging(files[of], random.Random(f"{seed} {number}"), done)] if number >= 0 else []
        with made.before_first_step():
            opened = open_run(files[of], folder, DAMAGED[name], *changes, whole=number < 0)
        outcome.add(f"{name}, {of} after {', '.join(done)} (seed {seed}, case {number})", opened.wrong)
        refused[name] += opened.ended.status == 2
    outcome.count, outcome.more = count, {"refused": refused}
    return outcome
