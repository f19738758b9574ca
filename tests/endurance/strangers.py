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
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from endurance import commands, made
from endurance.figures import Outcome
from endurance.writers import CLAIMS

WHAT = "strangers' runs that name code and addresses, opened by every command: nothing imported, started or fetched"
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
    name: {"config.json": fields}
    for name, fields in {
        "encoding": {"encoding": "{}"},
        "encoding's option": {"encoding_options.init": "{}"},
        "tokenizer": {"data.tokenizer": "{}"},
        "tokenizer's file": {"data.tokenizer": "bpe:{}"},
        "source": {"data.source": "tfds:{}"},
        "held-out source": {"data.held_out_source": "{}://corpus"},
        "source's address": {"data.source": "http://localhost:9/{}"},
        "start": {"start": "{}"},
        "logger": {"logger": "{}"},
        "task": {"data.task": "{}"},
    }.items()
}
CHANGES["tokenizer"]["tokenizer/identity.json"] = {"spec": "{}", "name": "{}"}
CHANGES["tokenizer's file"]["tokenizer/identity.json"] = {"spec": "bpe:{}", "name": "{}"}
CHANGES["record"] = {"results.jsonl": {"overrides.encoding": "{}"}}
"""Fields of a run's files, and what is put there of a name."""
# Cases between one and the next, of no divisor in common with their number: few of them have something of all.
STRIDE = 331
ENCODER = ("retrieve", "retrieval_speed")
"""Commands that open an encoder; the others open a decoder."""
FIRST = ("import", "exec", "os.system", "os.exec", "os.posix_spawn", "socket.getaddrinfo")
SECOND = ("subprocess.Popen", "socket.connect")
"""Events of Python's whose first, or second, value tells what it was."""

_heard: set[str] = set()


@functools.cache
def _listen() -> None:
    """Hears of these events from now on, once in a process."""

    def hear(event: str, given: tuple[Any, ...]) -> None:
        if event in FIRST or event in SECOND:
            what = given[event in SECOND]
            _heard.add(f"{event} {getattr(what, 'co_filename', what)}")

    sys.addaudithook(hear)


def write_inputs(folder: Path) -> None:
    """Writes what commands read besides a run."""
    (folder / "mine.py").write_text(made.experiment("Mine", folder / "small.py", "Run"))
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
    outcome, refused, cases = Outcome(), 0, list(itertools.product(NAMES, CHANGES, made.OPENERS))
    write_inputs(folder)
    importlib.import_module("tokenizers")  # of every run whose tokenizer has a file
    changes = {"measure": "masked_perplexity", "model": {"causal": False}, "data": {"task": "masked"}}
    (folder / "encoder").mkdir()
    encoder = commands.contents(made.train(folder / "encoder", ssmax="on", **changes))
    decoder = commands.contents(made.train(folder, ssmax="on"))  # its configuration is one that commands name
    _listen()

    def give(command: str, *change: str) -> tuple[commands.Ended, set[str]]:
        return _open(command, encoder if command in ENCODER else decoder, folder, *change)

    @functools.cache
    def harmless(command: str) -> set[str]:
        """The events of a command on the unchanged run."""
        ended, heard = give(command)
        if wrong := commands.complaint(ended, (0,)):
            outcome.failures.append(f"{command} of the unchanged run: {wrong}")
        return heard

    for number in range(seed * count, (seed + 1) * count):
        name, change, command = cases[number * STRIDE % len(cases)]
        usual = harmless(command)
        ended, heard = give(command, change, name)
        wrong = commands.complaint(ended)
        if heard - usual:
            wrong = f"it does what it does with no other run: {sorted(heard - usual)[:4]}"
        outcome.add(f"{command} of a run whose {change} is {name!r}", wrong)
        refused += ended.status == 2
    _, heard = give("generate", "encoding", "evilmod:Enc", "--allow=evilmod")
    if not {"import evilmod", "trap evilmod/ran"} <= heard:
        outcome.failures.append(f"of a module that is allowed the harness hears only {sorted(heard)}")
    outcome.more = {"refused": refused, "commands": len(made.OPENERS), "all_cases": len(cases)}
    return outcome
