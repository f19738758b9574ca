import jax.numpy as jnp
import pytest

from bam_jax.config import Config
from bam_jax.system.errors import UserError
from bam_jax.training.metrics import metering, read_metrics


def take(meter, step, loss):
    meter.take(step, jnp.asarray([loss, 1.0]))


def test_metrics_are_read_one_step_late_and_all_at_the_end(tmp_path):
    config = Config(steps=3, log_every=1)
    with metering(config, tmp_path, done=0, progress=False) as meter:
        for step in range(1, 4):
            take(meter, step, step / 2)
            assert [record["step"] for record in read_metrics(tmp_path)] == list(range(1, step))
        meter.flush()
        meter.flush()
    assert [record["loss"] for record in read_metrics(tmp_path)] == [0.5, 1.0, 1.5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_stop_and_leave_a_note(tmp_path, bad):
    with metering(Config(steps=3, log_every=1), tmp_path, done=0, progress=False) as meter:
        take(meter, 1, 1.0)
        take(meter, 2, bad)
        with pytest.raises(UserError, match="^step 2: the loss is (nan|inf)"):
            take(meter, 3, 1.0)
    assert (tmp_path / "diverged").read_text().startswith("step 2: ")
    assert [record["step"] for record in read_metrics(tmp_path)] == [1]
