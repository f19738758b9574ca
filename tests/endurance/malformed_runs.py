"""Runs in which files are damaged, missing, empty, or replaced by another file or a folder.

A run that cannot be read must end the command in one line with status 2, and its files must stay as they were. The undamaged run
and its exported weights must be accepted by every command.
"""

import random
import shutil
from pathlib import Path

from endurance import commands, made
from endurance.figures import Outcome
from endurance.malformed_files import spoilt

WHAT = "damaged runs: refused in one line, with nothing overwritten"
COMMANDS = {
    "train": made.OPENERS["resume"],
    "finished": "bam_jax.train --config={folder}/small.py --workdir={run} --no-progress",
    **{name: made.OPENERS[name] for name in ("start", "export", "layout", "evaluate", "generate")},
}
CASES = [(name, of) for name in COMMANDS for of in ("run", "exported") if (name, of) != ("train", "exported")]
"""A command and what it opens: training does not resume in an exported folder; in a finished one it has nothing to do."""


def damage(run: Path, files: dict[str, bytes], chance: random.Random) -> str:
    """Writes a run in which one or two files that are read are damaged; returns what was done."""
    read = sorted(name for name in files if not name.startswith("checkpoints/2/"))  # 3 is there
    while True:
        commands.put(run, files)
        done = [_damage(run, chance.choice(read), files, chance) for _ in range(chance.choice([1, 1, 2]))]
        if commands.contents(run) != files:
            return ", ".join(done)
        shutil.rmtree(run)


def _damage(run: Path, name: str, files: dict[str, bytes], chance: random.Random) -> str:
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
    """Opens each kind of run undamaged, and `count` damaged ones."""
    common, outcome, refused = made.common(), Outcome(), dict.fromkeys(COMMANDS, 0)
    files = {of: commands.contents(common / of) for of in ("run", "exported")}
    run, out = folder / "run", folder / "out"
    for number in (*range(-len(CASES), 0), *range(count)):  # the negative ones are undamaged
        name, of = CASES[number % len(CASES)]
        done = "nothing"
        if number < 0:
            commands.put(run, files[of])
        else:
            done = damage(run, files[of], random.Random(f"{seed} {number}"))
        out.mkdir()
        with made.before_first_step():
            command = commands.fill(COMMANDS[name], folder=common, run=run, out=out)
            ended, wrong = commands.judge(command, run, (0,) if number < 0 else (0, 2))
        outcome.add(f"{name}, {of} after {done} (seed {seed}, case {number})", wrong)
        refused[name] += ended.status == 2
        shutil.rmtree(run)
        shutil.rmtree(out)
    outcome.count, outcome.more = count, {"refused": refused}
    return outcome
