"""Commands that are stopped, continued or terminated, or whose clock jumps.

Each part has one kind of interruption. The command runs repeatedly, as in `kills`, until it was interrupted often enough after
its first write.

- SIGTERM at a random moment, during a save, or twice: the training ends with status 75 and a line that gives the step where it
  stopped; a line before it may announce the save. A checkpoint of exactly that step exists, unless a second signal ended the
  training at once. After the last step the signal itself may end the process (status -15). The same command resumes.
- SIGSTOP, and SIGCONT up to two seconds later, repeatedly: the command succeeds, and prints nothing unusual.
- The clock set a day forward or back at a random moment: the same, and no recorded duration is negative or longer than the
  harness waits. During a save the training may end in one line, and resumes.
- A training that continues with other processes and devices: 1 process, 2 processes, 1 process with 8 devices, 1 with 2. Its
  losses agree with an uninterrupted training's to 1 in 10,000.
"""

import json
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from endurance import commands, forked, kills, made, writers
from endurance.figures import Outcome

from bam_jax.system import errors
from bam_jax.training import run_folder

WHAT = "commands stopped, continued, terminated, or with a jumping clock: an undisturbed run's result, to the bit"
STOPPED = re.compile(
    r"(?:SIGTERM: it saves .*\n)?(?:"
    r"stopped by SIGTERM before a step was trained: .*|.*: stopped at step (?P<step>\d+) of \d+; .*|ended by SIGTERM at once; .*"
    r")\n"
)
"""All that a training prints on stderr that is told to end."""
AT_ONCE = "from bam_jax.parallel import processes; processes.URGENT = 0\n"
"""The prelude of a training that the second of two signals ends, however fast it comes."""
CLOCK = """
import sys, time
real, start = time.time, time.monotonic()
set = lambda: real() + ({jump} if time.monotonic() > start + {after} else 0)
for module in list(sys.modules.values()):
    for name, value in list(getattr(module, "__dict__", {{}}).items()):
        if value is real:
            setattr(module, name, set)
"""
"""The prelude of a command in whose process the time of day is set, for every module that has imported it."""
UNWRITTEN = re.compile(r"error: checkpoint .* was not written in time: .*\n")
"""The end of a training whose clock was set within a save: orbax takes that for a save of more than 20 minutes."""


def _wait(child: forked.Child, seconds: float, number: int) -> bool:
    """Sends a signal after some seconds; False if the command ends before."""
    if child.wait(seconds):
        return False
    child.send(number)
    return True


def _terminate(child: forked.Child, draw: random.Random, usual: float, out: Path) -> bool:
    return _wait(child, draw.uniform(0, usual), signal.SIGTERM)


def _twice(child: forked.Child, draw: random.Random, usual: float, out: Path) -> bool:
    sent = _terminate(child, draw, usual, out)
    if sent:
        _wait(child, draw.uniform(0, 0.05), signal.SIGTERM)
    return sent


def _in_a_save(child: forked.Child, draw: random.Random, usual: float, out: Path) -> bool:
    for _ in range(draw.randrange(6)):
        if child.wait(draw.uniform(0, 0.3)):
            return False
    while not any(out.rglob("*.draft*")):
        if child.wait(0):
            return False
    return _wait(child, draw.uniform(0, 0.02), signal.SIGTERM)


def _pause(child: forked.Child, draw: random.Random, usual: float, out: Path) -> bool:
    sent = False
    while _wait(child, draw.uniform(0, usual / 2), signal.SIGSTOP):
        time.sleep(draw.uniform(0, 2))
        child.send(signal.SIGCONT)
        sent = True
    return sent


def _nothing(child: forked.Child, draw: random.Random, usual: float, out: Path) -> bool:
    return True


KINDS: dict[str, tuple[str, Callable[[forked.Child, random.Random, float, Path], bool], str]] = {
    "SIGTERM": ("train", _terminate, ""),
    "SIGTERM within a save": ("train", _in_a_save, ""),
    "SIGTERM twice": ("train", _twice, AT_ONCE),
    "SIGSTOP of train": ("train", _pause, ""),
    "SIGSTOP of evaluate": ("evaluate", _pause, ""),
    "SIGSTOP of prepare": ("prepare", _pause, ""),
    "clock of train": ("train", _nothing, CLOCK),
    "clock of evaluate": ("evaluate", _nothing, CLOCK),
    "clock of prepare": ("prepare", _nothing, CLOCK),
}
"""A command; what interrupts it after its first write (False: it ended before); and a prelude, see `forked.Warm.start`."""


