"""The checkpoints of a run, and the trained model from one of them.

A checkpoint is made in this order, so that a process killed at any moment leaves only complete ones:

    1. all processes write their arrays to a draft, `checkpoints/STEP.draft`, which does not count;
    2. process 0 adds the metrics so far, then the checksums of all files, and syncs these to the disk;
    3. it renames the draft to `checkpoints/STEP`, which is atomic.

The arrays are not synced. If the whole machine fails and loses some, the checksums show it, and the previous checkpoint remains.
"""

import contextlib
import functools
import logging
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data import tokenizers
from bam_jax.data.iterator import STATE
from bam_jax.data.tokenizers.copies import load_tokenizer
from bam_jax.models import transformer
from bam_jax.parallel import agreement, processes, sharding
from bam_jax.system import files, jsonl, regular, typed_json
from bam_jax.system.errors import Stopped, Unwritten, UserError, is_lack_of_memory
from bam_jax.training import run_folder, weights
from bam_jax.training.remote import RemoteRun
from bam_jax.training.run_folder import CHECKPOINTS, CHECKSUMS, KEPT, METRICS, latest_step, read_config, trained_step

DATA = "data"  # the part of a checkpoint with the state of the batches
ARRAYS = "d"  # name of the folders with array files, which may be large; orbax reads other files whole
_REMEDY = "remove that folder and train on from the checkpoint before it, if there is one"
_DRAFT = ".draft"
Fit = Callable[[dict[str, tuple[int, ...]]], dict[str, Any]]
"""From the shapes of the saved arrays, by name, to the model to read."""


