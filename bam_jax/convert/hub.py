"""Models on the Hugging Face hub, through the cache of the library `huggingface_hub`."""

import os
from pathlib import Path

from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra

PREFIX = "hf:"
FILES = ("config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer.json", "vocab.txt")
"""The files of a repository that are fetched."""


def find(source: str | os.PathLike) -> Path:
    """The path itself, or for `hf:ORGANISATION/NAME` the folder in the cache; without a network, that of an earlier call.

    UserError: the library is missing, or there is no such repository and none in the cache.
    """
    name = os.fspath(source)
    if not name.startswith(PREFIX):
        return Path(source)
    library, errors = (import_extra(module, name, "hub") for module in ("huggingface_hub", "huggingface_hub.errors"))
    repository = name.removeprefix(PREFIX)
    try:
        return Path(library.snapshot_download(repository, allow_patterns=[*FILES], ignore_patterns=["*/*"]))
    except errors.GatedRepoError as error:
        remedy = f"accept its terms on huggingface.co/{repository}, then run hf auth login"
        raise UserError(f"{name} is given to those alone who have accepted its terms; {remedy}") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(f"{name} is not on the Hugging Face hub, or is private; check the name") from error
    except Exception as error:  # the library's own errors, and those of its HTTP client
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{name} cannot be fetched ({reason}), nor is it in the cache; check name and network, or give a folder"
        ) from error
