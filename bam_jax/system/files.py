"""Files: read from a folder or any address that fsspec knows, plain, gzip or zstandard; written whole or not at all."""

import argparse
import contextlib
import dataclasses
import errno
import fnmatch
import glob
import gzip
import io
import itertools
import logging
import os
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bam_jax.system import regular, typed_json
from bam_jax.system.errors import UserError, shown
from bam_jax.system.extras import import_extra

COMPRESSIONS = (".gz", ".zst")
SMALL = 2**26  # maximum bytes of a user's file that is read whole, such as a vocabulary or a page
DRAFT = ".draft"  # the suffix of a file that is being written
_STALE = 24 * 3600  # seconds after which a draft counts as left by a killed process
_PIECE = 2**18  # bytes read at a time
# Without a handler, Python prints gcsfs's log of tracebacks, although gcsfs also raises these errors.
logging.getLogger("gcsfs").addHandler(logging.NullHandler())


@dataclasses.dataclass(frozen=True)
class File:
    """A local or remote file."""

    path: str  # local, or an address such as gs://bucket/name
    name: str  # below the source
    size: int  # in bytes, as stored

    @property
    def kind(self) -> str:
        """The suffix of its format, without that of a compression: ".jsonl" for "a.jsonl.gz"."""
        stem, suffix = os.path.splitext(self.name)
        return os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix

    def open_raw(self) -> BinaryIO:
        """The open file, without decompression."""
        if is_remote(self.path):
            filesystem, path = find_filesystem(self.path)
            return filesystem.open(path, "rb")
        if not Path(self.path).is_file():  # opening a pipe would block
            what = "it is not a file" if os.path.lexists(self.path) else "there is no such file"
            raise FileNotFoundError(errno.ENOENT, what, self.path)
        return open(self.path, "rb")

    def read_lines(self, max_bytes: int) -> Iterator[tuple[bytes | bytearray, int]]:
        """Yields (line of the uncompressed text with its newline, stored bytes read so far)."""
        with self._reading() as (raw, stream):
            for number in itertools.count(1):
                start = stream.readline(_PIECE)
                if not start:
                    return
                whole = len(start) < min(_PIECE, max_bytes)
                line = start if whole else _gathered(_line(start, stream), max_bytes, f"{self.path} line {number}")
                yield line, raw.tell()

    def read_whole(self, max_bytes: int) -> bytearray:
        """Reads all its bytes, uncompressed."""
        with self._reading() as (_, stream):
            return _gathered(iter(lambda: stream.read(_PIECE), b""), max_bytes, self.path)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """The stored bytes, and the same stream, decompressed a buffer at a time. Read errors become a `UserError`."""
        with self.named_in_errors(), self.open_raw() as raw:
            if self.path.endswith(".gz"):
                yield raw, io.BufferedReader(gzip.open(raw), _PIECE)
            elif self.path.endswith(".zst"):
                # Arrow's streams, unlike others, report a file that ends within a frame.
                arrow = import_extra("pyarrow", "a .zst file", "data")
                inflated = arrow.CompressedInputStream(arrow.PythonFile(raw, "r"), "zstd")
                yield raw, io.BufferedReader(inflated, _PIECE)
            elif is_remote(self.path):  # fsspec's own lines have no size limit
                yield raw, io.BufferedReader(raw, _PIECE)  # type: ignore[type-var]
            else:
                yield raw, raw

    @contextlib.contextmanager
    def named_in_errors(self, *errors: type[Exception]) -> Iterator[None]:
        """Turns errors in reading, and the given ones, into a UserError that names the file."""
        network = [Exception] if is_remote(self.path) else []  # each network library has its own errors
        try:
            yield
        except (UserError, MemoryError):  # Arrow's MemoryError is also one of Arrow's own errors
            raise
        except (OSError, EOFError, zlib.error, *network, *errors) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
            raise UserError(f"cannot read {self.path}: {reason}; mend it, fetch it again or take it away") from error


