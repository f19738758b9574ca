"""Commands that write, killed, interrupted, or without room on the disk."""

import contextlib
import ctypes
import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
from endurance import commands, made
from endurance.figures import ROOT, Outcome, Unavailable
from parallel import test_processes as processes

from bam_jax.system import errors, jsonl
from bam_jax.training import run_folder

ENTRY = """
import sys
sys.path[0] = {tests!r}
from endurance import commands
from bam_jax.system import errors
main = commands.main_of(sys.argv[1])
{prelude}
errors.run(main, sys.argv[2:])
"""
PR_SET_CHILD_SUBREAPER = 36  # prctl.h: what a killed command leaves behind comes to this process


class Child:
    """A command in a session of its own; a folder has its output and its compiled programs."""

    def __init__(self, command, folder, prelude="", *, compiles=False):
        """Runs the prelude's code before the command. Only one that `compiles`, which must not be killed, keeps programs."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        settings = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PLATFORMS": "cpu"}
        settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0" if compiles else "1e9"
        (folder / "compiled").mkdir(parents=True, exist_ok=True)
        self.said = [folder / "stdout", folder / "stderr"]
        entry = ENTRY.format(tests=str(ROOT / "tests"), prelude=prelude)
        with self.said[0].open("w") as out, self.said[1].open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", entry, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **settings},
                start_new_session=True,
            )

    def wait(self, seconds):
        """Waits for its end and that of all that it started; True if it has come."""
        end = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None:
                try:
                    while os.waitpid(-self.process.pid, os.WNOHANG)[0]:
                        pass
                except ChildProcessError:
                    return True
            if time.monotonic() >= end:
                return False
            time.sleep(0.001)

    def send(self, number):
        """Sends a signal to it and all that it started; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self):
        """Waits for its end; one that hangs is killed, and its status is None."""
        late = not self.wait(commands.PATIENCE)
        if late:
            self.send(signal.SIGKILL)
            self.wait(60)
        out, err = (path.read_text(errors="backslashreplace") for path in self.said)
        return commands.Ended(None if late else self.process.returncode, out, f"{err}hangs\n" if late else err)

    def first_write(self, folder, before):
        """Waits until it has written into a folder; the time of that, or None where it ends before."""
        hangs = time.monotonic() + commands.PATIENCE
        while not self.wait(0.001) and time.monotonic() < hangs:
            if commands.look(folder) != before:
                return time.monotonic()
        return None


def compare(writer, expected, out, ended, *, refuses=False):
    """What is wrong with a command that should have ended well, or, with `refuses`, with status 2; "" if nothing is."""
    if ended.status != 0 and not (refuses and ended.status == 2):
        return f"status {ended.status}: {' '.join(ended.err.split())[-250:]}"
    try:
        found = writer.left(out)
    except Exception as error:  # whatever a kill has left, the harness goes on
        return f"what it leaves cannot be read: {error}"
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return f"{len(differing)} differ, such as {differing[0]}" if differing else ""


def undisturbed(writer, out, folder):
    """What a command leaves, its seconds from its first write to its end, and its stderr."""
    for _ in range(2):  # the first compiles
        writer.begin(out)
        before = commands.look(out)
        child = Child(writer.command(out), folder, compiles=True)
        first = child.first_write(out, before)
        ended = child.end()
        seconds = time.monotonic() - (first or 0)
        assert first and ended.status == 0, ended.err
    return writer.left(out), seconds, ended.err


def kills(seed, count, folder):
    """kill -9 after the first write, 50 of each writing command: the final result is that of an undisturbed run."""
    name, writer = list(made.WRITERS.items())[seed]
    draw, out, outcome = random.Random(name), folder / "out", Outcome()
    expected, usual, _ = undisturbed(writer, out, folder)
    killed = starts = ends = torn = 0
    refuses = False  # an export is complete before its process ends: one that was killed then is not written again
    new, last = True, False
    while not last:
        last = killed == count
        if new:
            writer.begin(out)
        before, starts = commands.look(out), starts + 1
        child = Child(writer.command(out), folder)
        if not last and child.first_write(out, before) and not child.wait(draw.uniform(0, usual)):
            child.send(signal.SIGKILL)
        ended = child.end()
        new = ended.status != -signal.SIGKILL
        killed += not new
        if new or last:
            wrong = compare(writer, expected, out, ended, refuses=refuses)
            ends, torn = ends + (ended.status == 0), torn + ("torn" in made.records(out).values())
            outcome.add(f"{name}, start {starts}", wrong)
        refuses = not new and name in ("export", "import")
    counted = {"starts": starts, "ends": ends, "compared": len(expected), "torn": torn}
    outcome.count, outcome.more = killed, {"command": name, **counted, "undisturbed_seconds": round(usual, 2)}
    return outcome


