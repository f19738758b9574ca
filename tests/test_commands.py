"""The words of commands; and none takes an address, as of a bucket, for a path on this machine."""

import re
import subprocess
import sys

import pytest
from endurance.commands import main_of

from bam_jax.__main__ import commands
from bam_jax.system.errors import UserError

LOCAL = r"--(out|run|runs|workdir|export|plot|json|records) [A-Z]"
"""Options that take a path on this machine, as the usage of a command has them."""


READERS = ("evaluate", "figures", "generate", "heads")
ADDRESSES = {"bam_jax.train": "workdir", **{f"bam_jax.{name}": "run" for name in READERS}}
"""Options that take an address as well, by their commands."""


def local_options(name, capsys):
    with pytest.raises(SystemExit):
        main_of(name)(["--help"])
    usage = capsys.readouterr().out.split("\n\n")[0]
    found = {*re.findall(LOCAL, usage)} - {ADDRESSES.get(name)}
    return [f"--{option}=" for option in sorted(found)] + [""] * (name == "bam_jax.report")


def test_no_option_and_no_call_takes_an_address_for_a_path(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = []
    options = {name: local_options(name, capsys) for name, _ in commands()}
    assert options["bam_jax.convert"] == ["--export=", "--run="] and sum(map(len, options.values())) > 15
    for name, option in [(name, option) for name, each in options.items() for option in each]:
        # The other option ends a command that takes the address.
        calls.append(lambda name=name, option=option: main_of(name)([f"{option}gs://b/x", "--no-such-option"]))
    for call in calls:
        with pytest.raises(UserError, match="'gs://b/x' is an address.* path") as error:
            call()
        assert "\n" not in str(error.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 0, "  bam-jax data prepare "),
        (["--help"], 0, "  bam-jax train "),
        (["methods", "alibi"], 0, "ALiBi: a Laplace prior"),
        (["data", "inspect", "--no-such"], 2, "error: "),
        (["trian"], 2, "error: unknown command 'trian'; did you mean 'train'?"),
        (["data"], 2, "error: unknown command 'data'; "),
        (["--config=x"], 2, "error: "),
    ],
)
def test_the_words_after_bam_jax_name_a_command(words, status, says):
    done = subprocess.run([sys.executable, "-m", "bam_jax", *words], capture_output=True, text=True)
    assert done.returncode == status and says in done.stdout + done.stderr
    assert not status or done.stderr.count("\n") == 1
