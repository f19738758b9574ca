"""Runs in buckets. A command works on a local copy in a temporary folder and uploads the files it writes.

A run in a bucket has the files of a local one (`run_folder`), with three differences:

checkpoints/STEP/  valid only with its sums.json, which is uploaded last and removed first
results/           new records of evaluations; each upload creates an object, so that several can write concurrently
.lease/            in place of .lock (`bucket.Lease`)
"""

import atexit
import contextlib
import fcntl
import functools
import itertools
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from bam_jax.parallel import agreement, processes
from bam_jax.system import console, errors, files, lock, regular
from bam_jax.system.bucket import LEASE, Bucket, Found, Lease, Replaced
from bam_jax.system.errors import Unwritten, UserError
from bam_jax.training.run_folder import CHECKPOINTS, CHECKSUMS, CONFIG, DIVERGED, KEPT, LEASED, METRICS, RESULTS

PERIOD = 30.0
"""Seconds between uploads of files other than checkpoints."""
ATTEMPTS = 20
"""Attempts to upload a checkpoint, `PERIOD` seconds apart; the network library retries within each."""
_RECORDS = "results"
_PROFILE = "profile/"
_PREFIX = "bam_jax-run-"
_OF_TRAINING = (CONFIG, METRICS, DIVERGED)  # no other command uploads these
_LONGEST = 3600  # seconds that the other processes wait for the last upload of process 0
_YOUNG = 60  # seconds during which a new folder may not be held yet
_LARGE = 2**27  # bytes above which a transfer is announced
_READ = ("model", "data")
"""The parts of a checkpoint that commands read: all but the optimiser's state."""


