"""Packages that only some uses need, imported where they are used."""

import importlib
from types import ModuleType

from bam_jax.system.errors import UserError


def import_extra(module: str, owner: str, extra: str) -> ModuleType:
    """Imports a module of one of the package's extras.

    Args:
        module: its name.
        owner: what needs it, for the message.
        extra: the name of the extra.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{owner} needs the package {error.name}: pip install 'bam_jax[{extra}]'") from error
