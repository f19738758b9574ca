"""Folders in buckets, at addresses that fsspec knows: gs://bucket/folder, s3://bucket/folder.

An object appears whole or not at all, but buckets have neither renames nor locks. In their place, the object by which others
count is written last and removed first, and a `Lease` keeps a second writer out.
"""

import contextlib
import dataclasses
import os
import platform
import secrets
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, Self

from bam_jax.system import console, files
from bam_jax.system.errors import UserError

BEAT = 5.0
"""Seconds between two signs of life of the holder of a lease."""
DEAD = 30.0
"""Seconds without one after which a lease is taken over."""
_POLL = 1.0


class Found(NamedTuple):
    """An object: its bytes, and its version, which changes when it is written again."""

    size: int
    version: str


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A folder in a bucket; the names of objects are those below its address.

    Raises: UserError: the bucket cannot be reached, read or written, or the package for its kind is not installed.
    """

    address: str  # without a slash at its end

    def list(self, below: str = "") -> dict[str, Found]:
        """The objects below a folder by their names."""
        with files.at_address(self.address):
            filesystem, root = self._fresh()
            found: dict[str, Any] = filesystem.find(f"{root}/{below}", detail=True)
        objects = {path.removeprefix(f"{root}/"): _found(info) for path, info in found.items()}
        for name in objects:
            if {"", ".", ".."} & {*name.split("/")} or "\\" in name:
                raise UserError(f"{self.address} has an object {name[:200]!r}, which is no name of a file; remove it")
        return objects

    def is_empty(self) -> bool:
        """True if it has nothing but hidden names, such as a lease; the objects below its folders are not listed."""
        with files.at_address(self.address):
            filesystem, root = self._fresh()
            try:
                names = [path.strip("/").removeprefix(root.strip("/")) for path in filesystem.ls(root, detail=False)]
            except FileNotFoundError:
                return True
        return not [name for name in names if name and not name.startswith("/.")]

    def read(self, name: str) -> bytes | None:
        """The contents of an object; None if there is none."""
        with files.at_address(self.address):
            filesystem, root = self._fresh()
            try:
                return filesystem.cat_file(f"{root}/{name}")
            except FileNotFoundError:
                return None

    def write(self, name: str, contents: bytes) -> None:
        with files.at_address(self.address, "write"):
            filesystem, root = self._fresh()
            filesystem.pipe_file(f"{root}/{name}", contents)

    def create(self, name: str, contents: bytes) -> bool:
        """Write an object unless it is there, which is one act for all that try; False if it is there."""
        with files.at_address(self.address, "write"):
            filesystem, root = self._fresh()
            try:
                filesystem.pipe_file(f"{root}/{name}", contents, mode="create")
            except FileExistsError:
                return False
        return True

    def download(self, names: Collection[str], folder: Path) -> None:
        """Copy objects into a folder here."""
        if names:
            with files.at_address(self.address):
                filesystem, root = self._fresh()
                filesystem.get([f"{root}/{name}" for name in names], [str(folder / name) for name in names])

    def upload(self, folder: Path, names: Collection[str]) -> None:
        """Copy files of a folder here, several at a time."""
        if names:
            with files.at_address(self.address, "write"):
                filesystem, root = self._fresh()
                filesystem.put([str(folder / name) for name in names], [f"{root}/{name}" for name in names])

    def remove(self, names: Collection[str]) -> None:
        if names:
            with files.at_address(self.address, "write"):
                filesystem, root = self._fresh()
                with contextlib.suppress(FileNotFoundError):
                    filesystem.rm([f"{root}/{name}" for name in names])

    def _fresh(self) -> tuple[Any, str]:
        """The file system, which has forgotten what it listed before, and the folder's path in it."""
        filesystem, root = files.find_filesystem(self.address)
        filesystem.invalidate_cache()
        return filesystem, root.rstrip("/")


class Replaced(UserError):
    """Another process has taken over a lease."""


class Lease:
    """Keeps other processes, on any host, from leasing the same folder of a bucket; a context manager.

    The lease is an object, `NAME/1`, that only one process can create. Its holder writes it again every `BEAT` seconds. Who finds
    it unchanged for `DEAD` seconds takes it over by creating `NAME/2`, which again only one can. No clock is compared with
    another's, and a holder that was cut off for so long finds that it has been replaced.
    """

    def __init__(self, bucket: Bucket, busy: str, name: str = ".lease"):
        self._bucket, self._busy, self._folder = bucket, busy, name
        self._token = f"{platform.node()} {os.getpid()} {secrets.token_hex(8)}"
        self._number = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> Self:
        """Raises: UserError: `busy`, if another process holds the lease and is alive."""
        while True:
            newest = self._newest()
            state = self._watch(newest) if newest else "dead"
            if state == "alive":
                raise UserError(self._busy)
            if state == "dead" and self._bucket.create(self._at(newest + 1), self._contents(0)):
                break
        self._number = newest + 1
        self._bucket.remove([self._at(newest)] if newest else [])
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._is_held():
            self._bucket.remove([self._at(self._number)])

    def check(self) -> None:
        """Raises: Replaced."""
        if not self._is_held():
            raise Replaced(
                f"{self._bucket.address} was taken over by another process, as this one had not reached the bucket for "
                f"{DEAD:.0f} seconds; let the other one go on"
            )

    def _at(self, number: int) -> str:
        return f"{self._folder}/{number}"

    def _contents(self, beat: int) -> bytes:
        return f"{self._token} {beat}\n".encode()

    def _newest(self) -> int:
        """The number of the lease that counts; 0 if there is none."""
        names = [name.rpartition("/")[2] for name in self._bucket.list(self._folder)]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _is_held(self) -> bool:
        mine = self._bucket.read(self._at(self._number)) or b""
        return mine.startswith(self._token.encode()) and self._newest() == self._number

    def _watch(self, number: int) -> str:
        """Whether the holder of a lease is "alive", "dead", or has "left"."""
        first, begun = self._bucket.read(self._at(number)), time.monotonic()
        console.log(
            f"{self._bucket.address} is leased; waiting up to {DEAD:.0f} s to see whether its holder is still alive"
        )
        while (contents := self._bucket.read(self._at(number))) == first:
            if first is None:
                break
            if time.monotonic() - begun > DEAD:
                return "dead"
            time.sleep(_POLL)
        return "left" if contents is None else "alive"

    def _live(self) -> None:
        beat = 0
        while not self._over.wait(BEAT):
            beat += 1
            with contextlib.suppress(UserError):  # the network may come back
                if self._is_held():  # else it is another's, and `check` says so
                    self._bucket.write(self._at(self._number), self._contents(beat))


def _found(info: dict[str, Any]) -> Found:
    # The generation (gs), the ETag (s3), or else the time.
    version = next((info[name] for name in ("generation", "ETag", "etag", "mtime", "created") if info.get(name)), "")
    return Found(int(info["size"]), str(version))
