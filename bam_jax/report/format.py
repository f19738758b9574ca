"""The value of a table's cell and its uncertainty, formatted for print."""

import re
from collections.abc import Callable, Mapping

from bam_jax.experiments.statistics import Kind
from bam_jax.experiments.tables import Entry


def cell_value(entry: Entry) -> float | None:
    """The value of a cell: the middle of its interval, or the value of its only seed; None if no seed is measured."""
    return entry.interval.middle if entry.ours and entry.interval else entry.mean


def cell_formatter(entry: Entry) -> Callable[[float], str]:
    """A function that formats a number like the paper; accuracies that the paper lacks have two decimals."""
    if entry.kind is Kind.ACCURACY and not entry.paper:
        return "{:.2f}".format
    return lambda number: format_value(number, entry.paper)


def end_formatter(shown: str) -> Callable[[float], str]:
    """A function that formats the ends of an interval with the decimals of its middle."""
    return f"{{:,.{len(shown.partition('.')[2])}f}}".format


def describe_interval(interval: tuple[float, float, float] | None, n: int | None, show: Callable[[float], str]) -> str:
    """The interval over seeds and their number in words.

    >>> describe_interval((0.5, 0.75, 1.0), 3, "{:.2f}".format), describe_interval(None, 1, str)
    ('[0.50, 1.00] n=3', '1 seed')
    """
    if interval is None:
        return "1 seed"
    ends = f"[{show(interval[0])}, {show(interval[2])}]"
    return ends if n is None else f"{ends} n={n}"


def with_interval(value: str, described: str) -> str:
    """A value and its `describe_interval` in a sentence.

    >>> with_interval("0.75", "[0.50, 1.00] n=3"), with_interval("0.20", "1 seed")
    ('0.75 [0.50, 1.00] n=3', '0.20 (1 seed)')
    """
    return f"{value} {described}" if described.startswith("[") else f"{value} ({described})"


def describe_ends(ends: Mapping[str, tuple[str, str]]) -> str:
    """The ends of curves in words, grouped by place.

    >>> describe_ends({"BAM": ("500×", "1.00"), "RoPE": ("64×", "0.00"), "NoPE": ("64×", "0.20")})
    'at 500× BAM 1.00; at 64× RoPE 0.00, NoPE 0.20'
    """
    places: dict[str, list[str]] = {}
    for label, (place, value) in ends.items():
        places.setdefault(place, []).append(f"{label} {value}".strip())
    return "; ".join(f"at {place} {', '.join(said)}" for place, said in places.items())


def format_value(value: float, printed: str, sign: str = "") -> str:
    """A value with as many decimals as the paper prints, or with two digits if these would all be 0.

    >>> format_value(1.2345, "1.74"), format_value(0.00413, "1.74"), format_value(0.5, "1.74", sign="+")
    ('1.23', '0.0041', '+0.50')
    """
    decimals = re.fullmatch(r"[~<>]?\d+(?:\.(\d+))?(?: ±.*)?", printed)
    if decimals is not None:
        text = f"{value:{sign}.{len(decimals[1] or '')}f}"
        return text if float(text) or not value else f"{value:{sign}.2g}"
    if not printed and abs(value) < 1000:
        return f"{value:{sign}.2f}" if abs(value) >= 0.1 or not value else f"{value:{sign}.3g}"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.4g}"
