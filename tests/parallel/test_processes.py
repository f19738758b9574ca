import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax.models import generate, transformer
from bam_jax.parallel import agreement, processes
from bam_jax.system import errors, jsonl
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop, run_folder
from tests.models.test_mesh import pruned

ROOT = Path(__file__).parents[2]
LONG = ("--config.steps=400", "--config.checkpoint_every=20")
TWO = "--config.mesh.data=2"


@pytest.fixture
def path(tmp_path, write_tiny):
    often = {"steps": 30, "checkpoint_every": 10, "log_every": 1, "optimizer": {"warmup": 5}}
    write_tiny(tmp_path, ssmax="on", batch=8, context=32, **often)
    return tmp_path


def free_port():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def start(path, run, count, *arguments, devices=1, of_last=(), folders=(ROOT, ROOT)):
    """The processes of one training, each with its output in a file; the last may have arguments and a folder of its own."""
    where = f"localhost:{free_port()}"
    made = []
    for index in range(count):
        last = index == count - 1
        command = [sys.executable, "-m", "bam_jax.train", f"--config={path / 'tiny.py'}", f"--workdir={path / run}"]
        command += [f"--coordinator={where}", f"--processes={count}", f"--process={index}", *arguments]
        command += of_last if last else ()
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
        with (path / f"{run}.{index}").open("w") as output:
            made.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folders[last]))
    return made


def wait_for(made, condition, seconds=240):
    """Until it holds, while all processes live; they are ended where it does not come to hold."""
    end = time.monotonic() + seconds
    while not condition():
        if any(process.poll() is not None for process in made) or time.monotonic() > end:
            for process in made:
                process.kill()
                process.wait()
            pytest.fail("a process ended, or waited for too long")
        time.sleep(0.05)


def ended(path, run, made, seconds=240):
    """Exit codes and what was said, of each process."""
    try:
        codes = [process.wait(seconds) for process in made]
    finally:
        for process in made:
            process.kill()
    return codes, [(path / f"{run}.{index}").read_text() for index in range(len(made))]


def reached(path, run="run"):
    """The last step that the metrics tell of."""
    records = list(jsonl.read(path / run / run_folder.METRICS))
    return records[-1]["step"] if records else 0


def see_it_trained_as_one_process_does(path, *overrides, **tolerance):
    """A run that this process trains to its end, and one from the first step on."""
    config, found = configs.load(path / "tiny.py", configs.from_arguments(overrides)), []
    for run in (path / "run", path / "alone"):
        numbers = [(record["step"], record["loss"], record["gradient_norm"]) for record in loop.fit(config, run)]
        found.append((np.array(numbers), transformer.split(checkpoint.restore_model(run)[2])[1]))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), *found)


@pytest.mark.full
def test_two_processes_stop_at_one_step_and_one_goes_on(path):
    made = start(path, "run", 2, TWO, *LONG)
    wait_for(made, (path / "run" / run_folder.METRICS).exists)  # it has still to be compiled
    made[1].send_signal(signal.SIGTERM)
    codes, said = ended(path, "run", made)
    assert codes == [errors.AGAIN] * 2 and all("SIGTERM before a step was trained" in text for text in said), said

    made = start(path, "run", 2, TWO, *LONG)
    wait_for(made, lambda: reached(path))
    made[1].send_signal(signal.SIGINT)
    codes, said = ended(path, "run", made)
    assert codes == [errors.AGAIN, errors.INTERRUPTED] and "Ctrl-C: it saves" in said[1], said
    step = run_folder.latest_step(path / "run")
    assert 0 < step < 400 and all(f"stopped at step {step} of 400" in text for text in said)
    assert all("parameters, 400 steps" in text for text in said[:1]) and "parameters" not in said[1]
    see_it_trained_as_one_process_does(path, TWO, *LONG, rtol=0)


