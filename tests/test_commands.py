"""What all commands have in common: the options that name where something is written or read."""

import importlib
import importlib.util
import re

import pytest

from bam_jax import load
from bam_jax.__main__ import commands
from bam_jax.config import Config
from bam_jax.system.errors import UserError
from bam_jax.training import loop

NAMES = [name for name, _ in commands()]
LOCAL = r"--(out|run|runs|workdir|export|plot|json|records) [A-Z]"
"""Options that take a path on this machine, as the usage of a command has them."""


def main(name):
    package = f"{name}.__main__"
    return importlib.import_module(package if importlib.util.find_spec(name).submodule_search_locations else name).main


def local_options(name, capsys):
    with pytest.raises(SystemExit):
        main(name)(["--help"])
    usage = capsys.readouterr().out.split("\n\n")[0]
    return [f"--{option}=" for option in sorted({*re.findall(LOCAL, usage)})] + [""] * (name == "bam_jax.report")


@pytest.mark.parametrize("name", NAMES)
def test_no_command_takes_an_address_for_a_path(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for option in local_options(name, capsys):
        with pytest.raises(UserError, match="'gs://b/x' is an address.* path") as error:
            main(name)([f"{option}gs://b/x", "--no-such-option"])  # which ends a command that takes the address
        assert "\n" not in str(error.value)
    assert not any(tmp_path.iterdir())


def test_no_call_takes_an_address_for_a_run(tmp_path):
    fit = lambda workdir, start="": loop.fit(Config(start=start, steps=1, batch=2), workdir)
    for call in (lambda: load("gs://b/x"), lambda: fit("gs://b/x"), lambda: fit(tmp_path / "run", "gs://b/x")):
        with pytest.raises(UserError, match="'gs://b/x' is an address.* path"):
            call()
    assert not any(tmp_path.iterdir())


def test_the_options_that_take_a_path_are_found(capsys):
    assert local_options("bam_jax.train", capsys) == ["--workdir="]
    assert local_options("bam_jax.convert", capsys) == ["--export=", "--run="]
    assert local_options("bam_jax.tables", capsys) == ["--out=", "--records=", "--runs="]
    assert sum(len(local_options(name, capsys)) for name in NAMES) > 20
