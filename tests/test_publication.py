"""The published wheel and sdist hold the whole package, say one version everywhere, and run without the clone."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import bam_jax

ROOT = Path(__file__).parents[1]


def build(target, source, folder):
    """The one file that hatchling makes of a source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that the sdist builds."""
    folders = [tmp_path_factory.mktemp(name) for name in ("sdist", "source", "wheel")]
    with tarfile.open(build("sdist", ROOT, folders[0])) as archive:
        archive.extractall(folders[1], filter="data")
    (source,) = folders[1].iterdir()
    return build("wheel", source, folders[2])


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """The contents of the wheel, as installers lay them out."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def metadata(unpacked):
    return importlib.metadata.PathDistribution(*unpacked.glob("*.dist-info")).metadata


def files(folder):
    """The files of the package below a folder."""
    found = (path for path in (folder / "bam_jax").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in found if not path.name.startswith(".")}


def test_the_wheel_holds_the_whole_package_and_the_configurations(unpacked):
    assert files(unpacked) == files(ROOT) | {f"bam_jax/configs/{path.name}" for path in (ROOT / "configs").glob("*.py")}
    assert "bam_jax/py.typed" in files(unpacked)


def test_the_metadata_has_the_one_version_and_the_project(metadata):
    version, changes = bam_jax.__version__, (ROOT / "CHANGELOG.md").read_text()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version) and metadata["Version"] == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"## [{version}]" in changes and f"\n[{version}]: " in changes
    assert metadata["License-Expression"] == "Apache-2.0" and "Typing :: Typed" in metadata.get_all("Classifier")
    links = dict(link.split(", ") for link in metadata.get_all("Project-URL"))
    for page in ("CITATION.cff", "CHANGELOG.md", ".github/ISSUE_TEMPLATE/config.yml"):
        assert links["Repository"] in (ROOT / page).read_text()


def test_the_links_of_its_page_lead_to_the_repository(metadata):
    readme = (ROOT / "README.md").read_text()
    links, ours = (re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", text) for text in (metadata.get_payload(), readme))
    assert len(links) == len(ours) > 10
    for (image, link), (_, own) in zip(links, ours, strict=True):
        place = "raw.githubusercontent.com/bam-jax/bam_jax/main" if image else "github.com/bam-jax/bam_jax/blob/main"
        assert link == (own if own.startswith("https://") else f"https://{place}/{own}")


def test_workflows_run_targets_that_there_are():
    makefile, workflows = (ROOT / "Makefile").read_text(), ROOT / ".github" / "workflows"
    said = "".join(path.read_text() for path in sorted(workflows.glob("*.yml")))
    matrix = yaml.safe_load((workflows / "ci.yml").read_text())["jobs"]["make"]["strategy"]["matrix"]["target"]
    targets = {*re.findall(r"^([\w-]+):", makefile, re.MULTILINE)}
    assert {*re.findall(r"make ([\w-]+)$", said, re.MULTILINE), *matrix} <= targets
    everything = {"test", *re.search(r"^test-all: (.*?)  ##", makefile, re.MULTILINE)[1].split()}
    assert everything <= {*matrix}, "CI leaves out what .ci/run does"


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A Python with the wheel and what it asks for, in the versions of the lock file, and nothing of a contributor's."""
    folder, uv = tmp_path_factory.mktemp("fresh"), Path(sys.prefix) / "bin" / "uv"
    extras = ("train", "figures")
    locked = ["--locked", "--no-emit-project", *(f"--extra={extra}" for extra in extras)]
    python = folder / "env" / "bin" / "python"
    for command in (
        [uv, "export", "--project", ROOT, *locked, "--output-file", folder / "locked.txt"],
        [uv, "venv", "--python", sys.executable, folder / "env"],
        [uv, "pip", "install", "--python", python, "--require-hashes", "--requirement", folder / "locked.txt"],
        [uv, "pip", "install", "--python", python, "--offline", f"{wheel}[{','.join(extras)}]"],
        [uv, "pip", "check", "--python", python],
    ):
        subprocess.run([*command, "--quiet"], check=True)
    return python


@pytest.mark.full
def test_it_runs_without_the_clone(fresh, tmp_path):
    here = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"}

    def run(*command, status=0):
        done = subprocess.run([fresh, *command], cwd=tmp_path, env=here, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout

    assert run("-c", "import bam_jax; print(bam_jax.__file__)").startswith(str(fresh.parents[1]))
    prompt = "--prompt=<KEY>48213<END> and more <KEY>"
    assert run("-m", "bam_jax.generate", "--run=quickstart", prompt, "--tokens=5", "--temperature=0") == "48213\n"
    (tmp_path / "tiny.py").write_text(
        "import ml_collections\n"
        "def get_config():\n"
        "    sizes = {'layers': 1, 'width': 16, 'heads': 2, 'hidden': 16}\n"
        "    return ml_collections.ConfigDict({'steps': 2, 'context': 32, 'batch': 2, 'model': sizes})\n"
    )
    assert "finished at step 2" in run("-m", "bam_jax.train", "--config=tiny.py", "--workdir=run")
    own = "-m", "bam_jax.train", "--config=configs/quickstart.py", "--config.steps=2", "--config.batch=2"
    assert "finished at step 2" in run(*own, "--workdir=quick")
    assert "pip install 'bam_jax[wandb]'" in run(*own, "--config.logger=wandb", "--workdir=logged", status=2)
    assert "accuracy" in run("-m", "bam_jax.evaluate", "--run=run", "--eval=passkey", "--lengths=32", "--depths=1")
    assert "wrote" in run("-m", "bam_jax.report", ".")
    (tmp_path / "small.py").write_text(
        "from bam_jax.evals.passkey import Passkey\n"
        "from bam_jax.experiments.experiment import Column, Row, Table, tabled\n"
        "def get_experiment(scale):\n"
        "    table = Table('Table 1', (Column('32', Passkey((32,), depths=2)),), {'one': ('0.5',)})\n"
        "    return tabled('Small', [Row('one', 'tiny.py')], [table], shared=False)\n"
    )
    run("-m", "bam_jax.sweep", "small.py", "--runs=runs", "--jobs=1")
    assert "| one | 0.0 (0.5) 1 seed |" in run("-m", "bam_jax.tables", "small.py", "--runs=runs", "--format=markdown")
    assert "# Small" in run("-m", "bam_jax.tables", "small.py", "--runs=runs")
    assert {path.suffix for path in (tmp_path / "runs" / "tables").iterdir()} == {".csv", ".html", ".md"}
    assert "wrote" in run("-m", "bam_jax.report", "runs")
