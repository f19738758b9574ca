"""Random configurations: command-line options, values in a configuration file, and the text of one.

`train` must refuse an invalid configuration in one line with status 2. It must not create the run's folder, or change an
existing run. A valid configuration ends just before its first step ("laid out"), after the model is laid out, the text read and
the folder claimed. All cases of a part differ. Twenty refused ones also run as separate processes, which must end alike.
"""

import contextlib
import copy
import functools
import os
import random
import resource
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis
import jax
from endurance import commands, made
from endurance.figures import Figure, Outcome
from hypothesis import strategies as st

from bam_jax import config
from bam_jax.encodings import ENCODINGS

SAMPLE = 20
"""Cases of a part that run as processes as well, where a part has so many."""
SPACE = 12 * 2**30
"""Bytes of address space that a part may take: a model that is too large ends in a line, and not with the harness."""
LIKELY = {
    int: ("0", "1", "2", "4", "16"),
    float: ("0", "0.5", "1", "1e-3"),
    bool: ("True", "False"),
    str: (*ENCODINGS, "on", "off", "effective", "bfloat16", "llama", "first_fit"),
}
"""Values of a type, of which a field of it takes some."""
SILENT = "ignore::SyntaxWarning"  # what Python says of a spoilt file is not the package's


def measure(seed: int, count: int, folder: Path) -> Outcome:
    shared = commands.of_test("test_fuzz")
    trained = made.common() / "run"
    plain = made.values(made.common())  # the run may be resumed with it
    kept, new, file = folder / "kept", folder / "new", folder / "fuzzed.py"
    before = commands.snapshot(trained)
    failures, refused, known = [], [], set()
    laid_out = occupied_cases = 0
    key_and = lambda values: st.tuples(shared.KEYS, values)
    # A key of a group, or of all, that is no text; a dictionary has it as it is.
    odd = st.dictionaries(shared.NO_TEXT, shared.JSON, min_size=1, max_size=2)
    groups = st.sampled_from(sorted({name.rpartition(".")[0] for name in shared.NAMES if "." in name}))

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=2 * count,  # some come twice
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        st.one_of(
            st.lists(key_and(shared.TEXTS), min_size=1, max_size=3),
            st.lists(st.sampled_from(_likely(shared.NAMES)), min_size=1, max_size=3),
            st.lists(key_and(shared.JSON | shared.TEXTS), min_size=1, max_size=2).map(dict),
            odd | st.dictionaries(groups | shared.KEYS, odd, min_size=1, max_size=2),
            st.randoms(use_true_random=False),
        ),
        st.booleans(),
    )
    def case(drawn, occupied):
        nonlocal laid_out, occupied_cases
        arguments, source = [], made.to_file(plain).encode()
        match drawn:
            case [*pairs]:
                arguments = [f"--config.{key}={value}" for key, value in pairs]
            case dict():
                source = made.to_file(_changed(plain, drawn)).encode(errors="replace")
            case chance:
                source = _spoilt(source, chance)
        known_as = (tuple(arguments), source, occupied)
        if len(known) == count or known_as in known or not all(map(_is_argument, arguments)):
            return
        known.add(known_as)
        if not kept.exists():
            shutil.copytree(trained, kept)
        file.write_bytes(source)
        command = [
            "bam_jax.train",
            f"--config={file}",
            f"--workdir={kept if occupied else new}",
            "--no-progress",
            *arguments,
        ]
        with made.before_first_step():
            ended = commands.call(command)
        wrong, same = commands.complaint(ended), commands.snapshot(kept) == before
        if not wrong and ended.status == 2 and not same:
            wrong = "refused, and the run that was there is another"
        if not wrong and ended.status == 2 and new.exists():
            wrong = "refused, and a folder is left"
        if wrong:
            failures.append(f"{wrong} ({' '.join(command[4:])[:200]!r} {source[-200:]!r})")
        laid_out += ended.status == 0
        occupied_cases += occupied
        if ended.status == 2:
            refused.append((command, source, ended.err))
        if ended.status == 0 and laid_out % 50 == 0:
            jax.clear_caches()
        shutil.rmtree(new, ignore_errors=True)
        if not same:
            shutil.rmtree(kept)

    with warnings.catch_warnings(), _limited(SPACE):
        warnings.filterwarnings("ignore", category=SyntaxWarning)
        case()
    alike = 0
    sample = random.Random(seed).sample(refused, SAMPLE) if count >= 50 * SAMPLE else []
    for command, source, said in sample:
        file.write_bytes(source)
        alone = commands.start(command, env={**os.environ, "PYTHONWARNINGS": SILENT})
        alike += (alone.status, alone.err) == (2, said)
        if (alone.status, alone.err) != (2, said):
            failures.append(f"a process ends otherwise: {alone.status} {alone.err[-200:]!r}, not {said[-200:]!r}")
    more = {"laid_out": laid_out, "folders_with_a_run": occupied_cases, "processes_alike": alike}
    return Outcome(len(known), failures, more)


def _likely(names: Sequence[str]) -> list[tuple[str, str]]:
    """Fields with values of their types."""
    types = {name: type(functools.reduce(getattr, name.split("."), config.Config())) for name in names}
    return [(name, value) for name, kind in types.items() if kind in LIKELY for value in LIKELY[kind]]


def _changed(tree: dict, values: dict) -> dict:
    """A tree with other values at some dotted names, or at keys that are no text."""
    changed = copy.deepcopy(tree)
    for name, value in values.items():
        *groups, last = name.split(".") if isinstance(name, str) else [name]
        group = changed
        for each in groups:
            group[each] = group = dict(group[each]) if isinstance(group.get(each), dict) else {}
        group[last] = value
    return changed


def _is_argument(text: str) -> bool:
    """True of what a command line can hold."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


@contextlib.contextmanager
def _limited(space: int) -> Iterator[None]:
    """A limit on the address space that this process takes besides what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + space, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _spoilt(source: bytes, chance: random.Random) -> bytes:
    """The text of a configuration file with something cut, put in or changed."""
    raw = bytearray(source)
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


FIGURE = Figure(
    what="random configurations: refused in one line, with nothing created or overwritten",
    unit="configurations",
    wanted=10_000,
    part=1000,
    short=30,
    minutes=120,
    measure=measure,
)
