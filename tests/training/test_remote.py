import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from parallel import test_processes as together

import bam_jax
from bam_jax import config as configs
from bam_jax.data.prepared import copies
from bam_jax.evals.measuring import evaluate
from bam_jax.evals.perplexity import Perplexity
from bam_jax.models import transformer
from bam_jax.system import bucket, errors, jsonl
from bam_jax.system.bucket import Bucket, Lease
from bam_jax.system.errors import Unwritten, UserError
from bam_jax.training import checkpoint, loop, remote, run_folder


@pytest.fixture
def config(tmp_path, write_tiny):
    write_tiny(tmp_path, steps=6, checkpoint_every=2, log_every=1, batch=4, context=32)
    return configs.load(tmp_path / "tiny.py")


@pytest.fixture
def address(folder_in_bucket, monkeypatch, tmp_path):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(bucket, "BEAT", 0.2)
    monkeypatch.setattr(bucket, "DEAD", 1.0)
    yield f"{folder_in_bucket}/runs/one"
    remote._opened.cache_clear()


only_s3 = pytest.mark.parametrize("folder_in_bucket", ["s3"], indirect=True)


def losses(records):
    return [(record["step"], record["loss"]) for record in records]


def whole_steps(address):
    return sorted(
        int(name.split("/")[1]) for name in Bucket(address).list("checkpoints") if name.endswith("/sums.json")
    )


def test_a_run_in_a_bucket_stops_goes_on_and_is_read_as_one_of_a_folder(config, address, tmp_path, capsys):
    with pytest.raises(errors.Stopped) as stopped:
        loop.fit(config, address, stop=lambda step: step == 3)
    assert errors.ending(stopped.value)[1] == f"{address}: stopped at step 3 of 6; the same command goes on from there"
    assert whole_steps(address) == [2, 3]
    found = loop.fit(config, f"{address}/")
    assert "going on from step 3" in capsys.readouterr().err
    assert losses(found) == losses(loop.fit(config, tmp_path / "alone"))
    assert whole_steps(address) == [4, 6]
    assert not [name for name in Bucket(address).list() if name.startswith(".")]  # no lease, no lock

    models = [checkpoint.restore_model(run)[2] for run in (remote.fetch(address), tmp_path / "alone")]
    jax.tree.map(np.testing.assert_array_equal, *(transformer.split(model)[1] for model in models))
    assert bam_jax.load(address, step=4).step == 4 and bam_jax.load(address).step == 6
    other = loop.fit(configs.override(config, {"start": address, "steps": 1}), tmp_path / "started")
    assert other[0]["loss"] < found[0]["loss"]
    assert [*(tmp_path / "tmp").iterdir()] == [remote.fetch(address).parent]  # a training leaves no copy behind


@only_s3
def test_evaluations_at_one_time_lose_no_record(config, address):
    loop.fit(config, address)
    commands = []
    for length in (32, 64):  # each has copied the run before any has recorded
        remote._opened.cache_clear()
        remote.fetch(address)
        commands.append((remote._opened(address), length))
    for copy, length in commands:
        remote._opened.cache_clear()
        errors.ALIASES[str(copy.path)] = address
        with copy.pushing():
            evaluate(copy.path, Perplexity((length,), tokens=64))
    remote._opened.cache_clear()
    assert len([name for name in Bucket(address).list() if name.startswith("results/")]) == 2
    read = [name for name in Bucket(address).list() if "checkpoints" in name]
    found = bam_jax.results(f"{address.rpartition('/')[0]}/*")
    assert {*found["length"]} == {32, 64} and {*found["path"]} == {address} and read
    assert not (remote.fetch(address, weights=False) / "checkpoints").exists()
    # What was measured by others is not measured again.
    assert len(evaluate(address, Perplexity((32, 64), tokens=64))) == 2
    assert len([name for name in Bucket(address).list() if name.startswith("results/")]) == 2


