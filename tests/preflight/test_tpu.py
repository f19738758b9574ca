"""Steps compiled for slices of TPUs."""

import importlib.util
import json

import pytest

from bam_jax.preflight.__main__ import main

CONFIG = """
import ml_collections

def get_config():
    model = {"layers": 2, "width": 256, "heads": 4, "hidden": 512, "remat": True, "vocab": 2048}
    return ml_collections.ConfigDict(
        {"encoding": "bam", "ssmax": "on", "model": model, "context": 512, "batch": 16, "data": {"tokenizer": "byte"}}
    )
"""


@pytest.fixture
def config(tmp_path):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu")
    path = tmp_path / "small.py"
    path.write_text(CONFIG)
    return f"--config={path}"


def test_a_small_model_on_four_chips(config, capsys):
    assert main([config, "--topology=v5e:2x2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"data": 1, "fsdp": 4, "tensor": 1, "context": 1}
    assert found["compiled"]["arguments"] == pytest.approx(sum(found["bytes"].values()), rel=0.05)  # laid out in tiles
    assert found["compiled"]["temporaries"] > 0 and max(found["seconds"].values()) > 0


def test_a_model_that_does_not_fit(config, capsys):
    # Four times a prime: there are two numbers of micro-batches to try.
    overrides = [f"--config.batch={4 * 16381}", "--config.mesh.data=4", "--config.mesh.fsdp=1"]
    assert main([config, "--topology=v5e:2x2", "--json", *overrides]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"] and "RESOURCE_EXHAUSTED" in found["compiled"]["refused"]
    assert main([config, "--topology=v5e:2x2", "--json", "--search", *overrides]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and "--config.optimizer.accumulate=16381" in found["options"]


@pytest.mark.parametrize(
    ("chip", "mesh"),
    [
        ("v5e", ["--config.mesh.fsdp=4"]),
        ("v5e", ["--config.mesh.tensor=2", "--config.mesh.context=2"]),
        ("v6e", ["--config.mesh.fsdp=2", "--config.mesh.tensor=2"]),
    ],
)
@pytest.mark.parametrize(
    "pattern", ["rope:window=128/rope:window=128/rope:window=128/nope", "rope:window=128/bam:ssmax=on"]
)
def test_a_pattern_and_all_that_goes_with_attention(config, pattern, chip, mesh, capsys):
    """One body for places that differ in numbers, and one for each run of others; sinks, gates, norms and caps in both."""
    options = "model.qk_norm=True model.gate=True model.sinks=True model.soft_cap=50 model.layers=8 ssmax=off"
    today = [f"--config.{each}" for each in f"{options} log_temperature=0.1".split()]
    assert main([config, f"--topology={chip}:2x2", "--json", f"--config.encoding={pattern}", *today, *mesh]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compiled"]["arguments"] == pytest.approx(sum(found["bytes"].values()), rel=0.1)
