"""Commands killed at random moments, and whether what they leave is what an undisturbed run leaves.

A command runs once to its end. Then it starts again and again in another folder, each time killed (SIGKILL, with all of its
processes) after a time drawn between 0 and what the undisturbed run took. Where it ends before that, its folder is compared, and
the next one begins; after the last kill it runs to its end. What is compared leaves out seconds, commits and paths. A failure is
an end that differs or cannot be read, another status than 0, no end within twenty times the undisturbed run and five minutes, or
fewer than a tenth of the kills after something was written.
The time is the whole command's: some kills come while it imports and compiles, and find nothing written. "Wrote" counts those
before which it had written since its start; `generate` writes nothing. "Starts" counts processes, "ends" those with status 0,
"compared" what is held against it at each, "torn" the lines of records that cannot be read.
"""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from endurance import commands
from endurance.figures import ROOT, Figure, Outcome

HOUR = 3600
"""Seconds that an undisturbed command has, at most."""
PYTHON = [sys.executable, "-m"]
CONFIG = [
    f"--config={ROOT / 'configs' / 'quickstart.py'}",
    "--config.model.width=32",
    "--config.batch=4",
    "--config.context=32",
]
ENCODER = [
    "--config.model.causal=False",
    "--config.data.task=masked",
    "--config.data.tokenizer=byte",
    "--config.encoding=alibi",
    "--config.ssmax=off",
]
SHORT = ["--config.steps=300", "--config.checkpoint_every=25", "--config.log_every=5", "--config.optimizer.warmup=10"]
VARYING = {
    "seconds",
    "tokens_per_second",
    "time",
    "peak_bytes",
    "started",
    "ended",
    "command",
    "commit",
    "machine",
    "crc32",
}
"""Fields of records that another run may have otherwise; the checksum is that of the others."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the package.

    Args:
        arguments: by the folder that it writes and that of what it reads.
        compared: what it leaves, by the folder it wrote and its stdout, as texts by name.
    """

    arguments: Callable[[Path, Path], list[str]]
    compared: Callable[[Path, str], Mapping[str, str]]


def records(folder: Path, said: str) -> dict[str, str]:
    """The records of all runs, each line without what may differ; a line that cannot be read stays as "torn"."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines()):
            try:
                record = {key: value for key, value in json.loads(line).items() if key not in VARYING}
            except ValueError:
                record = "torn"
            found[f"{path.relative_to(folder)}:{number}"] = json.dumps(record, sort_keys=True)
    return found


def trained(folder: Path, said: str) -> dict[str, str]:
    """The records of a run, and the bits of its parameters."""
    code = (
        "import sys, hashlib, numpy, jax; from flax import nnx; from bam_jax import load;"
        "leaves = jax.tree.leaves(nnx.state(load(sys.argv[1]).decoder, nnx.Param));"
        "print(hashlib.sha256(b''.join(numpy.asarray(x).tobytes() for x in leaves)).hexdigest())"
    )
    return {**records(folder, said), "parameters": undisturbed([sys.executable, "-c", code, str(folder)]).strip()}


COMMANDS = {
    "prepare": Command(
        lambda out, given: [
            *("bam_jax.data.prepare", f"--source={given / 'text'}", f"--out={out / 'data'}"),
            *("--tokenizer=byte", "--shard-tokens=200000"),
        ],
        lambda out, said: commands.snapshot(out / "data"),
    ),
    "train": Command(
        lambda out, given: ["bam_jax.train", *CONFIG, *SHORT, f"--workdir={out / 'run'}"],
        lambda out, said: trained(out / "run", said),
    ),
    "evaluate": Command(
        lambda out, given: [
            *("bam_jax.evaluate", f"--run={out / 'decoder'}", "--eval=passkey"),
            *(f"--lengths={','.join(map(str, range(64, 1537, 64)))}", "--depths=10"),
        ],
        records,
    ),
    "sweep": Command(
        lambda out, given: ["bam_jax.sweep", str(given / "two.py"), f"--runs={out / 'runs'}", "--jobs=2"],
        lambda out, said: records(out / "runs", said),
    ),
    "retrieve": Command(
        lambda out, given: [
            *("bam_jax.retrieve", f"--run={given / 'encoder'}", f"--corpus={given / 'corpus.jsonl'}"),
            *(f"--queries={given / 'queries.jsonl'}", "--lengths=64,512", f"--out={out / 'ranked'}"),
        ],
        lambda out, said: {
            name: bits for name, bits in commands.snapshot(out / "ranked").items() if name.endswith(".run")
        },
    ),
    "generate": Command(
        lambda out, given: ["bam_jax.generate", f"--run={out / 'decoder'}", "--prompt=the module", "--tokens=400"],
        lambda out, said: {"text": said, **commands.snapshot(out / "decoder")},
    ),
}
COPIED = ("evaluate", "generate")
"""Commands that work in a run's folder: each gets a copy of it."""
TWO = f"""
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row

SMALL = {{"steps": 40, "model.width": 16, "batch": 2, "checkpoint_every": 10, "log_every": 5, "optimizer.warmup": 5}}


def get_experiment():
    asked = (Passkey((64, 256), depths=5),)
    return Experiment("Two", (Row("BAM", {str(ROOT / "configs" / "quickstart.py")!r}, SMALL, (0, 1), asked),))
"""


