"""Local copies of prepared folders in buckets. Training reads shards in random order, so each host keeps all of them."""

import functools
import hashlib
from pathlib import Path

from bam_jax.data.prepared.manifest import MANIFEST
from bam_jax.data.tokenizers.copies import FOLDER as TOKENIZER
from bam_jax.system import console, files, lock
from bam_jax.system.bucket import Bucket

_TOGETHER = 8  # files copied at a time


@functools.cache
def local(source: str) -> str:
    """The cached copy of a prepared folder in a bucket. Other sources are returned unchanged.

    A folder that has been prepared again gets a new copy. An interrupted download resumes.
    """
    if not files.is_remote(source):
        return source
    bucket = Bucket(source.rstrip("/"))
    manifest = bucket.read(MANIFEST)
    if manifest is None:
        return source
    key = hashlib.sha256(source.encode() + b"\0" + manifest).hexdigest()[:16]
    folder = files.cache("data") / key
    folder.mkdir(parents=True, exist_ok=True)
    with lock.hold(folder / lock.NAME):  # against the other processes of this host
        if not (folder / MANIFEST).exists():
            _copy(bucket, folder)
            files.write_atomically(folder / MANIFEST, manifest)  # last: it marks the copy as complete
    return str(folder)


def _copy(bucket: Bucket, folder: Path) -> None:
    objects = bucket.find()
    wanted = lambda name: "/" not in name or name.startswith(f"{TOKENIZER}/")
    sizes = {name: found.size for name, found in objects.items() if wanted(name) and name != MANIFEST}
    (folder / TOKENIZER).mkdir(exist_ok=True)
    is_whole = lambda name: (folder / name).exists() and (folder / name).stat().st_size == sizes[name]
    missing = [name for name in sizes if not is_whole(name)]
    total, done = sum(sizes.values()), sum(sizes.values()) - sum(sizes[name] for name in missing)
    console.log(f"downloading {len(missing)} files ({(total - done) / 2**30:.2f} GiB) of {bucket.address} to {folder}")
    with console.progress(total, done=done, unit="B", label="downloading") as bar:
        for first in range(0, len(missing), _TOGETHER):
            some = missing[first : first + _TOGETHER]
            bucket.download(some, folder)
            bar.update(sum(sizes[name] for name in some))
