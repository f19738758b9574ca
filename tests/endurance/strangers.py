"""A stranger's run, opened by every command that opens runs: no module is imported that a run of nobody's code does not import.

The run's configuration, its tokenizer's identity, its text and its records name modules, files and addresses. They lie where
Python finds them, and each writes a file when it is imported. A hook of Python's own (PEP 578) counts the imports as well.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from endurance import commands, made
from endurance.figures import Figure, Outcome

from bam_jax import evaluate, figures, generate, heads, retrieve, train
from bam_jax.convert import __main__ as convert
from bam_jax.report import __main__ as report

CODE = """
import pathlib
(pathlib.Path(__file__).parent / "ran").write_text("x")
from bam_jax.encodings import NoPE
class Enc(NoPE):
    pass
def tokenizer(*arguments):
    pass
"""
NAMES = ("evilmod:Enc", "evilmod.inner:Enc", "os:system", "./evilmod.py:Enc", "rope:window=8/evilmod:Enc")
CHANGES: dict[str, Callable[[dict, str], None]] = {
    "encoding": lambda tree, name: tree.update(encoding=name),
    "tokenizer": lambda tree, name: tree["data"].update(tokenizer=name),
    "tokenizer of a file": lambda tree, name: tree["data"].update(tokenizer=f"bpe:{name}"),
    "source": lambda tree, name: tree["data"].update(source=f"tfds:{name}"),
    "held-out source": lambda tree, name: tree["data"].update(held_out_source=f"{name}://corpus"),
    "start": lambda tree, name: tree.update(start=name),
    "logger": lambda tree, name: tree.update(logger=name),
    "task": lambda tree, name: tree["data"].update(task=name),
}
STRIDE = 11
"""Cases between one and the next: no divisor of their number, so that few of them have something of all."""
PERPLEXITY = ["--eval=perplexity", "--lengths=16", "--tokens=32", "--no-progress"]
COMMANDS: dict[str, Callable[[Path, Path], tuple[commands.Main, list[str]]]] = {
    "evaluate": lambda run, out: (evaluate.main, [f"--run={run}", *PERPLEXITY]),
    "generate": lambda run, out: (generate.main, [f"--run={run}", "--prompt=a", "--tokens=1"]),
    "heads": lambda run, out: (heads.main, [f"--run={run}", "--keys=8", "--tokens=16", "--no-progress"]),
    "attention": lambda run, out: (figures.main, ["attention", f"--run={run}", f"--out={out / 'a'}"]),
    "biases": lambda run, out: (figures.main, ["biases", f"--run={run}", f"--out={out / 'a'}"]),
    "export": lambda run, out: (convert.main, [f"--run={run}", f"--export={out / 'e'}"]),
    "layout": lambda run, out: (convert.main, [f"--run={run}", "--layout=bam", f"--export={out / 'e'}"]),
    "start": lambda run, out: (
        train.main,
        [made.configuration(out.parent, start=str(run), steps=1), f"--workdir={out / 'n'}", "--no-progress"],
    ),
    "retrieve": lambda run, out: (
        retrieve.main,
        [
            *(f"--run={run}", f"--corpus={out.parent / 'corpus.jsonl'}", f"--queries={out.parent / 'queries.jsonl'}"),
            *("--lengths=8", f"--out={out / 'ranked'}"),
        ],
    ),
    "report": lambda run, out: (report.main, [str(run.parent), f"--out={out / 'site'}"]),
}


def _cases() -> Iterator[tuple[str, str, str]]:
    """A command, what is changed, and the name that is put there."""
    for name in NAMES:
        for change in CHANGES:
            for command in COMMANDS:
                yield command, change, name


_imported: list[str] = []


def _listen() -> None:
    """Hears of every import from now on, once in a process."""
    if not getattr(sys, "_endurance_listens", False):
        sys._endurance_listens = True
        sys.addaudithook(lambda event, given: _imported.append(str(given[0])) if event == "import" else None)


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Opens so many runs; see `figures.Figure`."""
    place, out, failures = folder / "runs" / "run", folder / "out", []
    files = made.contents(made.common() / "run")
    (folder / "corpus.jsonl").write_text(json.dumps({"docid": "d", "text": "a b"}) + "\n")
    asked = {"query_id": "q", "query": "a", "positive_passages": [{"docid": "d"}]}
    (folder / "queries.jsonl").write_text(json.dumps(asked) + "\n")
    evil = folder / "evil"
    (evil / "evilmod").mkdir(parents=True)
    (evil / "evilmod" / "__init__.py").write_text(CODE)
    (evil / "evilmod" / "inner.py").write_text(CODE)
    _listen()
    sys.path.insert(0, str(evil))
    refused = 0
    cases = list(_cases())
    try:
        for number in range(count):
            command, change, name = cases[(seed * count + number) * STRIDE % len(cases)]
            made.put(place, files)
            tree = json.loads(files["config.json"])
            tree.pop("crc32")
            CHANGES[change](tree, name)
            (place / "config.json").write_text(json.dumps(tree))
            if change.startswith("tokenizer"):
                identity = json.loads(files["tokenizer/identity.json"])
                (place / "tokenizer" / "identity.json").write_text(json.dumps(identity | {"spec": name, "name": name}))
            (place / "evilmod.py").write_text(CODE)
            out.mkdir()
            del _imported[:]
            ended = commands.call(*COMMANDS[command](place, out))
            wrong = commands.complaint(ended)
            bad = [module for module in _imported if re.search("evilmod|^os:|^./", module)]
            if (evil / "evilmod" / "ran").exists() or (place / "ran").exists() or "evilmod" in sys.modules or bad:
                wrong = f"it ran what the run names: {bad}"
            if wrong:
                failures.append(f"{command} of a run whose {change} is {name!r}: {wrong}")
            refused += ended.status == 2
            shutil.rmtree(place)
            shutil.rmtree(out)
    finally:
        sys.path.remove(str(evil))
    return Outcome(count, failures, {"refused": refused, "commands": len(COMMANDS), "all_cases": len(cases)})


FIGURE = Figure(
    what="strangers' runs, whose every name is of code or an address, opened by every command: none of it is imported",
    unit="runs",
    wanted=400,
    part=100,
    short=6,
    minutes=15,
    measure=measure,
)
