"""Configurations from files, command lines and JSON, and back."""

import argparse
import ast
import dataclasses
import hashlib
import importlib
import json
import runpy
import typing
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import ml_collections

from bam_jax.config.section import Section, joined, kinds
from bam_jax.config.sections import Config
from bam_jax.system import strict_json
from bam_jax.system.errors import UserError, nearest, shown


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a file, with changes from the command line.

    The file runs, and the module of an encoding that it names by its import path is imported: both are the user's own.

    Args:
        path: a Python file with `get_config() -> ml_collections.ConfigDict` of what is no default.
        overrides: "--config.a.b=value"; a value is a Python literal, else a string.

    Raises:
        UserError: no such file, no `get_config` in it, an unknown key, wrong type or bad value, or a module that cannot be
            imported.
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
    config = override(made.to_dict(), overrides)
    _import_encoding(config.encoding)
    return config


def override(tree: Config | Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """A configuration with changes from the command line, in whatever order they stand there.

    A group as a whole comes before its keys; of two changes of one key the later holds. Another encoding comes without the
    options of the one before: those were not meant for it. The module of an encoding that is named here by its import path
    is imported.

    >>> override(Config(), ["--config.model.heads=8"]).model.heads
    8
    >>> before = Config(encoding_options={"init": "spread"})
    >>> override(before, ["--config.encoding_options.factor=4.0", "--config.encoding=alibi"]).encoding_options
    {'factor': 4.0}

    Raises:
        UserError: an argument that is not "--config.a.b=value", unknown key, wrong type or bad value, or a module that cannot
            be imported.
    """
    changed = to_dict(tree) if isinstance(tree, Config) else _copy(tree)
    changes = _changes(overrides)
    encodings = [text for keys, text in changes if keys == ["encoding"]]
    if encodings and encodings[-1] != changed.get("encoding", Config.encoding):
        changed["encoding_options"] = {}
    for keys, text in changes:
        _set(changed, Config, keys, text, f"config.{'.'.join(keys)}")
    made = from_dict(changed)
    if encodings:
        _import_encoding(made.encoding)
    return made


def mentioned(overrides: Sequence[str]) -> set[str]:
    """The texts that overrides set, such as the address of a source.

    >>> mentioned(["--config.data.source=gs://a/b", "--config.steps=3"])
    {'gs://a/b'}

    Raises:
        UserError: see `override`.
    """
    tree: dict[str, Any] = {}
    for keys, text in _changes(overrides):
        _set(tree, Config, keys, text, f"config.{'.'.join(keys)}")
    found: set[str] = set()
    level: list[Any] = [tree]
    while level:
        found |= {value for value in level if isinstance(value, str)}
        level = [x for value in level if isinstance(value, dict) for x in value.values()]
    return found


def allow_option(parser: argparse.ArgumentParser) -> None:
    """Adds --allow to a command that opens runs; `allowed` takes what it is given."""
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NAME",
        help="a module of an encoding, or an address of text, that the run names and that you trust; may be given again",
    )


def allowed(names: Sequence[str]) -> list[str]:
    """The addresses that a command may fetch; modules that it may use are imported, for what a run names to be found there.

    Args:
        names: modules, as in cauchy or mine.encodings, and addresses of text, as in gs://bucket/folder or tfds:NAME.

    Returns:
        The addresses.

    Raises:
        UserError: a module that cannot be imported, or something else than either.
    """
    addresses = [name for name in names if "://" in name or name.startswith("tfds:")]
    for name in names:
        if name not in addresses:
            if not all(part.isidentifier() for part in name.split(".")):
                raise UserError(
                    f"--allow={shown(name)} is neither a module nor an address; "
                    "write for example --allow=cauchy (of cauchy.py) or --allow=gs://bucket/folder"
                )
            _import(name, f"--allow={name}")
    return addresses


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
    """The configuration of `to_json`; nothing that it names is imported or opened.

    Raises:
        UserError: text that is not JSON or not a configuration.
    """
    return from_dict(strict_json.parse(text, "the configuration"))


def digest(config: Config) -> str:
    """Twelve hex digits that name what is trained: the start of the SHA-256 of the sorted JSON without the mesh."""
    tree = to_dict(config)
    del tree["mesh"]
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _import_encoding(encoding: str) -> None:
    module, colon, _ = encoding.partition(":")
    if colon:
        _import(module, f"the encoding {encoding!r}")


def _import(module: str, what: str) -> None:
    """Runs a module that the user has named, as Python's `import` does."""
    try:
        importlib.import_module(module)
    except (ImportError, SyntaxError) as error:
        raise UserError(f"cannot import {what}: {error}; is its folder on PYTHONPATH?") from error


def _changes(overrides: Sequence[str]) -> list[tuple[list[str], str]]:
    """Keys and text of each override, groups before their keys."""
    changes = []
    for argument in overrides:
        name, equals, text = argument.partition("=")
        keys = name.removeprefix("--config.").split(".")
        if not name.startswith("--config.") or not equals or "" in keys:
            raise UserError(f"{shown(argument)} is not of the form --config.name=value")
        changes.append((keys, text))
    return sorted(changes, key=lambda change: len(change[0]))


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _kind(cls: type[Section], name: str) -> Any:
    fields = kinds(cls)
    if name not in fields:
        raise UserError(f"unknown config key {joined(cls.path, name)}; {nearest(name, fields)}")
    return fields[name]


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _build[S: Section](cls: type[S], tree: Any) -> S:
    if not isinstance(tree, Mapping):
        raise UserError(f"{cls.path.rstrip('.')}={shown(tree)} must be a group of keys: {', '.join(kinds(cls))}")
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
            raise UserError(f"config.{head}={shown(group)} must be a group of keys: {', '.join(kinds(kind))}")
        return _set(group, kind, rest, text, path)
    if typing.get_origin(kind) is dict and rest:
        for key in (head, *rest[:-1]):
            tree = tree.setdefault(key, {})
            if not isinstance(tree, dict):
                raise UserError(f"{shown(path)}: {shown(key)} is not a group of options")
        tree[rest[-1]] = _literal(text)
    elif rest:
        alone = path.removesuffix("." + ".".join(rest))
        raise UserError(f"{joined('', path)}: {head} is a single value; write {alone}=value")
    else:
        tree[head] = text if kind is str else _literal(text)
    return None


def _literal(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        with warnings.catch_warnings(action="ignore"):  # of 1or2, which is no literal
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # {[]: 1} is no dict; 10,000 minus signs
        return text


def lengths_of(text: str, option: str = "--lengths") -> list[int]:
    """The numbers of tokens in an argument such as 64,4096.

    Args:
        text: what was given.
        option: whose argument it is.

    Raises:
        UserError: it is something else.

    >>> lengths_of("64,4096")
    [64, 4096]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option}={text} must be numbers of tokens with commas, as in {option}=64,4096") from error
