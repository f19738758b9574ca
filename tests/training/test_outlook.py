"""What is said before a training begins."""

from pathlib import Path

import jax
import pytest

from bam_jax import config as configs
from bam_jax.models import counts
from bam_jax.system import resources
from bam_jax.training import outlook

CONFIGS = Path(__file__).parents[2] / "configs"
VOCAB = {"model.vocab": 32768}


@pytest.mark.parametrize(
    ("name", "changes", "speed", "begins"),
    [
        ("lm_120m", VOCAB, 1e9, "about 10 days a step and "),
        ("quickstart", {}, 5e10, "at least 0.029 s a step and 88 s for the steps to come"),
    ],
)
def test_the_time_is_that_of_the_operations(monkeypatch, name, changes, speed, begins):
    monkeypatch.setattr(resources, "speed", lambda dtype: speed)
    config = configs.load(CONFIGS / f"{name}.py", changes)
    first, *more = outlook.describe_duration(config, counts.parameters(config), jax.devices(), done=0)
    assert first.startswith(begins)
    assert bool(more) == (name == "lm_120m")


def test_what_is_left_counts(monkeypatch):
    monkeypatch.setattr(resources, "speed", lambda dtype: 1e9)
    config = configs.load(CONFIGS / "quickstart.py")
    whole, half = (
        next(outlook.describe_duration(config, counts.parameters(config), jax.devices(), done)) for done in (0, 1500)
    )
    assert "for the steps to come" in whole and whole != half


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.stem)
def test_every_configuration_can_be_made_as_small_as_is_said(path, monkeypatch):
    monkeypatch.setattr(resources, "speed", lambda dtype: 1.0)
    config = configs.load(path, VOCAB)
    _, advice = outlook.describe_duration(config, counts.ParameterCounts(1, 1, 1, 1), jax.devices(), done=0)
    smaller = outlook.smaller(config)
    small = configs.load(path, VOCAB | smaller)
    assert all(argument in advice for argument in configs.arguments(smaller)) and outlook.smaller(small) == {}
    assert (CONFIGS / "quickstart.py").exists() and "--config=configs/quickstart.py" in advice


def test_the_speed_is_measured():
    assert resources.speed(jax.numpy.dtype("float32")) > 1e7
