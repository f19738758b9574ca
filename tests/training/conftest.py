"""A trained run that the tests of training share."""

import shutil

import pytest

from bam_jax import config as configs
from bam_jax.training import loop


@pytest.fixture(scope="session")
def finished(tmp_path_factory, write_tiny):
    """A folder with tiny.py, text.txt and `run`, four steps of that with checkpoints at 2 and 4."""
    often = {"steps": 4, "checkpoint_every": 2, "log_every": 1, "optimizer": {"warmup": 2}}
    folder = write_tiny(tmp_path_factory.mktemp("finished"), ssmax="on", batch=4, context=16, **often)
    loop.fit(configs.load(folder / "tiny.py"), folder / "run", progress=False)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the run, for damage."""
    return shutil.copytree(finished / "run", tmp_path / "run")
