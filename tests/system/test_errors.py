"""Errors, pipes and a lack of memory end a command in one line, or without a word."""

import operator
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

from bam_jax.config import Config
from bam_jax.system.errors import LESS, LONGEST, UserError, ending, run


def test_a_reader_that_has_enough_ends_a_command_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "bam_jax"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_lack_of_memory_is_the_users_to_mend():
    with pytest.raises(RuntimeError) as raised:
        jnp.zeros(2**52, jnp.int8).block_until_ready()  # more than addresses reach
    for error in (
        MemoryError("745 GiB"),
        raised.value,
        RuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 12800000000 bytes."),
    ):
        status, line = ending(error)
        assert status == 2 and "not enough memory" in line and "\n" not in line
    assert ending(RuntimeError("INTERNAL: something else")) is None
    for name in re.findall(r"--config\.(\S+?)[=,; ]", LESS):
        operator.attrgetter(name)(Config())


def test_a_message_is_one_line_whatever_it_names(capsys):
    def main(argv):
        raise UserError(f"no run {argv[0]}; train one")

    for name in ("two\nlines\x1b[2J", "x" * 10**5):
        with pytest.raises(SystemExit) as ended:
            run(main, [name])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said[:-1].isprintable() and said.endswith("; train one\n")
        assert said.startswith(f"error: no run {name[:3]}") and len(said) <= LONGEST + 10


def test_after_what_cannot_be_written_no_thread_is_waited_for():
    """Python joins the threads of a pool at its end, and orbax's are such."""
    code = (
        "import concurrent.futures, multiprocessing, time; from bam_jax.system import errors\n"
        "def main(argv):\n"
        "    concurrent.futures.ThreadPoolExecutor().submit(time.sleep, 60)\n"
        "    child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,), daemon=True)\n"
        "    child.start()\n"
        "    print('said', child.pid)\n"
        "    raise errors.Unwritten('a disk is full; make room')\n"
        "errors.run(main, [])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=30)
    said, child = done.stdout.split()
    assert (done.returncode, said, done.stderr) == (2, "said", "error: a disk is full; make room\n")
    time.sleep(0.5)
    assert not Path(f"/proc/{child}").exists() or "zombie" in Path(f"/proc/{child}/status").read_text()


@pytest.mark.parametrize("after", [0.1, 0.5, 1.0])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(after):
    """Python's handler would be called within an import, whose library may lose what it raises."""
    started = subprocess.Popen([sys.executable, "-m", "bam_jax.train", "--config=none.py"], stderr=subprocess.PIPE)
    time.sleep(after)
    started.send_signal(signal.SIGINT)
    said = started.communicate(timeout=60)[1]
    # Before the package is found it is Python's own; after the imports the command has said what is wrong.
    assert started.returncode in (-signal.SIGINT, 2, 130)
    assert b"bam_jax" not in said or b"Traceback" not in said


@pytest.mark.parametrize(("command", "ours"), [("bam_jax.train", True), ("mine", False)])
def test_the_handler_of_ctrl_c_is_back_when_the_command_runs(command, ours):
    code = f"import signal, sys; sys.argv, sys.orig_argv = ['-m'], ['python', '-m', '{command}']; "
    code += "import bam_jax; print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL); "
    code += "from bam_jax.system import errors; errors.run(lambda argv: print(signal.getsignal(signal.SIGINT).__name__), [])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{ours}\ndefault_int_handler\n" and not done.stderr
