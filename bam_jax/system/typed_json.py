"""JSON from files that may be damaged or hostile: parsed, then checked against types, with one-line errors."""

import json
import re
import reprlib
from typing import Any

import msgspec

from bam_jax.system.errors import UserError

DEPTH = 64  # maximum nesting of lists and objects, because code that reads them recurses
LARGEST = 2**63  # whole numbers must be smaller, because code that reads them converts them to arrays or floats


def parse(text: str | bytes, where: str, remedy: str = "mend or remove it", *, strict: bool = True) -> Any:
    """The value of a JSON text; a `UserError` names where the text is from.

    >>> parse('{"a": [1, 2.5]}', "x.json")
    {'a': [1, 2.5]}
    """
    try:
        if not strict:
            return json.loads(text.decode() if isinstance(text, bytes) else text)
        value = msgspec.json.decode(text)
        _check_size(value, 0)
    except RecursionError as error:
        raise UserError(f"{where} is nested too deep; {remedy}") from error
    except UnicodeError as error:
        raise UserError(f"{where} is not UTF-8; {remedy}") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON ({error.msg}); {remedy}") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{where} is not JSON ({error}); {remedy}") from error
    except ValueError as error:  # of a number with too many digits
        raise UserError(f"{where} cannot be read ({str(error).partition(';')[0]}); {remedy}") from error
    return value


def _check_size(value: Any, depth: int) -> None:
    if depth > DEPTH:
        raise RecursionError
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError(f"the number {reprlib.repr(value)} is too large")
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_size(each, depth + 1)


def check(value: Any, kind: Any, where: str, remedy: str = "mend or remove it", name: str = "") -> Any:
    """Return the value itself if `msgspec.convert` accepts it as a type; extra fields are allowed.

    >>> from typing import TypedDict
    >>> check({"step": 3, "more": "x"}, TypedDict("Step", {"step": int}), "metrics.jsonl, line 1")
    {'step': 3, 'more': 'x'}
    """
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        field, found = (name + path.rstrip("`")).lstrip("."), value
        for key, place in re.findall(r"\.([^.\[`]+)|\[([0-9]+|\.\.\.)\]", path):
            if place == "...":  # msgspec does not name the key
                break
            found = found[key or int(place)]
        if missing := re.fullmatch("Object missing required field `(.*)`", said):
            wrong = f"has no {f'{field}.{missing[1]}'.lstrip('.')!r}"
        elif said.startswith("Expected"):
            must = said.removeprefix("Expected ").partition(", got")[0]
            wrong = f"{f'has {field}=' if field else 'is '}{reprlib.repr(found)}, which must be {must}"
        else:
            wrong = f"has {field}={reprlib.repr(found)}: {said}"
        raise UserError(f"{where} {wrong}; {remedy}") from error
    return value
