"""The contrastive loss of held-out triplets, and the share of queries that find their own positive in their batch."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bam_jax.config.sections import TRIPLET
from bam_jax.data import loader
from bam_jax.evals import schema
from bam_jax.evals.base import Evaluation, option
from bam_jax.evals.plan import Plan, Results, SampleRange, Trained, Wanted
from bam_jax.retrieval.embedding import Embedder
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Line, Loss, Share
from bam_jax.training import contrastive


class ContrastiveRecord(schema.CellRecord):
    """Batches of `batch` held-out triplets, of which there are `of`; `data_hash` of the triplets, which older records lack."""

    value: Loss
    accuracy: Share
    depth: NotRequired[None]
    batch: Count
    data_hash: NotRequired[Line]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive(Evaluation):
    """The loss that contrastive training minimises, on held-out triplets with texts cut at each length.

    The candidates for a query are the texts of its batch, so losses with different batch sizes cannot be compared.
    """

    name = "contrastive"
    encoder = True
    sample_noun = "batches"
    record = ContrastiveRecord
    identity = ("batch", "data_hash")
    unseen = True

    batch: Count = option(128, "triplets of a batch")
    batches: Count = option(64, "of held-out triplets at each length, at most")

    @property
    def quantity(self) -> Literal["loss"]:
        return "loss"

    def plans(self, trained: Trained) -> list[Plan]:
        rows = {}
        for length in self.lengths:
            trained.decoder.check_length(length)
            rows[length] = loader.held_out_triplets(trained.config, trained.tokenizer, length)
            if len(rows[length]) < self.batch:
                raise UserError(
                    f"{len(rows[length])} triplets are held out, too few for --batch={self.batch}; give a smaller one, or "
                    "prepare the folder with more --holdout-records"
                )
        of = min(map(len, rows.values())) // self.batch
        wanted: Wanted = {(length, None): min(self.batches, of) for length in self.lengths}
        measured = functools.partial(measure, trained, rows=rows, batch=self.batch)
        identity = {"batch": self.batch, "data_hash": loader.held_out_hash(trained.config)}
        return [Plan(identity, wanted, measured)]

    def texts(self, length: int) -> float:
        return len(TRIPLET) * self.batch * self.batches

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        return None if record is None else min(self.batches, record["of"])


def measure(trained: Trained, todo: Sequence[SampleRange], *, rows: Mapping[int, Any], batch: int) -> Results:
    embedder = Embedder(trained.reader())
    for samples in sorted(todo):
        losses = []
        for number in range(samples.first, samples.stop):
            triplets = rows[samples.length].take(np.arange(number * batch, (number + 1) * batch))
            embeddings = embed(embedder, triplets)
            losses.append(_loss(embeddings, triplets, trained.config.data.similarity_scale))
        loss, accuracy = np.mean(losses, axis=0).tolist()
        of = len(rows[samples.length]) // batch
        yield samples, {"value": loss, "unit": "nats a query", "accuracy": accuracy, "of": of}


def embed(embedder: Embedder, triplets: Mapping[str, np.ndarray]) -> Float[np.ndarray, "B 3 E"]:
    """The embeddings of queries, positives and negatives."""
    texts = [
        row[:length] for name in TRIPLET for row, length in zip(triplets[name], triplets[f"{name}_length"], strict=True)
    ]
    embeddings = embedder.embed(texts, triplets[TRIPLET[0]].shape[1])
    return embeddings.reshape(len(TRIPLET), -1, embeddings.shape[-1]).swapaxes(0, 1)


@functools.partial(jax.jit, static_argnums=2)
def _loss(embeddings: Array, triplets: dict[str, Array], scale: float) -> Array:
    return jnp.stack(contrastive.ranking_loss(embeddings, contrastive.known_positives(triplets), scale))
