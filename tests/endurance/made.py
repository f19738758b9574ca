"""Small inputs, runs, and the commands that open runs or write."""

import atexit
import dataclasses
import functools
import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from endurance import commands

from bam_jax import config as configs
from bam_jax.analysis import figures
from bam_jax.experiments.experiment_json import DESCRIPTION
from bam_jax.experiments.sweep import Sweep
from bam_jax.models import transformer
from bam_jax.system import files, jsonl
from bam_jax.training import checkpoint, loop

SIZES = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}
SMALL = {
    "encoding": "bam",
    "context": 16,
    "batch": 2,
    "steps": 3,
    "log_every": 1,
    "checkpoint_every": 2,
    "model": SIZES,
}
TRAIN = "bam_jax.train --config={folder}/small.py --workdir={run} --no-progress"
EVALUATE = "bam_jax.evaluate --run={run} --eval={measure} --lengths=16 --tokens=64 --no-progress"
RETRIEVE = "--corpus={folder}/corpus.jsonl --queries={folder}/queries.jsonl --out={out} --no-progress"
RUN = "run-seed0"
OPENERS = {
    "evaluate": "bam_jax.evaluate --run={run} --eval=perplexity --lengths=8 --tokens=32 --no-progress",
    "generate": "bam_jax.generate --run={run} --prompt=a --tokens=1",
    "heads": "bam_jax.heads --run={run} --keys=8 --tokens=16 --no-progress",
    "heads --passkey": "bam_jax.heads --run={run} --passkey=512 --prompts=1 --no-progress",
    "heads --ablate": "bam_jax.heads --run={run} --ablate=16 --tokens=32 --no-progress",
    **{f"figures {name}": f"bam_jax.figures {name} --run={{run}} --out={{out}}/a" for name in figures.NAMES},
    "export": "bam_jax.convert --run={run} --export={out}/e",
    "layout": "bam_jax.convert --run={run} --layout=bam --export={out}/e",
    "resume": f"{TRAIN} --config.steps=4",
    "start": f"{TRAIN} --config.steps=1 --config.start={{run}}".replace("--workdir={run}", "--workdir={out}"),
    "sweep": f"bam_jax.sweep {{folder}}/mine.py --runs={{run.parent}} --only={RUN}",
    "tables": "bam_jax.tables {folder}/mine.py --runs={run.parent} --out={out}",
    "claims": "bam_jax.claims {folder}/claims.toml --runs={run.parent}",
    "report": "bam_jax.report {run.parent} {folder}/mine.py --out={out}",
    "retrieve": f"bam_jax.retrieve --run={{run}} --lengths=8 {RETRIEVE}",
    "retrieval_speed": "benchmarks.retrieval_speed --run={run} --documents=4 --queries=2 --length=8 --out={out} --no-progress",
}
"""Commands that open a run, with an empty folder to write to and one of other inputs."""
CLAIMS = """
paper = "{paper}"
[tables]
table1 = {{ file = "{file}", title = "Table 1" }}
[[claim]]
place = "1"
says = "it reads"
checks = [{{ is = "bound", table = "table1", columns = "16", rows = "{row}", least = 0.9 }}]
"""
EXPERIMENT = """
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Row, Table, tabled

def get_experiment(scale):
    columns = tuple(Column(str(length), Perplexity((length,), tokens=64)) for length in {lengths})
    rows = [Row(name, {config!r}, {{"encoding": "alibi"}} if n else {{}}) for n, name in enumerate({rows})]
    table = Table("Table 1", columns, {{row.label: ("3.0",) * len(columns) for row in rows}})
    return tabled({title!r}, rows, [table], shared=False)
"""


def to_file(tree):
    """A configuration file of some values."""
    return f"import ml_collections\n\n\ndef get_config():\n    return ml_collections.ConfigDict({tree!r})\n"


