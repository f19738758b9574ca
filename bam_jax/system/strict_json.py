"""JSON from files that may be damaged or a stranger's: parsed, then held against types; a mistake is one line."""

import functools
import json
import math
import reprlib
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bam_jax.system.errors import UserError

DEPTH = 64
"""Lists and objects within each other, at most: what reads them may call itself as often."""
LARGEST = 2**63
"""Whole numbers are smaller: what reads them may make arrays or floats of them."""


class Must(NamedTuple):
    """A condition in `Annotated[type, Must(...)]`.

    Args:
        holds: says of a value of the type whether it will do.
        words: what the value must be.
    """

    holds: Callable[[Any], bool]
    words: str


def parse(text: str | bytes, where: str, remedy: str = "mend or remove it", *, strict: bool = True) -> Any:
    """The value of a JSON text, all of whose numbers are finite and whose strings can be written in UTF-8.

    >>> parse('{"a": [1, 2.5]}', "x.json")
    {'a': [1, 2.5]}

    Args:
        text: bytes are UTF-8.
        where: names the text in the error: its file, and the line if there are several.
        remedy: what the user can do.
        strict: False: whatever Python parses, such as NaN in a corpus, of which only texts are looked at.

    Raises:
        UserError: it is not JSON, is nested too deeply, or has a number or a string that others could not hold.
    """
    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
        if strict:
            _see(value, 0)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON ({error.msg}); {remedy}") from error
    except RecursionError as error:
        raise UserError(f"{where} is nested too deep; {remedy}") from error
    except UnicodeError as error:
        raise UserError(f"{where} is not UTF-8 ({error.reason}); {remedy}") from error  # type: ignore[attr-defined]
    except ValueError as error:  # of a whole number with thousands of digits, or of `_see`
        raise UserError(f"{where} cannot be read ({str(error).partition(';')[0]}); {remedy}") from error
    return value


def _see(value: Any, depth: int) -> None:
    """Raises what `parse` names, where JSON allows what Python, numpy or a file cannot hold."""
    if depth > DEPTH:
        raise RecursionError
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the number {value} is not finite")
    elif isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError(f"the number {reprlib.repr(value)} is too large")
    elif isinstance(value, dict):
        for name, each in value.items():
            _see(name, depth)
            _see(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            _see(each, depth + 1)


def check(value: Any, kind: Any, where: str, remedy: str = "mend or remove it", name: str = "") -> Any:
    """The value, which is what a type says.

    >>> check({"step": 3, "more": "x"}, typing.TypedDict("Step", {"step": int}), "metrics.jsonl, line 1")
    {'step': 3, 'more': 'x'}

    Args:
        value: as `parse` gives it.
        kind: a TypedDict, with `NotRequired` for what may be missing (names that it does not have may be there); int, str,
            bool, None, or float, which a whole number is as well; list[...], dict[str, ...], tuple[...] or
            tuple[kind, ...], which JSON has as a list, `|`, Literal; any of them in Annotated with `Must`.
        where, remedy: as in `parse`.
        name: of the value within the text; "": it is the whole.

    Raises:
        UserError: it is something else; the line says which field.
    """
    bad = _wrong(value, kind, name)
    if bad:
        raise UserError(f"{where} {bad}; {remedy}")
    return value


def _wrong(value: Any, kind: Any, name: str) -> str:
    """The end of a sentence about what is wrong with a value; "" if nothing is."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and inner[1:] == (Ellipsis,):
        origin, inner = list, inner[:1]
    if origin is typing.Annotated:
        return _wrong(value, inner[0], name) or next(
            (_differs(value, must.words, name) for must in inner[1:] if not must.holds(value)), ""
        )
    if origin in (typing.NotRequired, typing.Required):
        return _wrong(value, inner[0], name)
    if origin in (typing.Union, types.UnionType):
        return "" if any(not _wrong(value, each, name) for each in inner) else _differs(value, _words(kind), name)
    if origin is typing.Literal:
        return "" if value in inner else _differs(value, _words(kind), name)
    if typing.is_typeddict(kind):
        return _fields(value, kind, name)
    plain = kind if origin is None else list if origin is tuple else origin
    fits = value is None if kind in (None, types.NoneType) else type(value) is plain
    if not fits and not (plain is float and type(value) is int):
        return _differs(value, _words(kind), name)
    if origin is tuple and len(value) != len(inner):
        return _differs(value, f"a list of {len(inner)}", name)
    parts: Iterable[tuple[str, Any, Any]] = ()
    if origin in (list, tuple):
        kinds = inner * len(value) if origin is list else inner
        parts = zip((f"{name}[{n}]" for n in range(len(value))), value, kinds, strict=True)
    elif origin is dict:
        parts = ((f"{name}.{key}" if name else key, each, inner[1]) for key, each in value.items())
    return next((bad for part, each, wanted in parts if (bad := _wrong(each, wanted, part))), "")


def _fields(value: Any, kind: Any, name: str) -> str:
    if type(value) is not dict:
        return _differs(value, "an object", name) if name else f"is no record but {reprlib.repr(value)}"
    for field, wanted in _hints(kind).items():
        part = f"{name}.{field}" if name else field
        if field in value:
            bad = _wrong(value[field], wanted, part)
        else:
            bad = f"has no {part!r}" if field in kind.__required_keys__ else ""
        if bad:
            return bad
    return ""


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """The fields of a TypedDict with their types; to find them takes longer than to check them."""
    return typing.get_type_hints(kind, include_extras=True)


def _differs(value: Any, words: str, name: str) -> str:
    return f"has {f'{name}=' if name else ''}{reprlib.repr(value)}, which must be {words}"


def _words(kind: Any) -> str:
    """The name of a type for people."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _words(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_words, inner))
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    names: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        list: "a list",
    }
    names |= {types.NoneType: "null", None: "null", tuple: "a list"}
    plain = origin or kind
    return names[plain] if plain in names else "an object"
