"""The base class of a configuration's groups: typed fields, and a one-line error for an invalid value."""

import dataclasses
import difflib
import functools
import json
import re
import sys
import typing
from collections.abc import Collection, Hashable
from typing import Any, ClassVar, TypeGuard

from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, nearest, shown

DEPTH = 16
"""Maximum nesting of groups in options."""


def younger(default: Any) -> Any:
    """A field that runs of earlier versions lack. At its default, it does not change their digest."""
    return dataclasses.field(default=default, metadata={"younger": True})


def kinds(cls: type["ConfigSection"]) -> dict[str, Any]:
    """Map field names to types. Every call returns the same dictionary, which must not be modified."""
    return _evaluate_annotations(typing.cast(Hashable, cls))


@functools.cache  # an experiment makes thousands of configurations
def _evaluate_annotations(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def is_section(kind: Any) -> "TypeGuard[type[ConfigSection]]":
    """True for the type of a group of fields."""
    return isinstance(kind, type) and issubclass(kind, ConfigSection)


def kind_of(cls: type["ConfigSection"], name: str) -> Any:
    """The type of a field."""
    fields = kinds(cls)
    if not isinstance(name, str):
        raise _no_text(cls.path.removesuffix("."), name)
    if name not in fields:
        message = f"unknown config key {joined(cls.path, name)}; "
        groups = {group: kinds(kind) for group, kind in fields.items() if is_section(kind)}
        inside = [f"{cls.path}{group}.{name}" for group, keys in groups.items() if name in keys]
        message += f"did you mean {' or '.join(inside)}? " if inside else ""
        near = difflib.get_close_matches(name, fields, n=1) or [group for group in groups if group.startswith(name)]
        message += nearest(name, fields, "python -m bam_jax.config")
        for group in near:
            if group in groups:
                message += f"; keys of {group}: {', '.join(groups[group])}"
        raise UserError(message)
    return fields[name]


def _no_text(path: str, key: Any) -> UserError:
    return UserError(f"{path} has the key {shown(key)} of type {type(key).__name__}; make it a text, in quotes")


def joined(path: str, key: str) -> str:
    """The name of a key below a path, for a message of one line.

    >>> joined("config.", "steps"), joined("config.", "a\\nb")
    ('config.steps', "config.'a\\\\nb'")
    """
    return path + (key if key.isprintable() and len(key) <= 80 else shown(key))


def typed(path: str, value: Any, kind: Any) -> Any:
    """Convert a value to its field's type, or raise UserError; options are copied through JSON."""
    wanted = typing.get_origin(kind) or kind
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        kind = {float: "a finite number", bool: "True or False"}.get(wanted, f"of type {wanted.__name__}")
        raise UserError(f"{path}={shown(value)} must be {kind}, not {type(value).__name__}")
    if wanted is int and abs(value) >= typed_json.LARGEST:
        raise UserError(f"{path}={shown(value)} must fit into 64 bits")
    if wanted is float:
        if not abs(value) <= sys.float_info.max:  # an int may be too large for a float
            raise UserError(f"{path}={shown(value)} must be finite")
        return float(value)
    if wanted is str and re.search("[\0\ud800-\udfff]", value):  # valid neither in a path nor in printed text
        raise UserError(f"{path}={shown(value)} must be text: no NUL, no half of a surrogate pair")
    return _options(path, value) if wanted is dict else value


def _options(path: str, value: dict[Any, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{path}={shown(value)} must hold JSON values only: {error}") from error
    level: list[Any] = [value]
    for _ in range(DEPTH):  # no recursion: a value from a file may be nested deeper than Python's stack
        for key in (key for group in level if isinstance(group, dict) for key in group):
            if not isinstance(key, str):  # JSON would convert it to text
                raise _no_text(path, key)
        level = [
            x for v in level if isinstance(v, dict | list | tuple) for x in (v.values() if isinstance(v, dict) else v)
        ]
    if level:
        raise UserError(f"{path} must not have more than {DEPTH} groups within groups")
    return typed_json.parse(text, f"{path}={shown(value)}", "give others")


class ConfigSection:
    """A group of fields. Types are checked; an int is accepted for a float."""

    path: ClassVar[str]

    def __post_init__(self) -> None:
        for name, kind in kinds(type(self)).items():
            object.__setattr__(self, name, typed(self.path + name, getattr(self, name), kind))
        self.check()

    def check(self) -> None:
        """Raises: UserError, when a value is out of its range."""

    def require(self, name: str, holds: bool, remedy: str) -> None:
        """Raise UserError, saying that the field `name` must be `remedy`, unless `holds`."""
        if not holds:
            raise UserError(f"{self.path}{name}={shown(getattr(self, name))} must be {remedy}")

    def above(self, low: float, *names: str) -> None:
        """Raise UserError unless these fields are `low` or more."""
        for name in names:
            self.require(name, getattr(self, name) >= low, f"{low} or more")

    def below(self, high: float, *names: str) -> None:
        """Raise UserError unless these fields are `high` or less."""
        for name in names:
            self.require(name, getattr(self, name) <= high, f"{high} or less")

    def within(self, low: float, high: float, *names: str) -> None:
        """Raise UserError unless these fields lie between `low` and `high`."""
        for name in names:
            self.require(name, low <= getattr(self, name) <= high, f"between {low} and {high}")

    def known(self, name: str, names: Collection[str]) -> None:
        """Raise UserError, with the nearest of `names`, unless the field is one of them."""
        value = getattr(self, name)
        if value not in names:
            raise UserError(f"{self.path}{name}={shown(value)} is unknown; {nearest(value, names)}")
