import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from bam_jax import config as configs
from bam_jax.parallel import sharding
from bam_jax.system import errors
from bam_jax.training import loop, run_folder
from bam_jax.training.metrics import read_metrics

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "docs" / "launch"
TASKS = f"""#!{sys.executable}
import itertools, os, pathlib, signal, subprocess, sys

here = pathlib.Path(__file__).parent

def run(command, environments):
    "All at once; what is told to this process, they are told. Returns the largest exit code, as srun does."
    made = [subprocess.Popen(command, env=os.environ | each, start_new_session=True) for each in environments]
    signal.signal(signal.SIGTERM, lambda *_: [os.killpg(each.pid, signal.SIGTERM) for each in made])
    with (here / "groups").open("a") as groups:
        groups.writelines(str(each.pid) + "\\n" for each in made)
    return max(code if code >= 0 else 128 - code for code in [each.wait() for each in made])
"""
SRUN = f"""{TASKS}
step = {{"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "2", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}}
command = list(itertools.dropwhile(lambda word: word.startswith("--"), sys.argv[1:]))
sys.exit(run(command, [step | {{"SLURM_PROCID": str(index)}} for index in range(2)]))
"""
JOB = {"SLURM_JOB_ID": "4711", "SLURM_GPUS_ON_NODE": "1"}
SQUEUE = '#!/bin/bash\necho "${STATE:-RUNNING}"\n'
SCONTROL = '#!/bin/bash\necho "$@" >> "$(dirname "$0")/requeued"\n'
GCLOUD = f"""{TASKS}
state = here / "state"
_, verb, _, *rest = sys.argv[3:]
with (here / "asked").open("a") as asked:
    print(verb, file=asked)
if verb == "create":
    state.write_text("ACCEPTED PROVISIONING ACTIVE")
elif verb == "delete":
    state.unlink()
    (here / "gone").unlink()
elif verb == "describe":
    if not state.exists():
        sys.exit("NOT_FOUND")
    now, _, then = state.read_text().partition(" ")
    state.write_text(then or now)
    print(now)
elif (here / "gone").exists():
    sys.exit(255)
else:
    (here / "ssh").write_text(str(os.getpid()))
    tpu = {{f"MEGASCALE_{{name}}": "" for name in ("COORDINATOR_ADDRESS", "NUM_SLICES", "SLICE_ID")}}
    tpu |= {{"JAX_FORCE_TPU_INIT": "1", "TPU_WORKER_HOSTNAMES": "localhost,localhost"}}
    command = [word for word in rest if word.startswith("--command=")][0].removeprefix("--command=")
    hosts = [tpu | {{"TPU_WORKER_ID": str(index), "HOME": str(here / f"host{{index}}")}} for index in range(2)]
    sys.exit(run(["bash", "-c", command], hosts))
"""


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path, write_tiny):
    often = {"steps": 400, "checkpoint_every": 200, "log_every": 1}
    write_tiny(tmp_path, batch=8, context=32, mesh={"data": 2}, **often)
    (tmp_path / "bin").mkdir()
    for name, script in {"srun": SRUN, "scontrol": SCONTROL, "squeue": SQUEUE, "gcloud": GCLOUD}.items():
        write_script(tmp_path / "bin" / name, script)
    return tmp_path


