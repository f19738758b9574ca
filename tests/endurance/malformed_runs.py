"""Folders of runs in which files are damaged, gone, empty, of another file or a folder, opened by the commands that read runs.

A run that cannot be read ends the command in one line with status 2, and its files stay as they were.
"""

import random
import shutil
from pathlib import Path
from unittest import mock

from endurance import commands, made
from endurance.figures import Figure, Outcome
from endurance.malformed_files import spoilt

from bam_jax import evaluate, generate, train
from bam_jax.convert import __main__ as convert
from bam_jax.training import loop


def asked(kind: str, common: Path, run: Path, out: Path) -> tuple[commands.Main, list[str]]:
    """A command on a run.

    Args:
        kind: which.
        common: the folder with the configuration.
        run: the folder that was damaged.
        out: what is written goes here.
    """
    measured = ["--eval=perplexity", "--lengths=16", "--tokens=128", "--no-progress"]
    return {
        "train": (train.main, [made.configuration(common, steps=4), f"--workdir={run}", "--no-progress"]),
        "export": (convert.main, [f"--run={run}", f"--export={out / 'exported'}"]),
        "layout": (convert.main, [f"--run={run}", "--layout=bam", f"--export={out / 'layout'}"]),
        "evaluate": (evaluate.main, [f"--run={run}", *measured]),
        "generate": (generate.main, [f"--run={run}", "--prompt=a", "--tokens=1"]),
        "start": (
            train.main,
            [made.configuration(common, start=str(run)), f"--workdir={out / 'new'}", "--no-progress"],
        ),
    }[kind]


KINDS = ("train", "train", "export", "layout", "start", "start", "evaluate", "generate")
"""The commands in turn; those that compile a model come less often."""


def damage(run: Path, files: dict[str, bytes], chance: random.Random) -> str:
    """Puts files into a run's folder, of which one or two are damaged; the words of what was done."""
    made.put(run, files)
    done = []
    for _ in range(chance.choice([1, 1, 2])):
        name = chance.choice(sorted(files))
        path = run / name
        if not path.is_file():
            continue
        kind = chance.choice(["spoilt", "spoilt", "spoilt", "gone", "empty", "another", "folder", "group"])
        done.append(f"{kind} {name}")
        match kind:
            case "spoilt":
                path.write_bytes(spoilt(files[name], chance))
            case "gone":
                path.unlink()
            case "empty":
                path.write_bytes(b"")
            case "another":
                path.write_bytes(files[chance.choice(sorted(files))])
            case "folder":
                path.unlink()
                path.mkdir()
            case "group" if "/" in name:
                shutil.rmtree(run / name.partition("/")[0])
    return ", ".join(done)


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Damages so many runs; see `figures.Figure`."""
    common, failures, refused = made.common(), [], 0
    kinds = [made.contents(common / "run"), made.contents(common / "exported")]
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        run, out, kind = folder / "run", folder / "out", KINDS[number % len(KINDS)]
        out.mkdir()
        done = damage(run, chance.choice([*kinds[:1] * 3, kinds[1]]), chance)
        before = commands.snapshot(run)
        with mock.patch.object(loop, "_train"):
            ended = commands.call(*asked(kind, common, run, out))
        wrong = commands.complaint(ended)
        if not wrong and ended.status == 2 and commands.snapshot(run) != before:
            wrong = "refused, and the run is another"
        if wrong:
            failures.append(f"{kind} after {done} (seed {seed}, case {number}): {wrong}")
        refused += ended.status == 2
        shutil.rmtree(run)
        shutil.rmtree(out)
    return Outcome(count, failures, {"refused": refused})


FIGURE = Figure(
    what="malformed runs: one line, status 2, nothing overwritten",
    unit="runs",
    wanted=500,
    part=100,
    short=6,
    minutes=20,
    measure=measure,
)