STOPPED = re.compile(
    r"(?:SIGTERM: it saves .*\n)?(?:"
    r"stopped by SIGTERM before a step was trained: .*|.*: stopped at step (?P<step>\d+) of \d+; .*|ended by SIGTERM at once; .*"
    r")\n"
)
"""All that a training prints on stderr that is told to end."""
AT_ONCE = "from bam_jax.parallel import processes; processes.URGENT = 0\n"
"""The prelude of a training that the second of two signals ends, however fast it comes."""
CLOCK = """
import time
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


def _wait(child, seconds, number):
    """Sends a signal after some seconds; False if the command ends before."""
    if child.wait(seconds):
        return False
    child.send(number)
    return True


def _terminate(child, draw, usual, out):
    return _wait(child, draw.uniform(0, usual), signal.SIGTERM)


def _twice(child, draw, usual, out):
    sent = _terminate(child, draw, usual, out)
    return sent and (_wait(child, draw.uniform(0, 0.05), signal.SIGTERM) or sent)


def _in_a_save(child, draw, usual, out):
    if any(child.wait(draw.uniform(0, 0.3)) for _ in range(draw.randrange(6))):
        return False
    while not any(out.rglob("*.draft*")):
        if child.wait(0):
            return False
    return _wait(child, draw.uniform(0, 0.02), signal.SIGTERM)


def _pause(child, draw, usual, out):
    sent = False
    while _wait(child, draw.uniform(0, usual / 2), signal.SIGSTOP):
        time.sleep(draw.uniform(0, 2))
        child.send(signal.SIGCONT)
        sent = True
    return sent


KINDS = {
    "SIGTERM": ("train", _terminate, ""),
    "SIGTERM within a save": ("train", _in_a_save, ""),
    "SIGTERM twice": ("train", _twice, AT_ONCE),
    **{f"SIGSTOP of {command}": (command, _pause, "") for command in ("train", "evaluate", "prepare")},
    **{f"clock of {command}": (command, lambda *_: True, CLOCK) for command in ("train", "evaluate", "prepare")},
}
"""A command, what interrupts its child after the first write (False: it ended before), and a prelude."""


def _stopped(ended, began, run):
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


def _durations(folder):
    """A complaint about a duration in a record that cannot be."""
    for path in folder.rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            for name, value in json.loads(line).items():
                if "second" in name and not 0 <= value < commands.PATIENCE * (1 if name == "seconds" else 1e6):
                    return f"{path.name}: {name} is {value}"
    return ""


def interruptions(seed, count, folder):
    """Commands stopped, continued, terminated, or with a jumping clock: an undisturbed run's result, to the bit."""
    if seed == len(KINDS):
        return _other_processes(folder)
    name, (command, disturb, prelude) = list(KINDS.items())[seed]
    writer, draw, out, failures = made.WRITERS[command], random.Random(name), folder / "out", []
    expected, usual, quiet = undisturbed(writer, out, folder)
    interrupted, ways, new = 0, {}, True
    while interrupted < count or not new:
        last = interrupted >= count
        if new:
            writer.begin(out)
        before, began = commands.look(out), run_folder.latest_step(out / "run")
        jump = prelude.format(jump=draw.choice((-86400, 86400)), after=draw.uniform(0, 1.5 * usual))
        child = Child(writer.command(out), folder, jump)
        interrupted += not last and child.first_write(out, before) is not None and disturb(child, draw, usual, out)
        ended = child.end()
        way = f"status {ended.status}" + (" at once" if "ended by" in ended.err else "")
        ways[way] = ways.get(way, 0) + 1
        new = ended.status == 0
        if new:
            wrong = compare(writer, expected, out, ended) or _durations(out)
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


def _other_processes(folder):
    """A training that goes on four times with other processes and devices."""
    often = {"batch": 8, "context": 32, "checkpoint_every": 10, "optimizer": {"warmup": 5}}
    (folder / "tiny.py").write_text(made.to_file(made.values(folder) | often))
    steps, two = "--config.steps=400", ["--config.mesh.data=2", "--config.mesh.fsdp=2"]
    stages = {
        100: (1, 1, []),
        200: (2, 1, two[:1]),
        300: (1, 8, [*two, "--config.mesh.tensor=2"]),
        400: (1, 2, two[1:]),
    }
    failures = []
    for until, (count, devices, mesh) in stages.items():
        started = processes.start(folder, "run", count, steps, *mesh, devices=devices)
        if until < 400:
            processes.wait_for(started, lambda until=until: processes.reached(folder) >= until - 50)
            started[0].send_signal(signal.SIGTERM)
        codes, said = processes.ended(folder, "run", started)
        if codes != [errors.AGAIN if until < 400 else 0] * count:
            failures.append(f"to step {until}: {codes}: {said[0][-300:]!r}")
    expected, found = (processes.whole(folder, name, steps)[0] for name in ("alone", "run"))
    if not failures and not np.allclose(found, expected, rtol=1e-4):
        failures.append("other losses than those of one process")
    return Outcome(len(stages), failures, {"kind": "other processes"})


PAGE = os.sysconf("SC_PAGE_SIZE")
ENOUGH = f"size={2**26},nr_inodes=100000"


@functools.cache
def _half():
    """A run that is trained halfway."""
    run = made.inputs() / "half"
    train = "bam_jax.train --config={given}/long.py --workdir={run} --config.steps=30 --config.checkpoint_every=15 --no-progress"
    made.well(train, given=made.inputs(), run=run)
    return run


