"""Lines and progress on stderr, on a terminal or in a job's log."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from bam_jax.system.errors import aliased
from bam_jax.system.extras import import_extra

if TYPE_CHECKING:
    from tqdm import tqdm

type Bar = tqdm
"""A progress display: `update` adds units, `close` ends it."""
_MINUTE = 60.0  # seconds between two lines of progress where there is no terminal


def log(text: str) -> None:
    """Print a line on stderr, above the bar if a terminal shows one; from any thread."""
    text = aliased(text)
    bars = sys.modules.get("tqdm")  # else there is no bar
    if bars is not None and sys.stderr.isatty():
        bars.tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table for a terminal: the first column is left-aligned, the others are right-aligned.

    >>> columns([["split", "tokens"], ["train", "12,345"]])
    ['split  tokens', 'train  12,345']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return ["  ".join(line).rstrip() for line in lines]


def progress(total: int, *, done: int = 0, unit: str = "step", label: str = "", show: bool | None = None) -> Bar:
    """Progress on stderr with rate and time left: a bar on a terminal, a line each minute elsewhere, such as in a job's log.

    The rate is measured from the first update, because what precedes it, such as compilation, happens only once.
    """
    bar = import_extra("tqdm", "progress", "train").tqdm
    options = {"total": total, "initial": done, "unit": unit, "desc": label, "disable": show is False, "miniters": 1}
    if show or sys.stderr.isatty():
        return _timed(bar)(**options, file=sys.stderr, dynamic_ncols=True)
    text = "{desc}: {n_fmt} of {total_fmt} ({unit}), {elapsed} elapsed{left}{postfix}"
    often = {"delay": _MINUTE, "mininterval": _MINUTE, "maxinterval": _MINUTE}
    return _lines(_timed(bar))(**options, **often, file=sys.stderr, bar_format=text)


def progress_option(parser: argparse.ArgumentParser) -> None:
    """Adds --progress and --no-progress to a command."""
    help = "default: a bar on a terminal, a line each minute elsewhere"
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, help=help)


def _timed(bar: type[Bar]) -> type[Bar]:
    """Progress by a monotonic clock, without a rate or a remaining time before the second update.

    tqdm's own clock is the time of day. When that is set back, tqdm prints negative times, or nothing for hours.
    """

    class Timed(bar):
        monitor_interval = 0  # tqdm's thread reads the other clock; with miniters=1 it is not needed
        _time = property(lambda self: time.monotonic, lambda self, usual: None)
        first: tuple[float, float] | None = None  # units and time of the first update

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if n and self.first is None:
                self.first = self.n, time.monotonic()
            return shown

        @property
        def format_dict(self) -> dict[str, Any]:
            values = dict(super().format_dict)
            if self.n >= self.total:
                return values | {"left": ""}
            units, start = self.first or (self.n, 0.0)
            rate = (self.n - units) / max(time.monotonic() - start, 1e-9)
            left = f", {self.format_interval((self.total - self.n) / rate)} left" if rate else ""
            return values | {"rate": rate, "left": left}

    return Timed


def _lines(bar: type[Bar]) -> type[Bar]:
    """Progress as separate lines, where tqdm overwrites a single one."""

    class Lines(bar):
        @staticmethod
        def status_printer(file: TextIO) -> Callable[[str], None]:
            return lambda text: print(text, file=file, flush=True) if text else None

        def moveto(self, n: int) -> None:
            """Does nothing. With a second progress display, tqdm would move the cursor up, but a log has no cursor."""

    return Lines