@only_s3
def test_a_killed_upload_loses_nothing(config, address, monkeypatch, tmp_path):
    upload = Bucket.upload

    class Killed(BaseException):
        pass

    def killed(self, folder, names):
        if any(name.startswith("checkpoints/4/") for name in names):
            upload(self, folder, [*names][:3])
            raise Killed
        upload(self, folder, names)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Bucket, "upload", killed)
        patch.setattr(remote.RemoteRun, "pushing", lambda self: contextlib.nullcontext())
        patch.setattr(Lease, "__exit__", lambda self, *_: self._over.set())  # nor does it give up its lease
        loop.fit(config, address)
    assert whole_steps(address) == [2] and [name for name in Bucket(address).list() if "checkpoints/4/" in name]
    assert losses(loop.fit(config, address)) == losses(loop.fit(config, tmp_path / "alone"))


@only_s3
def test_an_outage_ends_no_training(config, address, monkeypatch, capsys):
    upload, outages = Bucket.upload, [1, 2, 3]

    def sometimes(self, folder, names):
        if outages:
            outages.pop()
            raise UserError("the bucket is away")
        upload(self, folder, names)

    monkeypatch.setattr(remote, "PERIOD", 0.05)
    monkeypatch.setattr(Bucket, "upload", sometimes)
    loop.fit(config, address)
    assert whole_steps(address) == [4, 6]
    assert "step 2 was not uploaded, which is tried again: the bucket is away" in capsys.readouterr().err


def test_the_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held, left = (remote.RemoteRun("memory://x/y", name) for name in ("held", "left"))
    os.close(left._alive)  # as when its process ends
    for run in (held, left):
        os.utime(run._folder, (0, 0))
    new = remote.RemoteRun("memory://x/y", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"bam_jax-run-held", "bam_jax-run-new"}
    left._alive = os.open(tmp_path, os.O_RDONLY)
    for run in (held, left, new):
        run.close()
    assert not [*tmp_path.iterdir()]


@only_s3
def test_what_cannot_be_uploaded_is_kept_here_and_named(config, address, monkeypatch):
    write = Bucket.write

    def full(self, name, contents):
        if name == "metrics.jsonl":
            raise UserError("no room")
        write(self, name, contents)

    monkeypatch.setattr(Bucket, "write", full)
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    with pytest.raises(Unwritten, match="^no room; what was not uploaded lies in .*/one$") as error:
        loop.fit(config, address)
    assert (Path(str(error.value).split(" lies in ")[1]) / "metrics.jsonl").exists()


@only_s3
def test_what_is_no_place_for_a_run_is_refused_before_any_step(config, address, monkeypatch):
    monkeypatch.setattr(loop, "make_step", lambda *_: pytest.fail("a step is made"))
    Bucket(address).write("below/text.txt", b"a text")
    with pytest.raises(UserError, match=f"^{address} holds something that is not a run; give a new or an empty folder"):
        loop.fit(config, address)
    with pytest.raises(UserError) as error:
        loop.fit(config, f"s3://no-such-bucket/{address[-8:]}")
    assert "cannot read s3://no-such-bucket/" in str(error.value) and "\n" not in str(error.value)
    with Lease(Bucket(f"{address}-2"), "busy"), pytest.raises(UserError, match="-2 is in use by another training"):
        loop.fit(config, f"{address}-2")
    assert [*Bucket(address).list()] == ["below/text.txt"] and not Bucket(f"{address}-2").list()
    for run in (address, f"{address}-2"):
        with pytest.raises(UserError, match=r"holds something that|is not a run: it has no config.json"):
            bam_jax.load(run)


@only_s3
def test_a_training_that_was_replaced_uploads_nothing_more(config, address):
    def taken_over(step):
        if step == 3:
            while not whole_steps(address):
                time.sleep(0.05)
            Bucket(address).write(".lease/7", b"another")
        return False

    with pytest.raises(UserError, match=f"{address} was taken over by another process"):
        loop.fit(config, address, stop=taken_over)
    assert whole_steps(address) == [2]