class RemoteRun:
    """A run in a bucket and its local working copy."""

    def __init__(self, address: str, name: str, uploaded: str = ""):
        """
        Args:
            name: of the temporary folder; processes of one host may share it.
            uploaded: the subfolder whose files this process uploads; "" uploads all.
        """
        self.address = _address(address)
        self.bucket = Bucket(self.address)
        self._folder = _temporary(name)
        # Held until this process ends, in whatever way. Other processes remove folders that no process holds.
        self._alive = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(self._alive, fcntl.LOCK_SH)
        self.path = self._folder / self.address.rpartition("/")[2]
        self.path.mkdir(exist_ok=True)
        self.lease: Lease | None = None  # of a training
        self._uploaded = uploaded
        self._versions: dict[str, Found] = {}  # of the objects that were copied
        self._same: dict[str, tuple[int, int]] = {}  # time and size of the local files that equal those in the bucket
        self._recorded = 0  # bytes of results.jsonl that the bucket has
        self._lock = threading.Lock()
        self._replaced: Replaced | None = None
        errors.ALIASES[str(self.path)] = self.address
        atexit.register(self.close)

    def close(self) -> None:
        """Remove the folder, unless another process of this host still works in it."""
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._alive)

    def check(self) -> None:
        """Raises: Replaced: another process has taken over the lease."""
        if self._replaced is not None:
            raise self._replaced

    def fetch(self, parts: Collection[str] | None = None, *, weights: bool = True, step: int | None = None) -> None:
        """Copy what has changed of the run.

        Args:
            parts: of a checkpoint; None: all.
            weights: whether to copy a checkpoint, and weights.
            step: of the checkpoint, if there is one; else the newest.
        """
        if self.bucket.read(CONFIG) is None:
            if not self.bucket.is_empty():
                raise UserError(
                    f"{self.address} is not empty and has no config.json, so it is not a run; give a run, or an empty "
                    "folder to train in"
                )
            return
        versions = self.bucket.find()
        steps = _steps(versions) if weights else []
        copied = str(step if step in steps else max(steps, default=None))
        chosen, records = [], []
        for name in versions:
            folder, *rest = name.split("/")
            if folder == CHECKPOINTS:
                if rest[:1] == [copied] and (parts is None or len(rest) < 3 or rest[1] in parts):
                    chosen.append(name)
            elif name == RESULTS or folder == _RECORDS:
                records.append(name)
            elif name == CONFIG or (weights and folder[0] != "." and not name.startswith(_PROFILE)):
                chosen.append(name)
        read = [name for name in (*records, CONFIG, METRICS) if name in versions]
        if sum(versions[name].size for name in read) > regular.RECORDS:
            raise UserError(
                f"{self.address} has more than {regular.RECORDS:,} bytes of records; it is no run of bam_jax"
            )
        if any(found.size for name, found in versions.items() if name.startswith(f"{LEASE}/")):
            (self.path / LEASED).touch()
        else:
            (self.path / LEASED).unlink(missing_ok=True)
        with self._lock:
            chosen = [
                name for name in chosen if versions[name] != self._versions.get(name) and not self._is_changed(name)
            ]
            self._download(chosen, versions)
            if not self._recorded:
                self._fetch_records(sorted(records))
            self._versions |= {name: versions[name] for name in chosen}
            here = [name for name in chosen if not name.startswith(f"{CHECKPOINTS}/")]
            self._same |= {name: _stamp(self.path / name) for name in here}

    def push(self) -> None:
        """Upload what was written here since the last upload, except checkpoints."""
        with self._lock:
            now = self._written()
            self._check_lease()
            for name in sorted(now, key=lambda name: name != CONFIG):  # first: without it, the rest is not a run
                if now[name] != self._same.get(name):
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        self.bucket.write(name, (self.path / name).read_bytes())
                        self._same[name] = now[name]
            gone = [name for name in (METRICS, DIVERGED) if self.lease and name in self._same and name not in now]
            self.bucket.remove(gone)
            for name in gone:
                del self._same[name]
            if not self._uploaded:
                self._push_records()

    def push_checkpoint(self, step: int) -> None:
        """Upload pending files and a complete checkpoint, then remove the older ones."""
        folder = f"{CHECKPOINTS}/{step}"
        sizes = {
            path.relative_to(self.path).as_posix(): path.stat().st_size
            for path in (self.path / folder).rglob("*")
            if path.is_file()
        }
        _announce(f"uploading the checkpoint of step {step:,} to {self.address}", sum(sizes.values()))
        for attempt in itertools.count(1):
            try:
                self.push()
                self.bucket.upload(self.path, [*sizes.keys() - {f"{folder}/{CHECKSUMS}"}])
                self._check_lease()
                self.bucket.upload(self.path, [f"{folder}/{CHECKSUMS}"])
                self.remove_checkpoints()
                return
            except Replaced:
                raise
            except UserError as error:
                if attempt == ATTEMPTS:
                    raise
                console.log(f"could not upload the checkpoint of step {step:,}, retrying in {PERIOD:.0f} s: {error}")
                time.sleep(PERIOD)

    def remove_checkpoints(self) -> None:
        """Remove all but the newest `KEPT` checkpoints, and the remains of interrupted uploads."""
        found = self.bucket.find(CHECKPOINTS)
        steps = {str(step) for step in _steps(found)[-KEPT:]}
        others = [name for name in found if (step := name.split("/")[1]).isdecimal() and step not in steps]
        self.bucket.remove([name for name in others if name.endswith(f"/{CHECKSUMS}")])  # from now on they do not count
        self.bucket.remove([name for name in others if not name.endswith(f"/{CHECKSUMS}")])

    @contextlib.contextmanager
    def pushing(self) -> Iterator[None]:
        """Upload changed files every `PERIOD` seconds and once at the end.

        Raises: Unwritten: the last upload failed; the message gives the local folder, which is kept.
        """
        over = threading.Event()
        thread = threading.Thread(target=self._push_now_and_then, args=(over,), daemon=True)
        thread.start()
        failed = True
        try:
            yield
            failed = False
        finally:
            over.set()
            thread.join()
            try:
                self.push()
            except BaseException as error:
                kept = self._folder.rename(self._folder.with_name(self._folder.name.replace("run", "unsent", 1)))
                what = f"{error or type(error).__name__}; the local copy is kept in {kept / self.path.name}"
                if isinstance(error, UserError) and not failed:
                    raise Unwritten(what) from error
                console.log(what)  # the error of the block itself is raised
                if not failed:
                    raise

    def _push_now_and_then(self, over: threading.Event) -> None:
        while not over.wait(PERIOD):
            try:
                self.push()
            except Replaced as error:
                self._replaced = error  # the next step ends the training
                return
            except UserError as error:
                console.log(f"upload failed, retrying in {PERIOD:.0f} s: {error}")

    def _is_changed(self, name: str) -> bool:
        """Whether a file was written here since it was copied."""
        path = self.path / name
        return name in self._same and path.exists() and _stamp(path) != self._same[name]

    def _check_lease(self) -> None:
        if self.lease is not None:
            self.lease.check()

    def _download(self, names: Collection[str], sizes: Mapping[str, Found]) -> None:
        with lock.hold(self._folder / lock.NAME):  # other processes may share the folder
            missing = [name for name in names if name in self._versions or not (self.path / name).exists()]
            for folder in {(self.path / name).parent for name in missing}:
                folder.mkdir(parents=True, exist_ok=True)
            _announce(f"downloading {self.address}", sum(sizes[name].size for name in missing))
            self.bucket.download(missing, self.path)

    def _fetch_records(self, names: Collection[str]) -> None:
        found = self.bucket.read_all(names)
        whole = b"".join(each if each.endswith(b"\n") or not each else each + b"\n" for each in found)
        if whole:
            files.write_atomically(self.path / RESULTS, whole)
        self._recorded = len(whole)

    def _push_records(self) -> None:
        path = self.path / RESULTS
        new = path.read_bytes()[self._recorded :] if path.exists() else b""
        new = new[: new.rfind(b"\n") + 1]
        if new:
            name = f"{_RECORDS}/{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(8)}.jsonl"
            self.bucket.write(name, new)
            self._recorded += len(new)

    def _written(self) -> dict[str, tuple[int, int]]:
        """The files that this process uploads, with their times and sizes; locks and drafts stay on this machine."""
        found = {}
        for folder, folders, names in os.walk(self.path):
            here = Path(folder).relative_to(self.path)
            if here == Path():
                folders[:] = [name for name in folders if name != CHECKPOINTS]
            for name in ((here / name).as_posix() for name in names if name[0] != "."):
                if name == RESULTS or (self.lease is None and not self._uploaded and name in _OF_TRAINING):
                    continue  # records are uploaded separately
                if name.startswith(self._uploaded) and not (self.path / name).is_symlink():
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        found[name] = _stamp(self.path / name)
        return found


