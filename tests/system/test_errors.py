"""What ends a command."""

import os
import subprocess
import sys


def test_a_reader_that_has_enough_ends_a_command_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "bam_jax"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
