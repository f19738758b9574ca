"""The checkpoints of a run, and the trained model from one of them."""

import contextlib
import fcntl
import functools
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import jax
from flax import nnx
from orbax.checkpoint import v1 as ocp

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data import tokenizers
from bam_jax.data.sources import corpus
from bam_jax.data.tokenizers.kept import keep, kept
from bam_jax.models import transformer
from bam_jax.models.transformer import split
from bam_jax.parallel import processes
from bam_jax.system import log
from bam_jax.system.errors import Stopped, UserError
from bam_jax.training.metrics import METRICS, read_metrics

CONFIG = "config.json"
FOLDER = "checkpoints"
LOCK = ".lock"
SUMS = "sums.json"

_CODE = re.compile(r"os_error_code='(\d+)'")
_DRAFT = ".draft"
_REMEDY = "remove that folder and train on from the checkpoint before it, if there is one"


class Checkpoints:
    """The checkpoints of a run that is being trained; a context manager, which waits for the last of them.

    A checkpoint is all that a run goes on from, its metrics so far among it. It is written in the background into a folder
    that does not count, together with the checksums of its files, and gets its final name when all of it is there: a process
    killed at any moment leaves whole checkpoints only. The newest two are kept. Several processes write one together.

    Args:
        run: the run's folder, claimed before.

    Raises:
        UserError: the processes name that folder differently.
    """

    def __init__(self, run: str | os.PathLike):
        self.run = Path(run)
        self._folder = (self.run / FOLDER).absolute()
        named = zlib.crc32(str(self._folder).encode()) // 2  # 31 bits
        if processes.agreed(named) != named:
            raise UserError(f"process 0 knows {self._folder} by another name; give all processes the same workdir")
        if processes.first():
            _clean(self._folder)
        self._thread = futures.ThreadPoolExecutor(1)
        self._saving: futures.Future | None = None

    def save(self, step: int, state: dict[str, Any], data: Any) -> None:
        """Save in the background; the arguments may change, and be donated, as soon as this returns.

        Args:
            step: optimiser steps made so far.
            state: a pytree of arrays under 'model' and one under 'optimizer'.
            data: the batches' iterator (grain's, or anything with its `save` and `load`).

        Raises:
            UserError: the checkpoint before could not be written.
        """
        self._wait()
        metrics = self.run / METRICS
        so_far = metrics.read_bytes() if processes.first() and metrics.exists() else b""
        with _writing(self._folder / str(step)):
            arrays = ocp.save_checkpointables_async(_draft(self._folder / str(step)), {**state, "data": data})
        self._saving = self._thread.submit(self._finish, step, arrays, so_far)

    def load(self, state: dict[str, Any], data: Any) -> dict[str, Any]:
        """The newest checkpoint; the run's metrics are set back to what they were when it was saved.

        Args:
            state: shapes and dtypes of what was saved, as `jax.eval_shape` gives them, with the shardings that are wanted,
                on any mesh; without, all lies on one device.
            data: an iterator like the one that was saved; it is set to where that one stood.

        Raises:
            UserError: the checkpoint cannot be read.
        """
        step = latest(self.run)
        restored = _load(self.run, step, {**_placed(state), "data": data})
        if processes.first():
            kept_records = self._folder / str(step) / METRICS
            if kept_records.exists():
                log.replace(self.run / METRICS, kept_records.read_text(encoding="utf-8"))
            else:  # it was saved by an earlier version
                found = [record for record in read_metrics(self.run) if record["step"] <= step]
                log.replace(self.run / METRICS, "".join(f"{log.line(record)}\n" for record in found))
        return {name: restored[name] for name in state}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(error[1], Exception) and not isinstance(error[1], Stopped) and jax.process_count() > 1:
            return  # the others may be elsewhere, and not come to where all wait for the last save
        try:
            self._wait()
        finally:
            self._thread.shutdown()

    def _wait(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _finish(self, step: int, arrays: Any, metrics: bytes) -> None:
        """Wait for the arrays of all processes, and make a checkpoint of them."""
        path = self._folder / str(step)
        with _writing(path):
            arrays.result()
            if processes.first():
                (_draft(path) / METRICS).write_bytes(metrics)
                _seal(path)
                old = sorted(
                    (each for each in self._folder.iterdir() if each.name.isdecimal()), key=lambda x: int(x.name)
                )
                for each in old[:-2]:
                    shutil.rmtree(
                        each.rename(_draft(each))
                    )  # by its name it would be whole until the last file is gone


def _clean(folder: Path) -> None:
    """Remove what killed processes left of checkpoints that they were writing or removing."""
    for torn in {*folder.glob(f"*{_DRAFT}*"), *folder.glob("*.orbax-checkpoint-tmp*")}:
        shutil.rmtree(torn)


def _draft(path: Path) -> Path:
    """The folder that a checkpoint is written to, before it is one."""
    return path.with_name(f"{path.name}{_DRAFT}")


def _seal(path: Path) -> None:
    """Make a checkpoint of its draft, whose files were written a moment ago by this job."""
    log.replace(_draft(path) / SUMS, log.line(_sums(_draft(path))) + "\n")
    _draft(path).rename(path)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in one line why the system does not let a checkpoint be written."""
    for name in ("absl", "concurrent.futures"):
        logging.getLogger(name).addFilter(_not_said_twice)
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError of tensorstore has the system's code in its text
        codes = [each.errno if isinstance(each, OSError) else _CODE.search(str(each)) for each in _chain(error)]
        code = next((code if isinstance(code, int) else int(code[1]) for code in codes if code), None)
        if code is None:
            raise
        raise UserError(
            f"checkpoint {path} cannot be written: {os.strerror(code)}; make room or get leave to write there, and give "
            "the same command again: it goes on from the checkpoint before"
        ) from error


def _not_said_twice(record: logging.LogRecord) -> bool:
    """True for a log record, unless orbax's threads write it of an error that orbax raises as well."""
    closed = record.exc_info is not None and "Event loop is closed" in str(record.exc_info[1])
    return not closed and (record.levelno < logging.ERROR or "orbax" not in Path(record.pathname).parts)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it followed."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def write_model(workdir: str | os.PathLike, config: Config, tokenizer: tokenizers.Tokenizer, tree: dict) -> None:
    """Make a folder a finished run of a model that was trained elsewhere: it can be evaluated, and others start from it.

    Args:
        workdir: a new or an empty folder.
        config: of the model; its `steps` number the checkpoint.
        tokenizer: the one that the configuration names.
        tree: what `transformer.split` gives of the model.

    Raises:
        UserError: the folder is there and not empty, or cannot be written.
    """
    run = Path(workdir)
    if latest(run):
        raise UserError(f"{run} has a checkpoint already; give a new or an empty folder")
    with claim(run, config, tokenizer):
        path = (run / FOLDER / str(config.steps)).absolute()
        _clean(path.parent)
        with _writing(path):
            ocp.save_checkpointables(_draft(path), {"model": tree})
            _seal(path)


@contextlib.contextmanager
def claim(workdir: str | os.PathLike, config: Config, tokenizer: tokenizers.Tokenizer) -> Iterator[None]:
    """Make a folder the run of a configuration, or see that it already is, and keep other processes from claiming it.

    The claim ends with the block, or with the process, however that ends.

    Args:
        workdir: the run's folder; made, with `config.json` and `tokenizer/` in it, if it is not there.
        config: what the run is made from.
        tokenizer: the one that the configuration names; its files are copied.

    Raises:
        UserError: the folder holds a run of another configuration or tokenizer, or something else, or lies among the
            data; it is claimed by another process, or cannot be written.
    """
    run = Path(workdir)
    for _, part in config.data.parts().values():
        for source in {part.source, part.held_out_source} - {"", corpus.STDLIB}:
            if run.resolve().is_relative_to(Path(source).resolve()):
                raise UserError(
                    f"workdir {run} lies in the data source {source}, where its own files would be read as data; "
                    "give a workdir outside that folder"
                )
    try:
        if not (run / CONFIG).exists():
            if run.exists() and (not run.is_dir() or any(path.name[0] != "." for path in run.iterdir())):
                what = "holds something that is not a run" if run.is_dir() else "is a file, not a run"
                raise UserError(f"workdir {run} {what}; give a new or an empty folder")
            run.mkdir(parents=True, exist_ok=True)
        lock = (run / LOCK).open("a")
    except OSError as error:
        raise UserError(f"workdir {run} cannot be written: {error.strerror}; give another folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            busy = isinstance(error, BlockingIOError)
            why = "is in use by another training" if busy else f"cannot be locked: {error.strerror}"
            raise UserError(f"workdir {run} {why}; give another folder") from error
        if not (run / CONFIG).exists():
            log.replace(run / CONFIG, configs.to_json(config) + "\n")
        _same_configuration(run, config)
        keep(tokenizer, run)
        yield


def _same_configuration(run: Path, config: Config) -> None:
    theirs, ours = _flat(configs.to_dict(read_config(run))), _flat(configs.to_dict(config))
    for name in [name for name in ours if name.startswith("mesh.")]:  # a run may go on with other devices
        del theirs[name], ours[name]
    for name in sorted(theirs.keys() | ours.keys()):
        there, here = [repr(tree[name]) if name in tree else "nothing" for tree in (theirs, ours)]
        if there != here:
            raise UserError(
                f"workdir {run} holds a run with config.{name}={there}, not {here}; "
                "use that configuration to resume it, or another workdir"
            )


def latest(run: str | os.PathLike) -> int:
    """The step of a run's newest checkpoint; 0 if there is none, or no run.

    Args:
        run: the run's folder; nothing is written to it.
    """
    folder = Path(run) / FOLDER
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=0)


def vocabulary(config: Config, tokenizer: tokenizers.Tokenizer) -> int:
    """Entries of the model's vocabulary: the tokenizer's, padded where that is customary, or what the configuration says.

    Args:
        config: its `model.vocab` is 0 for the tokenizer's `padded`.
        tokenizer: the configuration's tokenizer.

    Raises:
        UserError: the configuration says fewer than the tokenizer has.
    """
    size = config.model.vocab or tokenizer.padded
    if size < tokenizer.size:
        raise UserError(
            f"config.model.vocab={size} is less than the {tokenizer.size} of tokenizer {tokenizer.name!r}; "
            "set it to 0 or to at least that"
        )
    return size


def read_config(run: str | os.PathLike) -> Config:
    """The configuration of a run.

    Args:
        run: the run's folder.

    Raises:
        UserError: there is no run, or its configuration cannot be read.
    """
    path = Path(run) / CONFIG
    try:
        return configs.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{run} is not a run: it has no {CONFIG}; train one with python -m bam_jax.train --config=FILE --workdir={run}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give the folder of a run") from error
    except UserError as error:
        raise UserError(f"{path}: {error}; mend it or train into another folder") from error


def restore_parameters(run: str | os.PathLike, like: dict[str, Any]) -> dict[str, Any]:
    """What `transformer.split` gives of a trained model, from a run's newest checkpoint.

    Args:
        run: the run's folder; nothing is written to it.
        like: the same of a model of equal shapes; its values do not matter.

    Raises:
        UserError: there is no run or no checkpoint, it cannot be read, or its shapes are others.
    """
    return _load(Path(run), _trained(run), {"model": _placed(like)})["model"]


def _trained(run: str | os.PathLike) -> int:
    """The step of a run's newest checkpoint, which is there."""
    read_config(run)
    step = latest(run)
    if step == 0:
        raise UserError(
            f"{run} has no checkpoint; train it first: python -m bam_jax.train --config=FILE --workdir={run}"
        )
    return step


def restore_model(
    run: str | os.PathLike, *, overrides: Sequence[str] = ()
) -> tuple[Config, tokenizers.Tokenizer, transformer.Decoder]:
    """A trained model for evaluation, from a run's newest checkpoint.

    Args:
        run: the run's folder; nothing is written to it.
        overrides: changes at evaluation time, "--config.a.b=value", that keep all parameters' shapes.

    Returns:
        (config with the changes, its tokenizer, the model).

    Raises:
        UserError: there is no run or no checkpoint, it cannot be read, or the changes do not fit it.
    """
    config = configs.override(read_config(run), overrides)
    step = _trained(run)
    tokenizer = kept(run, config.data.tokenizer)
    vocab = vocabulary(config, tokenizer)
    graph, tree = split(nnx.eval_shape(lambda: transformer.build(config, vocab=vocab, rngs=nnx.Rngs(0))))
    changes = f" with {' '.join(overrides)}" if overrides else ""
    restored = _load(Path(run), step, {"model": _placed(tree)}, changes=changes)["model"]
    return config, tokenizer, nnx.merge(graph, restored["params"], restored["frozen"])


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _placed(tree: Any) -> Any:
    """Shapes and dtypes together with where the arrays shall lie: as the tree says or, where it does not, on one device."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here), tree)


def _load(run: Path, step: int, abstract: dict[str, Any], changes: str = "") -> Any:
    path = (run / FOLDER / str(step)).absolute()
    try:
        if processes.first():
            _verify(path, abstract)
        processes.agreed(step)  # none reads what is not verified: orbax complains of it with a traceback for each array
        _fit(path, abstract["model"], changes)
        return ocp.load_checkpointables(path, abstract)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:  # what orbax and tensorstore raise on bad files
        *_, root = _chain(error)
        why = f"{type(root).__name__}: {' '.join(str(root).split())[:160]}"
        raise UserError(f"checkpoint {path} cannot be read{changes}; {_REMEDY} ({why})") from error


def _fit(path: Path, wanted: dict[str, Any], changes: str) -> None:
    """See that the model's arrays are those that were saved; orbax finds out with half of its reads still going on."""
    tree = ocp.metadata(path, "model").metadata
    if tree is None:  # not to be read; loading says why
        return
    saved, wanted = _flat(tree), _flat(wanted)
    for name in sorted(saved.keys() | wanted.keys()):
        there, here = [each[name].shape if name in each else "nothing" for each in (saved, wanted)]
        if there != here:
            raise UserError(
                f"checkpoint {path} does not fit{changes}: model.{name} is {there} there and {here} here; "
                "change nothing that changes the parameters"
            )


def _verify(path: Path, parts: Iterable[str]) -> None:
    """See that the files of some parts are those that were saved, no more and no fewer."""
    mine = lambda name: "/" not in name or name.split("/")[0] in parts
    try:
        sums = log.parse((path / SUMS).read_bytes(), f"checkpoint {path} cannot be read: its {SUMS}", _REMEDY)
    except FileNotFoundError as error:
        raise UserError(f"checkpoint {path} cannot be read: it has no {SUMS}, thus is not whole; {_REMEDY}") from error
    saved = {name: crc for name, crc in sums.items() if mine(name)}
    found = _sums(path, mine)
    wrong = sorted({name for name, _ in saved.items() ^ found.items()})
    if wrong:
        raise UserError(f"checkpoint {path} cannot be read: {wrong[0]} is not what was saved; {_REMEDY}")


def _sums(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, int]:
    """CRC-32 of each wanted file of a checkpoint, read in pieces."""
    sums = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        name = file.relative_to(path).as_posix()
        if name != SUMS and wanted(name):
            with file.open("rb") as stream:
                pieces = iter(functools.partial(stream.read, 2**24), b"")
                sums[name] = functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces, 0)
    return sums