def is_remote(path: str | os.PathLike) -> bool:
    """True for a path that is an address for fsspec: gs://bucket/folder, s3://..., memory://...

    >>> is_remote("gs://bucket/corpus"), is_remote("corpora/fineweb")
    (True, False)
    """
    return "://" in os.fspath(path)


def refuse_address(path: str | os.PathLike) -> None:
    """Raises: UserError, for an address; `Path` would turn it into a folder "gs:"."""
    if is_remote(path):
        raise UserError(f"{shown(path)} is an address; give a path on this machine, where a bucket may be mounted")


def local(text: str) -> str:
    """The type of a command's option for a path on this machine: an output, or a run to read."""
    try:
        refuse_address(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def local_path(text: str) -> Path:
    """The same as a `Path`."""
    if not text:  # `Path` would turn it into the current folder
        raise argparse.ArgumentTypeError("is empty; give a path, or leave the option out")
    return Path(local(text))


def matching(pattern: str) -> list[str]:
    """The path or address of this name, otherwise all that match it as a shell pattern, sorted; [] if there are none."""
    if is_remote(pattern):
        if not glob.has_magic(pattern):
            return [pattern]
        filesystem, path = find_filesystem(pattern)
        with at_address(pattern):
            return sorted(map(filesystem.unstrip_protocol, filesystem.glob(path)))
    return [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern))


def list_files(source: str, patterns: tuple[str, ...]) -> list[File]:
    """The files of a source, always in the same order: those whose names match the first pattern that any name matches.

    In patterns, "*" also matches slashes. A source that is a single file does not have to match any pattern.
    """
    files = _remote(source) if is_remote(source) else _local(source)
    if len(files) == 1 and not files[0].name:
        return [dataclasses.replace(files[0], name=Path(source).name)]
    for pattern in patterns:
        found = [file for file in files if fnmatch.fnmatchcase(file.name, pattern)]
        if found:
            return sorted(found, key=lambda file: file.name.split("/"))
    return []


def too_large(where: str, max_bytes: int) -> UserError:
    """The error for a record of more than `max_bytes` bytes."""
    return UserError(
        f"{where} has more than {max_bytes:,} bytes; divide it, or give prepare a larger --max-record-bytes"
    )


def read_small(path: str | os.PathLike) -> bytes:
    """Reads a small file as a whole."""
    file = File(str(path), Path(path).name, 0)
    with file.named_in_errors(), file.open_raw() as raw:
        return raw.read(regular.check_size(raw, SMALL))


def read_json(path: str | os.PathLike) -> Any:
    """Reads the JSON value in a file of a run or a prepared folder."""
    return typed_json.parse(regular.read(path), str(path), strict=False)  # hashes are unsigned 64-bit numbers


def write_atomically(path: str | os.PathLike, contents: str | bytes) -> None:
    """Write a whole file, all at once or not at all, even when the process is killed."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}", str(path))
    # In the same folder, because a rename is atomic only within a file system. With a random name, because processes in two
    # containers may have the same number.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}{DRAFT}")
    try:
        with open(draft, "xb", opener=regular.opener) as file:
            file.write(contents.encode() if isinstance(contents, str) else contents)
            file.flush()
            os.fsync(file.fileno())  # before the rename: otherwise a crash could leave the name without its contents
        draft.replace(path)
    except OSError as error:
        raise named(error, path) from None
    finally:
        draft.unlink(missing_ok=True)  # if the disk is full


def sweep(folder: Path) -> None:
    """Removes the drafts in a folder that killed processes left there more than a day ago."""
    for draft in folder.glob(f".*{DRAFT}"):
        with contextlib.suppress(OSError):  # another process removes it, or it belongs to another user
            if time.time() - draft.lstat().st_mtime > _STALE:
                draft.unlink()


def cache(name: str) -> Path:
    """A folder of the package in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bam_jax", name)


def named(error: OSError, path: str | os.PathLike) -> OSError:
    """A system error with the file's name added, which the error of a failed write lacks."""
    error.filename = str(path)
    return error