class Checkpoints:
    """The checkpoints of a run that is being trained; a context manager, which waits for the last save."""

    def __init__(self, run: str | os.PathLike, remote: RemoteRun | None = None):
        self.run, self._remote = Path(run), remote
        self._folder = (self.run / CHECKPOINTS).absolute()
        if remote is None:
            differ = f"the processes do not all call their workdir {self.run.absolute()}; give them the same one"
            agreement.check_same(str(self._folder), differ)
        if processes.is_first():
            _remove_drafts(self._folder)
        # Orbax writes arrays in the background. This thread waits for that and then reads all files once more for their
        # checksums. There is only one, so that checkpoints are finished in order.
        self._thread = futures.ThreadPoolExecutor(1)
        self._saving: futures.Future | None = None

    def save(self, step: int, state: dict[str, Any], data: Any) -> None:
        """Save in the background; the arguments may change, and be donated, as soon as this returns."""
        self._wait()
        metrics, so_far = self.run / METRICS, b""
        if processes.is_first() and metrics.exists():
            so_far = regular.read(metrics, regular.RECORDS)  # now: the file will grow
        if self._remote is not None and jax.process_count() > 1:  # hosts that share no folder
            state = jax.tree.map(_in_first, state)
        with _named_when_unwritten(self._folder / str(step)):
            arrays = ocp.save_checkpointables_async(_draft(self._folder / str(step)), {**state, DATA: data})
        self._saving = self._thread.submit(self._finish, step, arrays, so_far)

    def load(self, state: dict[str, Any], data: Any) -> dict[str, Any]:
        """Load the newest checkpoint, and reset the run's metrics to what they were when it was saved."""
        step = latest_step(self.run)
        restored = _load(self.run, step, {**_with_shardings(state), DATA: data})
        if processes.is_first():
            saved_metrics = regular.read(self._folder / str(step) / METRICS, regular.RECORDS)
            files.write_atomically(self.run / METRICS, saved_metrics)
        return {name: restored[name] for name in state}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(error[1], Exception) and not isinstance(error[1], Stopped) and jax.process_count() > 1:
            return  # the others may be elsewhere, and never reach the point where all wait for the last save
        try:
            self._wait()
        finally:
            self._thread.shutdown()

    def _wait(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _finish(self, step: int, arrays: Any, metrics: bytes) -> None:
        """Wait for the arrays of all processes, make a checkpoint of them, and remove the oldest."""
        path = self._folder / str(step)
        with _named_when_unwritten(path):
            arrays.result()
            if not processes.is_first():
                return
            (_draft(path) / METRICS).write_bytes(metrics)
            _publish(path)
            if self._remote is not None:
                self._remote.push_checkpoint(step)
            whole = [each for each in self._folder.iterdir() if each.name.isdecimal()]
            for old in sorted(whole, key=lambda each: int(each.name))[:-KEPT]:
                # Under its own name it would count as complete until the last file is gone.
                shutil.rmtree(old.rename(_draft(old)))


@functools.cache
def _gather(everywhere: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: x, out_shardings=everywhere)


def _in_first(x: jax.Array) -> np.ndarray:
    """Gather an array of all processes in process 0, the only one that writes NumPy arrays; elsewhere, zeros without memory."""
    assert isinstance(x.sharding, NamedSharding)
    whole = _gather(NamedSharding(x.sharding.mesh, PartitionSpec()))(x)
    if processes.is_first():
        return np.asarray(whole.addressable_data(0))
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


def write_model(workdir: str | os.PathLike, config: Config, tokenizer: tokenizers.Tokenizer, tree: dict) -> None:
    """Turn a folder into a finished run of a model trained elsewhere: it can be evaluated, and other runs can start from it."""
    run = Path(workdir)
    if latest_step(run):
        raise UserError(f"{run} has a checkpoint already; give a new or an empty folder")
    with run_folder.claim(run, config, tokenizer):
        path = (run / CHECKPOINTS / str(config.steps)).absolute()
        _remove_drafts(path.parent)
        with _named_when_unwritten(path):
            ocp.save_checkpointables(_draft(path), {"model": tree})
            _publish(path)


def verify(run: str | os.PathLike, like: dict[str, Any]) -> None:
    """Check that a run's newest checkpoint, or its weights, are complete and as they were saved."""
    run = Path(run)
    if (run / CHECKPOINTS).exists():
        verify_files((run / CHECKPOINTS / str(latest_step(run))).absolute())
    else:
        weights.read(run, lambda saved: _with_shardings(like))


def trained_data(run: str | os.PathLike) -> int | None:
    """The checksum of the documents that a run was trained on (`Batches`); None without a checkpoint of its training."""
    path = (Path(run) / CHECKPOINTS / str(latest_step(run))).absolute()
    if not (path / DATA / STATE).exists():
        return None
    verify_files(path, [DATA])
    state = typed_json.parse(regular.read(path / DATA / STATE), str(path / DATA / STATE), _REMEDY)
    return state["data"] if isinstance(state, dict) and "data" in state else None


def restore_parameters(run: str | os.PathLike, like: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a trained model, as `transformer.split` gives them, from a run's newest checkpoint.

    Encodings may differ. Parameters of a layer's encoding or Scalable Softmax that the run lacks stay as they are in `like`;
    those that only the run has are skipped.
    """
    ours = flatten_dict(like, sep=".")

    def fit(saved: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        theirs = {name: x for name, x in ours.items() if name in saved or not OF_ENCODING.search(name)}
        for name, shape in saved.items():
            if OF_ENCODING.search(name) and (name not in ours or ours[name].shape != shape):
                theirs[name] = jax.ShapeDtypeStruct(shape, jax.numpy.float32)
        return _nested(theirs)

    found = flatten_dict(_load_model(Path(run), trained_step(run), like, fit=fit), sep=".")
    return _nested(
        {name: found[name] if name in found and found[name].shape == x.shape else x for name, x in ours.items()}
    )


OF_ENCODING = re.compile(r"\.attention\.(encoding|ssmax)\.")
"""Matches the name of a parameter that belongs to a layer's encoding or its Scalable Softmax."""


def _nested(arrays: dict[str, Any]) -> dict[str, Any]:
    """The tree of a model from arrays by name."""
    return {"params": {}, "frozen": {}} | unflatten_dict(arrays, sep=".")


def restore_model(
    run: str | os.PathLike,
    *,
    overrides: Mapping[str, Any] = {},
    step: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[Config, tokenizers.Tokenizer, transformer.Decoder]:
    """A trained model for evaluation: (its config with the overrides, its tokenizer, the model, sharded over the mesh)."""
    config = configs.override(read_config(run), overrides)
    step = trained_step(run) if step is None else step
    tokenizer = load_tokenizer(run, config.data.tokenizer)
    vocab = run_folder.vocabulary_size(config, tokenizer)
    build = lambda: transformer.build(config, vocab=vocab, rngs=nnx.Rngs(0))
    graph, tree = transformer.split(nnx.eval_shape(build))
    if mesh is not None:
        sharding.check_model(config, mesh)
        cut = {name: sharding.parameter_shardings(part, mesh) for name, part in tree.items()}
        of = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
        tree = {name: jax.tree.map(of, part, cut[name]) for name, part in tree.items()}
    changes = f" with {' '.join(configs.arguments(overrides))}" if overrides else ""
    restored = _load_model(Path(run), step, tree, changes)
    return config, tokenizer, nnx.merge(graph, restored["params"], restored["frozen"])


def _load_model(
    run: Path, step: int, like: dict[str, Any], changes: str = "", fit: Fit | None = None
) -> dict[str, Any]:
    """The model's arrays, from a checkpoint or from a file of weights."""
    if not (run / CHECKPOINTS).exists() and (run / run_folder.WEIGHTS).exists():
        return weights.read(run, lambda saved: _with_shardings(fit(saved) if fit else like), changes)
    return _load(run, step, {"model": _with_shardings(like)}, changes=changes, fit=fit)["model"]


def _draft(path: Path) -> Path:
    return path.with_name(f"{path.name}{_DRAFT}")


def _remove_drafts(folder: Path) -> None:
    """Remove the remains of checkpoints that killed processes were writing or removing."""
    regular.list_tree(folder)  # rejects links, so nothing outside the folder is removed
    for torn in {*folder.glob(f"*{_DRAFT}*"), *folder.glob("*.orbax-checkpoint-tmp*")}:
        shutil.rmtree(torn)


def _publish(path: Path) -> None:
    """Turn a draft into a checkpoint."""
    files.write_atomically(_draft(path) / CHECKSUMS, jsonl.document(checksums(_draft(path)), 1))
    _draft(path).rename(path)  # last: from now on it counts


def _with_shardings(tree: Any) -> Any:
    """Shapes and dtypes, with the tree's shardings, or on one device where it has none."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here), tree)


def _load(run: Path, step: int, abstract: dict[str, Any], changes: str = "", fit: Fit | None = None) -> Any:
    """Verify the files of parts of a checkpoint and read them; with `fit`, read the model that it makes of the saved shapes."""
    path = (run / CHECKPOINTS / str(step)).absolute()
    try:
        if processes.is_first():
            verify_files(path, abstract)
        # Until process 0 has verified the files, no process reads them: for bad files, orbax prints a traceback per array.
        agreement.from_first(step)
        model = ocp.metadata(path, "model").metadata
        if model is not None:  # otherwise it cannot be read, and loading reports why
            # Orbax would notice a mismatch only when half of its reads are under way.
            shapes = lambda tree: {name: x.shape for name, x in flatten_dict(tree, sep=".").items()}
            if fit is not None:
                abstract = {**abstract, "model": _with_shardings(fit(shapes(model)))}
            fits = f"checkpoint {path} does not fit{changes}: model."
            weights.check_shapes(fits, shapes(model), shapes(abstract["model"]))
        arrays = {name: part for name, part in abstract.items() if name != DATA}
        if DATA in abstract:  # alone: together, an error here would leave reads of the arrays that nothing waits for
            ocp.load_checkpointables(path, {DATA: abstract[DATA]})
        return ocp.load_checkpointables(path, arrays)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:  # what orbax and tensorstore raise on bad files
        *_, root = _causes(error)
        if isinstance(root, UserError):  # from the data loader: a sound checkpoint may be of other data
            raise root from error
        if is_lack_of_memory(root):  # the checkpoint is sound
            raise MemoryError(str(root)) from error
        why = f"{type(root).__name__}: {' '.join(str(root).split())[:160]}"
        raise UserError(f"checkpoint {path} cannot be read{changes}; {_REMEDY} ({why})") from error


def verify_files(path: Path, parts: Collection[str] | None = None) -> None:
    """Check that a checkpoint's files, all or those of some parts, are exactly the saved ones."""
    unread = f"checkpoint {path} cannot be read:"
    is_wanted = lambda name: parts is None or "/" not in name or name.split("/")[0] in parts
    try:
        content = regular.read(path / CHECKSUMS)
    except FileNotFoundError as error:
        raise UserError(f"{unread} it has no {CHECKSUMS}, thus is not whole; {_REMEDY}") from error
    known = jsonl.parse(content, f"{unread} its {CHECKSUMS}", _REMEDY)
    saved = {name: crc for name, crc in known.items() if is_wanted(name)}
    present = {name: file for name, file in _files(path).items() if is_wanted(name)}
    # Names are compared first, so no file is read that was not saved.
    wrong = saved.keys() ^ present.keys() or {name for name in saved if saved[name] != _checksum(present[name])}
    if wrong:
        raise UserError(f"{unread} {min(wrong)} is not what was saved; {_REMEDY}")


def checksums(path: Path) -> dict[str, int]:
    """CRC-32 of each file of a checkpoint, by its path in the checkpoint."""
    return {name: _checksum(file) for name, file in sorted(_files(path).items())}


def _files(path: Path) -> dict[str, Path]:
    named = ((file.relative_to(path).as_posix(), file) for file in regular.list_tree(path))
    return {name: file for name, file in named if name != CHECKSUMS}


def _checksum(file: Path) -> int:
    found = 0
    with open(file, "rb", opener=regular.opener) as stream:
        if file.parent.name != ARRAYS:
            regular.check_size(stream, regular.RECORDS)
        while piece := stream.read(2**24):  # files may be larger than memory
            found = zlib.crc32(piece, found)
    return found


@contextlib.contextmanager
def _named_when_unwritten(path: Path) -> Iterator[None]:
    """Replace what orbax and tensorstore raise and log when a checkpoint cannot be written by a one-line `Unwritten`."""
    _mute_what_is_raised()
    again = "give the same command again: it goes on from the checkpoint before"
    try:
        yield
    except UserError:
        raise
    except TimeoutError as error:  # orbax waits for 20 minutes, by the time of day
        why = "the disk hangs, or the clock was set meanwhile"
        raise Unwritten(f"checkpoint {path} was not written in time: {why}; {again}") from error
    except (OSError, ValueError) as error:  # tensorstore raises ValueErrors that contain the system's message
        system = [each.strerror for each in _causes(error) if isinstance(each, OSError) and each.strerror]
        why = system[0] if system else " ".join(str(error).split())[-300:]
        remedy = f"make room or get leave to write there, and {again}"
        raise Unwritten(f"checkpoint {path} cannot be written: {why}; {remedy}") from error


@functools.cache
def _mute_what_is_raised() -> None:
    """Silence what the threads of orbax and tensorstore print about a failed write, because orbax raises the same error."""
    for name in ("absl", "concurrent.futures"):
        logging.getLogger(name).addFilter(lambda record: record.levelno < logging.ERROR)
    usual = sys.unraisablehook

    def hook(given: Any) -> None:
        # Callbacks of tensorstore run after the error has closed the event loop.
        if str(given.exc_value) != "Event loop is closed":
            usual(given)

    sys.unraisablehook = hook


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the chain of its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
