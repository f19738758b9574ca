"""RULER's needle-in-a-haystack tasks: what a model writes after their prompts, and how much of the answers is in it.

Source: Hsieh et al. 2024; the measure and the 128 tokens from NVIDIA's code. BAM's tables have 50 samples a cell, RULER 500.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from bam_jax.data.prepared.documents import STDLIB
from bam_jax.data.tasks.ruler import GENERATED, TASKS, Essays, Sample, Sampler, essays
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.evals import base
from bam_jax.evals.base import Cell, Plan, option, rows_within
from bam_jax.models import generate, transformer
from bam_jax.system.errors import UserError, nearest

SAMPLES = "samples"

CHUNK = 1024
"""Tokens of a prompt that are read at once."""


@dataclasses.dataclass(frozen=True)
class Options(base.Options):
    """What is asked besides the lengths, which count the prompt and the 128 tokens that are written.

    Args:
        tasks: names in `bam_jax.data.tasks.ruler.TASKS` with commas.
        samples: of each task and length.
        essays: a file or folder of texts for the tasks whose needles stand in essays, or "stdlib".
        seed: of the samples.
    """

    tasks: str = option(",".join(TASKS), "of RULER, with commas (all eight)")
    samples: int = option(50, "of each task and length; RULER's own number is 500")
    essays: str = option(
        STDLIB, "a file or folder of texts in which needles are hidden, or stdlib, Python's documentation"
    )
    seed: int = option(0, "of the samples")

    def __post_init__(self) -> None:
        super().__post_init__()
        for task in self.tasks.split(","):
            if task not in TASKS:
                raise UserError(f"unknown task {task!r}; {nearest(task, TASKS)}")


def plans(trained: base.Trained, lengths: Sequence[int], options: Options) -> list[Plan]:
    """What is to be measured, task by task.

    A task's identity has `task`, `seed`, and, where its haystack is essays, their source as `essays` and `essays_hash`.

    Args:
        trained: the run.
        lengths: tokens.
        options: the rest.

    Raises:
        UserError: a tokenizer that changes text, no essays, or a length that a task or the model cannot have.
    """
    tasks = dict.fromkeys(options.tasks.split(","))
    wanted: dict[tuple[int, float | None], int] = {(length, None): options.samples for length in lengths}
    text = Essays(options.essays, ())
    if any(TASKS[task].haystack == "essay" for task in tasks):
        text = essays(options.essays)
    make = Sampler(trained.tokenizer, text, options.seed)
    found = []
    for length in lengths:
        trained.decoder.check_length(length - 1)  # the last token written is not read
    for task in tasks:
        for length in lengths:
            make.check(task, length, range(options.samples))
        identity = {"task": task, "seed": options.seed}
        if TASKS[task].haystack == "essay":
            identity |= {"essays": text.source, "essays_hash": text.hash}
        measure = functools.partial(evaluate, trained, make=make, task=task)
        found.append(Plan(identity, wanted, measure))
    return found


def string_match_all(written: str, answers: Sequence[str]) -> float:
    """The fraction of the answers that stand in a text, whatever the case of letters.

    Args:
        written: the text.
        answers: one at least.

    >>> string_match_all(" 1234567 and 7654321.", ["1234567", "1111111"])
    0.5
    """
    return sum(answer.lower() in written.lower() for answer in answers) / len(answers)


def write(
    decoder: transformer.Decoder, tokenizer: Tokenizer, samples: Sequence[Sample], *, slots: int, rows: int
) -> list[str]:
    """What a model writes after prompts: the most likely token 128 times, up to the end of the document.

    Args:
        decoder: the model.
        tokenizer: its.
        samples: at most `rows`.
        slots: tokens that each prompt is padded to.
        rows: that the batch is padded to.
    """
    tokens, lengths = np.zeros((rows, slots), np.int32), np.ones(rows, np.int32)
    for row, sample in enumerate(samples):
        lengths[row] = len(sample.tokens)
        tokens[row, slots - lengths[row] :] = sample.tokens
    ids = generate.greedy(decoder, jnp.asarray(tokens), GENERATED, lengths=jnp.asarray(lengths), chunk=CHUNK)
    ended = (itertools.takewhile(lambda token: token != tokenizer.eos, row) for row in ids[: len(samples)].tolist())
    return [tokenizer.decode(np.array(list(row), np.int32)) for row in ended]


def evaluate(
    trained: base.Trained, cells: Sequence[Cell], *, make: Sampler, task: str
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Measures the cells of a task, shorter ones first.

    Args:
        trained: the run.
        cells: what to measure; depths are None.
        make: the samples.
        task: which.

    Yields:
        Each cell with its results: `value`, the mean over samples of the fraction of answers found; `tokens`, the mean
        length of the prompts; `example`, the first sample's answers and what was written; `seconds`, compilation included.
    """
    for cell in sorted(cells):
        start = time.perf_counter()
        rows = min(cell.n, rows_within(trained.memory, cell.length, trained.config.model, cached=True))
        found: list[tuple[int, tuple[str, ...], str]] = []
        for numbers in itertools.batched(range(cell.first, cell.stop), rows):
            samples = [make(task, cell.length, number) for number in numbers]
            written = write(trained.decoder, trained.tokenizer, samples, slots=cell.length - GENERATED, rows=rows)
            found += [(len(s.tokens), s.answers, text) for s, text in zip(samples, written, strict=True)]
        lengths, answers, texts = zip(*found, strict=True)
        yield (
            cell,
            {
                "value": float(np.mean([*map(string_match_all, texts, answers)])),
                "unit": "accuracy",
                "tokens": float(np.mean(lengths)),
                "example": {"answers": answers[0], "written": texts[0]},
                "seconds": round(time.perf_counter() - start, 3),
            },
        )
