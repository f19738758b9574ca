"""Copying: the decrease of a passage's loss in nats when the same passage occurs far back in the text."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

import numpy as np

from bam_jax.config import Config
from bam_jax.data.tasks.passkey import DIGITS, usual
from bam_jax.evals import passkey, schema
from bam_jax.evals.base import TaskEvaluation, option, prompt_seed
from bam_jax.evals.likelihood import Request, score
from bam_jax.evals.plan import Plan, Results, SampleRange, Trained, Wanted, hash_tokens
from bam_jax.models import transformer
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Finite, Line, Loss, Natural

_STREAM = 0xC097  # a fourth word in the seed of a sample, so that no numbers are those of a training


class CopyingRecord(schema.CellRecord):
    """Samples of a task. `value` is `without` minus `with_copy`, the losses of a passage in nats a token."""

    value: Finite
    with_copy: Loss
    without: Loss
    passage: Count
    depth: NotRequired[None]
    task: Line
    seed: Natural
    data_hash: Line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copying(TaskEvaluation):
    """The gain in nats per token from an earlier occurrence of a passage, at each length.

        gain = loss(passage | other passage, text) - loss(passage | passage, text)

    Each sample has the given length and ends with the passage. One sample also starts with the passage, the other with another
    passage of the same kind. The text between is the same in both. A model that attends no further than the passage has a gain of
    0, so unlike for accuracies, there is no floor. The passage is held-out text ("text"), held-out tokens in random order
    ("random"), or the five digits of a passkey that the prompt's end asks for ("passkey").
    """

    name = "copying"
    record = CopyingRecord
    identity = ("task", "seed", "passage", "data_hash")
    costly = True
    unseen = True
    known = ("random", "text", "passkey")

    tasks: tuple[Line, ...] = option(known, f"with commas, of {', '.join(known)} (all)")
    passage: Count = option(64, "tokens of the passage")
    samples: Count = option(40, "of each task and length")
    seed: Natural | None = option(None, "of the samples (the run's training seed)")

    @property
    def quantity(self) -> Literal["gain"]:
        return "gain"

    def plans(self, trained: Trained) -> list[Plan]:
        plans, seed, stream = [], prompt_seed(self.seed, trained.config), trained.held_out()
        for length in self.lengths:
            if length < 2 * self.passage:
                raise UserError(f"length {length} has no room for two passages of {self.passage}; give --passage=N")
            trained.decoder.check_length(length)
        for task in dict.fromkeys(self.tasks):
            make = functools.partial(passages, stream, task, self.passage, seed)
            if task == "passkey":
                tokenizer = trained.tokenizer
                prompts = passkey.make_prompts(usual(tokenizer.name), tokenizer, seed, lambda: stream)
                make = functools.partial(keys, prompts, tokenizer.digits)
            wanted: Wanted = {(length, None): self.samples for length in self.lengths}
            measured = functools.partial(measure, trained.decoder, make=make, memory=trained.memory)
            identity = {"task": task, "seed": seed, "passage": self.passage, "data_hash": hash_tokens(stream)}
            plans.append(Plan(identity, wanted, measured))
        return plans

    def texts(self, length: int) -> float:
        return 2 * self.samples * len(self.tasks)

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        return self.samples

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        return {"seed": prompt_seed(self.seed, config), "passage": self.passage}


def passages(
    stream: np.ndarray, task: str, size: int, seed: int, length: int, number: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """A sample [length] with the copy, one without, and the number of tokens of the passage that ends both."""
    rng = np.random.default_rng([seed, length, number, _STREAM])
    window = lambda n: stream.take(np.arange(n) + rng.integers(len(stream)), mode="wrap")
    kinds = {"text": window, "random": lambda n: stream[rng.integers(len(stream), size=n)]}
    passage, other, between = kinds[task](size), kinds[task](size), window(length - 2 * size)
    return np.concatenate([passage, between, passage]), np.concatenate([other, between, passage]), size


def keys(
    prompts: passkey.Prompts, digits: Sequence[int], length: int, number: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Like `passages`: a passkey prompt with its key at the start, and the same prompt with a key that differs in every digit."""
    prompt, answer = prompts(length - DIGITS, 0.0, number)
    other, ids = prompt.copy(), list(digits)
    for start in range(len(prompt) - DIGITS + 1):
        key = slice(start, start + DIGITS)
        if np.array_equal(prompt[key], answer):
            shift = 1 + number % 9
            other[key] = [digits[(ids.index(token) + shift) % 10] for token in answer]
    return np.append(prompt, answer), np.append(other, answer), DIGITS


def measure(decoder: transformer.Decoder, todo: Sequence[SampleRange], *, make: Any, memory: float) -> Results:
    for samples in sorted(todo):
        made = [make(samples.length, number) for number in range(samples.first, samples.stop)]
        requests = [Request(row[:-read], row[-read:]) for *pair, read in made for row in pair]
        found = score(decoder, requests, budget=samples.length - 1, memory=memory)
        losses = np.array([-nats / len(asked.continuation) for (nats, _), asked in zip(found, requests, strict=True)])
        copied, without = losses[::2].mean(), losses[1::2].mean()
        result = {"value": float(without - copied), "with_copy": float(copied), "without": float(without)}
        yield samples, result | {"unit": "gain in nats a token"}
