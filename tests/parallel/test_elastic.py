import dataclasses
import math

import jax
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax.config import MeshConfig
from bam_jax.data import loader
from bam_jax.data.tokenizers import tokenizer
from bam_jax.models import transformer
from bam_jax.parallel import sharding
from bam_jax.system import errors
from bam_jax.training import checkpoint, loop, run_folder
from bam_jax.training.step import define_training, state_shardings, with_shardings

MESHES = {
    "eight": MeshConfig(data=2, fsdp=2, tensor=2),
    "ring": MeshConfig(context=8),
    "four": MeshConfig(fsdp=2, context=2),
    "one": MeshConfig(),
}


@pytest.fixture
def config(tmp_path, write_tiny):
    """A run of a pattern of two stacks, with all that goes with attention today."""
    today = {"layers": 2, "width": 64, "heads": 4, "hidden": 128, "dtype": "float32"}
    today |= dict.fromkeys(("qk_norm", "gate", "sinks"), True)
    sizes = {"steps": 9, "batch": 8, "context": 32, "log_every": 1, "optimizer": {"warmup": 2}}
    write_tiny(tmp_path, encoding="cable/bam:ssmax=on,window=9", model=today, **sizes)
    return configs.load(tmp_path / "tiny.py")


@pytest.mark.full
def test_every_mesh_restores_what_another_saved_straight_into_its_shards(config, tmp_path, monkeypatch, rng):
    _, init, tx = define_training(config, run_folder.vocabulary_size(config, tokenizer("char")))
    shapes = jax.eval_shape(init)
    values = jax.tree.map(lambda x: np.asarray(rng.integers(0, 2**20, x.shape), x.dtype), shapes)
    straight = loader.batches(config, tokenizer("char"))
    put, placed = jax.device_put, []

    def watched(x, *where, **how):
        placed.extend(map(np.shape, jax.tree.leaves(x)))
        return put(x, *where, **how)

    before = None
    for number, (name, mesh) in enumerate(MESHES.items()):
        shardings = state_shardings(shapes, tx, sharding.make_mesh(mesh))
        like = with_shardings(shapes, shardings)
        data = loader.batches(config, tokenizer("char"))
        if before is None:
            state = put(values, shardings)
        else:
            with monkeypatch.context() as patch, checkpoint.Checkpoints(tmp_path / before) as checkpoints:
                patch.setattr(jax, "device_put", watched)
                placed.clear()
                state = checkpoints.load(like, data)
            assert placed and set(placed) <= {x.sharding.shard_shape(x.shape) for x in jax.tree.leaves(like)}
        jax.tree.map(np.testing.assert_array_equal, values, state)
        assert jax.tree.map(lambda x: x.sharding, state) == shardings
        np.testing.assert_array_equal(next(data)["tokens"], next(straight)["tokens"])
        with checkpoint.Checkpoints(tmp_path / name) as checkpoints:
            checkpoints.save(number + 1, state, data)
        data.close()
        before = name
    straight.close()


@pytest.mark.full
def test_a_run_that_changes_its_mesh_trains_as_one_that_stays(config, tmp_path):
    expected = loop.fit(config, tmp_path / "stays")
    for name, last in (("eight", 4), ("four", math.inf)):
        going = dataclasses.replace(config, mesh=MESHES[name])
        try:
            found = loop.fit(going, tmp_path / "moves", stop=lambda step, last=last: step == last)
        except errors.Stopped:
            assert run_folder.latest_step(tmp_path / "moves") == last
    numbers = lambda records: [(record["loss"], record["gradient_norm"]) for record in records]
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-4)
    stays, moves = [transformer.split(checkpoint.restore_model(tmp_path / run)[2])[1] for run in ("stays", "moves")]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), stays, moves)
