"""Steps compiled for Hopper GPUs."""

import importlib.util
import json

import pytest

from bam_jax.preflight.__main__ import main
from tests.preflight.test_tpu import CONFIG


@pytest.mark.skipif(importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs the compiler for GPUs")
def test_a_small_model_on_two_gpus(tmp_path, capsys):
    (tmp_path / "small.py").write_text(CONFIG)
    status = main([f"--config={tmp_path / 'small.py'}", "--topology=h200:2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == 0 and found["fits"] and found["memory"] == pytest.approx(113e9, rel=0.01)
    assert found["mesh"] == {"data": 1, "fsdp": 2, "tensor": 1, "context": 1}
    assert found["compiled"]["arguments"] == pytest.approx(sum(found["bytes"].values()), rel=0.05)
    assert found["compiled"]["temporaries"] > 0 and max(found["seconds"].values()) > 0
