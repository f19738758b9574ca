"""The checkpoints of a run, and the trained model from one of them."""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import jax
from flax import nnx
from orbax.checkpoint import v1 as ocp

from bam_jax import config as configs
from bam_jax import log, model, processes
from bam_jax.config import Config
from bam_jax.data import corpus, tokenizers
from bam_jax.data.tokenizers.kept import keep, kept
from bam_jax.errors import Stopped, UserError

CONFIG = "config.json"
FOLDER = "checkpoints"
LOCK = ".lock"
SUMS = "sums.json"


class Checkpoints:
    """The checkpoints of a run that is being trained; a context manager, which waits for the last of them.

    Saves go on in the background and each appears all at once under its final name, so that a process killed
    at any moment leaves whole checkpoints only. The newest two are kept. Several processes write one checkpoint together.

    Args:
        run: the run's folder, claimed before.
    """

    def __init__(self, run: str | os.PathLike):
        self.run = Path(run)
        folder = (self.run / FOLDER).absolute()
        if processes.first():
            for torn in folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(torn)  # orbax's own clean-up is a thread that complains when the process is short
        self._checkpointer = ocp.training.Checkpointer(
            folder,
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=ocp.training.preservation_policies.LatestN(2),
        )

    def save(self, step: int, state: dict[str, Any], data: Any) -> None:
        """Save in the background; the arguments may change, and be donated, as soon as this returns.

        Args:
            step: optimiser steps made so far.
            state: a pytree of arrays under 'model' and one under 'optimizer'.
            data: the batches' iterator (grain's, or anything with its `save` and `load`).
        """
        self._seal()
        self._checkpointer.save_checkpointables_async(step, {**state, "data": data})

    def load(self, state: dict[str, Any], data: Any) -> dict[str, Any]:
        """The newest checkpoint.

        Args:
            state: shapes and dtypes of what was saved, as `jax.eval_shape` gives them, with the shardings that are wanted,
                on any mesh; without, all lies on one device.
            data: an iterator like the one that was saved; it is set to where that one stood.

        Raises:
            UserError: the checkpoint cannot be read.
        """
        restored = _load(self.run, latest(self.run), {**_placed(state), "data": data})
        return {name: restored[name] for name in state}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(error[1], Exception) and not isinstance(error[1], Stopped) and jax.process_count() > 1:
            return  # the others may be elsewhere, and not come to where all wait for the last save
        self._seal()
        self._checkpointer.close()

    def _seal(self) -> None:
        """Write down the checksums of the newest checkpoint, once it is whole."""
        self._checkpointer.wait()
        if not processes.first():
            return
        path = self.run / FOLDER / str(latest(self.run))
        if path.is_dir() and not (path / SUMS).exists():
            log.replace(path / SUMS, json.dumps(_sums(path), indent=1))


def write_model(workdir: str | os.PathLike, config: Config, tokenizer: tokenizers.Tokenizer, tree: dict) -> None:
    """Make a folder a finished run of a model that was trained elsewhere: it can be evaluated, and others start from it.

    Args:
        workdir: a new or an empty folder.
        config: of the model; its `steps` number the checkpoint.
        tokenizer: the one that the configuration names.
        tree: what `split` gives of the model.

    Raises:
        UserError: the folder is there and not empty, or cannot be written.
    """
    run = Path(workdir)
    if latest(run):
        raise UserError(f"{run} has a checkpoint already; give a new or an empty folder")
    with claim(run, config, tokenizer):
        path = (run / FOLDER / str(config.steps)).absolute()
        ocp.save_checkpointables(path, {"model": tree})
        log.replace(path / SUMS, json.dumps(_sums(path), indent=1))


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


def split(decoder: nnx.Module) -> tuple[nnx.GraphDef, dict[str, dict[str, Any]]]:
    """A model as its structure and nested dictionaries of arrays: {'params': trained, 'frozen': the rest}.

    `nnx.merge(graph, tree['params'], tree['frozen'])` is the inverse.

    Args:
        decoder: any NNX module; what is trained is `nnx.Param`.
    """
    graph, *states = nnx.split(decoder, nnx.Param, ...)
    params, frozen = map(nnx.to_pure_dict, states)
    return graph, {"params": params, "frozen": frozen}


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
    """What `split` gives of a trained model, from a run's newest checkpoint.

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
) -> tuple[Config, tokenizers.Tokenizer, model.Decoder]:
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
    graph, tree = split(nnx.eval_shape(lambda: model.build(config, vocab=vocab, rngs=nnx.Rngs(0))))
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
    if processes.first() and (path / SUMS).exists():  # a process killed in the moment after a save leaves none
        _verify(path, abstract)
    try:
        _fit(path, abstract["model"], changes)
        return ocp.load_checkpointables(path, abstract)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:  # what orbax and tensorstore raise on bad files
        root: BaseException = error
        while root.__cause__ or root.__context__:
            root = root.__cause__ or root.__context__ or root
        raise UserError(
            f"checkpoint {path} cannot be read{changes}; "
            "remove that folder and train on from the checkpoint before it, if there is one "
            f"({type(root).__name__}: {' '.join(str(root).split())[:160]})"
        ) from error


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
    """See that the files are those that were saved; orbax notices less, with a traceback for each array."""
    for part in parts:
        found = _sums(path, part)
        try:
            sums = json.loads((path / SUMS).read_text(encoding="utf-8"))
            saved = {name: sums[name] for name in sums if name.startswith(f"{part}/")}
        except (OSError, ValueError):
            saved = {SUMS: 0}
        wrong = sorted(name for name in saved if name not in found or found[name] != saved[name])
        if wrong:
            raise UserError(
                f"checkpoint {path} cannot be read: {wrong[0]} is not what was saved; "
                "remove that folder and train on from the checkpoint before it, if there is one"
            )


def _sums(path: Path, part: str = "") -> dict[str, int]:
    """CRC-32 of each file of a checkpoint, read in pieces, or of those of one part."""
    sums = {}
    for file in sorted(file for file in (path / part).rglob("*") if file.is_file() and file.name != SUMS):
        with file.open("rb") as stream:
            pieces = iter(functools.partial(stream.read, 2**24), b"")
            sums[str(file.relative_to(path))] = functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces, 0)
    return sums
