"""Agreement of two processes on loopback."""

import socket
import subprocess
import sys

from bam_jax.parallel import agreement

CODE = """
import sys
import jax
from bam_jax.parallel import agreement
me = int(sys.argv[2])
jax.distributed.initialize(sys.argv[1], 2, me)
print(agreement.all_processes(True), agreement.all_processes(me == 0), agreement.from_first(7 + me))
"""


def test_one_process_speaks_for_itself():
    assert [agreement.all_processes(holds) for holds in (True, False)] == [True, False]


def test_what_fails_in_one_process_fails_in_both():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        address = f"localhost:{server.getsockname()[1]}"
    commands = [[sys.executable, "-c", CODE, address, str(me)] for me in (0, 1)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    said = [process.communicate(timeout=120)[0].splitlines() for process in started]
    assert [lines[-1] for lines in said] == ["True False 7"] * 2  # after the lines of Gloo
