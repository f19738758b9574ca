"""Files of a corpus: in a local folder, or at any address that fsspec knows; plain, gzip or zstandard."""

import contextlib
import dataclasses
import fnmatch
import gzip
import importlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from bam_jax.errors import UserError

COMPRESSIONS = (".gz", ".zst")


@dataclasses.dataclass(frozen=True)
class File:
    """One file.

    Args:
        path: local, or an address such as gs://bucket/name.
        name: its path below the source.
        size: in bytes, as stored.
    """

    path: str
    name: str
    size: int

    @property
    def kind(self) -> str:
        """The suffix that says what is in it, that of a compression left out: ".jsonl" of "a.jsonl.gz"."""
        name = self.name
        for suffix in COMPRESSIONS:
            name = name.removesuffix(suffix)
        return Path(name).suffix

    def raw(self) -> BinaryIO:
        """The bytes as stored."""
        if is_remote(self.path):
            filesystem, path = _filesystem(self.path)
            return filesystem.open(path, "rb")
        return open(self.path, "rb")

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Its bytes as stored, and the same stream uncompressed; what goes wrong in reading is the user's to mend.

        Raises:
            UserError: it cannot be read, or what it holds is not what its name says.
        """
        with self.blamed(), self.raw() as raw:
            if self.path.endswith(".gz"):
                yield raw, gzip.open(raw)  # type: ignore[misc]
            elif self.path.endswith(".zst"):
                yield raw, _zstandard(raw)
            else:
                yield raw, raw

    @contextlib.contextmanager
    def blamed(self, *errors: type[Exception]) -> Iterator[None]:
        """Errors of the system, of decompression and the given ones, said in one line that names the file.

        Raises:
            UserError: instead of them.
        """
        try:
            yield
        except (OSError, EOFError, zlib.error, *errors) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
            raise UserError(f"cannot read {self.path}: {reason}; mend it, fetch it again or take it away") from error


def is_remote(path: str) -> bool:
    """Whether a path is an address for fsspec: gs://bucket/folder, s3://..., memory://...

    >>> is_remote("gs://bucket/corpus"), is_remote("corpora/fineweb")
    (True, False)
    """
    return "://" in path


def listing(source: str, patterns: tuple[str, ...]) -> list[File]:
    """The files of a source whose names below it match a pattern, always in the same order.

    Args:
        source: a file, or a folder searched through; a single file needs to match no pattern.
        patterns: in the style of a shell, "*" standing for slashes as well; the files of the first one that matches any.

    Raises:
        UserError: nothing there.
    """
    files = _remote(source) if is_remote(source) else _local(source)
    if len(files) == 1 and not files[0].name:
        return [dataclasses.replace(files[0], name=Path(source).name)]
    for pattern in patterns:
        found = [file for file in files if fnmatch.fnmatchcase(file.name, pattern)]
        if found:
            return sorted(found, key=lambda file: file.name.split("/"))
    return []


def need(module: str, what: str) -> ModuleType:
    """A module of the extra `data`.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{what} needs the package {error.name}: pip install 'bam_jax[data]'") from error


def _local(source: str) -> list[File]:
    root = Path(source)
    if not root.exists():
        raise UserError(f"data source {source} does not exist; name a folder or file that is there")
    if root.is_file():
        return [File(source, "", root.stat().st_size)]
    return [
        File(str(path), path.relative_to(root).as_posix(), path.stat().st_size)
        for path in root.rglob("*")
        if path.suffix and not path.name.startswith(".")
    ]


def _remote(source: str) -> list[File]:
    filesystem, root = _filesystem(source)
    try:
        if not filesystem.exists(root):
            raise UserError(f"data source {source} does not exist; give a folder or file")
        found: dict[str, Any] = filesystem.find(root, detail=True)
    except OSError as error:
        raise UserError(f"cannot read {source}: {error}; see that it exists and that you may read it") from error
    return [
        File(filesystem.unstrip_protocol(path), path[len(root) :].lstrip("/"), entry["size"])
        for path, entry in found.items()
    ]


def _filesystem(path: str) -> tuple[Any, str]:
    fsspec = need("fsspec", path)
    try:
        return fsspec.core.url_to_fs(path)
    except ImportError as error:  # fsspec's own message names the package: gcsfs, s3fs
        raise UserError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}; give a local path, or gs://..., s3://...") from error


class _Whole(io.RawIOBase):
    """A zstandard stream that complains when it ends within a frame; the package's own does not."""

    def __init__(self, raw: BinaryIO) -> None:
        zstandard = need("zstandard", "a .zst file")
        self._raw = raw
        self._error: type[Exception] = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self._left:
                compressed = self._frame.unused_data if self._frame and self._frame.eof else b""
                compressed = compressed or self._raw.read(2**16)
                if not compressed:
                    if self._frame and not self._frame.eof:
                        raise EOFError("it ends within a zstandard frame")
                    return 0
                if self._frame is None or self._frame.eof:
                    self._frame = self._decompressor.decompressobj()
                self._left = self._frame.decompress(compressed)
        except self._error as error:
            raise OSError(f"not zstandard: {error}") from error
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _zstandard(raw: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_Whole(raw), 2**20)  # type: ignore[return-value]
