"""Packages that only some uses need, imported where they are used."""

import importlib
from pathlib import Path
from types import ModuleType

from bam_jax.system.errors import UserError


def remedy(extra: str) -> str:
    """The command that installs one of the package's extras, for a message: in a clone, or for an installed package."""
    clone = (Path(__file__).parents[2] / "pyproject.toml").exists()
    return f"pip install '.[{extra}]' in a clone of bam_jax" if clone else f"pip install 'bam_jax[{extra}]'"


def import_extra(module: str, owner: str, extra: str) -> ModuleType:
    """Imports a module of one of the package's extras."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{owner} needs the package {error.name}: {remedy(extra)}") from error