@pytest.mark.full
def test_a_signal_leaves_a_checkpoint_of_that_very_step_and_all_is_said(path, monkeypatch, capsys):
    config = configs.load(path / "tiny.py", {"steps": 6})
    before = {number: signal.getsignal(number) for number in processes.SIGNALS}
    monkeypatch.setattr(processes, "_end_alone", lambda *said: pytest.fail(f"ends at once: {said}"))

    def run(at, number):
        def stop(step):
            if step == at:
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)  # as from a terminal and from a launcher
            return asked(step)

        with processes.joined() as end, processes.stopping(end) as asked:
            loop.fit(config, path / "run", stop=stop)

    begins, goes_on = "making the first parameters", "going on from step 2"
    for at, number, code, says in ((2, signal.SIGINT, 130, begins), (4, signal.SIGTERM, errors.AGAIN, goes_on)):
        with pytest.raises(errors.Stopped, match=f"step {at} of 6; the same command") as stopped:
            run(at, number)
        assert errors.ending(stopped.value)[0] == code
        said = capsys.readouterr().err
        order = ["encoding bam (init=", "parameters, 6 steps of 256 tokens, on 1 device (cpu)", "a step and", "reading"]
        order += ["the training before ended at"] if says == goes_on else []  # by the mark that is left below
        order += [says, "compiling", "is running", f"{processes.SIGNALS[number][0]}: it saves"]
        assert re.search(".*".join(map(re.escape, order)), said, re.DOTALL)
        assert not (path / "run" / run_folder.DIVERGED).exists()
        (path / "run" / run_folder.DIVERGED).touch()  # as if the next step had been
        assert before == {number: signal.getsignal(number) for number in processes.SIGNALS}
        assert run_folder.latest_step(path / "run") == at
    see_it_trained_as_one_process_does(path, "--config.steps=6", rtol=0)


@pytest.mark.parametrize("number", processes.SIGNALS)
def test_a_signal_is_answered_while_compiled_code_runs(number, monkeypatch, capsys):
    """The interpreter comes to no handler there; a process that was to end would not come back from `end`."""
    name, status = processes.SIGNALS[number]
    monkeypatch.setattr(processes, "URGENT", 0)
    ended = []

    def send_and_compute():
        threading.Timer(0.05, os.kill, [os.getpid(), number]).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**6)
        return time.monotonic()

    with processes.stopping(lambda *said: ended.append((time.monotonic(), *said))) as stop:
        after = send_and_compute()
        (at, code, said), *_ = ended
        assert at < after and code == status and f"stopped by {name} before a step was trained" in said
        ended.clear()
    with processes.stopping(lambda *said: ended.append((time.monotonic(), *said))) as stop:
        assert not stop(1)  # from here on there is something to save
        send_and_compute()
        assert stop(2) and not ended and f"{name}: it saves" in capsys.readouterr().err
        after = send_and_compute()
        assert ended[0][0] < after and ended[0][1] == status and "at once" in ended[0][2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("localhost:1", 2, None), "belong together"),
        (("localhost:1", 2, -1), "--process=-1 must be from 0 to 1"),
        (("localhost", 2, 1), "--coordinator=localhost must be HOST:PORT"),
    ],
)
def test_what_does_not_tell_processes_apart_is_refused(arguments, says):
    with pytest.raises(UserError, match=says), processes.joined(*arguments):
        pass


AGREE = """
import jax, sys
from bam_jax.parallel import agreement
me = int(sys.argv[2])
jax.distributed.initialize(sys.argv[1], 2, me)
print(agreement.all_processes(True), agreement.all_processes(me == 0), agreement.from_first(7 + me))
"""


def test_what_fails_in_one_process_fails_in_both(monkeypatch):
    words = [sys.executable, "-c", AGREE, f"localhost:{free_port()}"]
    started = [subprocess.Popen([*words, str(me)], stdout=subprocess.PIPE, text=True) for me in (0, 1)]
    said = [process.communicate(timeout=120)[0].splitlines() for process in started]
    assert [lines[-1] for lines in said] == ["True False 7"] * 2  # after the lines of Gloo
    # One process agrees with itself, and is alone in any job.
    assert [agreement.all_processes(holds) for holds in (True, False)] == [True, False]
    for name, value in {"JOB_ID": 1, "STEP_NODELIST": "localhost", "NTASKS": 2, "PROCID": 0, "LOCALID": 0}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: pytest.fail("looks for another one"))
    with processes.joined("", 1, None):
        assert jax.process_count() == 1


@pytest.mark.full
@pytest.mark.parametrize("index", [0, 1])
def test_a_process_whose_others_do_not_come_says_so(index):
    joins = f"with processes.joined('localhost:{free_port()}', 2, {index}): pass"
    program = f"from bam_jax.parallel import processes\nprocesses.JOIN = 3\n{joins}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "did not find one another" in done.stderr.splitlines()[-1]


