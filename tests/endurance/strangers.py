"""A stranger's run, opened by every command that opens runs, must not execute code or fetch anything.

The run's configuration, tokenizer identity and records name modules, files and addresses. The modules lie in the run's folder,
which is the working directory and on Python's path. Python's audit hooks (PEP 578) record executed code, imports, processes and
address look-ups. Anything that the same command does not do with the unchanged run is a failure. Each part ends with a command
that allows the module, to check that the hooks record it.
"""

import contextlib
import functools
import importlib
import itertools
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from endurance import commands, made
from endurance.figures import Figure, Outcome
from endurance.writers import CLAIMS

TRAP = b"""
import pathlib
(pathlib.Path(__file__).parent / "ran").write_text("x")
from bam_jax.encodings import NoPE
class Enc(NoPE):
    pass
"""
TRAPS = dict.fromkeys(("evilmod.py", "evilmod/__init__.py", "evilmod/inner.py"), TRAP)
NAMES = ("evilmod:Enc", "evilmod.inner:Enc", "os:system", "./evilmod.py:Enc", "rope:window=8/evilmod:Enc")
CHANGES: dict[str, dict[str, dict[str, str]]] = {
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
STRIDE = 331
"""Cases between one and the next, of no divisor in common with their number, so that few of them have something of all."""
KINDS = dict.fromkeys(made.OPENERS, "decoder") | dict.fromkeys(("retrieve", "retrieval_speed"), "encoder")
"""The kind of the run that each command opens."""
MINE = """
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Row, Table, tabled

def get_experiment(scale):
    table = Table("Table 1", (Column("16", Perplexity((16,), tokens=32)),), {{"Run": ("3.0",)}})
    return tabled("Mine", [Row("Run", {config!r})], [table], shared=False)
"""
HEARD = {
    "import": 0,
    "exec": 0,
    "os.system": 0,
    "os.exec": 0,
    "os.posix_spawn": 0,
    "subprocess.Popen": 1,
    "socket.getaddrinfo": 0,
    "socket.connect": 1,
}
"""Events of Python's, and which of their values tells what it was."""

_heard: set[str] = set()


@functools.cache
def _listen() -> None:
    """Hears of these events from now on, once in a process."""

    def hear(event: str, given: tuple[Any, ...]) -> None:
        if event in HEARD:
            what = given[HEARD[event]]
            _heard.add(f"{event} {getattr(what, 'co_filename', what)}")

    sys.addaudithook(hear)


def write_inputs(folder: Path) -> None:
    """Writes what commands read besides a run."""
    (folder / "mine.py").write_text(MINE.format(config=str(folder / "small.py")))
    (folder / "claims.toml").write_text(CLAIMS.format(paper="Mine", file="mine", row="Run"))
    asked = {"query_id": "q", "query": "a", "positive_passages": [{"docid": "d"}]}
    for name, record in (("corpus", {"docid": "d", "text": "a b"}), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text(json.dumps(record) + "\n")


def _edit(path: Path, fields: dict[str, str], name: str) -> None:
    """Puts a name into fields of a file of JSON; a stranger leaves its checksum out."""
    tree = json.loads(path.read_text())
    tree.pop("crc32", None)
    for field, value in fields.items():
        *above, last = field.split(".")
        functools.reduce(dict.__getitem__, above, tree)[last] = value.format(name)
    path.write_text(json.dumps(tree) + "\n")


def _open(
    command: str, files: dict[str, bytes], folder: Path, change: str = "", name: str = "", allow: str = ""
) -> tuple[commands.Ended, set[str]]:
    """Calls a command on a run that names something, or is unchanged; returns how it ended and what was heard."""
    run, out = folder / "runs" / made.RUN, folder / "out"
    commands.put(run, files | TRAPS)
    out.mkdir()
    for file, fields in CHANGES[change].items() if change else ():
        _edit(run / file, fields, name)
    words = commands.fill(f"{made.OPENERS[command]} {allow}", run=run, out=out, folder=folder)
    commands.main_of(words[0])  # its own imports are not the run's
    before = {*sys.modules}
    with contextlib.chdir(run), mock.patch.object(sys, "path", [str(run), *sys.path]):
        importlib.invalidate_caches()  # Python remembers folders that were not there
        _heard.clear()
        ended = commands.call(words)
        heard = {*_heard}
    heard |= {f"import {module}" for module in sys.modules.keys() - before}  # import_module has no event
    heard |= {f"trap {path.relative_to(run)}" for path in run.rglob("ran")}
    for module in [module for module in sys.modules if module.partition(".")[0] == "evilmod"]:
        del sys.modules[module]  # for the next import to be heard
    shutil.rmtree(run)
    shutil.rmtree(out)
    return ended, heard


def measure(seed: int, count: int, folder: Path) -> Outcome:
    failures, refused, opened = [], 0, list(itertools.product(NAMES, CHANGES, made.OPENERS))
    assert math.gcd(STRIDE, len(opened)) == 1
    write_inputs(folder)

    @functools.cache
    def trained(kind: str) -> dict[str, bytes]:
        place = folder if kind == "decoder" else folder / kind
        place.mkdir(exist_ok=True)
        changes = {"measure": "masked_perplexity", "model": {"causal": False}, "data": {"task": "masked"}}
        return commands.contents(made.train(place, ssmax="on", **(changes if kind == "encoder" else {})))

    @functools.cache
    def harmless(command: str) -> set[str]:
        """The events of a command on the unchanged run."""
        ended, heard = _open(command, trained(KINDS[command]), folder)
        if wrong := commands.complaint(ended, (0,)):
            failures.append(f"{command} of the unchanged run: {wrong}")
        return heard

    importlib.import_module("tokenizers")  # of every run whose tokenizer has a file
    trained("decoder")  # writes the configuration that other commands name
    _listen()
    for number in range(seed * count, (seed + 1) * count):
        name, change, command = opened[number * STRIDE % len(opened)]
        usual = harmless(command)
        ended, heard = _open(command, trained(KINDS[command]), folder, change, name)
        wrong = commands.complaint(ended)
        if heard - usual:
            wrong = f"it does what it does with no other run: {sorted(heard - usual)[:4]}"
        if wrong:
            failures.append(f"{command} of a run whose {change} is {name!r}: {wrong}")
        refused += ended.status == 2
    _, heard = _open("generate", trained("decoder"), folder, "encoding", "evilmod:Enc", "--allow=evilmod")
    if not {"import evilmod", "trap evilmod/ran"} <= heard:
        failures.append(f"of a module that is allowed the harness hears only {sorted(heard)}")
    return Outcome(count, failures, {"refused": refused, "commands": len(made.OPENERS), "all_cases": len(opened)})


FIGURE = Figure(
    what="strangers' runs that name code and addresses, opened by every command: nothing imported, started or fetched",
    unit="runs",
    wanted=400,
    part=100,
    short=6,
    minutes=15,
    measure=measure,
)