def keep_other(path: str | os.PathLike, mark: str) -> None:
    """Refuse to replace a file that this command did not write; `mark` is a text in every file that it writes."""
    if os.path.lexists(path) and not (Path(path).is_file() and mark.encode() in read_small(path)):
        raise UserError(
            f"{path} is there, and this command did not write it; give another path, or move that file away"
        )


def shortened(names: Iterable[object], limit: int = 20) -> str:
    """Names from a file, for a one-line message: the first few, each escaped and truncated.

    >>> shortened(["text", "two\\nlines"]), shortened([])
    ('text, two\\\\nlines', 'none')
    """
    found = [repr(str(name)[:60])[1:-1] for name in itertools.islice(names, limit + 1)]
    return ", ".join(found[:limit] + ["..."] * (len(found) > limit)) or "none"


def _local(source: str) -> list[File]:
    root = Path(source)
    if not root.exists():
        raise UserError(f"data source {source} does not exist; name a folder or file that is there")
    if root.is_file():
        return [File(source, "", root.stat().st_size)]
    found = []
    for folder, _, names in os.walk(root):  # pathlib takes ten times as long, which matters for a million files
        for name in names:
            if os.path.splitext(name)[1] and not name.startswith("."):
                path = os.path.join(folder, name)
                size = os.path.getsize(path) if os.path.exists(path) else 0
                found.append(File(path, path.removeprefix(os.path.join(root, "")), size))
    return found


def _remote(source: str) -> list[File]:
    filesystem, root = find_filesystem(source)
    with at_address(source):
        if not filesystem.exists(root):
            raise UserError(f"data source {source} does not exist; give a folder or file")
        found: dict[str, Any] = filesystem.find(root, detail=True)
    return [
        File(filesystem.unstrip_protocol(path), path[len(root) :].lstrip("/"), entry["size"])
        for path, entry in found.items()
    ]


@contextlib.contextmanager
def at_address(address: str, act: str = "read") -> Iterator[None]:
    """Turns an error of a network library into a one-line `UserError`."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # each library has its own errors
        if isinstance(error, OSError) and error.filename is not None and os.path.lexists(error.filename):
            raise  # of a local file
        reason = " ".join(f"{error or type(error).__name__}".split())[:200]
        remedy = f"see that it exists, that it can be reached from here, and that you may {act} it"
        access = _ACCESS.get(address.partition("://")[0])
        raise UserError(f"cannot {act} {address}: {reason}; {remedy}{f' ({access()})' if access else ''}") from error


_ACCESS = {
    "gs": lambda: "credentials: gcloud auth application-default login",
    "s3": lambda: f"credentials: aws configure; AWS_ENDPOINT_URL={os.environ.get('AWS_ENDPOINT_URL', '')}",
}
"""By scheme, the settings that decide whether its addresses can be accessed, for messages."""


def find_filesystem(path: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    scheme, _, place = path.partition("://")
    if not place.strip("/"):
        raise UserError(f"{shown(path)} names no bucket; give an address such as {scheme}://BUCKET/FOLDER")
    if scheme == "gs":  # gcsfs also raises its errors; its log lines would precede the user's message
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    fsspec = import_extra("fsspec", path, {"gs": "gcs", "s3": "s3"}.get(scheme, "data"))
    try:
        return fsspec.core.url_to_fs(path)
    except ImportError as error:  # fsspec's own message names the package: gcsfs, s3fs
        raise UserError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}; give a local path, or gs://..., s3://...") from error


def _line(start: bytes, stream: BinaryIO) -> Iterator[bytes]:
    """The pieces of the line that begins with `start`."""
    while start:
        yield start
        start = b"" if start.endswith(b"\n") else stream.readline(_PIECE)


def _gathered(pieces: Iterable[bytes], max_bytes: int, where: str) -> bytearray:
    """The pieces joined. A growing array takes an eighth more memory than its contents, a list of pieces twice as much."""
    whole = bytearray()
    for piece in pieces:
        whole += piece
        if len(whole) > max_bytes:
            raise too_large(where, max_bytes)
    return whole
