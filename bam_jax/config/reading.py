"""Configurations from files, command lines and JSON, and back."""

import argparse
import ast
import dataclasses
import hashlib
import json
import runpy
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import ml_collections

from bam_jax.config.section import Section, kinds
from bam_jax.config.sections import Config
from bam_jax.errors import UserError, nearest


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a file, with changes from the command line.

    Args:
        path: a Python file with `get_config() -> ml_collections.ConfigDict` of what is no default.
        overrides: "--config.a.b=value"; a value is a Python literal, else a string.

    Raises:
        UserError: no such file, no `get_config` in it, or an unknown key, wrong type or bad value.
    """
    if not Path(path).is_file():
        raise UserError(f"no config file {path} in {Path.cwd()}; give the path of a Python file that has a get_config")
    if Path(path).suffix != ".py":
        raise UserError(f"config file {path} is not a Python file; name one whose name ends in .py")
    try:
        names = runpy.run_path(str(path))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"config file {path} is not Python: {error}") from error
    if "get_config" not in names:
        raise UserError(f"config file {path} has no get_config(), which returns an ml_collections.ConfigDict")
    made = names["get_config"]()
    if not isinstance(made, ml_collections.ConfigDict):
        raise UserError(f"get_config() of {path} returned {type(made).__name__}, not a ConfigDict of ml_collections")
    return override(made.to_dict(), overrides)


def override(tree: Config | Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """A configuration with changes from the command line, one after another.

    Another encoding comes without the options of the one before: those were not meant for it.

    >>> override(Config(), ["--config.model.heads=8"]).model.heads
    8
    >>> override(Config(encoding_options={"init": "spread"}), ["--config.encoding=alibi"]).encoding_options
    {}

    Raises:
        UserError: an argument that is not "--config.a.b=value", unknown key, wrong type or bad value.
    """
    changed = to_dict(tree) if isinstance(tree, Config) else _copy(tree)
    for argument in overrides:
        name, equals, text = argument.partition("=")
        keys = name.removeprefix("--config.").split(".")
        if not name.startswith("--config.") or not equals or "" in keys:
            raise UserError(f"{argument} is not of the form --config.name=value")
        if keys == ["encoding"] and text != changed.get("encoding", Config.encoding):
            changed["encoding_options"] = {}
        _set(changed, Config, keys, text, name.removeprefix("--"))
    return from_dict(changed)


def parse(argv: Sequence[str], parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Splits a command line into what `parser` knows and the overrides "--config.a.b=value".

    Raises:
        UserError: an argument that neither of them knows (and, from an `errors.Parser`, any other mistake).
    """
    overrides = [argument for argument in argv if argument.startswith("--config.")]
    rest = [argument for argument in argv if not argument.startswith("--config.")]
    namespace, unknown = parser.parse_known_args(rest)
    if unknown:
        options = [f"--{name}" for name in vars(namespace)] + ["--config.name=value"]
        raise UserError(f"unknown argument {unknown[0]}; {nearest(unknown[0].partition('=')[0], options)}")
    return namespace, overrides


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as nested dictionaries of JSON values."""
    return dataclasses.asdict(config)


def from_dict(tree: Mapping[str, Any]) -> Config:
    """The configuration of nested dictionaries; what is left out has its default.

    Raises:
        UserError: unknown key, wrong type or bad value.
    """
    return _build(Config, tree)


def to_json(config: Config) -> str:
    """The configuration as indented JSON with sorted keys."""
    return json.dumps(to_dict(config), indent=2, sort_keys=True)


def from_json(text: str) -> Config:
    """The configuration of `to_json`.

    Raises:
        UserError: text that is not JSON or not a configuration.
    """
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"the configuration is not JSON: {error}") from error
    return from_dict(tree)


def digest(config: Config) -> str:
    """Twelve hex digits that name what is trained: the start of the SHA-256 of the sorted JSON without the mesh."""
    tree = to_dict(config)
    del tree["mesh"]
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _kind(cls: type[Section], name: str) -> Any:
    fields = kinds(cls)
    if name not in fields:
        raise UserError(f"unknown config key {cls.path}{name}; {nearest(name, fields)}")
    return fields[name]


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _build[S: Section](cls: type[S], tree: Any) -> S:
    if not isinstance(tree, Mapping):
        raise UserError(f"{cls.path.rstrip('.')}={tree!r} must be a group of keys: {', '.join(kinds(cls))}")
    values = {}
    for name, value in tree.items():
        kind = _kind(cls, name)
        values[name] = _build(kind, value) if _is_section(kind) else value
    return cls(**values)


def _set(tree: dict[str, Any], cls: type[Section], keys: list[str], text: str, path: str) -> None:
    """Puts one override where it belongs; the field's type decides how its text is read."""
    head, *rest = keys
    kind = _kind(cls, head)
    if _is_section(kind):
        if not rest:
            raise UserError(f"{path} is a group; name one of its keys: {', '.join(sorted(kinds(kind)))}")
        group = tree.setdefault(head, {})
        if not isinstance(group, dict):
            raise UserError(f"config.{head}={group!r} must be a group of keys: {', '.join(kinds(kind))}")
        return _set(group, kind, rest, text, path)
    if typing.get_origin(kind) is dict and rest:
        for key in (head, *rest[:-1]):
            tree = tree.setdefault(key, {})
            if not isinstance(tree, dict):
                raise UserError(f"{path}: {key} is not a group of options")
        tree[rest[-1]] = _literal(text)
    elif rest:
        raise UserError(f"{path}: {head} is a single value; write {path.rpartition('.')[0]}=value")
    else:
        tree[head] = text if kind is str else _literal(text)
    return None


def _literal(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
