"""Configurations from files and JSON, and back."""

import argparse
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.config import published
from bam_jax.config.changes import apply, renames, spelled_out
from bam_jax.config.section import ConfigSection, is_section, kind_of, kinds
from bam_jax.config.sections import Config
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, shown
from bam_jax.system.extras import import_extra
from bam_jax.system.plugins import named_where_it_fails

CONFIGS = next(
    (package / "configs" for package in Path(__file__).resolve().parents[1:3] if (package / "configs").is_dir()),
    Path("configs"),
)
"""The project's configurations: inside the package if it is installed, next to it in a clone."""


def located(path: str | Path) -> Path:
    """The path of a config file; configs/NAME.py is the project's own if the current folder has no such file."""
    own = CONFIGS / Path(path).name
    return own if Path(path) == Path("configs", own.name) and not Path(path).exists() and own.is_file() else Path(path)


def load(path: str | Path, changes: Mapping[str, Any] = {}) -> Config:
    """The configuration in a file, with changes applied.

    The file is executed, and the module of an encoding that it names by import path is imported: both are the user's own. If
    the changes name another encoding, it gets the Scalable Softmax that it is published with, unless the changes set one.
    """
    path = located(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "a device or a pipe" if path.exists() else "not there"
        raise UserError(f"config file {path} is {found}; give the path of a Python file that has a get_config")
    if path.suffix != ".py":
        raise UserError(f"config file {path} is not a Python file; name one whose name ends in .py")
    library = import_extra("ml_collections", f"config file {path}", "train")
    with named_where_it_fails(path, "config file"):
        names = runpy.run_path(str(path))
        if "get_config" not in names:
            raise UserError(f"config file {path} has no get_config(), which returns an ml_collections.ConfigDict")
        made = names["get_config"]()
    if not isinstance(made, library.ConfigDict):
        raise UserError(f"get_config() of {path} returned {type(made).__name__}, not a ConfigDict of ml_collections")
    try:
        tree = made.to_dict()
    except TypeError as error:  # it sorts the keys of a group, and some are not text
        raise UserError(f"config file {path} has a group whose keys differ in type ({error}); make all text") from error
    changes = spelled_out(changes)
    if renames(tree, changes) and isinstance(changes["encoding"], str) and "ssmax" not in changes:
        # The file's SSMax was chosen for the file's encoding. With another encoding, it would confound a comparison.
        changes = {"ssmax": published.ssmax(changes["encoding"]), **changes}
    config = override(tree, changes)
    _import_encodings(config)
    return config


def override(tree: Config | Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """A configuration with changes applied; their order does not matter, see `changes.apply`.

    If the changes name an encoding by its import path, its module is imported.

    >>> override(Config(), {"model.heads": 8}).model.heads
    8
    >>> before = Config(encoding_options={"init": "spread"})
    >>> override(before, {"encoding_options.factor": 4.0, "encoding": "alibi"}).encoding_options
    {'factor': 4.0}
    """
    config = from_dict(apply(to_dict(tree) if isinstance(tree, Config) else tree, changes))
    if "encoding" in changes:
        _import_encodings(config)
    return config


def allow_option(parser: argparse.ArgumentParser) -> None:
    """Adds --allow to a command that opens runs; `allowed` takes its values."""
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NAME",
        help="a module of an encoding, or an address of text, that the run names and that you trust; may be given again",
    )


def allowed(names: Sequence[str]) -> list[str]:
    """The addresses among the names given to --allow. The other names are modules, and are imported."""
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


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as nested dictionaries of JSON values."""
    return dataclasses.asdict(config)


def from_dict(tree: Mapping[str, Any]) -> Config:
    """The configuration from nested dictionaries; missing fields have their defaults."""
    return _build(Config, _of_today(tree))


def _of_today(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tree, or fields, with the current names: committed records have `tensorboard`, true or false, instead of `logger`."""
    if not isinstance(tree, Mapping) or not isinstance(tree.get("tensorboard"), bool):
        return tree
    rest = {name: value for name, value in tree.items() if name != "tensorboard"}
    return {"logger": "tensorboard"} | rest if tree["tensorboard"] else rest


def to_fields(section: ConfigSection, above: str = "") -> dict[str, Any]:
    """Every field by its dotted name; a field's options are one value.

    >>> to_fields(Config(steps=3))["steps"], to_fields(Config())["model.layers"]
    (3, 2)
    """
    fields: dict[str, Any] = {}
    for name, kind in kinds(type(section)).items():
        value = getattr(section, name)
        fields |= to_fields(value, f"{above}{name}.") if is_section(kind) else {f"{above}{name}": value}
    return fields


def from_fields(fields: Mapping[str, Any]) -> Config:
    """The inverse of `to_fields`. Missing fields have their defaults; nothing that the fields name is imported or opened."""
    return from_dict(apply({}, _of_today(fields)))


def to_json(config: Config) -> str:
    """The configuration as indented JSON with sorted keys."""
    return json.dumps(to_dict(config), indent=2, sort_keys=True)


def from_json(text: str) -> Config:
    """The inverse of `to_json`; nothing that the configuration names is imported or opened."""
    return from_dict(typed_json.parse(text, "the configuration"))


def digest(config: Config) -> str:
    """Twelve hex digits that identify what is trained: the start of the SHA-256 of the sorted JSON.

    The mesh, the logger, the profile, and `younger` fields at their defaults do not count.
    """
    tree = _without_younger(config)
    del tree["mesh"], tree["logger"]
    tree.pop("profile_steps", None)
    tree["tensorboard"] = False  # counted before `logger` replaced it: keeps the digests of committed records
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_younger(section: ConfigSection) -> dict[str, Any]:
    """The section as nested dictionaries, without the `younger` fields that are at their defaults."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(section):  # type: ignore[arg-type]
        value = getattr(section, field.name)
        if isinstance(value, ConfigSection):
            tree[field.name] = _without_younger(value)
        elif "younger" not in field.metadata or value != field.default:
            tree[field.name] = value
    return tree


def _import_encodings(config: Config) -> None:
    for module in config.modules():
        _import(module, f"the encoding {shown(config.encoding)}", "; an option has a value, as in rope:window=512")


def _import(module: str, what: str, otherwise: str = "") -> None:
    """Imports, and so runs, a module that the user has named."""
    found = None
    with contextlib.suppress(Exception):  # from a parent package; the import below raises it again
        found = importlib.util.find_spec(module)
    with named_where_it_fails((found and found.origin) or module, "module"):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):  # a module that it imports is missing
                raise
            raise UserError(
                f"cannot import {what}: {error}; give the command in the folder that {module.partition('.')[0]} stands "
                f"in, or with PYTHONPATH=FOLDER, that folder, before it{otherwise}"
            ) from error


def _build[S: ConfigSection](cls: type[S], tree: Any) -> S:
    if not isinstance(tree, Mapping):
        raise UserError(f"{cls.path.rstrip('.')}={shown(tree)} must be a group of keys: {', '.join(kinds(cls))}")
    values = {}
    for name, value in tree.items():
        kind = kind_of(cls, name)
        values[name] = _build(kind, value) if is_section(kind) else value
    return cls(**values)


def lengths_of(text: str, option: str = "--lengths") -> list[int]:
    """The numbers of tokens in an argument such as 64,4096.

    >>> lengths_of("64,4096")
    [64, 4096]
    """
    try:
        lengths = [int(part) for part in text.encode("ascii").split(b",")]  # no digits of other scripts
    except ValueError as error:
        raise UserError(f"{option}={text} must be numbers of tokens with commas, as in {option}=64,4096") from error
    if max(lengths) >= 2**31:
        raise UserError(f"{option}={text} has {max(lengths)}, and a text has at most {2**31 - 1} tokens; give fewer")
    return lengths
