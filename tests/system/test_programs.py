"""Compiled programs outlive the process that compiled them, and no part of one does."""

import os
import stat
import subprocess
import sys
from pathlib import Path

COMPILE = """
import jax, jax.numpy as jnp, time
from bam_jax.system import programs
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
programs.keep()
"""
SINE = "jax.jit(jnp.sin)(1.0).block_until_ready(); print(len(hits))"


def process(home, code=SINE, **variables):
    given = {**os.environ, "XDG_CACHE_HOME": str(home), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **variables}
    return subprocess.Popen([sys.executable, "-c", COMPILE + code], env=given, stdout=-1, stderr=-1, text=True)


def run(home, code=SINE, **variables):
    out, err = process(home, code, **variables).communicate()
    assert not err
    return int(out)


def kept(home):
    (folder,) = Path(home, "bam_jax").iterdir()
    return folder


def test_the_next_process_compiles_nothing(tmp_path):
    assert run(tmp_path) == 0
    assert run(tmp_path) > 0
    assert not [*kept(tmp_path).glob("process-*")]
    assert stat.S_IMODE(kept(tmp_path).stat().st_mode) == 0o700


def test_jaxs_variables_come_first(tmp_path):
    assert run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own")) == 0
    assert run(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false") == 0
    assert not (tmp_path / "bam_jax").exists()
    assert [*(tmp_path / "own").glob("*-cache")]


def test_a_process_that_is_killed_leaves_whole_programs_and_no_part_of_one(tmp_path):
    cosine = SINE.replace("sin", "cos")
    half = "open(jax.config.jax_compilation_cache_dir + '/half-cache', 'wb').write(b'ha')"
    killed = process(tmp_path, f"{cosine}; {half}; print(flush=True); time.sleep(600)")
    killed.stdout.readline(), killed.stdout.readline()
    assert run(tmp_path) == 0  # beside it
    killed.kill()
    killed.communicate()
    assert run(tmp_path, cosine) > 0
    assert not [*kept(tmp_path).glob("process-*"), *kept(tmp_path).glob("half*")]


def test_a_folder_that_others_can_write_is_not_used(tmp_path):
    run(tmp_path)
    kept(tmp_path).chmod(0o777)
    assert run(tmp_path) == 0


def test_without_a_folder_all_is_compiled(tmp_path):
    (tmp_path / "file").touch()
    assert run(tmp_path / "file") == 0


def test_the_oldest_go_beyond_the_limit(tmp_path):
    run(tmp_path)
    old = kept(tmp_path) / "old-cache"
    old.write_bytes(bytes(1000))
    os.utime(old, (0, 0))
    run(tmp_path, "programs.LIMIT = sum(p.stat().st_size for p in programs.folder().glob('*-cache')) - 1; " + SINE)
    assert not old.exists()
    assert run(tmp_path) > 0
