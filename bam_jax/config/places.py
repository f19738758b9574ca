"""The pattern of encodings that layers repeat, in one text that a person can type.

    rope:window=512/rope:window=512/nope:ssmax=on

A slash stands between places, a colon before a place's options, a comma between those. Layer n has place n modulo the number of
places. A name is one of `bam_jax.encodings.ENCODINGS`, or the import path package.module:Class.
"""

import ast
import dataclasses
import re
import warnings
from collections.abc import Mapping
from typing import Any

from bam_jax.config.section import typed
from bam_jax.system.errors import UserError, shown

_NAME = re.compile(r"[^:]+|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""An encoding's name or import path."""
_NAME_OF_PLACE = re.compile(r"\w+|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""The same where there are several: a path of a file is no pattern."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One place of a pattern.

    Args:
        name: of the encoding, or its import path.
        options: that are stated here, values by their names.
    """

    name: str
    options: dict[str, Any]

    def arguments(self, common: Mapping[str, Any], of_layers: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `encodings.spec`.

        Args:
            common: those that all places have, and the options that hold where this one does not state its own.
            of_layers: what a place may state besides its encoding's options, with the values where it does not.

        Raises:
            UserError: a value of another type, or below 0.
        """
        stated = {name: self.options[name] for name in of_layers if name in self.options}
        for name in stated:
            stated[name] = value = typed(f"config.encoding: {name}", stated[name], type(of_layers[name]))
            if not isinstance(value, str) and value < 0:
                raise UserError(f"config.encoding: {name}={value} must be 0 or more")
        options = {name: value for name, value in self.options.items() if name not in of_layers}
        return {"name": self.name, **common, "options": common["options"] | options, **of_layers, **stated}


def places(text: str) -> tuple[Place, ...]:
    """The places of a pattern; a single encoding is one of one place.

    >>> [(place.name, place.options) for place in places("rope:window=512/mine:Prior")]
    [('rope', {'window': 512}), ('mine:Prior', {})]

    Args:
        text: `config.encoding`.

    Raises:
        UserError: a place without a name, or an option without a value.
    """
    parts = text.split("/")
    return tuple(_place(part, text, _NAME if len(parts) == 1 else _NAME_OF_PLACE) for part in parts)


def literal(text: str) -> Any:
    """The value that a person types: true, false, a Python literal, or else the text itself.

    >>> literal("512"), literal("true"), literal("spread")
    (512, True, 'spread')
    """
    if text in ("true", "false"):
        return text == "true"
    try:
        with warnings.catch_warnings(action="ignore"):  # of 1or2, which is no literal
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # {[]: 1} is no dict; 10,000 minus signs
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