def _stopped(ended: commands.Ended, began: int, run: Path) -> str:
    """The complaint about a training that was told to end and did not end well; "" if it stopped as it should."""
    reached, said = run_folder.latest_step(run), STOPPED.fullmatch(ended.err)
    if ended.status == -signal.SIGTERM and not ended.err:  # nobody listens any more
        return "" if reached == run_folder.read_config(run).steps else f"the signal itself ended it at step {reached}"
    if ended.status != errors.AGAIN or not said:
        return f"status {ended.status}: {ended.err[-300:]!r}"
    step = int(said["step"] or 0)
    if step and (step != reached or step <= began):
        return f"stopped at step {step}, having begun at {began}; the last checkpoint is of {reached}"
    return ""


def _durations(folder: Path) -> str:
    """A complaint about a duration in a record that cannot be."""
    for path in folder.rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            for name, value in json.loads(line).items():
                if "second" in name and not 0 <= value < commands.PATIENCE * (1 if name == "seconds" else 1e6):
                    return f"{path.name}: {name} is {value}"
    return ""


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Interrupts a command `count` times in the way of a number."""
    if seed == len(KINDS):
        return _other_processes(folder)
    name, (command, disturb, prelude) = list(KINDS.items())[seed]
    writer, draw, out, failures = writers.WRITERS[command], random.Random(name), folder / "out", []
    expected = kills.undisturbed(writer, out)
    (module, *argv), interrupted, ways, new = writer.command(out), 0, {}, True
    with forked.Warm(module, folder / "warm") as warm:
        usual, quiet = kills.timed(writer, warm, out)
        while interrupted < count or not new:
            last = interrupted >= count
            if new:
                writer.begin(out)
            before, began = commands.look(out), run_folder.latest_step(out / "run")
            jump = prelude.format(jump=draw.choice((-86400, 86400)), after=draw.uniform(0, 1.5 * usual))
            child = warm.start(argv, forked.FROZEN + jump)
            sent = not last and forked.first_write(child, out, before) is not None and disturb(child, draw, usual, out)
            ended = child.end()
            interrupted += sent
            way = f"status {ended.status}" + (" at once" if "ended by" in ended.err else "")
            ways[way] = ways.get(way, 0) + 1
            new = ended.status == 0
            if new:
                wrong = kills.compare(writer, expected, out, ended) or _durations(out)
                if ended.err != quiet and "SIGTERM" not in ended.err:
                    wrong = wrong or f"it prints {ended.err[-300:]!r}"
            else:
                wrong = "" if command == "train" and not last else f"status {ended.status}: {ended.err[-300:]!r}"
                if not (prelude is CLOCK and UNWRITTEN.fullmatch(ended.err) and ended.status == 2):
                    wrong = wrong or _stopped(ended, began, out / "run")
            if wrong:
                failures.append(f"{name}: {wrong}")
                new = True
    return Outcome(interrupted, failures, {"kind": name, "ways": ways, "undisturbed_seconds": round(usual, 2)})


def _other_processes(folder: Path) -> Outcome:
    """A training that goes on four times with other processes and devices."""
    shared = commands.of_test("parallel/test_processes")
    often = {"batch": 8, "context": 32, "checkpoint_every": 10, "optimizer": {"warmup": 5}}
    (folder / "tiny.py").write_text(made.to_file(made.values(folder) | often))
    steps = "--config.steps=400"
    stages = {
        100: (1, 1, []),
        200: (2, 1, ["--config.mesh.data=2"]),
        300: (1, 8, ["--config.mesh.data=2", "--config.mesh.fsdp=2", "--config.mesh.tensor=2"]),
        400: (1, 2, ["--config.mesh.fsdp=2"]),
    }
    failures = []
    for until, (count, devices, mesh) in stages.items():
        started = shared.start(folder, "run", count, steps, *mesh, devices=devices)
        if until < 400:
            shared.wait_for(started, lambda until=until: shared.reached(folder) >= until - 50)
            started[0].send_signal(signal.SIGTERM)
        codes, said = shared.ended(folder, "run", started)
        if codes != [errors.AGAIN if until < 400 else 0] * count:
            failures.append(f"to step {until}: {codes}: {said[0][-300:]!r}")
    expected, found = (shared.whole(folder, name, steps)[0] for name in ("alone", "run"))
    if not failures and not np.allclose(found, expected, rtol=1e-4):
        failures.append("other losses than those of one process")
    return Outcome(len(stages), failures, {"kind": "other processes"})
