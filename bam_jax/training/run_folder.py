"""The folder of a run: its files, who may write to them, and how far the run is.

config.json        its configuration
tokenizer/         its tokenizer's files
checkpoints/       see `checkpoint`
model.safetensors  in place of checkpoints/ if it is not trained on: see `weights`
metrics.jsonl      see `metrics`
results.jsonl      see `evals.records`
profile/           traces of steps, if config.profile_steps requests them
diverged           present if the last training ended with numbers that are not finite; it names them
.lock              held by the process that trains
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.config.sections import COUNT
from bam_jax.data import tokenizers
from bam_jax.data.sources import corpus
from bam_jax.data.tokenizers.copies import FOLDER, save_tokenizer
from bam_jax.system import files, jsonl, lock, regular
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
WEIGHTS = "model.safetensors"
KEPT = 2  # checkpoints: the newest, and the previous one in case the newest is damaged
METRICS = "metrics.jsonl"
RESULTS = "results.jsonl"
CHECKSUMS = "sums.json"  # of a checkpoint, which is complete only with this file
DIVERGED = "diverged"
LEASED = ".leased"  # in the local copy of a run that is being trained in a bucket
BUNDLED = Path(__file__).parents[1] / "trained"
"""The folder of the models that come with the package, each a run without checkpoints."""

FREE = (
    "logger",
    "profile_steps",
    "log_every",
    "checkpoint_every",
    "eval_every",
    "data.workers",
    "optimizer.accumulate",
)
"""Fields that a resumed run may change, besides the mesh: they do not change the mathematics."""
_DAMAGED = "put it back from a copy, or train into another folder"
_EDITED = f"put it back from a copy, or take its {jsonl.CRC} out where the change is yours"


@contextlib.contextmanager
def claim(
    workdir: str | os.PathLike,
    config: Config,
    tokenizer: tokenizers.Tokenizer,
    longer: bool = False,
    moved: bool = False,
) -> Iterator[int]:
    """Make a folder the run of a configuration, or check that it already is, and keep other processes from claiming it.

    Yields the run's previous total of steps. The claim ends with the block, or when the process ends in whatever way.
    """
    run = Path(workdir)
    check_outside_data(f"workdir {run}", run, config)
    if not (run / CONFIG).exists():
        make_empty(run)
    with lock.hold(run / lock.NAME, f"workdir {run} is in use by another training; give another folder"):
        # Checked only now, because another process that makes the same run may have written it meanwhile.
        if not (run / CONFIG).exists():
            write_config(run, config)
        elif _is_bare(run) and configs.to_json(read_config(run)) != configs.to_json(config):
            shutil.rmtree(run / FOLDER, ignore_errors=True)
            write_config(run, config)
        before = check_configuration(run, config, longer, moved)
        if not (run / CHECKPOINTS).exists() and latest_step(run) not in (0, config.steps):
            holds = f"workdir {run} holds weights without the state of their training"
            raise UserError(f"{holds}; give a new folder and --config.start={run}")
        save_tokenizer(tokenizer, run)
        yield before


def is_claimed(run: Path) -> bool:
    """Whether a process is training into a run's folder at this moment."""
    return (run / LEASED).exists() or lock.is_held(run / lock.NAME)


def latest_step(run: str | os.PathLike) -> int:
    """The step of a run's newest checkpoint, or of its weights; 0 if there are none, or no run."""
    return latest_checkpoint(run) or _step_of_weights(Path(run) / WEIGHTS)


def latest_checkpoint(run: str | os.PathLike) -> int:
    """The step of a run's newest checkpoint; 0 if there are none."""
    return max(_steps(Path(run)), default=0)


def _steps(run: Path) -> list[int]:
    folder = run / CHECKPOINTS
    names = os.listdir(folder) if regular.check_folder(folder) else []
    return [int(name) for name in names if name.isdecimal() and regular.check_folder(folder / name)]


def _is_bare(run: Path) -> bool:
    """Whether nothing has been trained in a folder yet: it has no checkpoint, no weights and no record."""
    return not (latest_step(run) or ((run / METRICS).exists() and (run / METRICS).stat().st_size))


