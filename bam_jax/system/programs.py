"""A cache of compiled programs for later commands.

JAX's own cache writes in place: a killed process leaves part of a program, which is never rewritten, and two processes may write
the same program at once. So each process has its own folder, with links to the cached programs. What it compiles is moved to the
cache when it ends, or if it was killed, by the next process.
"""

import atexit
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import tempfile
import warnings
import zlib
from pathlib import Path

import jax

from bam_jax.system import files

LIMIT = 2**30
"""Maximum bytes of the cache; the oldest programs are removed first."""


def keep() -> None:
    """Cache what this process compiles in `folder`, and use what others have cached.

    JAX's own variables take precedence: `JAX_COMPILATION_CACHE_DIR` sets another folder, `JAX_ENABLE_COMPILATION_CACHE=false`
    disables the cache. Without a writable folder, everything is compiled again.
    """
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return
    kept = folder()
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = kept.stat()
        if owner.st_uid != os.getuid() or stat.S_IMODE(owner.st_mode) & 0o022:
            return  # anyone who can write there can make this process run any code
        _take_abandoned(kept)
        own = Path(tempfile.mkdtemp(prefix="process-", dir=kept))
        lock = os.open(own, os.O_RDONLY)  # held until this process ends, in whatever way
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for program in kept.glob("*-cache"):
            os.link(program, own / program.name)
    except OSError:
        return
    atexit.register(_close, own, kept)
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry"
    )  # the program is compiled again
    jax.config.update("jax_compilation_cache_dir", str(own))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def folder() -> Path:
    """The folder of the programs in the user's cache, one for each kind of processor, since they may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    kind = hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]
    return files.cache(f"programs-{kind}")


def _take_abandoned(kept: Path) -> None:
    """Take over what killed processes compiled, except programs that they wrote in part."""
    for own in kept.glob("process-*"):
        lock = os.open(own, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for program in own.glob("*-cache"):
                if not (kept / program.name).exists() and not _is_whole(program):
                    program.unlink()
            _close(own, kept)
        except BlockingIOError:  # it is running
            pass
        finally:
            os.close(lock)


def _is_whole(program: Path) -> bool:
    """Whether a program can be decompressed. JAX compresses with zstandard if it is installed, otherwise with zlib."""
    packed = program.read_bytes()
    try:
        import zstandard
    except ImportError:
        try:
            return bool(zlib.decompress(packed))
        except zlib.error:
            return False
    try:
        return bool(zstandard.decompress(packed))
    except zstandard.ZstdError:
        return False


def _close(own: Path, kept: Path) -> None:
    """Move the programs that a process compiled to the cache, and remove its folder."""
    try:
        for program in own.glob("*-cache"):
            if not (kept / program.name).exists():
                program.rename(kept / program.name)
        programs = sorted(kept.glob("*-cache"), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in programs)
        while programs and total > LIMIT:
            total -= programs[0].stat().st_size
            programs.pop(0).unlink()
    except OSError:
        pass  # another process may have removed some; or the disk is gone
    shutil.rmtree(own, ignore_errors=True)
