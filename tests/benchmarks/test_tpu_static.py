"""The command compiles every kernel for a chip that is not there, and reads what the compiler wrote."""

import json
import os
import subprocess
import sys

import pytest

from bam_jax.system import errors
from benchmarks import tpu_static


def test_the_report_has_a_row_for_each_kernel(tmp_path):
    pytest.importorskip("libtpu")
    file = tmp_path / "static.json"
    # A process of its own: libtpu takes the folder of its schedules when it is loaded.
    command = [sys.executable, "-m", "benchmarks.tpu_static", "--chips=v5e", "--biases=uniform,ggd", "--length=256"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run([*command, f"--json={file}"], env=environment, capture_output=True, text=True, check=True)
    whole = json.loads(file.read_text())["records"]
    records = [x for x in whole if x["bias"] != tpu_static.SPLASH]  # which stands beside them where it is installed
    assert [(x["bias"], x["kernel"]) for x in records] == [
        (bias, kernel) for bias in ("uniform", "ggd") for kernel in tpu_static.KERNELS
    ]
    for plain, prior in zip(records[:3], records[3:], strict=True):
        assert 100 < plain["bundles"] < prior["bundles"]
    assert len(done.stdout.splitlines()) == 1 + len(whole)


def test_unknown_names_are_said_in_one_line():
    with pytest.raises(errors.UserError, match="no chip 'v5x'"):
        tpu_static.main(["--chips=v5x", "--biases=uniform"])
    with pytest.raises(errors.UserError, match="no bias 'alibo' here: did you mean 'alibi'"):
        tpu_static.main(["--biases=alibo"])
