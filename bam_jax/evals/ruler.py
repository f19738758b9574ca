"""RULER: the share of the answers in the text that a model generates after the prompts of thirteen tasks.

Source: Hsieh et al. 2024; the metrics and the numbers of tokens are from NVIDIA's code. BAM's tables have 50 samples per cell,
RULER's 500.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

import jax.numpy as jnp
import numpy as np

from bam_jax.config import Config
from bam_jax.data.sources.corpus import STDLIB
from bam_jax.data.tasks import ruler_questions
from bam_jax.data.tasks.ruler import TASKS, Essays, Sample, Sampler, essays
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.evals import schema
from bam_jax.evals.base import TaskEvaluation, option, prompt_seed
from bam_jax.evals.plan import Plan, Results, SampleRange, Trained, Wanted, rows_within
from bam_jax.models import generate, transformer
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Line, Natural, Share

CHUNK = 1024
"""Tokens of a prompt that are read at once."""
ELEVEN = tuple(name for name, task in TASKS.items() if not task.asks_questions)
"""The tasks that need no file from the user."""


class RulerRecord(schema.CellRecord):
    value: Share
    depth: NotRequired[None]
    task: Line
    seed: Natural
    essays: NotRequired[Line]
    essays_hash: NotRequired[Line]
    data: NotRequired[Line]
    data_hash: NotRequired[Line]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ruler(TaskEvaluation):
    """The share of RULER's answers that the model generates; lengths count the prompt and the generated tokens."""

    name = "ruler"
    sample_noun = "samples"
    record = RulerRecord
    identity = ("task", "seed", "essays", "essays_hash", "data", "data_hash")
    figure = "task"
    known = TASKS

    tasks: tuple[Line, ...] = option(ELEVEN, f"with commas, of {', '.join(TASKS)} (all but qa_1 and qa_2)")
    samples: Count = option(50, "of each task and length; RULER's own number is 500")
    essays: Line = option(
        STDLIB, "a file or folder of texts in which needles are hidden, or stdlib, Python's documentation"
    )
    squad: Line | None = option(None, "the file of SQuAD that qa_1 asks from, such as dev-v2.0.json")
    hotpotqa: Line | None = option(
        None, "the file of HotpotQA that qa_2 asks from, such as hotpot_dev_distractor_v1.json"
    )
    seed: Natural | None = option(None, "of the samples (the run's training seed)")

    def plans(self, trained: Trained) -> list[Plan]:
        tasks = dict.fromkeys(self.tasks)
        text = Essays(self.essays, ())
        if any(TASKS[task].haystack == "essay" for task in tasks):
            text = essays(self.essays)
        seed = prompt_seed(self.seed, trained.config)
        questions = {}
        for task in tasks:
            if TASKS[task].asks_questions:
                name, path = TASKS[task].haystack, self._file(task)
                if path is None:
                    raise UserError(f"{task} asks from a file of yours; give --{name}=FILE, or other --tasks")
                questions[name] = ruler_questions.read(name, path, seed)
        make = Sampler(trained.tokenizer, text, seed, questions)
        for length in self.lengths:
            trained.decoder.check_length(length - 1)  # the last generated token is not read
        plans = []
        for task in tasks:
            for length in self.lengths:
                make.check(task, length, range(self.samples))
            identity = {"task": task, "seed": seed}
            if TASKS[task].haystack == "essay":
                identity |= {"essays": text.source, "essays_hash": text.hash}
            if TASKS[task].asks_questions:
                asked = questions[TASKS[task].haystack]
                identity |= {"data": asked.source, "data_hash": asked.hash}
            wanted: Wanted = {(length, None): self.samples for length in self.lengths}
            plans.append(Plan(identity, wanted, functools.partial(measure, trained, make=make, task=task)))
        return plans

    def texts(self, length: int) -> float:
        return self.samples * len(self.tasks)

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        return self.samples

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        essays = {"essays": self.essays} if "essays" in record else {}  # only of tasks in essays
        data = {"data": self._file(record["task"])} if "data" in record else {}  # only of questions
        return {"seed": prompt_seed(self.seed, config)} | essays | data

    def _file(self, task: str) -> str | None:
        return {"qa_1": self.squad, "qa_2": self.hotpotqa}.get(task)


def string_match_all(written: str, answers: Sequence[str]) -> float:
    """The fraction of the answers that occur in a text, ignoring case.

    >>> string_match_all(" 1234567 and 7654321.", ["1234567", "1111111"])
    0.5
    """
    return sum(answer.lower() in written.lower() for answer in answers) / len(answers)


def string_match_part(written: str, answers: Sequence[str]) -> float:
    """1.0 if any of the answers occurs in a text, ignoring case, else 0.0.

    >>> string_match_part(" Paris, France.", ["paris", "Lutetia"])
    1.0
    """
    return float(any(answer.lower() in written.lower() for answer in answers))


def write(
    decoder: transformer.Decoder, tokenizer: Tokenizer, samples: Sequence[Sample], *, slots: int, count: int, rows: int
) -> list[str]:
    """Continue prompts greedily by `count` tokens, and cut the texts at the end token."""
    tokens, lengths = np.zeros((rows, slots), np.int32), np.ones(rows, np.int32)
    for row, sample in enumerate(samples):
        lengths[row] = len(sample.tokens)
        tokens[row, slots - lengths[row] :] = sample.tokens
    ids = generate.greedy(decoder, jnp.asarray(tokens), count, lengths=jnp.asarray(lengths), chunk=CHUNK)
    ended = (itertools.takewhile(lambda token: token != tokenizer.eos, row) for row in ids[: len(samples)].tolist())
    return [tokenizer.decode(np.array(list(row), np.int32)) for row in ended]


def measure(trained: Trained, todo: Sequence[SampleRange], *, make: Sampler, task: str) -> Results:
    count = TASKS[task].generated
    score = string_match_part if TASKS[task].asks_questions else string_match_all
    for samples in sorted(todo):
        rows = min(samples.n, rows_within(trained.memory, samples.length, trained.config.model, cached=True))
        found: list[tuple[int, tuple[str, ...], str]] = []
        for numbers in itertools.batched(range(samples.first, samples.stop), rows):
            prompts = [make(task, samples.length, number) for number in numbers]
            slots = samples.length - count
            written = write(trained.decoder, trained.tokenizer, prompts, slots=slots, count=count, rows=rows)
            found += [(len(s.tokens), s.answers, text) for s, text in zip(prompts, written, strict=True)]
        lengths, answers, texts = zip(*found, strict=True)
        result = {
            "value": float(np.mean([*map(score, texts, answers)])),
            "unit": "accuracy",
            "tokens": float(np.mean(lengths)),
            "example": {"answers": answers[0], "written": texts[0]},
        }
        yield samples, result
