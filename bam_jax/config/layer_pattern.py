"""The pattern of encodings that layers repeat, written as one string.

    rope:window=512/rope:window=512/nope:ssmax=on

Slashes separate places, a colon precedes a place's options, and commas separate the options. Layer n has place n modulo the
number of places. A name is one of `bam_jax.encodings.ENCODINGS`, or the import path package.module:Class.
"""

import ast
import re
import warnings
from typing import Any, NamedTuple

from bam_jax.system.errors import UserError, shown

_NAME = re.compile(r"[^:]+|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""An encoding's name or import path."""
_NAME_OF_PLACE = re.compile(r"\w+|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""The same for one of several places; it does not match the parts of a file path."""


class Place(NamedTuple):
    """The encoding of one place: its name or import path, and the options set there."""

    name: str
    options: dict[str, Any]


def parse(text: str) -> tuple[Place, ...]:
    """The places of a pattern; a single encoding is a pattern of one place.

    >>> [(place.name, place.options) for place in parse("rope:window=512/mine:Prior")]
    [('rope', {'window': 512}), ('mine:Prior', {})]
    """
    parts = text.split("/")
    return tuple(_place(part, text, _NAME if len(parts) == 1 else _NAME_OF_PLACE) for part in parts)


def literal(text: str) -> Any:
    """The value of a text from a command line: true, false, a Python literal, or otherwise the text itself.

    >>> literal("512"), literal("true"), literal("spread")
    (512, True, 'spread')
    """
    if text in ("true", "false"):
        return text == "true"
    try:
        with warnings.catch_warnings(action="ignore"):  # such as the one about 1or2, which is not a literal
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # e.g. {[]: 1}, 10,000 minus signs
        return text


def _place(text: str, pattern: str, known: re.Pattern[str]) -> Place:
    name, options = text, ""
    if "=" in text:
        name, _, options = text.rpartition(":")
    if known.fullmatch(name) is None:
        raise UserError(
            f"config.encoding={shown(pattern)} must be a name, or package.module:Class without .py; options follow a colon, and "
            "slashes stand between the places of a pattern, as in rope:window=512/nope"
        )
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")) if options else ():
        key, equals, value = option.partition("=")
        if key in values:
            raise UserError(f"config.encoding={shown(pattern)}: {name} has {key} twice; leave one of them out")
        if not (key.isidentifier() and equals and value):
            raise UserError(
                f"config.encoding={shown(pattern)}: {shown(option)} is not of the form name=value; write for example "
                "rope:window=512,ssmax=off"
            )
        values[key] = literal(value)
    return Place(name, values)