@pytest.mark.full
@pytest.mark.parametrize(("devices", "mesh"), [(2, "fsdp=2 tensor=2"), (1, "context=2")])
def test_processes_train_as_one_with_all_their_devices_does(path, devices, mesh):
    mesh = [f"--config.mesh.{axis}" for axis in mesh.split()]
    codes, said = ended(path, "run", start(path, "run", 2, *mesh, devices=devices))
    assert codes == [0, 0], said
    see_it_trained_as_one_process_does(path, *mesh, rtol=1e-5, atol=1e-7)


@pytest.mark.full
@pytest.mark.parametrize(
    ("run", "arguments", "of_last", "says"),
    [
        ("run", [], ["--config.steps=40"], "have different configurations; give all of them the same command"),
        ("run", ["--config.data.source=text.txt"], [], "read different documents; give all of them the same"),
        ("here", [], [], "holds something that is not a run"),  # which process 0 finds
    ],
)
def test_a_mistake_is_one_line_from_all(path, run, arguments, of_last, says):
    for folder, text in (("here", "a tale of some length, "), ("there", "a tale of other length, ")):
        (path / folder).mkdir()
        (path / folder / "text.txt").write_text(text * 100)
    made = start(path, run, 2, TWO, *arguments, of_last=of_last, folders=[path / "here", path / "there"])
    codes, said = ended(path, run, made, seconds=60)
    assert codes == [2, 2], said
    lines = [text.strip().splitlines()[-1] for text in said]
    assert all(line.startswith("error: ") and says in line for line in lines), lines
    assert not (path / "run").exists()


@pytest.mark.endurance  # tests/training/test_remote.py loses one, too
def test_a_lost_process_ends_the_others_and_costs_the_steps_since_the_last_checkpoint(path):
    # A stopped one keeps its connections open, as a host without power does.
    for victim, number in ((1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)):
        last = run_folder.latest_step(path / "run")
        made = start(path, "run", 2, TWO, *LONG)
        wait_for(made, lambda last=last: run_folder.latest_step(path / "run") >= last + 20)
        made[victim].send_signal(number)
        try:
            assert made[1 - victim].wait(60) == errors.AGAIN
        finally:
            made[victim].kill()
        _, said = ended(path, "run", made)
        assert processes.RESTART in said[1 - victim].splitlines()[-1]
        # whole ones only, and none older than the last that was finished when the next began
        assert run_folder.latest_step(path / "run") > max(last, reached(path) - 40)
    assert reached(path) < 400
    codes, said = ended(path, "run", start(path, "run", 2, TWO, *LONG))
    assert codes == [0, 0], said
    see_it_trained_as_one_process_does(path, TWO, *LONG, rtol=0)


READ = """
import sys
import jax
import numpy as np
from jax.experimental import multihost_utils

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))

from bam_jax.config import MeshConfig
from bam_jax.models import generate, transformer
from bam_jax.parallel import sharding
from tests.models.test_mesh import pruned

mesh = sharding.make_mesh(MeshConfig(1, 1, 4, 1))
with sharding.active(mesh):
    reader = generate.TextReader(transformer.placed(pruned("rope"), mesh), 600, chunk=64, read=2)
    logits = [multihost_utils.process_allgather(reader(text), tiled=True) for text in np.load(sys.argv[3])]
if sys.argv[2] == "0":
    np.save(sys.argv[4], logits)
"""


@pytest.mark.full
def test_two_processes_read_texts_through_buffers_of_which_each_has_some_heads(tmp_path, rng):
    text = rng.integers(0, 40, 600).astype(np.int32)
    texts = np.stack([text, np.where(np.arange(600) == 300, (text + 1) % 40, text)])  # which go back to a saved buffer
    np.save(tmp_path / "texts.npy", texts)
    made, port = [], str(free_port())
    for process in ("0", "1"):
        command = [sys.executable, "-c", READ, port, process, str(tmp_path / "texts.npy"), str(tmp_path / "logits.npy")]
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": str(ROOT)}
        with (tmp_path / f"read.{process}").open("w") as output:
            made.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=ROOT))
    codes, said = ended(tmp_path, "read", made)
    assert codes == [0, 0], said
    reader = generate.TextReader(pruned("rope"), 600, chunk=64, read=2)
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), [reader(each) for each in texts], atol=1e-5)
