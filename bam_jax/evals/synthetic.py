"""Synthetic tasks of `bam_jax.data.tasks`, evaluated at any length: recall, recall with forgetting, copying."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

import numpy as np
from flax import nnx

from bam_jax.config import Config
from bam_jax.data.tasks.synthetic import ASKED, SYNTHETIC, SyntheticTask
from bam_jax.evals import schema
from bam_jax.evals.base import TaskEvaluation, option, prompt_seed
from bam_jax.evals.likelihood import most_likely
from bam_jax.evals.plan import Plan, Results, SampleRange, Trained, Wanted, rows_within
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

    Rows have as many items as at the training context, and are never the rows of a training. The task may differ from the one
    that the model was trained on.
    """

    name = "synthetic"
    sample_noun = "rows"
    record = SyntheticRecord
    identity = ("task", "seed")
    curve = "accuracy"
    costly = True
    known = SYNTHETIC

    tasks: tuple[Line, ...] = option(tuple(SYNTHETIC), f"with commas, of {', '.join(SYNTHETIC)} (all)")
    samples: Count = option(100, "rows of each task and length")
    seed: Natural | None = option(None, "of the rows (the run's training seed)")

    def plans(self, trained: Trained) -> list[Plan]:
        plans, seed = [], prompt_seed(self.seed, trained.config)
        for name in dict.fromkeys(self.tasks):
            task = SYNTHETIC[name](trained.tokenizer.size, trained.config.context)
            for length in self.lengths:
                task.check(length)
                trained.decoder.check_length(length)
            measured = functools.partial(measure, trained.decoder, task=task, seed=seed, memory=trained.memory)
            wanted: Wanted = {(length, None): self.samples for length in self.lengths}
            plans.append(Plan({"task": name, "seed": seed}, wanted, measured))
        return plans

    def texts(self, length: int) -> float:
        return self.samples * len(self.tasks)

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        return self.samples

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        return {"seed": prompt_seed(self.seed, config)}


def measure(
    decoder: transformer.Decoder, todo: Sequence[SampleRange], *, task: SyntheticTask, seed: int, memory: float
) -> Results:
    for samples in sorted(todo):
        size = min(samples.n, rows_within(memory, samples.length, decoder.config))
        right: list[np.ndarray] = []
        for numbers in itertools.batched(range(samples.first, samples.stop), size):
            rows = np.stack([task.row(seed, ASKED, samples.length, number) for number in numbers])
            right.append(correct(decoder, rows, task.answers, size=size))
        value = float(np.concatenate(right).mean())
        yield samples, {"value": value, "unit": "accuracy", "chance": task.chance, "items": task.items}


def correct(decoder: nnx.Module, rows: np.ndarray, answers: np.ndarray, *, size: int) -> np.ndarray:
    """Whether each answer is the most likely token after all tokens before it, [rows, answers] bool.

    Args:
        rows: [at most size, length + 1] ids, of which all but the last are read.
        answers: [answers] their positions, counted from the end of a row, ascending.
    """
    tokens = np.pad(rows[:, :-1], ((0, size - len(rows)), (0, 0)))
    best = most_likely(*nnx.split(decoder), tokens, read=-int(answers[0]))
    # The last logits predict the last token, so positions counted from the end are the same in both.
    return np.asarray(best)[: len(rows), answers] == rows[:, answers]
