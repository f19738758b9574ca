"""Commands killed at random moments, and whether what they leave is what an undisturbed run leaves.

Command:  python tests/endurance/kills.py --kills=50 --out=docs/reliability/kills.jsonl    # some 40 minutes; goes on if stopped
          python tests/endurance/kills.py --out=docs/reliability/kills.jsonl --markdown    # the table of docs/reliability.md

A command runs once to its end. Then it starts again and again in another folder, each time killed (SIGKILL, with all of its
processes) after a time drawn between 0 and what the undisturbed run took. Where it ends before that, its folder is compared, and
the next one begins; after the last kill it runs to its end. What is compared leaves out seconds, commits and paths.
"""

import argparse
import dataclasses
import hashlib
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

ROOT = Path(__file__).parents[2]
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
VARYING = {"seconds", "tokens_per_second", "time", "peak_bytes", "started", "ended", "command", "commit", "machine"}
"""Fields of records that another run may have otherwise."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the package.

    Args:
        arguments: by the folder that it writes and that of what it reads.
        compared: what it leaves, by the folder it wrote and its stdout, as texts by name.
    """

    arguments: Callable[[Path, Path], list[str]]
    compared: Callable[[Path, str], Mapping[str, str]]


def whole_files(folder: Path, said: str) -> dict[str, str]:
    """The digest of each file."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


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
    bits = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True).stdout
    return {**records(folder, said), "parameters": bits.strip()}


COMMANDS = {
    "train": Command(
        lambda out, given: ["bam_jax.train", *CONFIG, *SHORT, f"--workdir={out / 'run'}"],
        lambda out, said: trained(out / "run", said),
    ),
    "prepare": Command(
        lambda out, given: [
            *("bam_jax.data.prepare", f"--source={given / 'text'}", f"--out={out / 'data'}"),
            *("--tokenizer=byte", "--shard-tokens=200000"),
        ],
        lambda out, said: whole_files(out / "data", said),
    ),
    "evaluate": Command(
        lambda out, given: [
            *("bam_jax.evaluate", f"--run={out / 'decoder'}", "--eval=passkey"),
            *("--lengths=256,1024,4096,8192", "--depths=10"),
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
            name: bits for name, bits in whole_files(out / "ranked", said).items() if name.endswith(".run")
        },
    ),
    "generate": Command(
        lambda out, given: ["bam_jax.generate", f"--run={out / 'decoder'}", "--prompt=the module", "--tokens=400"],
        lambda out, said: {"text": said, **whole_files(out / "decoder", said)},
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


def prepare_inputs(given: Path) -> None:
    """What the commands read: text, documents with queries, two runs, an experiment."""
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
    for name, more in (("decoder", []), ("encoder", ENCODER)):
        run(
            [
                *PYTHON,
                "bam_jax.train",
                *CONFIG,
                *more,
                "--config.steps=20",
                "--config.optimizer.warmup=5",
                f"--workdir={given / name}",
            ]
        )


def run(command: list[str], seconds: float | None = None) -> tuple[int | None, str]:
    """A command's status and output; None: it was killed with its processes after so many seconds."""
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=said, stderr=subprocess.PIPE, start_new_session=True) as process,
    ):
        try:
            _, complaint = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {complaint.decode()[-2000:]}")
        said.seek(0)
        return 0, said.read()


def kill(name: str, kills: int, given: Path, work: Path) -> dict[str, object]:
    """Kills a command so often, and compares what it leaves.

    Args:
        name: of `COMMANDS`.
        kills: how often it dies.
        given: what it reads.
        work: a folder to work in.

    Returns:
        the record: kills, starts, ends, differences and torn records.
    """
    asked, draw = COMMANDS[name], random.Random(name)

    def begin(folder: Path) -> list[str]:
        folder.mkdir()
        if name in COPIED:
            shutil.copytree(given / "decoder", folder / "decoder")
        return [*PYTHON, *asked.arguments(folder, given)]

    start = time.monotonic()
    _, said = run(begin(work / "whole"))
    usual = time.monotonic() - start
    expected = asked.compared(work / "whole", said)
    died = ended = started = differences = torn = 0
    while died < kills or not ended:
        command = begin(work / f"{ended}")
        status = None
        while status is None:
            started += 1
            status, said = run(command, draw.uniform(0, usual) if died < kills else None)
            died += status is None
        found = asked.compared(work / f"{ended}", said)
        differences += found != expected
        torn += sum("torn" in value for value in found.values())
        if found != expected:
            shutil.copytree(work / f"{ended}", ROOT / "runs" / f"killed-{name}-{ended}", dirs_exist_ok=True)
        ended += 1
    compared = len(expected)
    counts = {
        "kills": died,
        "starts": started,
        "ends": ended,
        "compared": compared,
        "differences": differences,
        "torn": torn,
    }
    return {"command": name, **counts, "seconds": round(usual, 1)}


def to_markdown(path: Path) -> str:
    """The table of the records."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    head = ("command", "kills", "ends", "compared", "differences", "torn", "seconds")
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    lines += [f"| {' | '.join(str(row[name]) for name in head)} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Kills each command that the file of records has not yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    if asked.markdown:
        print(to_markdown(asked.out))
        return
    sys.path.insert(0, str(ROOT))
    from bam_jax.bench.machine import machine
    from bam_jax.system import git

    asked.out.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line)["command"] for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "given"
        names = [name for name in asked.commands.split(",") if name not in known]
        print(f"{len(names)} commands to kill {asked.kills} times each: {', '.join(names)}", flush=True)
        prepare_inputs(given)
        for name in names:
            (work := Path(folder) / name).mkdir()
            record = kill(name, asked.kills, given, work) | {
                "commit": git.describe(),
                "machine": machine()["processor"],
            }
            with asked.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{name}: {record}", flush=True)
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
