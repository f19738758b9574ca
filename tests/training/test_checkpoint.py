import asyncio
import dataclasses
import os
import resource
import shutil
import sys
import types

import jax
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax.models import transformer
from bam_jax.system import jsonl
from bam_jax.system.errors import Unwritten, UserError
from bam_jax.training import checkpoint, loop, metrics, run_folder
from bam_jax.training.step import define_training


@pytest.fixture
def config(finished):
    return configs.load(finished / "tiny.py")


def test_restored_model_is_the_trained_one(config, finished, tmp_path):
    run = tmp_path / "link"
    run.symlink_to(finished / "run", target_is_directory=True)
    assert run_folder.latest_step(run) == 4
    loaded, made, decoder = checkpoint.restore_model(run)
    assert loaded == config and made.name == "char"
    assert decoder(np.zeros((1, 8), np.int32))[0].shape == (1, 8, made.size)
    _, tree = transformer.split(decoder)
    fresh = define_training(config, made.size)[1]()["model"]
    assert not np.array_equal(tree["params"]["head"]["kernel"], fresh["params"]["head"]["kernel"])
    np.testing.assert_array_equal(*(t["frozen"]["layers"]["attention"]["encoding"]["loc"] for t in (tree, fresh)))
    assert checkpoint.restore_model(run, overrides={"context": 32})[0].context == 32
    with pytest.raises(UserError, match="--config.model.width=32"):
        checkpoint.restore_model(run, overrides={"model.width": 32})


def test_missing_run_or_checkpoint_or_memory(tmp_path, run, monkeypatch):
    def lack(*_):
        raise ValueError("reading failed") from RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="new thread"):
        patch.setattr(checkpoint.ocp, "load_checkpointables", lack)
        checkpoint.restore_model(run)
    with pytest.raises(UserError, match="not a run"):
        checkpoint.restore_model(tmp_path / "none")
    assert not (tmp_path / "none").exists() and run_folder.latest_step(tmp_path / "none") == 0
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.restore_model(run)
    (run / "config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        checkpoint.restore_model(run)


def test_whatever_is_not_what_was_saved_is_named(config, run, monkeypatch):
    saved = run / "checkpoints" / "4"
    files = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    assert {path.relative_to(saved).parts[0] for path in files} > {"model", "optimizer", "data", "metrics.jsonl"}

    def refused(name, read=lambda: checkpoint.verify(run, {})):
        with pytest.raises(UserError, match=f"checkpoints/4 cannot be read: {name}.*; remove that folder and train on"):
            read()

    for path, contents in files.items():
        name = "(sums.json|.*/|.*json)" if path.name == "sums.json" else path.relative_to(saved).as_posix()
        for place in {0, len(contents) // 2, len(contents) - 1} if contents else ():
            flipped = bytearray(contents)
            flipped[place] ^= 255
            path.write_bytes(flipped)
            refused(name)
        path.write_bytes(contents + b"{")
        refused(name)
        path.unlink()
        refused("it has no sums.json" if path.name == "sums.json" else name)
        path.write_bytes(contents)
    (saved / "model" / "d" / "large").touch()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_checksum", lambda file: pytest.fail(f"read {file}"))
        refused("model/d/large")
    refused("model/d/large", lambda: loop.fit(config, run, progress=False))  # also where there is nothing to do
    (saved / "model" / "d" / "large").unlink()
    for contents in ("[]", "[" * 10**5, '{"model/more": []}', "{}"):
        (saved / "sums.json").write_text(contents)
        with pytest.raises(UserError, match="checkpoints/4 cannot be read"):
            checkpoint.restore_model(run)
    for path in (saved / "sums.json", saved / "model" / "d" / "pipe"):  # nothing is waited for
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with pytest.raises(UserError, match=f"{path.name} is a pipe"):
            checkpoint.restore_model(run)
        path.unlink()
        (saved / "sums.json").write_bytes(files[saved / "sums.json"])
    shutil.rmtree(saved)
    checkpoint.restore_model(run)  # from the checkpoint before


class Data:
    """Batches whose state is always the same."""

    async def save(self, directory):
        async def write():
            (await directory.await_creation() / "state").write_text("0")

        return write()

    async def load(self, directory):
        return asyncio.sleep(0)


def state(size=100):
    return {"model": {"x": jax.numpy.arange(size) ** 0.5}, "optimizer": {"n": jax.numpy.zeros(3)}}


def loaded(run, size=100):
    with checkpoint.Checkpoints(run) as checkpoints:
        return checkpoints.load(jax.eval_shape(lambda: state(size)), Data())


def test_the_state_may_be_donated_while_it_is_saved(tmp_path):
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    going = state(2**20)
    expected = jax.tree.map(np.array, going)
    with checkpoint.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, going, Data())
        for _ in range(20):
            going["model"]["x"] = step(going["model"]["x"])
    jax.tree.map(np.testing.assert_array_equal, loaded(tmp_path, 2**20), expected)


def test_a_thread_says_nothing_of_a_failed_write_and_all_else(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: said.append(given.exc_value))
    checkpoint._mute_what_is_raised.cache_clear()
    with pytest.raises(Unwritten, match="checkpoints/1 was not written in time.*clock.*same command"):
        with checkpoint._named_when_unwritten(tmp_path / "checkpoints" / "1"):
            raise TimeoutError("ChainedFuture completed 0/2 futures but timed out")  # as orbax does
    closed, another = RuntimeError("Event loop is closed"), RuntimeError("another")
    for error in (closed, another):
        sys.unraisablehook(types.SimpleNamespace(exc_value=error))
    assert said == [another]
    checkpoint._mute_what_is_raised.cache_clear()  # for the hook that comes back


def test_saves_hold_no_descriptors_and_threads(tmp_path):
    counts = []
    with checkpoint.Checkpoints(tmp_path) as checkpoints:
        for step in range(1, 26):
            checkpoints.save(step, state(), Data())
            if step in (5, 25):
                checkpoints._wait()
                counts.append([len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")])
    assert (np.subtract(*reversed(counts)) < 10).all()  # threads of orbax's end when they come to it
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"24", "25"}


@pytest.mark.parametrize("name", ["checksums", "_publish"])
def test_a_checkpoint_counts_when_its_sums_are_there(tmp_path, monkeypatch, name):
    def killed(*_):
        raise SystemExit

    with pytest.raises(SystemExit), checkpoint.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(), Data())
        checkpoints.save(2, state(), Data())
        checkpoints._wait()
        monkeypatch.setattr(checkpoint, name, killed)
        checkpoints.save(3, state(), Data())
    assert run_folder.latest_step(tmp_path) == 2
    loaded(tmp_path)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"1", "2"}


