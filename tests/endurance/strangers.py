"""A stranger's run, opened by every command that opens runs: it does nothing that the command does not do with a run of nobody's.

The run's configuration, its tokenizer's identity and its records name modules, files and addresses. The modules lie in the run's
folder, in which the command is given and where Python finds them. Hooks of Python's own (PEP 578) hear of code that is run, of
modules that are imported, of processes that are started and of addresses that are looked up. What the same command on the
unchanged run does as well, with status 0, is no failure. Each part ends with a command that allows the module, and hears it.
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

from bam_jax import claims, evaluate, figures, generate, heads, retrieve, sweep, tables, train
from bam_jax.analysis.figures import NAMES as DRAWN
from bam_jax.convert import __main__ as convert
from bam_jax.report import __main__ as report
from benchmarks import retrieval_speed

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
RUN = "run-seed0"
CONFIG = "--config={folder}/decoder/small.py"
PROBLEM = "--corpus={folder}/corpus.jsonl --queries={folder}/queries.jsonl"
COMMANDS: dict[str, tuple[commands.Main, str]] = {
    "evaluate": (evaluate.main, "--run={run} --eval=perplexity --lengths=8 --tokens=32 --no-progress"),
    "generate": (generate.main, "--run={run} --prompt=a --tokens=1"),
    "heads": (heads.main, "--run={run} --keys=8 --tokens=16 --no-progress"),
    "heads --passkey": (heads.main, "--run={run} --passkey=512 --prompts=1 --no-progress"),
    "heads --ablate": (heads.main, "--run={run} --ablate=16 --tokens=32 --no-progress"),
    **{f"figures {name}": (figures.main, f"{name} --run={{run}} --out={{out}}/a") for name in DRAWN},
    "export": (convert.main, "--run={run} --export={out}/e"),
    "layout": (convert.main, "--run={run} --layout=bam --export={out}/e"),
    "resume": (train.main, f"{CONFIG} --config.steps=4 --workdir={{run}} --no-progress"),
    "start": (train.main, f"{CONFIG} --config.steps=1 --config.start={{run}} --workdir={{out}} --no-progress"),
    "sweep": (sweep.main, f"{{folder}}/mine.py --runs={{run.parent}} --only={RUN}"),
    "tables": (tables.main, "{folder}/mine.py --runs={run.parent} --out={out}"),
    "claims": (claims.main, "{folder}/claims.toml --runs={run.parent}"),
    "report": (report.main, "{run.parent} {folder}/mine.py --out={out}"),
    "retrieve": (retrieve.main, f"--run={{run}} {PROBLEM} --lengths=8 --out={{out}} --no-progress"),
    "retrieval_speed": (
        retrieval_speed.main,
        "--run={run} --documents=4 --queries=2 --length=8 --out={out} --no-progress",
    ),
}
KINDS = dict.fromkeys(COMMANDS, "decoder") | dict.fromkeys(("retrieve", "retrieval_speed"), "encoder")
"""The kind of the run that each command opens."""
MINE = """
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Row, Table, tabled

def get_experiment(scale):
    table = Table("Table 1", (Column("16", Perplexity((16,), tokens=32)),), {"Run": ("3.0",)})
    return tabled("Mine", [Row("Run", CONFIG)], [table], shared=False)
"""
CLAIMS = """
paper = "Mine"
[tables]
table1 = { file = "mine", title = "Table 1" }
[[claim]]
place = "1"
says = "it reads"
checks = [{ is = "bound", table = "table1", columns = "16", rows = "Run", least = 0.9 }]
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


def _write_inputs(folder: Path) -> None:
    """Writes what commands read besides a run."""
    (folder / "mine.py").write_text(MINE.replace("CONFIG", repr(CONFIG.format(folder=folder).partition("=")[2])))
    (folder / "claims.toml").write_text(CLAIMS)
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
    """Gives a command on a run.

    Args:
        command: which.
        files: of the run.
        folder: has what else the commands read; the run is put there and removed.
        change, name: what the run names, and where; "": it stays as it is.
        allow: another option of the command.

    Returns:
        How it ended, and what was heard.
    """
    run, out = folder / "runs" / RUN, folder / "out"
    made.put(run, files | TRAPS)
    out.mkdir()
    for file, fields in CHANGES[change].items() if change else ():
        _edit(run / file, fields, name)
    main, words = COMMANDS[command]
    argv = [word.format(run=run, out=out, folder=folder) for word in f"{words} {allow}".split()]
    before = {*sys.modules}
    with contextlib.chdir(run), mock.patch.object(sys, "path", [str(run), *sys.path]):
        importlib.invalidate_caches()  # Python remembers folders that were not there
        _heard.clear()
        ended = commands.call(main, argv)
        heard = {*_heard}
    heard |= {f"import {module}" for module in sys.modules.keys() - before}  # import_module tells of none
    heard |= {f"trap {path.relative_to(run)}" for path in run.rglob("ran")}
    for module in [module for module in sys.modules if module.partition(".")[0] == "evilmod"]:
        del sys.modules[module]  # for the next to be heard
    shutil.rmtree(run)
    shutil.rmtree(out)
    return ended, heard


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Opens so many runs; see `figures.Figure`."""
    failures, refused, opened = [], 0, list(itertools.product(NAMES, CHANGES, COMMANDS))
    assert math.gcd(STRIDE, len(opened)) == 1
    _write_inputs(folder)

    @functools.cache
    def trained(kind: str) -> dict[str, bytes]:
        """The files of a run with a record, of a kind."""
        place, changes = folder / kind, {"ssmax": "on"}
        place.mkdir()
        if kind == "encoder":
            values = made.values(place)
            changes |= {"model": values["model"] | {"causal": False}, "data": values["data"] | {"task": "masked"}}
        made.well(train.main, [made.configuration(place, **changes), f"--workdir={place / 'run'}", "--no-progress"])
        measured = {"decoder": "perplexity", "encoder": "masked_perplexity"}[kind]
        asked = [f"--run={place / 'run'}", f"--eval={measured}", "--lengths=16", "--tokens=32", "--no-progress"]
        made.well(evaluate.main, asked)
        return made.contents(place / "run")

    @functools.cache
    def harmless(command: str) -> set[str]:
        """The events of a command on the unchanged run."""
        ended, heard = _open(command, trained(KINDS[command]), folder)
        if wrong := commands.complaint(ended, (0,)):
            failures.append(f"{command} of the unchanged run: {wrong}")
        return heard

    importlib.import_module("tokenizers")  # of every run whose tokenizer has a file
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
    return Outcome(count, failures, {"refused": refused, "commands": len(COMMANDS), "all_cases": len(opened)})


FIGURE = Figure(
    what="strangers' runs, whose every name is of code or an address, given to every command: none imported, started or fetched",
    unit="runs",
    wanted=400,
    part=100,
    short=6,
    minutes=15,
    measure=measure,
)
