"""Fuzzed configurations: options of the command, values of a configuration file, and the text of one.

A configuration that is none ends `train` in one line with status 2; its folder is not made, and one that is there stays as it is.
One that will do ("taken") ends before its training. Of every 25th case it ends only before its first step ("laid out"): its model
is laid out, its text is read, its folder is claimed. Twenty refused ones are given to a process of their own, which ends alike.
"""

import contextlib
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import hypothesis
from endurance import commands
from endurance.figures import Figure, Outcome
from hypothesis import strategies as st

from bam_jax import train
from bam_jax.training import loop, session

SAMPLE = 20
"""Cases of a part that run as processes as well, where a part has so many."""
SMALL = {
    "encoding": "bam",
    "context": 16,
    "batch": 2,
    "steps": 3,
    "model": {"layers": 1, "width": 16, "heads": 2, "hidden": 16},
    "data": {"tokenizer": "byte"},
}


def to_file(tree: dict) -> str:
    """A configuration file of some values."""
    return f"import ml_collections\n\n\ndef get_config():\n    return ml_collections.ConfigDict({tree!r})\n"


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Fuzzes so many configurations; see `figures.Figure`."""
    shared = commands.of_test("test_fuzz")
    text = folder / "text.txt"
    text.write_text("a tale of some length, told again and again. " * 200)
    base = {**SMALL, "data": {"tokenizer": "byte", "source": str(text)}}
    kept, new, file = folder / "kept", folder / "new", folder / "fuzzed.py"
    (folder / "plain.py").write_text(to_file(base))
    failures, refused = [], []
    cases = taken = laid_out = 0
    with _until(loop, "_train"):
        commands.call(train.main, [f"--config={folder / 'plain.py'}", f"--workdir={kept}"])
    before = commands.snapshot(kept)
    assert before, "the plain configuration is refused"

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        st.lists(st.tuples(shared.KEYS, shared.TEXTS), max_size=3),
        st.dictionaries(shared.KEYS, shared.JSON | shared.TEXTS, max_size=2),
        st.sampled_from(["options", "options", "values", "text"]),
        st.booleans(),
        st.randoms(use_true_random=False),
    )
    def case(pairs, values, kind, occupied, chance):
        nonlocal cases, taken, laid_out
        deep = cases % 25 == 0
        cases += 1
        workdir = kept if occupied else new
        arguments = [f"--config.{key}={value}" for key, value in pairs] if kind == "options" else []
        arguments = [argument for argument in arguments if "\0" not in argument and argument.isprintable()]
        source = to_file(base | values if kind == "values" else base)
        file.write_bytes(_spoilt(source, chance) if kind == "text" else source.encode(errors="replace"))
        argv = [f"--config={file}", f"--workdir={workdir}", "--no-progress", *arguments]
        with _until(*((loop, "_train") if deep else (session, "train"))):
            ended = commands.call(train.main, argv)
        wrong = commands.complaint(ended)
        if not wrong and ended.status == 2 and commands.snapshot(kept) != before:
            wrong = "refused, and the run that was there is another"
        if not wrong and ended.status == 2 and new.exists():
            wrong = "refused, and a folder is left"
        if wrong:
            failures.append(f"{wrong} ({' '.join(argv[3:])[:200]!r} {file.read_bytes()[-200:]!r})")
        taken += ended.status == 0
        laid_out += deep and ended.status == 0
        if ended.status == 2 and len(refused) < SAMPLE:
            refused.append((argv, file.read_bytes(), ended.err))
        shutil.rmtree(new, ignore_errors=True)
        if commands.snapshot(kept) != before:
            shutil.rmtree(kept)
            with _until(loop, "_train"):
                commands.call(train.main, [f"--config={folder / 'plain.py'}", f"--workdir={kept}"])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a spoilt file's Python says of itself
        case()
    alike = 0
    for argv, contents, said in refused if count >= 50 * SAMPLE else []:
        file.write_bytes(contents)
        alone = commands.start("bam_jax.train", argv)
        alike += (alone.status, alone.err) == (2, said)
        if (alone.status, alone.err) != (2, said):
            failures.append(f"a process ends otherwise: {alone.status} {alone.err[-200:]!r}, not {said[-200:]!r}")
    return Outcome(cases, failures, {"taken": taken, "laid_out": laid_out, "processes_alike": alike})


def _spoilt(source: str, chance: random.Random) -> bytes:
    """The text of a configuration file with something cut, put in or changed."""
    raw = bytearray(source.encode())
    for _ in range(chance.randint(1, 2)):
        at = chance.randrange(len(raw))
        match chance.choice(["flip", "cut", "end", "insert", "number"]):
            case "flip":
                raw[at] ^= 1 << chance.randrange(8)
            case "cut":
                del raw[at : at + chance.randint(1, 30)]
            case "end":
                del raw[at + 1 :]
            case "insert":
                words = [
                    b"(",
                    b"\0",
                    b"\xff",
                    b"1/0",
                    b"x",
                    b"\n  ",
                    b"None",
                    b"]",
                    b"raise OSError",
                    b"import nothing\n",
                ]
                raw[at:at] = chance.choice(words)
            case "number":
                raw = bytearray(raw.replace(b"16", chance.choice([b"-1", b"0", b"1e99", b"None", b"9" * 30]), 1))
        if not raw:
            break
    return bytes(raw)


@contextlib.contextmanager
def _until(module: ModuleType, name: str) -> Iterator[None]:
    """All of `train` before a function of it: to compile ten thousand steps takes days."""
    with mock.patch.object(module, name):
        yield


FIGURE = Figure(
    what="fuzzed configurations: one line, status 2, nothing made or overwritten",
    unit="configurations",
    wanted=10_000,
    part=1000,
    short=60,
    minutes=60,
    measure=measure,
)
