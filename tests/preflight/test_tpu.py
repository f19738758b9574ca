"""Steps compiled for slices of TPUs."""

import importlib.util
import json

import pytest

from bam_jax.preflight.__main__ import main
from tests.marks import longest

CONFIG = """
import ml_collections

def get_config():
    model = {"layers": 2, "width": 256, "heads": 4, "hidden": 512, "remat": True, "vocab": 2048}
    return ml_collections.ConfigDict(
        {"encoding": "bam", "ssmax": "on", "model": model, "context": 512, "batch": 16, "data": {"tokenizer": "byte"}}
    )
"""


@pytest.fixture
def preflight(tmp_path, capsys):
    """Calls the command with options; returns its status and record."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu")
    (tmp_path / "small.py").write_text(CONFIG)

    def call(chip, *options):
        status = main([f"--config={tmp_path / 'small.py'}", f"--topology={chip}:2x2", "--json", *options])
        return status, json.loads(capsys.readouterr().out)

    return call


def test_a_small_model_on_four_chips(preflight):
    status, found = preflight("v5e")
    assert status == 0
    assert found["mesh"] == {"data": 1, "fsdp": 4, "tensor": 1, "context": 1}
    assert found["compiled"]["arguments"] == pytest.approx(sum(found["bytes"].values()), rel=0.05)  # laid out in tiles
    assert found["compiled"]["temporaries"] > 0 and max(found["seconds"].values()) > 0


def test_a_model_that_does_not_fit(preflight):
    # Four times a prime: there are two numbers of micro-batches to try.
    overrides = [f"--config.batch={4 * 16381}", "--config.mesh.data=4", "--config.mesh.fsdp=1"]
    status, found = preflight("v5e", *overrides)
    assert status == 1 and not found["fits"] and "RESOURCE_EXHAUSTED" in found["compiled"]["refused"]
    status, found = preflight("v5e", "--search", *overrides)
    assert status == 0 and found["fits"] and "--config.optimizer.accumulate=16381" in found["options"]


FOUR, TWO = "rope:window=128/rope:window=128/rope:window=128/nope", "rope:window=128/bam:ssmax=on"
CUT_ALL, CUT_CONTEXT, CUT_HEADS = (
    [f"--config.mesh.{axis}" for axis in axes.split()] for axes in ("fsdp=4", "tensor=2 context=2", "fsdp=2 tensor=2")
)


@pytest.mark.parametrize(
    ("pattern", "chip", "mesh"),
    [
        (FOUR, "v5e", CUT_ALL),
        (TWO, "v5e", CUT_CONTEXT),
        (FOUR, "v6e", CUT_HEADS),
        longest(TWO, "v5e", CUT_ALL),
        longest(FOUR, "v5e", CUT_CONTEXT),
        longest(TWO, "v6e", CUT_HEADS),
    ],
)
def test_a_pattern_and_all_that_goes_with_attention(pattern, chip, mesh, preflight):
    """One body for places that differ in numbers, and one for each run of others; sinks, gates, norms and caps in both."""
    options = "model.qk_norm=True model.gate=True model.sinks=True model.soft_cap=50 model.layers=8 ssmax=off"
    today = [f"--config.{each}" for each in f"{options} log_temperature=0.1".split()]
    status, found = preflight(chip, f"--config.encoding={pattern}", *today, *mesh)
    assert status == 0 and found["compiled"]["arguments"] == pytest.approx(sum(found["bytes"].values()), rel=0.1)


def test_a_long_text_on_four_chips(preflight):
    status, found = preflight("v5e", "--read=16384", "--config.mesh.tensor=2", "--config.mesh.context=2")
    assert status == 0 and found["tokens"] == 16_384
    keys_and_values = 2 * 2 * 256 * 16_384 * 2 // 4  # two layers of bfloat16 on four chips
    assert keys_and_values < found["bytes"]["cache"] < 1.1 * keys_and_values
    assert sum(found["bytes"].values()) <= found["compiled"]["arguments"]
