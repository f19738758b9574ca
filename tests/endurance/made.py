"""A small run that has been trained and evaluated, made once, as what faults befall."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from endurance import commands

from bam_jax import evaluate, train
from bam_jax.convert import __main__ as convert
from bam_jax.training import loop

SMALL = {
    "encoding": "bam",
    "context": 16,
    "batch": 2,
    "steps": 3,
    "log_every": 1,
    "checkpoint_every": 2,
    "model": {"layers": 1, "width": 16, "heads": 2, "hidden": 16},
}


def to_file(tree: dict) -> str:
    """A configuration file of some values."""
    return f"import ml_collections\n\n\ndef get_config():\n    return ml_collections.ConfigDict({tree!r})\n"


def text(folder: Path) -> Path:
    """A text to train on, long enough for all that is asked of it."""
    path = folder / "text.txt"
    path.write_text("".join(f"day {n} of a tale of some length, told again and again. " for n in range(300)))
    return path


def values(folder: Path) -> dict:
    """A small configuration, with a text in the folder."""
    return {**SMALL, "data": {"tokenizer": "byte", "source": str(text(folder))}}


def configuration(folder: Path, **changes: object) -> str:
    """The option that names a small configuration."""
    path = folder / "small.py"
    path.write_text(to_file({**values(folder), **changes}))
    return f"--config={path}"


@functools.cache
def common() -> Path:
    """A folder with a text, the file of a configuration, `run` and `exported`; a process makes it once.

    The run is a decoder of 3 steps with checkpoints at 2 and 3, metrics and a record of an evaluation; `exported` has its
    weights.
    """
    folder = Path(tempfile.mkdtemp(prefix="endurance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run = folder / "run"
    well(train.main, [configuration(folder), f"--workdir={run}", "--no-progress"])
    well(evaluate.main, [f"--run={run}", "--eval=perplexity", "--lengths=16", "--tokens=64", "--no-progress"])
    well(convert.main, [f"--run={run}", f"--export={folder / 'exported'}"])
    return folder


def well(main: commands.Main, argv: Sequence[str]) -> commands.Ended:
    """Calls a command that must succeed."""
    ended = commands.call(main, argv)
    if ended.status != 0:
        raise RuntimeError(f"{main.__module__} {' '.join(argv)} ended with {ended.status}: {ended.err}")
    return ended


def before_first_step(then: Callable[[Any, Any], object] | None = None) -> Any:
    """A block in which `train` ends well before its first step, and `then` gets the state and the batch of that step."""

    def step(state: Any, batch: Any) -> None:
        then(state, batch)
        raise SystemExit

    def make_step(*_: object) -> Callable[[Any, Any], None]:
        if then is None:
            raise SystemExit
        return step

    return mock.patch.object(loop, "make_step", make_step)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for locks."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Writes files below a folder that is not there."""
    for name, written in files.items():
        path = folder / name
        os.makedirs(path.parent, exist_ok=True)
        path.write_bytes(written)
