"""What a run writes and shows: JSON lines, TensorBoard if wanted, progress."""

import argparse
import contextlib
import errno
import fcntl
import json
import os
import reprlib
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from bam_jax.system import strict_json
from bam_jax.system.errors import UserError

CRC = "crc32"
"""The name in a record's line under which its checksum stands."""

_MINUTE = 60.0  # seconds between two lines of progress where there is no terminal


class Writer:
    """Appends records to a JSON-lines file, one flushed line each, and to TensorBoard if asked.

    Args:
        path: the file; it is made if it is missing and its folder must exist.
        tensorboard: also write every number of a record that has a 'step' to event files beside it.

    Raises:
        UserError: TensorBoard is wanted and tensorboardX is not installed.
    """

    def __init__(self, path: str | os.PathLike, *, tensorboard: bool = False):
        self.path = Path(path)
        self._events = _events(self.path.parent / "tensorboard") if tensorboard else None
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record.

        Args:
            record: names to JSON values; units belong into the names or beside them.
        """
        self._file.write(line(record) + "\n")
        self._file.flush()
        if self._events is not None:
            for name, value in record.items():
                if name != "step" and isinstance(value, (int, float)):
                    self._events.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def line(record: Mapping[str, Any]) -> str:
    """A record as JSON with the CRC-32 of what is in it, by which `parse` notices a change.

    >>> line({"step": 1, "loss": 2.5})
    '{"step": 1, "loss": 2.5, "crc32": 763729624}'

    Args:
        record: names to JSON values.
    """
    return json.dumps({**record, CRC: _crc(record)})


def parse(text: bytes, where: str, remedy: str = "put it back from a copy or remove that line") -> dict[str, Any]:
    """The record that `line` was given; or one in any JSON, which has no CRC-32 to go by.

    Args:
        text: JSON of an object, in UTF-8.
        where, remedy: as `strict_json.parse` takes them.

    Raises:
        UserError: it is something else, or not what was written.
    """
    record = strict_json.parse(text, where, remedy)
    if not isinstance(record, dict):
        raise UserError(f"{where} is no record but {reprlib.repr(record)}; {remedy}")
    crc = record.pop(CRC, None)
    if crc not in (None, _crc(record)):
        raise UserError(f"{where} was changed after it was written (its {CRC} is that of another); {remedy}")
    return record


def _crc(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record).encode())


def read(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The records of a JSON-lines file; a last line torn by a killed writer is left out.

    Args:
        path: the file; a missing one has no records.

    Raises:
        UserError: a line before the last is not JSON of an object in UTF-8, or not what was written.
    """
    for _, record in _lines(Path(path)):
        yield record


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, text in enumerate(lines[:-1], start=1):  # what follows the last newline was never finished
        yield text, parse(text, f"{path}, line {number}")


def keep(path: str | os.PathLike, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite a JSON-lines file with only the wanted records, all at once or not at all.

    Args:
        path: the file; a missing one stays missing.
        wanted: says of a record whether it stays.
    """
    path = Path(path)
    if path.exists():
        replace(path, "".join(text.decode() + "\n" for text, record in _lines(path) if wanted(record)))


def mend(path: Path) -> None:
    """Cut off a last line that a killed process left torn: the next would be appended to it.

    Args:
        path: a JSON-lines file; a missing one stays missing.
    """
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        keep(path, lambda record: True)


def replace(path: str | os.PathLike, text: str) -> None:
    """Write a whole file, all at once or not at all, even when the process is killed.

    Args:
        path: the file; its folder must exist.
        text: the new contents.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}", str(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)  # where the disk is full


def say(text: str) -> None:
    """Print a line on stderr, above the bar if a terminal shows one; from any thread.

    Args:
        text: the line.
    """
    if sys.stderr.isatty():
        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def alone(lock: Path, busy: str = "") -> Iterator[None]:
    """Keeps other processes out of blocks that name the same lock; the lock ends with the block, or the process.

    Args:
        lock: a file beside what is locked; it is made, and stays.
        busy: what is said where another process has it; "": wait for that one.

    Raises:
        UserError: another process has it, or the file system knows no locks.
    """
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError as error:
            raise UserError(busy) from error
        except OSError as error:
            raise UserError(f"{lock} cannot be locked: {error.strerror}; use another file system") from error
        yield


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one record to a JSON-lines file that several processes may add to.

    Args:
        path: the file; a last line that a killed process left torn is cut off.
        record: as `Writer.write` takes it.

    Raises:
        UserError: the file cannot be locked.
    """
    with alone(path.with_name(f".{path.name}.lock")):
        mend(path)
        with Writer(path) as writer:
            writer.write(record)


def progress(total: int, *, done: int = 0, unit: str = "step", label: str = "", show: bool | None = None) -> tqdm:
    """Progress on stderr with rate and time left: a bar on a terminal, a line each minute elsewhere, such as in a job's log.

    Args:
        total: units of the whole job.
        done: units done before, by an earlier process.
        unit: what is counted.
        label: what stands before the bar.
        show: False: not at all; True: a bar everywhere.
    """
    options = {
        "total": total,
        "initial": done,
        "unit": unit,
        "desc": label,
        "disable": show is False,
        "file": sys.stderr,
    }
    if show or sys.stderr.isatty():
        return tqdm(**options, dynamic_ncols=True)
    text = "{desc}: {n_fmt} of {total_fmt} ({unit}), {elapsed} elapsed, {remaining} left{postfix}"
    return _Lines(**options, delay=_MINUTE, mininterval=_MINUTE, maxinterval=_MINUTE, bar_format=text)


def progress_option(parser: argparse.ArgumentParser) -> None:
    """Adds --progress and --no-progress to a command.

    Args:
        parser: of the command.
    """
    help = "default: a bar on a terminal, a line each minute elsewhere"
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, help=help)


class _Lines(tqdm):
    """Progress as lines; tqdm overwrites one."""

    @staticmethod
    def status_printer(file):
        return lambda text: print(text, file=file, flush=True) if text else None


def _events(folder):
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError as error:
        raise UserError(
            "tensorboard=True needs tensorboardX; install bam_jax[tensorboard] or set tensorboard to False"
        ) from error
    return SummaryWriter(str(folder))
