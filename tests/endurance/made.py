"""A small trained and evaluated run, and the commands that open runs."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from endurance import commands

from bam_jax.analysis import figures
from bam_jax.training import loop

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
EVALUATE = "bam_jax.evaluate --run={run} --eval={measure} --lengths=16 --tokens=64 --no-progress"
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
    "resume": "bam_jax.train --config={folder}/small.py --config.steps=4 --workdir={run} --no-progress",
    "start": "bam_jax.train --config={folder}/small.py --config.steps=1 --config.start={run} --workdir={out} --no-progress",
    "sweep": f"bam_jax.sweep {{folder}}/mine.py --runs={{run.parent}} --only={RUN}",
    "tables": "bam_jax.tables {folder}/mine.py --runs={run.parent} --out={out}",
    "claims": "bam_jax.claims {folder}/claims.toml --runs={run.parent}",
    "report": "bam_jax.report {run.parent} {folder}/mine.py --out={out}",
    "retrieve": "bam_jax.retrieve --run={run} --corpus={folder}/corpus.jsonl --queries={folder}/queries.jsonl --lengths=8 "
    "--out={out} --no-progress",
    "retrieval_speed": "benchmarks.retrieval_speed --run={run} --documents=4 --queries=2 --length=8 --out={out} --no-progress",
}
"""Commands that open a run, with an empty folder to write to and one of other inputs."""


def to_file(tree: dict) -> str:
    """A configuration file of some values."""
    return f"import ml_collections\n\n\ndef get_config():\n    return ml_collections.ConfigDict({tree!r})\n"


EXPERIMENT = """
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Row, Table, tabled

def get_experiment(scale):
    columns = tuple(Column(str(length), Perplexity((length,), tokens=64)) for length in {lengths})
    rows = [Row(name, {config!r}, {{"encoding": "alibi"}} if n else {{}}) for n, name in enumerate({rows})]
    table = Table("Table 1", columns, {{row.label: ("3.0",) * len(columns) for row in rows}})
    return tabled({title!r}, rows, [table], shared=False)
"""


def experiment(title: str, config: Path, *rows: str, lengths: tuple[int, ...] = (16,)) -> str:
    """The file of an experiment with a table of perplexities; its first row is the configuration, another one has ALiBi."""
    return EXPERIMENT.format(title=title, config=str(config), rows=rows, lengths=lengths)


def values(folder: Path) -> dict:
    """A small configuration; writes its text into the folder, long enough for all that is measured."""
    path = folder / "text.txt"
    path.write_text("".join(f"day {n} of a tale of some length, told again and again. " for n in range(300)))
    return {**SMALL, "data": {"tokenizer": "byte", "source": str(path)}}


def train(folder: Path, measure: str = "perplexity", **changes: Any) -> Path:
    """Trains and evaluates a run in a folder, whose configuration is `small.py`; values that are groups are merged."""
    tree = values(folder)
    for name, value in changes.items():
        tree[name] = tree[name] | value if isinstance(value, dict) else value
    (folder / "small.py").write_text(to_file(tree))
    run = folder / "run"
    well("bam_jax.train --config={folder}/small.py --workdir={run} --no-progress", folder=folder, run=run)
    well(EVALUATE, run=run, measure=measure)
    return run


@functools.cache
def common() -> Path:
    """A folder with `text.txt`, `small.py`, `run` of 3 steps with checkpoints at 2 and 3, and its weights, `exported`."""
    folder = Path(tempfile.mkdtemp(prefix="endurance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train(folder)
    well("bam_jax.convert --run={folder}/run --export={folder}/exported", folder=folder)
    return folder


def well(template: str, **places: object) -> commands.Ended:
    """Calls a command that must succeed."""
    ended = commands.call(commands.fill(template, **places))
    if ended.status != 0:
        raise RuntimeError(f"{template} ended with {ended.status}: {ended.err}")
    return ended


def before_first_step(then: Callable[[Any, Any], object] | None = None) -> Any:
    """A block in which `train` ends well before its first step, and `then` gets the state and the batch of that step."""

    def step(state: Any, batch: Any) -> None:
        then(state, batch)
        raise SystemExit

    def make_step(*_: object) -> Callable[[Any, Any], None]:
        if then is None:
            raise SystemExit
        return step

    return mock.patch.object(loop, "make_step", make_step)
