"""Nested dictionaries."""

from typing import Any


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, whose names are the paths.

    >>> flatten({"a": 1, "b": {"c": [2]}})
    {'a': 1, 'b.c': [2]}

    Args:
        tree: dictionaries of names to values or to more of them.
        prefix: what all names begin with.
    """
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
