"""Folders in buckets, at fsspec addresses such as gs://bucket/folder and s3://bucket/folder.

Writing an object is atomic, but buckets support neither renames nor locks. In place of a rename, a marker object is written last
and removed first, and a group of objects is valid only while its marker exists. In place of a lock, a `Lease` keeps out a second
writer.
"""

import contextlib
import dataclasses
import glob
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
"""Seconds between renewals of a lease."""
DEAD = 30.0
"""Seconds without a renewal after which another process may take over a lease."""
LEASE = ".lease"
"""The folder of leases."""
SCHEMES = ("gs", "gcs", "s3", "memory")
"""Schemes of the addresses of runs. Others of fsspec lack conditional writes or have not been tried."""
_POLL = 1.0


class Found(NamedTuple):
    """The size of an object in bytes, and its version, which changes with every write."""

    size: int
    version: str


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A folder in a bucket. Names of objects are relative to its address.

    Raises: UserError: the bucket cannot be reached, read or written, or its package (gcsfs, s3fs) is not installed.
    """

    address: str  # without a slash at its end

    def __post_init__(self) -> None:
        if self.address.partition("://")[0] not in SCHEMES:
            raise UserError(f"{self.address}: runs are in folders here, or at gs://... or s3://...; give one of these")
        _check_name(self.address, self.address)

    def find(self, below: str = "") -> dict[str, Found]:
        """The objects below a folder by their names."""
        with files.at_address(self.address):
            filesystem, root = self._fresh()
            found: dict[str, Any] = filesystem.find(f"{root}/{below}", detail=True)
        objects = {}
        for path, info in found.items():
            if path.startswith(f"{root}/") and not path.endswith("/"):  # consoles create those for empty folders
                name = path.removeprefix(f"{root}/")
                if {"", ".", ".."} & {*name.split("/")} or "\\" in name:
                    raise UserError(
                        f"{self.address} contains an object named {name[:200]!r}, not a valid file name; delete it"
                    )
                _check_name(name, self.address)
                objects[name] = _found(info)
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
            except FileNotFoundError as error:
                if "bucket does not exist" in str(error):
                    raise
                return None

    def read_all(self, names: Collection[str]) -> list[bytes]:
        """The contents of several objects, read concurrently."""
        if not names:
            return []
        with files.at_address(self.address):
            filesystem, root = self._fresh()
            found = filesystem.cat([f"{root}/{name}" for name in names])
            # For a single object, fsspec returns the contents, not a dictionary.
            return [found] if isinstance(found, bytes) else [found[f"{root}/{name}"] for name in names]

    def write(self, name: str, contents: bytes) -> None:
        with files.at_address(self.address, "write"):
            filesystem, root = self._fresh()
            filesystem.pipe_file(f"{root}/{name}", contents)

    def create(self, name: str, contents: bytes) -> bool:
        """Create an object atomically; False if it already exists."""
        with files.at_address(self.address, "write"):
            filesystem, root = self._fresh()
            try:
                filesystem.pipe_file(f"{root}/{name}", contents, mode="create")
            except FileExistsError:
                return False
            except OSError as error:  # of S3, if another process creates it at the same moment
                if "ConditionalRequestConflict" in str(error) or "PreconditionFailed" in str(error):
                    return False
                raise
        return True

    def download(self, names: Collection[str], folder: Path) -> None:
        """Copy objects into a folder here; each file appears whole or not at all."""
        if names:
            drafts = [f"{folder / name}{files.DRAFT}" for name in names]  # s3fs first creates files of the full size
            with files.at_address(self.address):
                filesystem, root = self._fresh()
                filesystem.get([f"{root}/{name}" for name in names], drafts)
            for name, draft in zip(names, drafts, strict=True):
                os.replace(draft, folder / name)

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
        """The file system, with its cache of listings cleared, and the folder's path in it."""
        filesystem, root = files.find_filesystem(self.address)
        filesystem.invalidate_cache()
        return filesystem, root.rstrip("/")


class Replaced(UserError):
    """Another process has taken over a lease."""


class Lease:
    """Gives one process, on any host, exclusive write access to a folder of a bucket; a context manager.

    The lease is an object, `LEASE/1`, that only one process can create. The holder rewrites it every `BEAT` seconds. A process
    that finds it unchanged for `DEAD` seconds takes over by creating `LEASE/2`, which again only one can. Clocks are never
    compared. A holder that was cut off for that long finds the newer object: `check` raises `Replaced`. A holder that ends
    empties its object instead of removing it, so that numbers only grow.
    """

    def __init__(self, bucket: Bucket, busy: str):
        self._bucket, self._busy = bucket, busy
        self._token = f"{platform.node()} {os.getpid()} {secrets.token_hex(8)}"
        self._number = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> Self:
        """Raises: UserError: `busy`, if another process holds the lease and is alive."""
        while True:
            newest = self._newest()
            state = self._watch(newest) if newest else "left"
            if state == "alive":
                raise UserError(self._busy)
            if state in ("dead", "left") and self._bucket.create(self._at(newest + 1), self._contents(0)):
                break
        self._number = newest + 1
        self._bucket.remove([self._at(newest)] if newest else [])
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.suppress(UserError):  # the next holder then has to wait
            if self._is_held():
                self._bucket.write(self._at(self._number), b"")

    def check(self) -> None:
        """Raises: Replaced."""
        if not self._is_held():
            raise Replaced(
                f"another process took over {self._bucket.address}, because this one did not renew its lease for {DEAD:.0f} "
                "seconds; let the other one continue"
            )

    def _at(self, number: int) -> str:
        return f"{LEASE}/{number}"

    def _contents(self, beat: int) -> bytes:
        return f"{self._token} {beat}\n".encode()

    def _newest(self) -> int:
        """The number of the valid lease; 0 if there is none."""
        names = [name.rpartition("/")[2] for name in self._bucket.find(LEASE)]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _is_held(self) -> bool:
        mine = self._bucket.read(self._at(self._number)) or b""
        return mine.startswith(self._token.encode()) and self._newest() == self._number

    def _watch(self, number: int) -> str:
        """Whether the holder of a lease is "alive" or "dead", has "left", or was "replaced"."""
        first, begun = self._bucket.read(self._at(number)), time.monotonic()
        if first:
            wait = f"waiting up to {DEAD:.0f} s to check whether its process is still alive"
            console.log(f"{self._bucket.address} is leased; {wait}")
        contents = first
        while contents and contents == first:
            if time.monotonic() - begun > DEAD:
                return "dead"
            time.sleep(_POLL)
            contents = self._bucket.read(self._at(number))
        if contents is None:
            return "replaced"
        return "alive" if contents else "left"

    def _live(self) -> None:
        beat = 0
        while not self._over.wait(BEAT):
            beat += 1
            with contextlib.suppress(UserError):  # the network may come back
                if self._is_held():  # otherwise `check` reports that another process has it
                    self._bucket.write(self._at(self._number), self._contents(beat))


def _check_name(name: str, address: str) -> None:
    """Reject names that fsspec would treat as patterns."""
    if glob.has_magic(name):
        raise UserError(
            f"{address}: the name {name[:200]!r} has one of the characters * ? [, which are patterns; rename it"
        )


def _found(info: dict[str, Any]) -> Found:
    # The generation (gs), the ETag (s3), or else the time.
    version = next((info[name] for name in ("generation", "ETag", "etag", "mtime", "created") if info.get(name)), "")
    return Found(int(info["size"]), str(version))
