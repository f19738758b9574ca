"""The installation where the system's Python is new enough, where uv brings one, and where it cannot."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/bash
echo "python3 $*" >> {log}
case "$*" in
  "-c "*) exit {old} ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp {uv} "$3/bin/uv" ;;
esac
"""
UV = """#!/bin/bash
echo "uv $*" >> {log}
case "$1" in
  venv) [ {fetched} = 1 ] && mkdir -p .venv/bin && cp "$(dirname "$0")/python" "$0" .venv/bin || exit 1 ;;
esac
"""


@pytest.fixture
def install(tmp_path):
    """Runs `make TARGET` where python3 and uv are pretended; gives the status, the errors and the commands."""

    def run(target, *, old, fetched=True):
        for name in ("Makefile", "pyproject.toml", "uv.lock"):
            shutil.copy(ROOT / name, tmp_path)
        stubs = {"log": tmp_path / "log", "uv": tmp_path / "uv", "old": int(old), "fetched": int(fetched)}
        for name, text in {"bin/python3": PYTHON, "uv": UV}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text.format(**stubs))
            (tmp_path / name).chmod(0o755)
        path = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
        done = subprocess.run(["make", "-C", tmp_path, tmp_path / target], env=path, capture_output=True, text=True)
        return done.returncode, done.stderr, (tmp_path / "log").read_text().splitlines()

    return run


def test_a_new_python_makes_the_environment(install):
    status, _, commands = install(".venv/installed", old=False)
    assert not status and commands[1] == "python3 -m venv .venv" and not any("uv venv" in each for each in commands)
    assert commands[-1].startswith("uv sync") and "--extra dev" in commands[-1]


def test_uv_brings_a_python_where_the_systems_is_old(install, tmp_path):
    status, said, commands = install(".venv/installed", old=True)
    assert not status, said
    assert any(each.startswith("uv venv") and "--python 3.12 .venv" in each for each in commands)
    assert not (tmp_path / ".venv-uv").exists() and commands[-1].startswith("uv sync")


def test_a_python_that_cannot_be_fetched_is_one_line(install):
    status, said, commands = install(".venv/quick", old=True, fetched=False)
    assert status == 2 and "error: bam_jax needs Python 3.12, and uv could not fetch it: install it" in said
    assert not any("sync" in each for each in commands)


def test_the_quickstart_installs_no_more_than_it_needs(install):
    status, _, commands = install(".venv/quick", old=False)
    extras = commands[-1].split("--extra ")[1:]
    assert not status and [each.strip() for each in extras] == ["train", "results", "figures"]