def _temporary(name: str) -> Path:
    """Make a temporary folder of this user, after removing those of killed processes."""
    here = Path(tempfile.gettempdir())
    for each in here.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or held
            opened = os.open(each, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(opened).st_mtime > _YOUNG:
                    shutil.rmtree(each)
            finally:
                os.close(opened)
    folder = here / f"{_PREFIX}{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(
            f"{folder} belongs to another user; run the command again, or set TMPDIR to a folder of your own"
        )
    return folder


def _announce(what: str, size: int) -> None:
    if size > _LARGE:
        console.log(f"{what}: {size / 2**30:.1f} GiB")


def _steps(names: Iterable[str]) -> list[int]:
    """The steps of the complete checkpoints among objects of a run."""
    parts = [name.split("/") for name in names]
    return sorted(int(each[1]) for each in parts if each[::2] == [CHECKPOINTS, CHECKSUMS] and each[1].isdecimal())


def _address(text: str | os.PathLike) -> str:
    """An address without trailing slashes. One that names no bucket is returned as given, so that the error shows it."""
    address = os.fspath(text)
    return address.rstrip("/") if address.partition("://")[2].strip("/") else address


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def training_in(workdir: str | os.PathLike) -> Iterator[tuple[Path, RemoteRun | None]]:
    """The folder to train in: a local path, or the copy of a run at an address, which process 0 leases."""
    if not files.is_remote(workdir):
        if re.match(r"(gs|gcs|s3):", os.fspath(workdir)):
            raise UserError(
                f"{workdir} is no address; give gs://BUCKET/FOLDER or s3://BUCKET/FOLDER, or ./{workdir} as a folder"
            )
        yield Path(workdir), None
        return
    address = _address(workdir)
    agreement.check_same(
        address, f"the processes have different workdirs, here {address}; give all of them the same --workdir"
    )
    first = processes.is_first()
    if first:
        console.log(f"connecting to {address}")  # an unreachable bucket takes a minute to fail
    # Orbax requires the same path on all hosts, but they need not share the folder.
    here = tempfile.gettempdir()
    differ = f"the processes have different temporary folders, here {here}; set TMPDIR to the same path on every host"
    agreement.check_same(here, differ)
    number = agreement.from_first(secrets.randbits(31))
    remote = RemoteRun(address, str(number), "" if first else _PROFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(remote.close)
        stack.enter_context(processes.leaving_together(f"uploaded-{number}", _LONGEST))
        if first:
            busy = f"workdir {address} is in use by another training; wait for it to end, or give another folder"
            remote.lease = stack.enter_context(Lease(remote.bucket, busy))
        agreement.all_processes(True)  # no process reads before the lease is held
        remote.fetch()
        if first and (remote.path / CONFIG).exists():  # else the folder is not ours to clear
            remote.remove_checkpoints()
        stack.enter_context(remote.pushing())
        yield remote.path, remote


@functools.cache
def _opened(address: str) -> RemoteRun:
    return RemoteRun(address, secrets.token_hex(8))


def fetch(address: str, *, weights: bool = True, step: int | None = None) -> Path:
    """Download a run to a folder that lasts until the process ends. Later calls download only what has changed."""
    remote = _opened(address.rstrip("/"))
    remote.fetch(_READ, weights=weights, step=step)
    return remote.path


def latest_step(address: str) -> int:
    """The step of a run's newest complete checkpoint in its bucket; 0 if there is none."""
    return max(_steps(Bucket(address.rstrip("/")).find(CHECKPOINTS)), default=0)


def fetch_records(pattern: str) -> list[Path]:
    """Copies, without weights, of the runs at or below the addresses that match a pattern."""
    found = []
    for address in files.matching(pattern):
        for name in Bucket(address.rstrip("/")).find():
            *folders, last = name.split("/")
            if last == CONFIG and CHECKPOINTS not in folders:
                found.append(fetch("/".join((address.rstrip("/"), *folders)), weights=False))
    return found


@contextlib.contextmanager
def uploading(run: Path) -> Iterator[None]:
    """Upload what the block writes into a run that was copied from an address; any other run is left alone."""
    address = errors.ALIASES.get(str(run))
    with _opened(address).pushing() if address else contextlib.nullcontext():
        yield
