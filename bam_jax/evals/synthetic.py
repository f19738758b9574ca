"""Synthetic tasks of `bam_jax.data.tasks`, asked at any length: recall, recall with forgetting, copying."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from bam_jax.config import Config
from bam_jax.data.tasks.synthetic import ASKED, SYNTHETIC, SyntheticTask
from bam_jax.evals import schema
from bam_jax.evals.base import TaskEvaluation, option, prompt_seed
from bam_jax.evals.plan import Plan, SampleRange, Trained, rows_within
from bam_jax.models import transformer
from bam_jax.system.fields import Count, Line, Natural, Share


class SyntheticRecord(schema.CellRecord):
    """Rows of a task with `items` items each; a guess among all symbols would give `chance`."""

    value: Share
    chance: Share
    items: Count
    depth: NotRequired[None]
    task: Line
    seed: Natural


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic(TaskEvaluation):
    """The share of a synthetic task's answers that are the model's most likely token, at each length.

    Rows have as many items as those of the training context. A task need not be the one that the model was trained on.

    Args:
        tasks: names in `bam_jax.data.tasks.synthetic.SYNTHETIC`.
        samples: rows of each task and length.
        seed: of the rows, which are never those of a training; None: the run's training seed.
    """

    name = "synthetic"
    sample_noun = "rows"
    record = SyntheticRecord
    identity = ("task", "seed")
    curve = "accuracy"
    known = SYNTHETIC

    tasks: tuple[Line, ...] = option(tuple(SYNTHETIC), f"with commas, of {', '.join(SYNTHETIC)} (all)")
    samples: Count = option(100, "rows of each task and length")
    seed: Natural | None = option(None, "of the rows (the run's training seed)")

    def plans(self, trained: Trained) -> list[Plan]:
        """See `Evaluation`; each task is a plan."""
        wanted: dict[tuple[int, float | None], int] = {(length, None): self.samples for length in self.lengths}
        plans, seed = [], prompt_seed(self.seed, trained.config)
        for name in dict.fromkeys(self.tasks):
            task = SYNTHETIC[name](trained.tokenizer.size, trained.config.context)
            for length in self.lengths:
                task.check(length)
                trained.decoder.check_length(length)
            measured = functools.partial(measure, trained.decoder, task=task, seed=seed, memory=trained.memory)
            plans.append(Plan({"task": name, "seed": seed}, wanted, measured))
        return plans

    def texts(self, length: int) -> float:
        """See `Evaluation`."""
        return self.samples * len(self.tasks)

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        """See `Evaluation`."""
        return self.samples

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        """See `Evaluation`."""
        return {"seed": prompt_seed(self.seed, config)}

    @staticmethod
    def seconds(length: int) -> float:
        """See `Evaluation`: linear layers, then attention."""
        return length / 1e5 + length**2 / 1e9


def measure(
    decoder: transformer.Decoder, todo: Sequence[SampleRange], *, task: SyntheticTask, seed: int, memory: float
) -> Iterator[tuple[SampleRange, dict[str, Any]]]:
    """Measures samples, which are rows of a task, shorter ones first."""
    for samples in sorted(todo):
        start = time.perf_counter()
        size = min(samples.n, rows_within(memory, samples.length, decoder.config))
        right: list[np.ndarray] = []
        for numbers in itertools.batched(range(samples.first, samples.stop), size):
            rows = np.stack([task.row(seed, ASKED, samples.length, number) for number in numbers])
            right.append(correct(decoder, rows, task.answers, size=size))
        yield (
            samples,
            {
                "value": float(np.concatenate(right).mean()),
                "unit": "accuracy",
                "chance": task.chance,
                "items": task.items,
                "seconds": round(time.perf_counter() - start, 3),
            },
        )


def correct(decoder: nnx.Module, rows: np.ndarray, answers: np.ndarray, *, size: int) -> np.ndarray:
    """The answers that a model finds: each is its most likely token after all that stands before it.

    Args:
        rows: [at most size, length + 1] ids, of which all but the last are read.
        answers: [answers] their places, counted from the end of a row, ascending.

    Returns:
        [rows, answers] bool.
    """
    tokens = np.pad(rows[:, :-1], ((0, size - len(rows)), (0, 0)))
    best = _most_likely(*nnx.split(decoder), tokens, read=-int(answers[0]))
    # The last logits tell the last token, so places counted from the end are the same in both.
    return np.asarray(best)[: len(rows), answers] == rows[:, answers]


@functools.partial(jax.jit, static_argnums=0, static_argnames="read")
def _most_likely(graph: nnx.GraphDef, state: nnx.State, tokens: Array, *, read: int) -> Array:
    logits, _ = nnx.merge(graph, state)(tokens, read=read)
    return jnp.argmax(logits, axis=-1)
