"""Copies of a tokenizer, stored with whatever was made with it, so that no other is used by mistake."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from bam_jax.data.tokenizers import Tokenizer, tokenizer
from bam_jax.system import files, regular
from bam_jax.system.errors import UserError
from bam_jax.system.files import read_json

FOLDER = "tokenizer"
IDENTITY = "identity.json"


def save_tokenizer(made: Tokenizer, run: str | os.PathLike) -> None:
    """Copy a tokenizer's files and its identity into a folder; if it has a copy, check that the tokenizer is the same."""
    folder = Path(run) / FOLDER
    if (folder / IDENTITY) in regular.list_tree(folder):
        made.check(_identity(folder)["hash"], str(run))
        return
    folder.mkdir(exist_ok=True)
    for name, path in made.files.items():
        files.write_atomically(folder / name, files.read_small(path))
    # Last: without it the copy is ignored.
    files.write_atomically(folder / IDENTITY, json.dumps(made.identity(), indent=1) + "\n")


def find_tokenizer(spec: str, sources: Iterable[str]) -> Tokenizer:
    """The tokenizer that a configuration names, from the copy in its first prepared folder, so that gpt2 may mean gpt2:FOLDER."""
    prepared = next((source for source in sources if (Path(source) / FOLDER / IDENTITY).is_file()), None)
    return tokenizer(spec) if prepared is None else load_tokenizer(prepared, spec)


def load_tokenizer(run: str | os.PathLike, spec: str) -> Tokenizer:
    """The tokenizer of a folder, from the folder's copy of the files: the original files may have moved."""
    made = tokenizer(own_spec(run, spec))
    folder = Path(run) / FOLDER
    return made.check(_identity(folder)["hash"], str(run)) if (folder / IDENTITY).exists() else made


def own_spec(run: str | os.PathLike, spec: str) -> str:
    """A tokenizer's name for a configuration: with the path of a folder's own copy of its files, or unchanged without a copy."""
    folder = Path(run) / FOLDER
    found = regular.list_tree(folder)
    if folder / IDENTITY not in found:
        return spec
    identity = _identity(folder)
    if spec.partition(":")[0] != identity["name"]:
        raise UserError(
            f"{run} was made with the tokenizer {identity['name']}, and the configuration names {spec}; give "
            f"--config.data.tokenizer={identity['name']}, or a folder that was made with {spec}"
        )
    copied = any(path.name != IDENTITY and path.name[0] != "." for path in found)  # hidden: a system's, or a draft
    return f"{identity['name']}:{folder}" if copied and spec in (identity["name"], identity["spec"]) else spec


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