def test_metrics_are_those_of_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with checkpoint.Checkpoints(tmp_path) as checkpoints, jsonl.Writer(path) as writer:
        for step in range(1, 4):
            writer.write({"step": step, "loss": 1 / step})
        checkpoints.save(3, state(), Data())
        expected = path.read_bytes()
        writer.write({"step": 4, "loss": 0.25})
    later = path.read_bytes()
    for damaged in (*(later[:length] for length in range(0, len(later), 40)), b"\xff" + expected[1:], later, None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        loaded(tmp_path)
        assert path.read_bytes() == expected


@pytest.mark.parametrize("limit", [4096, 200])  # bytes of a file: in the midst of arrays, and of metadata
def test_a_full_disk_is_one_line(tmp_path, limit, capfd, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with checkpoint.Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, state(10**5), Data())
            checkpoints._wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            checkpoints.save(2, state(10**5), Data())
            says = "checkpoints/2 cannot be written: .*File too large.*; make room .* before$"
            with pytest.raises(UserError, match=says):
                checkpoints.save(3, state(10**5), Data())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (capfd.readouterr().err, caplog.records) == ("", [])
    assert run_folder.latest_step(tmp_path) == 1
    loaded(tmp_path, 10**5)


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/2", "checkpoints/4", "checkpoints/4.draft"])
def test_checkpoints_elsewhere_are_neither_read_nor_removed(config, run, tmp_path, place):
    """A stranger's run in whose place of checkpoints a link leads to another run's."""
    (tmp_path / "other" / place).parent.mkdir(parents=True)
    theirs = run / ("checkpoints" if place == "checkpoints" else "checkpoints/4")
    other = shutil.copytree(theirs, tmp_path / "other" / place)
    shutil.rmtree(run / place, ignore_errors=True)
    (run / place).symlink_to(other, target_is_directory=True)
    before = sorted(other.rglob("*"))
    with pytest.raises(UserError, match=f"{place} is a link.*link the whole folder"):
        loop.fit(dataclasses.replace(config, steps=6), run, longer=True)
    if place in ("checkpoints", "checkpoints/4"):
        for read in (checkpoint.restore_model, metrics.read_metrics, run_folder.latest_step):
            with pytest.raises(UserError, match=f"{place} is a link"):
                read(run)
    assert sorted(other.rglob("*")) == before
