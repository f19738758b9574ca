"""What a report says of a run, from the files that its training left."""

import fcntl
import json

import pytest

from bam_jax import config
from bam_jax.experiments import results
from bam_jax.report.run_page import describe_training
from bam_jax.system import lock
from bam_jax.training import run_folder


@pytest.fixture
def run(tmp_path):
    (tmp_path / run_folder.CONFIG).write_text(config.to_json(config.Config(encoding="rope", steps=90)))
    return tmp_path


def said(run):
    return describe_training(results.read_run(run), run)


def reach(run, step):
    (run / run_folder.METRICS).write_text(json.dumps({"step": step, "loss": 1.0, "seconds": 1.0}) + "\n")


def test_a_run_that_was_begun_is_not_called_not_begun(run):
    assert describe_training(None, run) == said(run / "nowhere") == "not begun"
    (run / run_folder.CHECKPOINTS / "90").mkdir(parents=True)  # weights from elsewhere
    assert said(run) == "90 of 90"
    (run / run_folder.CHECKPOINTS / "90").rename(run / run_folder.CHECKPOINTS / "5")
    assert said(run) == "stopped at step 5 of 90"
    (run / run_folder.DIVERGED).write_text("step 8: the loss is nan, the norm of its gradient 1.0\n")
    assert said(run) == "diverged at step 8: the loss is nan, the norm of its gradient 1.0"
    (run / run_folder.DIVERGED).unlink()
    reach(run, 90)
    assert said(run) == "90 of 90"


def test_a_run_is_running_while_a_process_holds_it(run):
    with (run / lock.NAME).open("a") as held:
        assert said(run) == "stopped before its first record"
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert said(run) == "running, before its first record"
        reach(run, 7)
        assert said(run) == "running, step 7 of 90"
    assert said(run) == "stopped at step 7 of 90"
