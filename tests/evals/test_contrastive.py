"""The contrastive loss of held-out triplets, by the command's own way and by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.config.sections import TRIPLET
from bam_jax.data import loader
from bam_jax.data.prepared.manifest import read_manifest
from bam_jax.evals import measuring, records
from bam_jax.evals.contrastive import Contrastive
from bam_jax.evals.plan import Trained
from bam_jax.models.embedding import embed_texts
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint
from bam_jax.training.contrastive import known_positives, ranking_loss


@pytest.fixture(scope="module")
def save(triplets, write_initial):
    """Writes an encoder as it begins, of the folder of triplets, for a task."""

    def save(folder, task):
        data, model = {"source": triplets, "tokenizer": "byte", "task": task}, {"causal": False, "dtype": "float32"}
        return write_initial(folder, encoding="alibi", context=10, seed=3, model=model, data=data)

    return save


@pytest.fixture(scope="module")
def run(save, tmp_path_factory):
    return save(tmp_path_factory.mktemp("runs") / "encoder", "triplets")


@pytest.mark.parametrize(("memory", "lengths"), [(1e-6, (10,)), pytest.param(2.0, (6, 10), marks=pytest.mark.full)])
def test_the_loss_is_that_of_the_model_in_batches(run, memory, lengths):
    """Also where texts are embedded a few at a time, and where the longest (8 bytes) are cut."""
    (run / records.RESULTS).unlink(missing_ok=True)
    found = measuring.evaluate(run, Contrastive(lengths, batch=4, batches=2), memory=memory, progress=False)
    config, tokenizer, model = checkpoint.restore_model(run)
    embed = nnx.jit(embed_texts)
    for record in found:
        rows = loader.held_out_triplets(config, tokenizer, record["length"])
        assert len(rows) == 12 and (record["n"], record["of"], record["batch"]) == (2, 3, 4)
        losses = []
        for first in (0, 4):
            batch = rows.take(np.arange(first, first + 4))
            each = [embed(model, batch[name], batch[f"{name}_length"]) for name in TRIPLET]
            losses.append(ranking_loss(jnp.stack(each, axis=1), known_positives(batch), 20.0))
        np.testing.assert_allclose([record["value"], record["accuracy"]], np.mean(losses, axis=0), rtol=1e-4)
    assert tuple(record["length"] for record in found) == lengths
    assert len({record["value"] for record in found}) == len(lengths)


def test_every_seed_is_asked_the_same_batches(run):
    config, tokenizer, _ = checkpoint.restore_model(run)
    rows = [
        loader.held_out_triplets(dataclasses.replace(config, seed=seed), tokenizer, 10).take(np.arange(4))["query"]
        for seed in (0, 1)
    ]
    np.testing.assert_array_equal(*rows)


def test_other_triplets_are_another_cell(run, triplets, monkeypatch):
    config, tokenizer, model = checkpoint.restore_model(run)
    trained = Trained(model, tokenizer, config, lambda: np.zeros(0, np.int32), 2.0**30)
    (before,) = Contrastive((10,), batch=4).plans(trained)
    manifest = read_manifest(triplets)
    shards = tuple(dataclasses.replace(shard, sha256="0" * 64) for shard in manifest.shards["held_out"])
    other = dataclasses.replace(manifest, shards=manifest.shards | {"held_out": shards})
    monkeypatch.setattr(loader, "read_manifest", lambda folder: other)
    (after,) = Contrastive((10,), batch=4).plans(trained)
    assert before.identity.keys() == {*Contrastive.identity}
    assert before.identity | {"data_hash": after.identity["data_hash"]} == after.identity != before.identity


def test_what_cannot_be_evaluated_is_said_in_a_line(run, save, tmp_path):
    with pytest.raises(UserError, match="12 triplets are held out, too few for --batch=13"):
        measuring.evaluate(run, Contrastive((10,), batch=13), progress=False)
    masked = save(tmp_path / "masked", "masked")
    with pytest.raises(UserError, match="task='masked' of one source has no triplets .* --config.data.task=triplets"):
        measuring.evaluate(masked, Contrastive((10,)), progress=False)
    assert not [path.name for path in tmp_path.rglob(records.RESULTS)]
