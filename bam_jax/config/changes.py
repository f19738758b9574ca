"""Changes to a configuration: values by dotted name, and the command-line arguments for them.

>>> changes = from_arguments(["--config.encoding=alibi", "--config.model.layers=2"])
>>> changes
{'encoding': 'alibi', 'model.layers': 2}
>>> arguments(changes)
['--config.encoding=alibi', '--config.model.layers=2']

Only `from_arguments` turns arguments into values; all code behind the command line works with values.
"""

import argparse
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from bam_jax.config import published, section
from bam_jax.config.layer_pattern import literal
from bam_jax.config.section import is_section, joined, kind_of, kinds
from bam_jax.config.sections import Config
from bam_jax.system.errors import UserError, nearest, shown

PREFIX = "--config."


def parse(argv: Sequence[str], parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Splits a command line into the arguments that `parser` knows and the changes "--config.a.b=value"."""
    rest = [argument for argument in argv if not argument.startswith(PREFIX)]
    changes = [argument for argument in argv if argument.startswith(PREFIX)]
    namespace, unknown = parser.parse_known_args(rest)
    if unknown:
        from_arguments(changes)  # first reports a --config.NAME without =VALUE, whose value, after a space, is unknown
        before = rest[max(rest.index(unknown[0]) - 1, 0)]
        if not unknown[0].startswith("-") and "=" in before:
            several = f"{before.partition('=')[0]} VALUE {unknown[0]}"
            raise UserError(f"unknown argument {unknown[0]} after {before}; several values are written as in {several}")
        options = [f"--{name.replace('_', '-')}" for name in vars(namespace)] + [f"{PREFIX}name=value"]
        raise UserError(f"unknown argument {unknown[0]}; {nearest(unknown[0].partition('=')[0], options, '--help')}")
    return namespace, from_arguments(changes)


def from_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """The changes in arguments, read by the fields' types; if a name occurs twice, the later one counts."""
    changes = {}
    for argument in arguments:
        name, equals, text = argument.removeprefix(PREFIX).partition("=")
        if not argument.startswith(PREFIX) or not equals:
            raise UserError(f"{shown(argument)} is not of the form {PREFIX}name=value")
        kind = _field(name)
        value = _read(text, kind)
        changes[name] = value if kind is Any else section.typed(joined("config.", name), value, kind)
    return changes


def arguments(changes: Mapping[str, Any]) -> list[str]:
    """The command-line arguments for changes; `from_arguments` reads the same values from them."""
    return [f"{PREFIX}{name}={_write(value, _field(name))}" for name, value in changes.items()]


def typed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes in the one form in which they are stored and compared; records may contain them as text.

    Text becomes the value that its field reads from it. Whole numbers among options become ints, because only the encoding
    knows an option's type, and it accepts 4 for 4.0. Values that do not fit a current field, and unknown names, stay as they
    are: old records, and those of other people, can be read as well.

    >>> typed({"data.holdout": "0", "encoding_options.factor": "4.0", "data.source": "64", "skip": "off"})
    {'data.holdout': 0.0, 'encoding_options.factor': 4, 'data.source': '64', 'skip': 'off'}
    """
    return {name: _comparable(name, value) for name, value in changes.items()}


def mentioned(changes: Mapping[str, Any]) -> set[str]:
    """The strings among the values of changes, such as the address of a source.

    >>> mentioned({"data.source": "gs://a/b", "steps": 3})
    {'gs://a/b'}
    """
    texts: set[str] = set()
    level: list[Any] = [changes]
    while level:
        texts |= {value for value in level if isinstance(value, str)}
        level = [inner for value in level if isinstance(value, Mapping) for inner in value.values()]
    return texts


def apply(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply changes to a copy of a configuration's tree; their order does not matter.

    A whole group is set before its keys. A new encoding does not inherit the options of the previous one, which were not meant
    for it. A name in `published.METHODS` sets the fields that it has there, except those that are stated explicitly.
    """
    changed = _copy(tree)
    if method := published.method(changed):
        stated = {name: value for name, value in changed.items() if name != "encoding"}
        changed = _merged(apply({}, method), stated)
    changes = spelled_out(changes)
    if renames(changed, changes):
        changed["encoding_options"] = {}
    for name in changes:
        _field(name)
    for name in sorted(changes, key=lambda name: name.count(".")):
        _set(changed, name.split("."), changes[name])
    return changed


def renames(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Whether changes name an encoding other than that of a configuration's tree."""
    return "encoding" in changes and changes["encoding"] != tree.get("encoding", Config.encoding)


def spelled_out(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the name of a method by its fields; fields that the changes set themselves take precedence."""
    method = published.method(changes)
    return {**method, **changes, "encoding": method["encoding"]} if method else changes


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Update nested dictionaries recursively with those of `above`."""
    for key, value in above.items():
        inner = below.get(key)
        below[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return below


def _field(name: str) -> Any:
    """The type of the field with a dotted name; `Any` for an option inside a field."""
    cls: type[section.ConfigSection] = Config
    if not isinstance(name, str):
        kind_of(cls, name)
    keys = name.split(".")
    if "" in keys:
        raise UserError(f"{shown(name)} is not of the form a.b, keys with dots between them")
    for number, key in enumerate(keys, start=1):
        kind = kind_of(cls, key)
        if is_section(kind):
            cls = kind
            continue
        if number == len(keys):
            return kind
        if typing.get_origin(kind) is dict:
            return Any
        alone = joined("config.", ".".join(keys[:number]))
        raise UserError(f"{joined('config.', name)}: {key} is a single value; write {alone}=value")
    raise UserError(f"config.{name} is a group; name one of its keys: {', '.join(sorted(kinds(cls)))}")


def _set(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    """Sets a value in nested dictionaries, creating those that are missing."""
    for number, key in enumerate(keys[:-1], start=1):
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            path = joined("config.", ".".join(keys[:number]))
            raise UserError(f"{path}={shown(tree)} must be a group of keys, one of which is {shown(keys[number])}")
    tree[keys[-1]] = _copy(value)


def _copy(value: Any) -> Any:
    """The value, with copies of its dictionaries, because keys are added to them."""
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _read(text: str, kind: Any) -> Any:
    """Parse a text as the value of a field of a type."""
    return text if kind is str else literal(text)


def _write(value: Any, kind: Any) -> str:
    """The text that `_read` parses to the value. A string is written as it is, unless it would be parsed as something else.

    A group is written with double quotes, which need no escaping within a shell's single quotes.
    """
    written = repr(value).replace("'", '"') if isinstance(value, Mapping) else str(value)
    return written if _read(written, kind) == value else repr(value)


def _comparable(name: str, value: Any) -> Any:
    path = joined("config.", name)
    try:
        kind = _field(name)
        read = _read(value, kind) if isinstance(value, str) else value
        if kind is Any:
            return _with_ints(section.typed(path, {name: read}, dict)[name])
        checked = section.typed(path, read, kind)
    except UserError:  # from another version, or damaged: it equals only itself
        return value
    return _with_ints(checked) if isinstance(checked, dict) else checked


def _with_ints(value: Any) -> Any:
    """A JSON value whose whole floats are ints, up to 2^53: larger floats do not represent every whole number."""
    match value:
        case dict():
            return {key: _with_ints(inner) for key, inner in value.items()}
        case list():
            return [_with_ints(inner) for inner in value]
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value
