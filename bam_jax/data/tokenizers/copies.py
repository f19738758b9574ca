"""Copies of a tokenizer beside what was made with it, so that no other can be taken for it."""

import json
import os
import shutil
from pathlib import Path

from bam_jax.data.tokenizers import Tokenizer, tokenizer
from bam_jax.system import files
from bam_jax.system.errors import UserError
from bam_jax.system.files import read_json

FOLDER = "tokenizer"
IDENTITY = "identity.json"


def save_tokenizer(made: Tokenizer, run: str | os.PathLike) -> None:
    """Copies a tokenizer's files, and its identity, into a folder; if they are there, checks that it is the same.

    Args:
        made: the tokenizer.
        run: a run, or a prepared folder.

    Raises:
        UserError: the folder has another.
    """
    folder = Path(run) / FOLDER
    if (folder / IDENTITY).exists():
        made.check(_identity(folder)["hash"], str(run))
        return
    folder.mkdir(exist_ok=True)
    for name, path in made.files.items():
        shutil.copyfile(path, folder / name)
    files.write_atomically(
        folder / IDENTITY, json.dumps(made.identity(), indent=1) + "\n"
    )  # last: without it the copy does not count


def load_tokenizer(run: str | os.PathLike, spec: str) -> Tokenizer:
    """The tokenizer of a folder, from its own copy of the files: the first ones may have moved since.

    Args:
        run: a run or a prepared folder; one from before tokenizers were copied has none, and gets what the name means now.
        spec: the one that the configuration names.

    Raises:
        UserError: that is not the tokenizer that the folder was made with, or it cannot be made.
    """
    folder = Path(run) / FOLDER
    if not (folder / IDENTITY).exists():
        return tokenizer(spec)
    identity = _identity(folder)
    copied = any(path.name != IDENTITY and path.name[0] != "." for path in folder.iterdir())  # of a system or a draft
    own = f"{identity['name']}:{folder}" if copied and spec == identity["spec"] else spec
    return tokenizer(own).check(identity["hash"], str(run))


def _identity(folder: Path) -> dict[str, str]:
    path = folder / IDENTITY
    identity = read_json(path)
    for name in ("spec", "name", "hash"):
        if not isinstance(identity, dict) or name not in identity or not isinstance(identity[name], str):
            raise UserError(
                f"{path} has no text in the field '{name}'; "
                f"remove the folder {folder} to go on with the tokenizer that the configuration names"
            )
    return identity