def _padded(disk, number):
    """A record of something else, which leaves less of its page than the new records take: each time other bytes."""
    run = disk / "decoder"
    known = json.loads((run / "tokenizer" / "identity.json").read_text())["hash"]
    record = {"eval": "another", "length": 64, "depth": None, "value": 1.0, "unit": "u", "first": 0, "n": 1, "step": 3}
    record |= {"overrides": {}, "seconds": 0.5, "commit": "abc", "tokenizer": known, "task": ""}
    record["task"] = "x" * (PAGE - 16 - 48 * number - len(jsonl.line(record)))
    (run / "results.jsonl").write_text(jsonl.line(record) + "\n")


def _swept(disk, number):
    """The folder of an experiment whose runs are trained and not evaluated."""
    unmeasured = shutil.ignore_patterns("results.jsonl", "logs")
    shutil.copytree(made.inputs() / "runs", disk / "runs", ignore=unmeasured)


BEGINNINGS = {
    "evaluate": (30, _padded),
    "train": (2, lambda disk, number: shutil.copytree(_half(), disk / "run")),
    "report": (2, lambda disk, number: (disk / "runs" / "report.md").write_text("before\n")),
    "sweep": (2, _swept),
}
"""The beginnings of a command, and what puts all but the first into the folder that it writes."""
NAMES = (*BEGINNINGS, *(name for name in made.WRITERS if name not in BEGINNINGS))


@contextlib.contextmanager
def _mounted(place):
    """A file system in memory at a folder; gives a function that sets its size, as in "size=4096" or "nr_inodes=9"."""
    mount = lambda options, **how: subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], **how)
    first = mount(ENOUGH, capture_output=True, text=True)
    if first.returncode:
        raise Unavailable(
            f"it mounts a small file system, as root or below `unshare --map-root-user --mount`: {first.stderr.strip()}"
        )
    try:
        yield lambda options: mount(f"remount,{options}", check=True)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def _used(disk):
    """Pages and files that are taken on a file system."""
    about = os.statvfs(disk)
    return about.f_blocks - about.f_bfree, about.f_files - about.f_ffree


def _lost(before, whole, disk):
    """A complaint about a file that is neither as it was, nor grown as records do, nor as an undisturbed command leaves it."""
    after = commands.contents(disk)
    for name, was in before.items():
        grown = name.endswith(".jsonl") and name in after and after[name].startswith(was)
        if not grown and after.get(name) not in (was, whole.get(name)):
            return f"{name} is {'another' if name in after else 'gone'}"
    logs = [bits.decode(errors="replace") for name, bits in sorted(after.items()) if name.endswith(".log")]
    return next((f"a row's traceback: {log.strip()[-300:]}" for log in logs if "Traceback" in log), "")


def full_disk(seed, count, folder):
    """A full disk at each page and file that a writing command needs: one line, files intact, the same result with more room."""
    name = NAMES[seed]
    writer, disk = made.WRITERS[name], folder / "disk"
    beginnings, begin = BEGINNINGS.get(name, (1, None))
    command = writer.command(disk / "out")
    disk.mkdir()
    with _mounted(disk) as resize:

        def fresh(number):
            resize(ENOUGH)
            writer.begin(disk / "out")
            if number:
                begin(disk / "out", number)
            return _used(disk)

        expected, whole, places = [], [], []
        for number in range(min(beginnings, count)):
            pages, inodes = fresh(number)
            ended = Child(command, folder, compiles=True).end()
            assert ended.status == 0, ended.err
            expected.append(writer.left(disk / "out"))
            whole.append(commands.contents(disk))
            more_pages, more_inodes = _used(disk)
            # a size of 0 is no limit
            limits = [f"size={n * PAGE}" for n in range(max(1, pages), max(2, pages + 1, more_pages))]
            if number < 2:  # the others take as many files
                limits += [f"nr_inodes={inodes + n}" for n in range(more_inodes - inodes)]
            places.append([(number, limit) for limit in random.Random(seed).sample(limits, len(limits))])
        turns = itertools.chain.from_iterable(itertools.zip_longest(*places))
        tried = sorted(list(filter(None, turns))[:count])
        full, outcome = 0, Outcome()
        for number, limit in tried:
            fresh(number)
            before = commands.contents(disk)
            resize(limit)
            ended = Child(command, folder).end()
            full += ended.status != 0
            wrong = commands.complaint(ended, (0, 1, 2) if name == "sweep" else (0, 2))
            wrong = wrong or _lost(before, whole[number], disk)
            resize(ENOUGH)
            if not wrong:
                again = Child(command, folder).end()
                wrong = commands.complaint(again, (0,)) or compare(writer, expected[number], disk / "out", again)
                wrong = f"with more room: {wrong}" if wrong else _lost(before, whole[number], disk)
            outcome.add(f"{name}, {limit}, beginning {number}", wrong)
    if 2 * full < len(tried):
        outcome.failures.append(f"{name}: the disk was full at {full} of {len(tried)} places only")
    outcome.more = {"command": name, "places": sum(map(len, places)), "tried": len(tried), "ended_full": full}
    return outcome