def prepare_inputs(given: Path, name: str) -> None:
    """Text, documents with queries, an experiment; and the run that a command reads, a decoder or an encoder."""
    draw = random.Random(0)
    words = [f"{a}{b}" for a in ("ba", "lo", "mi", "re", "sta", "un") for b in ("", "der", "kin", "ta", "son", "ver")]
    text = lambda n: " ".join(draw.choices(words, k=n))
    (given / "text").mkdir(parents=True)
    for number in range(40):
        (given / "text" / f"{number:02}.txt").write_text("\n\n".join(text(900) for _ in range(10)))
    lines = [{"docid": f"d{n}", "text": text(200)} for n in range(4000)]
    (given / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = [
        {"query_id": f"q{n}", "query": lines[n]["text"][:60], "positive_passages": [{"docid": f"d{n}"}]}
        for n in range(0, 500, 5)
    ]
    (given / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    (given / "two.py").write_text(TWO)
    needed = {"retrieve": ("encoder", ENCODER)} | dict.fromkeys(COPIED, ("decoder", []))
    if name in needed:
        kind, more = needed[name]
        undisturbed(
            [
                *PYTHON,
                "bam_jax.train",
                *CONFIG,
                *more,
                "--config.steps=20",
                "--config.optimizer.warmup=5",
                f"--workdir={given / kind}",
            ]
        )


def run(command: list[str], *signals: tuple[float, int]) -> commands.Ended:
    """Runs a command to which signals come, to all of its processes; its status is None where the last one came.

    Args:
        command: its words.
        signals: seconds from the start, or from the signal before, and what is sent if it still runs then; SIGKILL is the last.
    """
    with (
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen(
            command, stdout=out, stderr=subprocess.PIPE, text=True, errors="backslashreplace", start_new_session=True
        ) as process,
    ):
        try:
            for seconds, number in signals:
                try:
                    _, err = process.communicate(timeout=seconds)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, number)
                else:
                    out.seek(0)
                    return commands.Ended(process.returncode, out.read(), err)
            _, err = process.communicate()
            return commands.Ended(None, "", f"{err}killed after {seconds:.0f} s\n")
        finally:
            if process.poll() is None:  # the harness is stopped, and the session of the command does not hear of it
                os.killpg(process.pid, signal.SIGKILL)


def tail(said: str) -> str:
    """The end of what is said, in one line."""
    return " ".join(said.split())[-250:]


def undisturbed(command: list[str]) -> str:
    """The output of a command that nobody kills: if it fails, nothing can be compared with it."""
    ended = run(command, (HOUR, signal.SIGKILL))
    if ended.status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.status}: {tail(ended.err)}")
    return ended.out


def patience(usual: float) -> float:
    """The seconds after which a command hangs, by those of an undisturbed one."""
    return max(300, 20 * usual)


def compare(command: Command, expected: Mapping[str, str], folder: Path, said: str) -> tuple[str, int]:
    """Tells in which way a command leaves something else than it should, "" where it does not; and its torn records."""
    try:
        found = command.compared(folder, said)
    except Exception as error:  # whatever a kill has left, the harness goes on
        return f"what it leaves cannot be read: {tail(str(error))}", 0
    return difference(expected, found), sum(value == '"torn"' for value in found.values())


def difference(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The words for what differs between two leavings; "" where nothing does."""
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return f"{len(differing)} differ, such as {differing[0]}" if differing else ""


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Kills a command so often, and compares what it leaves; see `figures.Figure`.

    Args:
        seed: the number of the command, and of the draws of its moments.
    """
    name = list(COMMANDS)[seed]
    asked, draw, given = COMMANDS[name], random.Random(name), folder / "given"
    prepare_inputs(given, name)

    def begin(place: Path) -> list[str]:
        place.mkdir()
        if name in COPIED:
            shutil.copytree(given / "decoder", place / "decoder")
        return [*PYTHON, *asked.arguments(place, given)]

    start = time.monotonic()
    said = undisturbed(begin(folder / "whole"))
    usual = time.monotonic() - start
    expected = asked.compared(folder / "whole", said)
    assert expected, "there is nothing to compare"
    died = wrote = starts = ends = torn = number = 0
    failures = []
    while died < count or not number:
        place, last, ended = folder / f"{number}", False, None
        command = begin(place)
        while not last and (ended is None or ended.status is None):
            last, before = died == count, commands.snapshot(place)
            ended = run(command, (patience(usual) if last else draw.uniform(0, usual), signal.SIGKILL))
            starts += 1
            if ended.status is None and not last:
                died += 1
                wrote += commands.snapshot(place) != before
        if ended.status == 0:
            wrong, broken = compare(asked, expected, place, ended.out)
            ends, torn = ends + 1, torn + broken
        else:
            wrong = f"status {ended.status}: {tail(ended.err)}"
        if wrong:
            failures.append(f"{name}, folder {number}: {wrong}")
        number += 1
    if wrote < count // 10 and name != "generate":
        failures.append(f"{name}: {wrote} kills came after it had written, too few to show anything")
    counted = {"starts": starts, "wrote": wrote, "ends": ends, "compared": len(expected), "torn": torn}
    return Outcome(died, failures, {"command": name, **counted, "undisturbed_seconds": round(usual, 1)})


FIGURE = Figure(
    what="kill -9 at random moments, 50 of each of six commands: what is left at the end is what an undisturbed run leaves",
    unit="kills",
    wanted=50 * len(COMMANDS),
    part=50,
    short=1,
    minutes=60,
    measure=measure,
)
