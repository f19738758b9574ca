"""The published wheel holds the whole package, and runs without the clone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel's contents, as installers lay them out."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def files(folder):
    """The files of the package below a folder."""
    found = (path for path in (folder / "bam_jax").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in found if not path.name.startswith(".")}


def test_the_wheel_holds_the_whole_package(unpacked):
    assert files(unpacked) == files(ROOT)


@pytest.mark.full
def test_it_runs_without_the_clone(unpacked, tmp_path):
    here = os.environ | {"PYTHONPATH": str(unpacked), "JAX_PLATFORMS": "cpu"}

    def run(*command):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=here, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import bam_jax; print(bam_jax.__file__)").startswith(str(unpacked))
    prompt = "--prompt=<KEY>48213<END> and more <KEY>"
    assert run("-m", "bam_jax.generate", "--run=quickstart", prompt, "--tokens=5", "--temperature=0") == "48213\n"
    (tmp_path / "tiny.py").write_text(
        "import ml_collections\n"
        "def get_config():\n"
        "    sizes = {'layers': 1, 'width': 16, 'heads': 2, 'hidden': 16}\n"
        "    return ml_collections.ConfigDict({'steps': 2, 'context': 32, 'batch': 2, 'model': sizes})\n"
    )
    assert "finished at step 2" in run("-m", "bam_jax.train", "--config=tiny.py", "--workdir=run")
    assert "accuracy" in run("-m", "bam_jax.evaluate", "--run=run", "--eval=passkey", "--lengths=32", "--depths=1")
    assert "wrote" in run("-m", "bam_jax.report", ".")