@pytest.fixture
def environment(path):
    """What both schedulers' files are run with: pretended commands, jobs, a free port, a CPU for each process."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port = str(server.getsockname()[1])
    ours = {"PATH": f"{path / 'bin'}:{os.environ['PATH']}", "JAX_COORDINATOR_PORT": port, "JAX_NUM_CPU_DEVICES": "1"}
    yield os.environ | ours | {"NAME": "a", "ZONE": "b", "TYPE": "v5p-16"}
    groups = path / "bin" / "groups"
    for group in groups.read_text().split() if groups.exists() else []:
        with contextlib.suppress(ProcessLookupError):  # as it should be
            os.killpg(int(group), signal.SIGKILL)


def start(path, file, environment, *arguments):
    arguments = [f"--config={path / 'tiny.py'}", f"--workdir={path / 'run'}", *arguments]
    command = ["bash", LAUNCH / file, *arguments]
    with (path / "said").open("w") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)


def ended(path, process):
    try:
        return process.wait(240), (path / "said").read_text()
    finally:
        process.kill()


def wait_until_it_trains(path, process):
    while not read_metrics(path / "run"):
        assert process.poll() is None, (path / "said").read_text()
        time.sleep(0.05)


def install(path, python):
    """On the hosts of a slice."""
    for host in ("host0", "host1"):
        folder = path / "bin" / host / "bam_jax" / ".venv" / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(python)


def asked(path):
    """What was asked of gcloud, but for looks at the queue."""
    return [verb for verb in (path / "bin" / "asked").read_text().split() if verb != "describe"]


def see_it_trained_as_one_process_does(path):
    alone = loop.fit(configs.load(path / "tiny.py"), path / "alone")
    losses = lambda records: [(record["step"], record["loss"]) for record in records]
    assert losses(alone) == losses(read_metrics(path / "run"))


def says(path, codes):
    """A Python that ends at once, with the first of the codes, then with the next, ..., in each process."""
    for index in range(2):
        (path / f"codes{index}").write_text(" ".join(map(str, codes)))
    mine = f"{path}/codes${{SLURM_PROCID:-}}${{TPU_WORKER_ID:-}}"
    lines = "#!/bin/bash", f"read -r code then < {mine}", f'echo "$then" > {mine}', 'exit "$code"'
    return write_script(path / "python", "\n".join(lines))


@pytest.mark.parametrize(
    "code, more, again",
    [
        (2, {}, False),
        (75, {"SLURM_RESTART_COUNT": "49"}, True),
        (137, {}, True),
        (143, {}, True),
        (75, {"STATE": "COMPLETING"}, False),
        (75, {"SLURM_RESTART_COUNT": "50"}, False),
    ],
)
def test_slurm_queues_a_job_again_that_can_go_on(path, environment, code, more, again):
    environment |= JOB | {"PYTHON": str(says(path, [code])), **more}
    status, said = ended(path, start(path, "slurm.sbatch", environment))
    assert status == code, said
    assert (path / "bin" / "requeued").exists() == again


@pytest.mark.parametrize(
    "codes, setup, starts, status",
    [
        ([1], "true", 1, 1),
        ([75, 75, 0], "true", 3, 0),
        ([75, 2], "true", 2, 2),
        ([75] * 9, "true", 4, 75),
        ([0], "exit 3", 1, 3),
    ],
)
def test_a_tpu_slice_is_trained_on_until_all_is_done_or_somebody_has_to_look(
    path, environment, codes, setup, starts, status
):
    install(path, says(path, codes))
    environment |= {"WAIT": "0", "SETUP": setup, "STARTS": "4"}
    found, said = ended(path, start(path, "tpu_pod.sh", environment))
    assert (found, asked(path)) == (status, ["create"] + ["ssh"] * starts), said


@pytest.mark.parametrize(
    "page, launcher, platform, devices",
    [
        ("launch.md", "slurm.sbatch", "gpu", 32),
        ("launch.md", "tpu_pod.sh", "tpu", 64),
        ("launch.md", "xpk workload", "tpu", 64),
        ("launch/slurm.sbatch", "slurm.sbatch", "gpu", 32),
        ("launch/tpu_pod.sh", "tpu_pod.sh", "tpu", 64),
        ("parallelism.md", "mesh.context=4", "gpu", 64),
        ("parallelism.md", "mesh.fsdp=4", "gpu", 8),
    ],
)
def test_commands_of_the_pages_fit_their_devices(page, launcher, platform, devices, monkeypatch):
    """A host has eight of them."""
    monkeypatch.setattr(sharding, "arrange", lambda shape, _: jax.sharding.AbstractMesh(shape, sharding.AXES))
    present = [SimpleNamespace(platform=platform, process_index=n // 8, slice_index=0) for n in range(devices)]
    text = (LAUNCH.parent / page).read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if launcher in line and "configs/lm_1b.py" in line]
    path, *overrides = re.findall(r"--config[.=][^\s']+", line)
    config = configs.load(ROOT / path.partition("=")[2], configs.from_arguments(overrides))
    sharding.check(config, sharding.make_mesh(config.mesh, present))


@pytest.mark.full
def test_slurm_queues_a_job_again_that_was_preempted_and_it_goes_on(path, environment):
    environment |= JOB | {"PYTHON": sys.executable}
    job = start(path, "slurm.sbatch", environment)
    wait_until_it_trains(path, job)
    os.killpg(job.pid, signal.SIGTERM)
    assert ended(path, job)[0] == errors.AGAIN
    assert (path / "bin" / "requeued").read_text() == "requeue 4711\n"
    assert 0 < run_folder.latest_step(path / "run") < 400

    status, said = ended(path, start(path, "slurm.sbatch", environment | {"SLURM_RESTART_COUNT": "1"}))
    assert status == 0, said
    assert (path / "bin" / "requeued").read_text() == "requeue 4711\n"
    see_it_trained_as_one_process_does(path)


@pytest.mark.endurance
def test_a_tpu_slice_that_is_taken_away_is_asked_for_again(path, environment):
    install(path, write_script(path / "python", f'#!/bin/bash\nexec {sys.executable} "$@"\n'))
    environment |= {"WAIT": "1", "PYTHONPATH": str(ROOT)}
    script = start(path, "tpu_pod.sh", environment)
    wait_until_it_trains(path, script)
    (path / "bin" / "state").write_text("ACTIVE SUSPENDING SUSPENDED")  # the queue is late to know
    (path / "bin" / "gone").touch()
    os.kill(int((path / "bin" / "ssh").read_text()), signal.SIGTERM)
    status, said = ended(path, script)
    assert status == 0, said
    assert said.count(f"exit code {errors.AGAIN}") == 2 and said.count("exit code 0") == 2
    assert asked(path) == ["create", "ssh", "ssh", "delete", "create", "ssh"]
    see_it_trained_as_one_process_does(path)