def _step_of_weights(path: Path) -> int:
    try:
        regular.size(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    library = import_extra("safetensors", path.name, "train")
    try:
        with library.safe_open(path, framework="np") as file:
            step = (file.metadata() or {}).get("step", "")
    except (OSError, library.SafetensorError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); copy it again") from error
    if not (step.isascii() and step.isdecimal() and 0 < int(step[:12]) <= COUNT):
        raise UserError(f"{path} does not say the step of its training ({step[:20]!r}); export the run again")
    return int(step[:12])


def trained_step(run: str | os.PathLike, step: int | None = None) -> int:
    """The step of a run's newest checkpoint, or the given one if there is a checkpoint of it; otherwise a UserError."""
    read_config(run)
    newest = latest_step(run)
    if newest == 0 and is_claimed(Path(run)):
        when = "every config.checkpoint_every steps and at the end"
        raise UserError(f"{run} is being trained and has no checkpoint yet; it gets one {when}, so try later")
    if newest == 0:
        remedy = f"train it ({_train(run)}), or copy all of a folder that was exported"
        raise UserError(f"{run} has no checkpoint, nor {WEIGHTS}; {remedy}")
    steps = sorted(_steps(Path(run))) or [newest]
    if step is not None and (type(step) is not int or step not in steps):
        raise UserError(f"{run} has no checkpoint of step {step!r}; it has those of {files.shortened(steps)}")
    return newest if step is None else step


def write_config(run: Path, config: Config) -> None:
    """Write the configuration of a run, with a checksum."""
    files.write_atomically(run / CONFIG, jsonl.document(configs.to_dict(config), 2, sort=True))


def renew(run: Path, config: Config) -> None:
    """Write the number of steps and the data paths with which a claimed run resumes, if they changed."""
    before, now = _fields(read_config(run)), _fields(config)
    renewed = ["steps", *filter(_is_place, before.keys() | now.keys())]
    if any(before.get(name) != now.get(name) for name in renewed):
        write_config(run, config)


def read_config(run: str | os.PathLike) -> Config:
    """The configuration of a run."""
    path = Path(run) / CONFIG
    try:
        tree = jsonl.parse(regular.read(path), str(path), _DAMAGED, edited=_EDITED)
    except FileNotFoundError as error:
        remedy = f"train one with {_train(run)}"
        if (Path(run) / WEIGHTS).exists():
            convert = f"python -m bam_jax.convert --layout=bam --source={run} --run=FOLDER"
            remedy = f"copy all of the folder that was exported; weights of an author's become a run by {convert}"
        elif (BUNDLED / run / CONFIG).exists():
            remedy = f"the model of that name that comes with bam_jax lies in {BUNDLED / run}"
        lacks = f"it has no {CONFIG}" if Path(run).exists() else "there is no such folder"
        raise UserError(f"{run} is not a run: {lacks}; {remedy}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}); give the folder of a run") from error
    try:
        return configs.from_dict(tree)
    except UserError as error:
        raise UserError(f"{path}: {error}; mend it or train into another folder") from error


def _train(run: str | os.PathLike) -> str:
    return f"python -m bam_jax.train --config=FILE --workdir={run}"


def vocabulary_size(config: Config, tokenizer: tokenizers.Tokenizer) -> int:
    """Size of the model's vocabulary: `config.model.vocab`, or the tokenizer's size, padded where that is customary."""
    size = config.model.vocab or tokenizer.padded
    if size < tokenizer.size:
        less = f"config.model.vocab={size} is less than the {tokenizer.size} of tokenizer {tokenizer.name!r}"
        raise UserError(f"{less}; set it to 0 or to at least that")
    return size


def check_outside_data(name: str, path: Path, config: Config) -> None:
    """Refuse to write a file or a folder among the data of a run; the error calls it `name`."""
    for _, part in config.data.parts().values():
        for source in {part.source, part.held_out_source} - {""}:
            corpus.check_outside(name, path, source)


def check_empty(run: Path) -> None:
    """Reject a folder that contains anything but hidden files, such as a lock, or that could not be made."""
    above, what = next(path for path in (run, *run.absolute().parents) if path.exists()), ""
    if not above.is_dir():
        what = "is a file, not a run" if above == run else f"cannot be made: {above} is a file"
    elif above == run and any(path.name[0] != "." for path in run.iterdir()):
        what = "holds a run" if (run / CONFIG).exists() else "holds something that is not a run"
    if what:
        raise UserError(f"{run} {what}; give a new or an empty folder")


def make_empty(run: Path) -> None:
    """Make a folder, or check that it is empty as `check_empty` does."""
    try:
        check_empty(run)
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{run} cannot be written: {error.strerror}; give another folder") from error


def check_configuration(run: Path, config: Config, longer: bool, moved: bool = False) -> int:
    """Check that a run's configuration is the same, except `FREE`, the mesh, and what `longer` and `moved` allow.

    Returns the run's steps.
    """
    if _is_bare(run):  # nothing is trained yet: all fields may differ
        return config.steps
    theirs, ours = _fields(read_config(run)), _fields(config)
    for name in sorted(theirs.keys() | ours.keys()):
        if name in FREE or name.startswith("mesh.") or (moved and _is_place(name)):
            continue
        if longer and name == "steps" and theirs[name] < config.steps:
            continue
        # compared as text, because the values 1, 1.0 and True are equal
        there, here = [repr(tree[name]) if name in tree else "nothing" for tree in (theirs, ours)]
        if there != here:
            resume = "use that configuration to resume it (more config.steps train it longer)"
            start = f"another workdir, where --config.start={run} begins with its parameters"
            raise UserError(f"workdir {run} holds a run with config.{name}={there}, not {here}; {resume}, or {start}")
    return theirs["steps"]


def _fields(config: Config) -> dict[str, Any]:
    """A configuration's values by their dotted names."""
    return flatten_dict(configs.to_dict(config), sep=".")


def _is_place(name: str) -> bool:
    """Whether a field is the location of the training text, of a single source or of one in a mixture."""
    return name.startswith("data.") and name.endswith(".source")
