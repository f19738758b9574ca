import contextlib
import os
import re
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
from bam_jax import evaluate
from bam_jax.data.prepared import copies
from bam_jax.evals import measuring
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
        int(name.split("/")[1]) for name in Bucket(address).find("checkpoints") if name.endswith("/sums.json")
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
    assert {name: found.size for name, found in Bucket(address).find().items() if name[0] == "."} == {".lease/2": 0}
    assert not (remote.fetch(address) / "checkpoints" / "6" / "optimizer").exists()

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
            measuring.evaluate(copy.path, Perplexity((length,), tokens=64))
    remote._opened.cache_clear()
    assert len([name for name in Bucket(address).find() if name.startswith("results/")]) == 2
    found = bam_jax.results(f"{address.rpartition('/')[0]}/*")
    assert {*found["length"]} == {32, 64} and {*found["path"]} == {address}
    assert not (remote.fetch(address, weights=False) / "checkpoints").exists()
    # What was measured by others is not measured again.
    assert len(measuring.evaluate(address, Perplexity((32, 64), tokens=64))) == 2
    assert len([name for name in Bucket(address).find() if name.startswith("results/")]) == 2


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
    assert whole_steps(address) == [2] and [name for name in Bucket(address).find() if "checkpoints/4/" in name]
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
    assert "could not upload the checkpoint of step 2, retrying in 0 s: the bucket is away" in capsys.readouterr().err


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
def test_what_cannot_be_uploaded_is_kept_here_and_named(config, address, monkeypatch, capsys):
    write = Bucket.write

    def full(self, name, contents):
        if name == "metrics.jsonl" or name.startswith("results/"):
            raise UserError("no room")
        write(self, name, contents)

    kept = r"no room; the local copy is kept in (.*/one)$"
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "write", full)
        patch.setattr(remote, "ATTEMPTS", 1)
        with pytest.raises(UserError, match="^no room$"):
            loop.fit(config, address)
    assert (Path(re.search(kept, capsys.readouterr().err, re.MULTILINE)[1]) / "checkpoints").exists()
    loop.fit(config, address)
    monkeypatch.setattr(Bucket, "write", full)
    with pytest.raises(Unwritten, match=kept) as error:
        measuring.evaluate(address, Perplexity((32,), tokens=64))
    assert (Path(re.search(kept, str(error.value))[1]) / "results.jsonl").exists()


@only_s3
def test_what_is_no_place_for_a_run_is_refused_before_any_step(config, address, monkeypatch):
    monkeypatch.setattr(loop, "make_step", lambda *_: pytest.fail("a step is made"))
    theirs = ["below/text.txt", "checkpoints/7/model.safetensors", "checkpoints/epoch1.pt"]
    for name in theirs:
        Bucket(address).write(name, b"a text")
    with pytest.raises(UserError, match=f"^{address} is not empty and has no config.json, so it is not a run"):
        loop.fit(config, address)
    with pytest.raises(UserError) as error:
        loop.fit(config, f"s3://no-such-bucket/{address[-8:]}")
    assert "cannot read s3://no-such-bucket/" in str(error.value) and "\n" not in str(error.value)
    with (
        Lease(Bucket(f"{address}-2"), "busy"),
        pytest.raises(UserError, match="-2 is in use by another training"),
    ):
        loop.fit(config, f"{address}-2")
    assert theirs == [name for name in Bucket(address).find() if name[0] != "."]
    assert [*Bucket(f"{address}-2").find()] == [".lease/1"]
    for run in (address, f"{address}-2"):
        with pytest.raises(UserError, match=r"so it is not a run|is not a run: it has no config.json"):
            bam_jax.load(run)
    with pytest.raises(UserError, match=r"cannot read s3://no-such-bucket/x: .*bucket does not exist"):
        bam_jax.load("s3://no-such-bucket/x")


@pytest.mark.parametrize(
    ("workdir", "says"),
    [
        ("ftp://host/x", "ftp://host/x: runs are in folders here, or at gs"),
        ("http://host/x", "http://host/x: runs are in folders here, or at gs"),
        ("s3:/bucket/x", "s3:/bucket/x is no address; give gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"),
        ("s3://", "'s3://' names no bucket; give an address such as s3://BUCKET/FOLDER"),
    ],
)
def test_what_only_looks_like_a_bucket_is_refused_at_once(config, workdir, says):
    with pytest.raises(UserError, match=says):
        loop.fit(config, workdir)


@only_s3
def test_a_training_that_was_replaced_uploads_nothing_more(config, address):
    def taken_over(step):
        if step == 3:
            while not whole_steps(address):
                time.sleep(0.05)
            Bucket(address).write(".lease/7", b"another")
        return False

    with pytest.raises(UserError, match=f"another process took over {address}"):
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
    assert "downloading" in capsys.readouterr().err
    copies.local.cache_clear()
    assert Path(copies.local(address)).is_dir() and "downloading" not in capsys.readouterr().err
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

    def start(*command):
        where, made = f"localhost:{together.free_port()}", []
        for index in range(2):
            job = [f"--coordinator={where}", "--processes=2", f"--process={index}"]
            own = {"JAX_NUM_CPU_DEVICES": "4", "PYTHONPATH": str(together.ROOT), "TMPDIR": str(tmp_path / "tmp")}
            with (tmp_path / f"run.{index}").open("w") as output:
                made.append(
                    subprocess.Popen(
                        [*alone, sys.executable, "-m", *command, *job],
                        stdout=output,
                        stderr=output,
                        env={**os.environ, **own},
                    )
                )
        return made

    train = ["bam_jax.train", f"--config={tmp_path / 'tiny.py'}", *mesh, f"--workdir={address}"]
    made = start(*train)
    together.wait_for(made, lambda: whole_steps(address))
    made[1].send_signal(signal.SIGKILL)
    codes, _ = together.ended(tmp_path, "run", made)
    assert codes == [errors.AGAIN, -signal.SIGKILL]
    step = whole_steps(address)[-1]
    codes, said = together.ended(tmp_path, "run", start(*train))
    assert codes == [0, 0] and f"{address}: finished at step 100" in said[0], said
    assert int(said[0].split("going on from step ")[1].split()[0]) >= step

    config = configs.load(tmp_path / "tiny.py", configs.from_arguments(mesh))
    of_one = loop.fit(config, tmp_path / "alone")
    found = [*jsonl.read(remote.fetch(address) / run_folder.METRICS)]
    np.testing.assert_allclose([each["loss"] for each in found], [each["loss"] for each in of_one], rtol=1e-4)

    asked = ["--eval=passkey,perplexity", "--lengths=64,512", "--trials=1", "--depths=2", "--tokens=512"]
    over = ["--config.mesh.tensor=2", "--config.mesh.context=4"]
    codes, said = together.ended(tmp_path, "run", start("bam_jax.evaluate", f"--run={address}", *asked, *over))
    assert codes == [0, 0] and "perplexity" in said[0] and "perplexity" not in said[1], said
    evaluate.main([f"--run={tmp_path / 'alone'}", *asked, "--config.mesh.data=1"])
    values = lambda run: bam_jax.results(run).set_index(["eval", "length", "depth"])["value"].sort_index()
    theirs, ours = values(address), values(str(tmp_path / "alone"))
    assert len(theirs) == 6
    np.testing.assert_allclose(theirs, ours, rtol=1e-4)
