"""A run without its training state: the model's arrays in one file, `model.safetensors`, in place of `checkpoints/`.

All code that reads a run also reads such a folder. It has no optimiser state, so its training cannot be resumed.
"""

import contextlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bam_jax.config import Config
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.data.tokenizers.copies import save_tokenizer
from bam_jax.system import files, regular
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.training import run_folder

KEPT = ("results.jsonl", run_folder.METRICS)  # a run's measurements go with its weights


def write(folder: Path, config: Config, tokenizer: Tokenizer, tree: dict[str, Any], step: int) -> None:
    """Write a model's arrays, configuration and tokenizer into a new folder; `tree` is `transformer.split` of the model."""
    library = import_extra("safetensors.numpy", "model.safetensors", "train")
    run_folder.make_empty(folder)
    run_folder.write_config(folder, config)
    save_tokenizer(tokenizer, folder)
    arrays = {_name(path): np.asarray(value) for path, value in jax.tree_util.tree_leaves_with_path(tree)}
    contents = library.save(arrays, metadata={"step": str(step), "crc32": str(_checksum(arrays))})
    files.write_atomically(folder / run_folder.WEIGHTS, contents)  # last: without it, the folder is not a run


def read(
    folder: Path, like_of: Callable[[dict[str, tuple[int, ...]]], dict[str, Any]], changes: str = ""
) -> dict[str, Any]:
    """Read a model's arrays. They must match the tree that `like_of` makes of their shapes by name, and get its shardings."""
    library, path = import_extra("safetensors", "model.safetensors", "train"), folder / run_folder.WEIGHTS
    try:
        regular.size(path)
        with library.safe_open(path, framework="np") as file:
            saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
            like = like_of(saved)
            wanted = {_name(place): value for place, value in jax.tree_util.tree_leaves_with_path(like)}
            check_shapes(f"{path} does not fit{changes}: ", saved, {name: x.shape for name, x in wanted.items()})
            arrays = {name: file.get_tensor(name) for name in saved}
            if (file.metadata() or {}).get("crc32") != str(_checksum(arrays)):
                raise UserError(f"{path} does not hold what was exported (its checksum is another); copy it again")
        place = lambda at, x: jax.device_put(arrays[_name(at)].astype(x.dtype), x.sharding)
        return jax.tree_util.tree_map_with_path(place, like)
    except (OSError, library.SafetensorError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); copy it again") from error


def check_shapes(says: str, saved: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]) -> None:
    """Check that the saved arrays of a model have the names and shapes that are wanted."""
    for name in sorted(saved.keys() | wanted.keys()):
        there, here = saved.get(name, "nothing"), wanted.get(name, "nothing")
        if there != here:
            raise UserError(
                f"{says}{name} is {there} there and {here} here; change nothing that changes the parameters"
            )


def copy_records(run: Path, folder: Path) -> None:
    """Copy a run's measurements to the folder of its weights."""
    for name in KEPT:
        with contextlib.suppress(FileNotFoundError):
            files.write_atomically(folder / name, regular.read(run / name, regular.RECORDS))


def _checksum(arrays: dict[str, np.ndarray]) -> int:
    """CRC-32 of all arrays, in the order of their names."""
    found = 0
    for name in sorted(arrays):
        found = zlib.crc32(np.ascontiguousarray(arrays[name]), found)
    return found


def _name(path: tuple[Any, ...]) -> str:
    """The name of an array: its path in the tree, as in params.layers.attention.query.kernel."""
    return jax.tree_util.keystr(path, simple=True, separator=".")
