"""The models that come with the package, by their names."""

import os
from pathlib import Path

from bam_jax.system import files
from bam_jax.system.errors import UserError, nearest

FOLDER = Path(__file__).parents[1] / "trained"
"""The folder of the models that come with the package, each a run without checkpoints."""


def find(run: str | os.PathLike) -> Path:
    """The folder of a run, or of a model that comes with the package where there is no such folder."""
    files.refuse_address(run)
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
