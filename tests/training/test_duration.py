from pathlib import Path

import jax
import pytest

from bam_jax import config as configs
from bam_jax.config import Config, ModelConfig
from bam_jax.models import counts, pattern
from bam_jax.system import resources
from bam_jax.training import duration

CONFIGS = Path(__file__).parents[2] / "configs"
VOCAB = {"model.vocab": 32768}


def test_the_time_is_that_of_the_operations_that_are_left(monkeypatch):
    described = lambda config, done=0: [*duration.describe(config, counts.parameters(config), jax.devices(), done)][1:]
    assert resources.speed(jax.numpy.dtype("float32")) > 1e7  # measured
    monkeypatch.setattr(resources, "speed", lambda dtype: 5e10)
    config = configs.load(CONFIGS / "quickstart.py")
    (whole,), (half,) = described(config), described(config, done=1500)
    assert whole.startswith("at least 0.029 s a step and 88 s for the steps to come") and whole != half
    monkeypatch.setattr(resources, "speed", lambda dtype: 1e9)
    assert described(configs.load(CONFIGS / "lm_120m.py", VOCAB))[0].startswith("about 10 days a step and ")


def test_the_encoding_is_described_with_all_its_options_and_its_ssmax():
    said = lambda **fields: pattern.describe(Config(model=ModelConfig(layers=6), **fields))
    places = said(encoding="rope:window=8/rope:window=8/nope:ssmax=off,log_temperature=0.1", ssmax="on")
    rope = "2 x rope (base=10000.0, base_scale=1.0, window=8), SSMax on"
    assert places == f"{rope} / nope, SSMax off, log-length temperature 0.1"
    assert said(encoding="nope", shared_encoding=True) == "nope, SSMax off, one for all layers"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.stem)
def test_every_configuration_can_be_made_as_small_as_is_said(path, monkeypatch):
    monkeypatch.setattr(resources, "speed", lambda dtype: 1.0)
    config = configs.load(path, VOCAB)
    *_, advice = duration.describe(config, counts.ParameterCounts(1, 1, 1, 1), jax.devices(), done=0)
    smaller = duration.smaller(config)
    assert all(argument in advice for argument in configs.arguments(smaller))
    assert duration.smaller(configs.load(path, VOCAB | smaller)) == {}
    assert "--config=configs/quickstart.py" in advice
