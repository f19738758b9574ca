"""Folders of runs in which files are damaged, gone, empty, of another file or a folder, opened by the commands that read runs.

A run that cannot be read ends the command in one line with status 2, and its files stay as they were. The run and its exported
weights are opened undamaged as well: no command refuses them.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from endurance import commands, made
from endurance.figures import Figure, Outcome
from endurance.malformed_files import spoilt

from bam_jax import evaluate, generate, train
from bam_jax.convert import __main__ as convert

COMMANDS: dict[str, Callable[[Path, Path, Path], tuple[commands.Main, list[str]]]] = {
    "train": lambda common, run, out: (
        train.main,
        [made.configuration(common, steps=4), f"--workdir={run}", "--no-progress"],
    ),
    "finished": lambda common, run, out: (
        train.main,
        [made.configuration(common), f"--workdir={run}", "--no-progress"],
    ),
    "start": lambda common, run, out: (
        train.main,
        [made.configuration(common, start=str(run)), f"--workdir={out / 'new'}", "--no-progress"],
    ),
    "export": lambda common, run, out: (convert.main, [f"--run={run}", f"--export={out / 'exported'}"]),
    "layout": lambda common, run, out: (
        convert.main,
        [f"--run={run}", "--layout=bam", f"--export={out / 'layout'}"],
    ),
    "evaluate": lambda common, run, out: (
        evaluate.main,
        [f"--run={run}", "--eval=perplexity", "--lengths=16", "--tokens=128", "--no-progress"],
    ),
    "generate": lambda common, run, out: (generate.main, [f"--run={run}", "--prompt=a", "--tokens=1"]),
}
"""Commands by the folder with the configuration, that of the run, and one to write to."""
CASES = [(name, of) for name in COMMANDS for of in ("run", "exported") if (name, of) != ("train", "exported")]
"""A command and what it opens: in an exported folder no training goes on, and a finished one has nothing to do."""


def damage(run: Path, files: dict[str, bytes], chance: random.Random) -> str:
    """Puts files into a run's folder, of which one or two that are read are damaged; the words of what was done."""
    read = sorted(name for name in files if not name.startswith("checkpoints/2/"))  # 3 is there
    while True:
        made.put(run, files)
        done = [_damage(run, chance.choice(read), files, chance) for _ in range(chance.choice([1, 1, 2]))]
        if made.contents(run) != files:
            return ", ".join(done)
        shutil.rmtree(run)


def _damage(run: Path, name: str, files: dict[str, bytes], chance: random.Random) -> str:
    """Damages a file of a run, if it is still there."""
    path = run / name
    above = [folder for folder in path.parents if run in folder.parents]
    if not path.is_file():
        return f"{name} gone already"
    kind = chance.choice(["spoilt", "spoilt", "spoilt", "gone", "empty", "another", "folder", *["group"] * bool(above)])
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
        case "group":
            shutil.rmtree(chance.choice(above))
    return f"{kind} {name}"


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Opens each kind of run undamaged, and damages so many; see `figures.Figure`."""
    common, failures, refused = made.common(), [], dict.fromkeys(COMMANDS, 0)
    files = {of: made.contents(common / of) for of in ("run", "exported")}
    cases = [(None, *case) for case in CASES]
    cases += [(number, *CASES[number % len(CASES)]) for number in range(count)]
    run, out = folder / "run", folder / "out"
    for number, name, of in cases:
        if number is None:
            done = "nothing"
            made.put(run, files[of])
        else:
            done = damage(run, files[of], random.Random(f"{seed} {number}"))
        out.mkdir()
        before = commands.snapshot(run)
        with made.before_first_step():
            ended = commands.call(*COMMANDS[name](common, run, out))
        wrong = commands.complaint(ended, (0,) if number is None else (0, 2))
        if not wrong and ended.status == 2 and commands.snapshot(run) != before:
            wrong = "refused, and the run is another"
        if wrong:
            failures.append(f"{name}, {of} after {done} (seed {seed}, case {number}): {wrong}")
        refused[name] += ended.status == 2
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
