"""Random configurations that `train` is given."""

import contextlib
import copy
import functools
import os
import random
import resource
import shutil
import warnings
from pathlib import Path

import hypothesis
import jax
import test_fuzz as fuzz
from endurance import commands, made
from endurance.figures import FIGURES, Outcome
from endurance.spoil import spoilt
from hypothesis import strategies as st

from bam_jax import config
from bam_jax.encodings import ENCODINGS

LIKELY = {
    int: ("0", "1", "2", "4", "16"),
    float: ("0", "0.5", "1", "1e-3"),
    bool: ("True", "False"),
    str: (*ENCODINGS, "on", "off", "effective", "bfloat16", "llama", "first_fit"),
}
"""Values of a type, of which a field of it takes some."""
FIELDS = {name: type(functools.reduce(getattr, name.split("."), config.Config())) for name in fuzz.NAMES}
LIKELY_PAIRS = [(name, value) for name, kind in FIELDS.items() for value in LIKELY.get(kind, ())]
key_and = lambda values: st.tuples(fuzz.KEYS, values)
# A key of a group, or of all, that is no text; a dictionary has it as it is.
ODD = st.dictionaries(fuzz.NO_TEXT, fuzz.JSON, min_size=1, max_size=2)
GROUPS = st.sampled_from(sorted({name.rpartition(".")[0] for name in fuzz.NAMES if "." in name}))
DRAWN = st.one_of(
    st.lists(key_and(fuzz.TEXTS), min_size=1, max_size=3),  # options
    st.lists(st.sampled_from(LIKELY_PAIRS), min_size=1, max_size=3),
    st.lists(key_and(fuzz.JSON | fuzz.TEXTS), min_size=1, max_size=2).map(dict),  # values in a file
    ODD | st.dictionaries(GROUPS | fuzz.KEYS, ODD, min_size=1, max_size=2),
    st.randoms(use_true_random=False),  # the text of a file
)


def configurations(seed, count, folder):
    """Random configurations: refused in one line, with nothing created or overwritten."""
    plain = made.values(made.common())  # the run may be resumed with it
    kept, new, file = folder / "kept", folder / "new", folder / "fuzzed.py"
    outcome, refused, known = Outcome(), [], set()
    laid_out = occupied_cases = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=2 * count,  # some come twice
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(DRAWN, st.booleans())
    def case(drawn, occupied):
        nonlocal laid_out, occupied_cases
        arguments, source = [], made.to_file(plain).encode()
        match drawn:
            case [*pairs]:
                arguments = [f"--config.{key}={value}" for key, value in pairs]
            case dict():
                source = made.to_file(_changed(plain, drawn)).encode(errors="replace")
            case chance:
                source = spoilt(source, chance)
        known_as = (tuple(arguments), source, occupied)
        if len(known) == count or known_as in known or not all(map(_is_argument, arguments)):
            return
        known.add(known_as)
        if not kept.exists():
            shutil.copytree(made.common() / "run", kept)
        file.write_bytes(source)
        run = kept if occupied else new
        command = ["bam_jax.train", f"--config={file}", f"--workdir={run}", "--no-progress", *arguments]
        before = commands.look(kept)
        with made.before_first_step():
            ended, wrong = commands.judge(command, kept)
        if not wrong and ended.status == 2 and new.exists():
            wrong = "refused, and a folder is left"
        outcome.add(f"{' '.join(command[4:])[:200]!r} {source[-200:]!r}", wrong)
        laid_out += ended.status == 0
        occupied_cases += occupied
        if ended.status == 2:
            refused.append((command, source, ended.err))
        if ended.status == 0 and laid_out % 50 == 0:
            jax.clear_caches()
        shutil.rmtree(new, ignore_errors=True)
        if commands.look(kept) != before:
            shutil.rmtree(kept)

    # A model that is too large ends in a line, and not with the harness.
    with warnings.catch_warnings(), _limited(12 * 2**30):
        warnings.filterwarnings("ignore", category=SyntaxWarning)  # what Python says of a spoilt file
        case()
    sample = random.Random(seed).sample(refused, 20) if count == FIGURES["configurations"].part else []
    alike = 0
    for command, source, said in sample:
        file.write_bytes(source)
        alone = commands.start(command, env={**os.environ, "PYTHONWARNINGS": "ignore::SyntaxWarning"})
        alike += (alone.status, alone.err) == (2, said)
        if (alone.status, alone.err) != (2, said):
            outcome.failures.append(
                f"a process ends otherwise: {alone.status} {alone.err[-200:]!r}, not {said[-200:]!r}"
            )
    outcome.more = {"laid_out": laid_out, "folders_with_a_run": occupied_cases, "processes_alike": alike}
    return outcome


def _changed(tree, values):
    """A tree with other values at some dotted names, or at keys that are no text."""
    changed = copy.deepcopy(tree)
    for name, value in values.items():
        *groups, last = name.split(".") if isinstance(name, str) else [name]
        group = changed
        for each in groups:
            group[each] = group = dict(group[each]) if isinstance(group.get(each), dict) else {}
        group[last] = value
    return changed


def _is_argument(text):
    """True of what a command line can hold."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


@contextlib.contextmanager
def _limited(space):
    """A limit on the address space that this process takes besides what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + space, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
