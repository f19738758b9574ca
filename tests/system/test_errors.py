"""Errors, pipes and a lack of memory end a command in one line, or without a word."""

import errno
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
from bam_jax.system.errors import LESS, LONGEST, UserError, ending, nearest, run


def process(*words, **options):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)


def test_a_reader_that_has_enough_ends_a_command_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "bam_jax"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_long_list_of_names_is_cut_to_the_nearest():
    names = [f"cable-tiny-seed{number}" for number in range(636)]
    said = nearest("cable-tiny-seed635x", names, "python -m bam_jax.sweep FILE --print")
    assert said.startswith("did you mean 'cable-tiny-seed635'? known: cable-tiny-seed635, ") and len(said) < 600
    assert said.endswith(" and 616 more (python -m bam_jax.sweep FILE --print lists all)")
    assert "more" not in nearest("x", map(str, range(20)), "nothing")


def test_a_lack_of_memory_or_of_room_is_the_users_to_mend():
    with pytest.raises(RuntimeError) as raised:
        jnp.zeros(2**52, jnp.int8).block_until_ready()  # more than addresses reach
    for error in (
        MemoryError("745 GiB"),
        raised.value,
        RuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 12800000000 bytes."),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libx.so: failed to map segment from shared object"),
    ):
        status, line = ending(error)
        assert status == 2 and "not enough memory" in line and "\n" not in line
    assert ending(RuntimeError("INTERNAL: something else")) is None and ending(ImportError("no module x")) is None
    for name in re.findall(r"--config\.(\S+?)[=,; ]", LESS):
        operator.attrgetter(name)(Config())
    copied = OSError(errno.ENOSPC, "No space left on device", "from", None, "to")
    assert ending(copied)[1].startswith("to: No space left on device")


def test_a_limit_below_what_libraries_need_is_named_before_they_are_imported():
    limited = ["sh", "-c", f'ulimit -v {350 * 1024} && exec "$@"', "sh", sys.executable, "-m", "bam_jax.train"]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60)  # NumPy would take for ever
    assert done.returncode == 2 and re.fullmatch("error: .* 350 MiB .*; raise it\n", done.stderr)


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
    done = process("-W", "ignore", "-c", code, timeout=30)
    said, child = done.stdout.split()
    assert (done.returncode, said, done.stderr) == (2, "said", "error: a disk is full; make room\n")
    time.sleep(0.5)
    assert not Path(f"/proc/{child}").exists() or "zombie" in Path(f"/proc/{child}/status").read_text()


@pytest.mark.parametrize("command", ["train", "report"])  # a module, and the __main__ of a package
def test_ctrl_c_while_a_command_imports_ends_it_without_a_traceback(command, tmp_path):
    (tmp_path / "jax.py").write_text("import time; print('importing', flush=True); time.sleep(60)")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    # The tests may run in the background of a shell, where Ctrl-C is ignored.
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", start, sys.executable, "-m", f"bam_jax.{command}"]
    started = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.stdout.readline() == b"importing\n"
    started.send_signal(signal.SIGINT)
    assert (started.communicate(timeout=60)[1], started.returncode) == (b"", -signal.SIGINT)


@pytest.mark.parametrize(
    ("before", "imported", "run"),
    [("default_int_handler", "SIG_DFL", "default_int_handler"), ("SIG_IGN", "SIG_IGN", "SIG_IGN")],
)
def test_ctrl_c_is_handled_again_when_the_command_runs_and_ignored_where_it_was(before, imported, run):
    """A shell's background jobs ignore it; an import of the package changes nothing."""
    code = f"""
import signal, bam_jax
signal.signal(signal.SIGINT, signal.{before})
from bam_jax.system import errors
show = lambda: print(getattr(signal.getsignal(signal.SIGINT), "name", "default_int_handler"))
errors.before_imports()
show()
errors.run(lambda argv: show(), [])
"""
    done = process("-c", code)
    assert (done.stdout, done.stderr) == (f"{imported}\n{run}\n", "")