def to_lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def experiment(title, config, *rows, lengths=(16,)):
    """The file of an experiment with a table of perplexities; its first row is the configuration, another one has ALiBi."""
    return EXPERIMENT.format(title=title, config=str(config), rows=rows, lengths=lengths)


def values(folder):
    """A small configuration; writes its text into the folder, long enough for all that is measured."""
    path = folder / "text.txt"
    path.write_text("".join(f"day {n} of a tale of some length, told again and again. " for n in range(300)))
    return {**SMALL, "data": {"tokenizer": "byte", "source": str(path)}}


def train(folder, measure="perplexity", **changes):
    """Trains and evaluates a run in a folder, whose configuration is `small.py`; values that are groups are merged."""
    tree = values(folder)
    for name, value in changes.items():
        tree[name] = tree[name] | value if isinstance(value, dict) else value
    (folder / "small.py").write_text(to_file(tree))
    run = folder / "run"
    well(TRAIN, folder=folder, run=run)
    well(EVALUATE, run=run, measure=measure)
    return run


@functools.cache
def common():
    """A folder with `text.txt`, `small.py`, `run` of 3 steps with checkpoints at 2 and 3, and its weights, `exported`."""
    folder = Path(tempfile.mkdtemp(prefix="endurance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train(folder)
    well("bam_jax.convert --run={folder}/run --export={folder}/exported", folder=folder)
    return folder


def well(template, **places):
    """Calls a command that must succeed."""
    ended = commands.call(commands.fill(template, **places))
    if ended.status != 0:
        raise RuntimeError(f"{template} ended with {ended.status}: {ended.err}")
    return ended


def before_first_step(then=None):
    """A block in which `train` ends well before its first step, and `then` gets the state and the batch of that step."""

    def step(state, batch):
        then(state, batch)
        raise SystemExit

    return mock.patch.object(
        loop, "make_step", mock.Mock(side_effect=SystemExit if then is None else None, return_value=step)
    )


def model(run):
    """The configuration, the tokenizer and the arrays of a trained model."""
    config, tokenizer, model = checkpoint.restore_model(run)
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(transformer.split(model)[1])]
    return f"{configs.to_json(config)} {tokenizer.hash} {hashlib.sha256(b''.join(leaves)).hexdigest()}"


# The commands that write.

VARYING = "seconds tokens_per_second time peak_bytes started ended command commit machine crc32".split()
"""Fields of records that differ between runs; the checksum is that of the others."""


@dataclasses.dataclass(frozen=True)
class Writer:
    """A command that writes a folder, `out`, from inputs, `given`."""

    template: str
    left: Callable[[Path], Mapping[str, object]]  # what it leaves in the folder, by name
    copied: tuple[str, ...] = ()  # inputs that lie in the folder it writes

    def command(self, out):
        return commands.fill(self.template, out=out, given=inputs())

    def begin(self, out):
        """Makes the folder that it writes."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for name in self.copied:
            shutil.copytree(inputs() / name, out / name)


def records(folder):
    """The records of all runs, each line without the fields that vary; a line that cannot be read stays as "torn"."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        if "checkpoints" in path.parts:  # which ones a run keeps depends on where it was stopped; the last is compared
            continue
        for number, line in enumerate(path.read_bytes().splitlines()):
            try:
                record = {key: value for key, value in json.loads(line).items() if key not in VARYING}
            except ValueError:
                record = "torn"
            found[f"{path.relative_to(folder)}:{number}"] = json.dumps(record, sort_keys=True)
    return found


def _trained(folder):
    """The records of runs, and the bits of their models."""
    runs = [path.parent for path in folder.rglob("config.json")]
    return {**records(folder), **{f"{run.name}: model": model(run) for run in runs}}


def _files(out):
    """All files except the drafts that killed processes leave, which are removed a day later."""
    return {name: bits for name, bits in commands.contents(out).items() if not name.endswith(files.DRAFT)}


def _rankings(out):
    return {name: bits for name, bits in _files(out).items() if name.endswith((".run", ".npy"))}


LENGTHS = ",".join(map(str, range(2, 17)))
WRITERS = {
    "prepare": Writer(
        "bam_jax.data.prepare --source={given}/text --out={out}/data --tokenizer=byte --shard-tokens=50000 --workers=2",
        _files,
    ),
    "train": Writer("bam_jax.train --config={given}/long.py --workdir={out}/run --no-progress", _trained),
    "evaluate": Writer(
        f"bam_jax.evaluate --run={{out}}/decoder --eval=perplexity --lengths={LENGTHS} --tokens=64 --no-progress",
        records,
        ("decoder",),
    ),
    "sweep": Writer("bam_jax.sweep {given}/tabled.py --runs={out}/runs --jobs=2", _trained),
    "retrieve": Writer(
        "bam_jax.retrieve --run={given}/encoder --corpus={given}/corpus.jsonl --queries={given}/queries.jsonl --lengths=8,16 "
        "--out={out}/ranked --no-progress",
        _rankings,
    ),
    "export": Writer("bam_jax.convert --run={given}/decoder --export={out}/exported", _trained),
    "import": Writer(
        "bam_jax.convert --layout=bam --source={given}/theirs --run={out}/run --config.data.tokenizer=byte", _trained
    ),
    "report": Writer("bam_jax.report {out}/runs", _files, ("runs",)),
    "tables": Writer("bam_jax.tables {given}/tabled.py --runs={given}/runs --out={out}/tables", _files),
    "claims": Writer(
        "bam_jax.claims {given}/claims.toml --runs={given}/runs --scale=toy --out={out}/claims.md", _files
    ),
    "figures": Writer("bam_jax.figures priors --run={given}/decoder --out={out}/priors", _files),
}


@functools.cache
def inputs():
    """The folder of the writers' inputs; a process makes it once."""
    given = common() / "inputs"
    (given / "text").mkdir(parents=True)
    draw = random.Random(0)
    words = [f"{a}{b}" for a in ("ba", "lo", "mi", "re", "sta", "un") for b in ("", "der", "kin", "ta", "son", "ver")]
    text = lambda n: " ".join(draw.choices(words, k=n))
    for number in range(40):
        (given / "text" / f"{number:02}.txt").write_text("\n\n".join(text(300) for _ in range(10)))
    lines = [{"docid": f"d{n}", "text": text(20)} for n in range(4000)]
    (given / "corpus.jsonl").write_text(to_lines(lines))
    query = lambda n: {"query_id": f"q{n}", "query": lines[n]["text"][:60], "positive_passages": [{"docid": f"d{n}"}]}
    (given / "queries.jsonl").write_text(to_lines([query(n) for n in range(0, 500, 5)]))
    small = values(given)
    masked = {"model": small["model"] | {"causal": False}, "data": small["data"] | {"task": "masked"}}
    kinds = {
        "long": {"steps": 60, "checkpoint_every": 5},
        "encoder": {"encoding": "alibi", **masked},
        "decoder": {"steps": 4},
    }
    for name, changes in kinds.items():
        (given / f"{name}.py").write_text(to_file({**small, **changes}))
        if name != "long":
            well("bam_jax.train --config={run}.py --workdir={run} --no-progress", run=given / name)
    well("bam_jax.convert --layout=bam --run={given}/decoder --export={given}/theirs", given=given)
    tabled = experiment("Tabled", given / "decoder.py", "One", "Two", lengths=(4, 8, 12, 16))
    (given / "tabled.py").write_text(tabled)
    (given / "claims.toml").write_text(CLAIMS.format(paper="Tabled", file="tabled", row="One"))
    runs = given / "runs"
    for row in ("one-seed0", "two-seed0"):  # in this process; a sweep of both starts one for each
        well("bam_jax.sweep {given}/tabled.py --runs={runs} --only={row}", given=given, runs=runs, row=row)
    (runs / DESCRIPTION).write_text(jsonl.document(Sweep.load([str(given / "tabled.py")], runs=runs).describe(), 2))
    return given