@only_s3
def test_a_prepared_folder_in_a_bucket_is_copied_once(config, address, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from bam_jax.data import prepare

    source, made = str(tmp_path / "text.txt"), tmp_path / "prepared"
    prepare.main([f"--source={source}", "--tokenizer=char", f"--out={made}"])
    names = [path.name for path in made.iterdir() if path.is_file() and path.name[0] != "."]
    Bucket(address).upload(made, names)
    download, killed = Bucket.download, [True]

    def once(self, given, folder):
        if killed:
            killed.pop()
            download(self, [*given][:1], folder)
            (folder / [*given][1]).write_bytes(b"torn")
            raise KeyboardInterrupt
        download(self, given, folder)

    monkeypatch.setattr(Bucket, "download", once)
    copies.local.cache_clear()
    with pytest.raises(KeyboardInterrupt):
        copies.local(address)
    there = configs.override(config, {"data.source": address, "data.tokenizer": "char"})
    here = configs.override(config, {"data.source": str(made), "data.tokenizer": "char"})
    assert losses(loop.fit(there, tmp_path / "there")) == losses(loop.fit(here, tmp_path / "here"))
    assert "copying" in capsys.readouterr().err
    copies.local.cache_clear()
    assert Path(copies.local(address)).is_dir() and "copying" not in capsys.readouterr().err
    assert copies.local(source) == source and copies.local(f"{address}/nothing") == f"{address}/nothing"


@pytest.mark.full
@pytest.mark.parametrize("folder_in_bucket", ["gs"], indirect=True)
def test_processes_that_share_only_a_bucket_train_lose_one_and_go_on(folder_in_bucket, tmp_path, write_tiny):
    """Two processes of four devices, each with a temporary folder that the other does not see where this machine allows it."""
    write_tiny(tmp_path, ssmax="on", batch=8, context=32, steps=100, checkpoint_every=10, log_every=1)
    (tmp_path / "tmp").mkdir()
    alone = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$TMPDIR" && exec "$@"', "sh"]
    possible = subprocess.run(
        [*alone, "true"], env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, capture_output=True
    )
    alone = alone if possible.returncode == 0 else []
    address, mesh = (
        f"{folder_in_bucket}/run",
        ("--config.mesh.data=2", "--config.mesh.fsdp=2", "--config.mesh.tensor=2"),
    )

    def start():
        where, made = f"localhost:{together.free_port()}", []
        for index in range(2):
            command = [*alone, sys.executable, "-m", "bam_jax.train", f"--config={tmp_path / 'tiny.py'}", *mesh]
            command += [f"--workdir={address}", f"--coordinator={where}", "--processes=2", f"--process={index}"]
            own = {"JAX_NUM_CPU_DEVICES": "4", "PYTHONPATH": str(together.ROOT), "TMPDIR": str(tmp_path / "tmp")}
            with (tmp_path / f"run.{index}").open("w") as output:
                made.append(subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **own}))
        return made

    made = start()
    together.wait_for(made, lambda: whole_steps(address))
    made[1].send_signal(signal.SIGKILL)
    codes, _ = together.ended(tmp_path, "run", made)
    assert codes == [errors.AGAIN, -signal.SIGKILL]
    step = whole_steps(address)[-1]
    codes, said = together.ended(tmp_path, "run", start())
    assert codes == [0, 0] and f"{address}: finished at step 100" in said[0], said
    assert int(said[0].split("going on from step ")[1].split()[0]) >= step

    config = configs.load(tmp_path / "tiny.py", configs.from_arguments(mesh))
    of_one = loop.fit(config, tmp_path / "alone")
    copy = remote.fetch(address)
    found = [*jsonl.read(copy / run_folder.METRICS)]
    np.testing.assert_allclose([each["loss"] for each in found], [each["loss"] for each in of_one], rtol=1e-4)
    overrides = {"mesh.tensor": 2, "mesh.context": 2}
    evaluate(address, Perplexity((64,), tokens=512, overrides=overrides))
    assert [name for name in Bucket(address).list() if name.startswith("results/")]
