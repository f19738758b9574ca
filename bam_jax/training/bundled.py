"""Finds runs by folder, by address in a bucket, or by the name of a model that comes with the package."""

import os
from pathlib import Path

from bam_jax.system import files
from bam_jax.system.errors import UserError, nearest
from bam_jax.training import remote, run_folder

FOLDER = run_folder.BUNDLED


def find(run: str | os.PathLike, step: int | None = None) -> Path:
    """The folder of a run, a local copy of a run in a bucket, or the folder of a model that comes with the package.

    Args:
        step: of the checkpoint to copy from a bucket; None, or a step without a checkpoint: the newest.
    """
    if files.is_remote(run):
        return remote.fetch(os.fspath(run), step=step)
    path, known = Path(run), sorted(folder.parent.name for folder in FOLDER.glob("*/config.json"))
    if not os.fspath(run) or path.is_file():
        what = f"{run} is a file" if os.fspath(run) else "a run without a name is none"
        raise UserError(f"{what}; give the folder of a run, or {' or '.join(known)}")
    if len(path.parts) > 1 or path.exists():
        return path
    if path.name not in known:
        missing = "there is no such folder, and no such model comes with bam_jax"
        raise UserError(f"{run} is not a run: {missing}; {nearest(path.name, known)}")
    return FOLDER / path.name
