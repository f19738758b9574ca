"""The commit that records name."""

import re
import subprocess

import pytest

import bam_jax
from bam_jax.system import git


def test_the_commit_is_that_of_the_code():
    said = git.describe()
    assert said == f"bam_jax {bam_jax.__version__}" or re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", said)


def commit(folder, *files):
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.mark.parametrize("installed", [".venv/lib/git.py", "../lib/git.py"])
def test_an_installed_package_has_its_version_whatever_repository_it_lies_in(installed, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    (own / ".gitignore").write_text(".venv\n")
    commit(own, own / "code.py", own / installed)
    monkeypatch.setattr(git, "__file__", str(own / installed))
    assert git.describe() == f"bam_jax {bam_jax.__version__}"


def test_records_make_no_code_dirty(tmp_path, monkeypatch):
    code, *kept = tmp_path / "code.py", *(tmp_path / folder / "x.jsonl" for folder in git.RECORDS)
    commit(tmp_path, code, *kept)
    monkeypatch.setattr(git, "__file__", str(code))
    clean = git.describe()
    for path in kept:
        path.write_text("a line\n")
    assert git.describe() == clean and "dirty" not in clean
    code.write_text("pass\n")
    assert git.describe() == f"{clean}-dirty"
