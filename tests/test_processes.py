"""Several processes on one machine: they train as one does, stop together, and go on as another number of them."""

import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bam_jax import checkpoint, errors, train
from bam_jax import config as configs

CONFIG = """
import ml_collections

def get_config():
    return ml_collections.ConfigDict(dict(
        encoding="bam", ssmax="on", steps=40, checkpoint_every=10, log_every=1, batch=8, context=32,
        model=dict(layers=1, width=16, heads=2, hidden=16), data=dict(source={source!r}),
        optimizer=dict(warmup=5),
    ))
"""


@pytest.fixture
def path(tmp_path):
    words = np.random.default_rng(0).integers(100, 999, 3000)
    (tmp_path / "text.txt").write_text(" ".join(np.base_repr(w, 30).lower() for w in words))
    (tmp_path / "tiny.py").write_text(CONFIG.format(source=str(tmp_path / "text.txt")))
    return tmp_path


def free_port():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def start(path, run, count, *arguments, devices=1):
    """The processes of one training, each with its output in a file of its own."""
    where = f"localhost:{free_port()}"
    made = []
    for index in range(count):
        command = [sys.executable, "-m", "bam_jax.train", f"--config={path / 'tiny.py'}", f"--workdir={path / run}"]
        command += [f"--coordinator={where}", f"--processes={count}", f"--process={index}", *arguments]
        with (path / f"{run}.{index}").open("a") as output:
            environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
            made.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))
    return made


def wait_for(made, condition, seconds=240):
    """Until it holds, while all processes live."""
    end = time.monotonic() + seconds
    while not condition():
        assert all(process.poll() is None for process in made) and time.monotonic() < end
        time.sleep(0.05)


def ended(path, run, made, seconds=240):
    """Exit codes and what was said, of each process."""
    try:
        codes = [process.wait(seconds) for process in made]
    finally:
        for process in made:
            process.kill()
    return codes, [(path / f"{run}.{index}").read_text() for index in range(len(made))]


def whole(path, run, *overrides):
    """The records and the parameters of a run that this process trains to its end."""
    config = configs.load(path / "tiny.py", overrides)
    records = train.fit(config, path / run)
    parameters = checkpoint.split(checkpoint.restore_model(path / run)[2])[1]
    return [(record["step"], record["loss"], record["gradient_norm"]) for record in records], parameters


def same(a, b, **tolerance):
    np.testing.assert_allclose(a[0], b[0], **tolerance)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a[1], b[1])


def test_two_processes_stop_at_one_step_and_one_goes_on(path):
    made = start(path, "run", 2, "--config.mesh.data=2")
    wait_for(made, (path / "run" / train.METRICS).exists)
    made[1].send_signal(signal.SIGTERM)
    codes, said = ended(path, "run", made)
    assert codes == [errors.AGAIN] * 2, said
    step = checkpoint.latest(path / "run")
    assert 0 < step < 40 and all(f"stopped at step {step} of 40" in text for text in said)
    same(*[whole(path, run, "--config.mesh.data=2") for run in ("run", "alone")], rtol=0)
