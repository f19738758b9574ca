"""What the groups of a configuration share: typed fields, and one line for a value that will not do."""

import dataclasses
import json
import math
import typing
from collections.abc import Collection
from typing import Any, ClassVar

from bam_jax.errors import UserError, nearest


def kinds(cls: type["Section"]) -> dict[str, Any]:
    """Field name to type."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def typed(path: str, value: Any, kind: Any) -> Any:
    """The value as its field's type, or a UserError; options are copied in the form that JSON gives back."""
    if kind is float and type(value) is int:
        value = float(value)
    if kind is float and type(value) is float and not math.isfinite(value):
        raise UserError(f"{path}={value} must be finite")
    wanted = typing.get_origin(kind) or kind
    if type(value) is not wanted:
        raise UserError(f"{path}={value!r} must be of type {wanted.__name__}, not {type(value).__name__}")
    if wanted is not dict:
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}={value!r} must hold JSON values only: {error}") from error


class Section:
    """What the groups share: types are checked, and an int is accepted where a float is due."""

    path: ClassVar[str]

    def __post_init__(self) -> None:
        for name, kind in kinds(type(self)).items():
            object.__setattr__(self, name, typed(self.path + name, getattr(self, name), kind))
        self.check()

    def check(self) -> None:
        """Raises: UserError, when a value is out of its range."""

    def require(self, name: str, holds: bool, remedy: str) -> None:
        """Raise UserError unless what the field `name` must be `holds`."""
        if not holds:
            raise UserError(f"{self.path}{name}={getattr(self, name)!r} must be {remedy}")

    def above(self, low: float, *names: str) -> None:
        """Raise UserError unless these fields are `low` or more."""
        for name in names:
            self.require(name, getattr(self, name) >= low, f"{low} or more")

    def within(self, low: float, high: float, *names: str) -> None:
        """Raise UserError unless these fields lie between `low` and `high`."""
        for name in names:
            self.require(name, low <= getattr(self, name) <= high, f"between {low} and {high}")

    def known(self, name: str, names: Collection[str]) -> None:
        """Raise UserError, with the nearest of `names`, unless the field is one of them."""
        value = getattr(self, name)
        if value not in names:
            raise UserError(f"{self.path}{name}={value!r} is unknown; {nearest(value, names)}")
