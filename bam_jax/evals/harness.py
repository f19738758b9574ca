"""MMLU, ARC, HellaSwag, LongBench v2 and WikiText, as the LM Evaluation Harness asks and scores them.

Its tasks are read from its own files, `bam_jax.evals.lm`; the questions lie in a local folder, `bam_jax.data.tasks.benchmarks`.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from bam_jax.data.tasks.benchmarks import INVENTED, TASKS, leaves
from bam_jax.evals import base
from bam_jax.evals.base import Cell, Plan, option
from bam_jax.system.errors import UserError, nearest

SAMPLES = "questions"

LONGER = ("cut", "skip")
ALL = 100_000
"""More questions than any of the tasks has."""


@dataclasses.dataclass(frozen=True)
class Options(base.Options):
    """What is asked besides the lengths, the tokens that the model reads at most.

    Args:
        tasks: names in `bam_jax.data.tasks.benchmarks.TASKS` with commas.
        questions: of each of the harness's tasks at most, the first ones.
        shots: examples before each question.
        data: a folder that holds the data sets, or "invented".
        longer: what is done with questions that are longer than that: "cut" in the middle, or "skip".
    """

    tasks: str = option("mmlu,arc_easy,arc_challenge", f"with commas, of {', '.join(TASKS)}")
    questions: int = option(ALL, "of each task at most")
    shots: int = option(0, "examples before each question")
    data: str | None = option(None, f"the folder of the data sets, or {INVENTED}: questions made from templates")
    longer: str = option("cut", "what is done with questions longer than --lengths: cut in the middle, or skip")

    def __post_init__(self) -> None:
        super().__post_init__()
        for task in self.tasks.split(","):
            if task not in TASKS:
                raise UserError(f"unknown task {task!r}; {nearest(task, TASKS)}")
        if self.longer not in LONGER:
            raise UserError(f"unknown --longer={self.longer!r}; {nearest(self.longer, LONGER)}")


def plans(trained: base.Trained, lengths: Sequence[int], options: Options) -> list[Plan]:
    """What is to be measured, task by task of the harness: MMLU has 57, LongBench v2 twenty.

    A task's identity has `task`, `shots`, `data`, `data_hash` and `longer`; that of WikiText, whose perplexity is no mean,
    also how many `pages`.

    Args:
        trained: the run.
        lengths: tokens that the model reads at most.
        options: the rest.

    Raises:
        UserError: no data, a file missing or unreadable, lm_eval not installed, a length that the model cannot have.
    """
    if options.data is None:
        raise UserError(f"--data is missing: the folder of the data sets, or --data={INVENTED}")
    for length in lengths:
        trained.decoder.check_length(length)
    names = leaves(options.tasks.split(","))
    found = []
    for name, task in _lm().load(names, options.data, options.shots).items():
        numbers = {length: _numbers(trained, task, length, options) for length in lengths}
        identity = {"task": name, "shots": options.shots, "data": options.data, "data_hash": task.hash}
        identity["longer"] = options.longer
        if name == "wikitext":
            identity["pages"] = min(options.questions, len(task.eval_docs))
        wanted: dict[tuple[int, float | None], int] = {
            (length, None): min(options.questions, len(numbers[length])) for length in lengths
        }
        found.append(Plan(identity, wanted, functools.partial(evaluate, trained, task=task, numbers=numbers)))
    return found


def evaluate(
    trained: base.Trained, cells: Sequence[Cell], *, task: Any, numbers: dict[int, list[int]]
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Measures the cells of a task, shorter ones first.

    Args:
        trained: the run.
        cells: what to measure; depths are None.
        task: as `bam_jax.evals.lm.load` gives it.
        numbers: of the task's questions that can be asked, by length.

    Yields:
        Each cell with its results: `value`, the accuracy, or of WikiText the perplexity of a word; `stderr`, null where the
        harness gives none; its other metrics by their names; `chance`, the accuracy of guessing; `of`, how many questions
        there are (that are not skipped); `cut`, the share of requests that were cut; `seconds`, compilation included.
    """
    from lm_eval import evaluator  # not before it is needed: it is large

    name = task.config.task
    for cell in sorted(cells):
        start = time.perf_counter()
        asked = numbers[cell.length][cell.first : cell.stop]
        adapter = _adapter(trained, cell.length)
        # One iteration: standard errors of means need none, others are not wanted.
        said = evaluator.evaluate(adapter, {"tasks": {name: task}}, samples={name: asked}, bootstrap_iters=1)
        metrics = {key.removesuffix(",none"): value for key, value in said["results"][name].items() if "," in key}
        metrics = {key: float(value) for key, value in metrics.items() if value != "N/A"}
        choices = [len(sample["arguments"]) for sample in said["samples"][name]]
        main, unit = ("acc", "accuracy") if "acc" in metrics else ("word_perplexity", "word perplexity")
        result = {"value": metrics.pop(main), "unit": unit, "stderr": metrics.pop(f"{main}_stderr", None)}
        if main == "acc":
            result["chance"] = float(np.mean(1 / np.array(choices)))
        rest = {
            "of": len(numbers[cell.length]),
            "cut": adapter.cut / sum(choices),
            "seconds": round(time.perf_counter() - start, 3),
        }
        yield cell, result | metrics | rest


def _lm() -> ModuleType:
    try:
        from bam_jax.evals import lm
    except ModuleNotFoundError as error:
        raise UserError(f"--eval=harness needs the package {error.name}: pip install 'bam_jax[harness]'") from error
    return lm


def _adapter(trained: base.Trained, length: int) -> Any:
    return _lm().Adapter(trained.decoder, trained.tokenizer, budget=length, memory=trained.memory)


def _numbers(trained: base.Trained, task: Any, length: int, options: Options) -> list[int]:
    """Numbers of the questions that can be asked."""
    fit = [True] * len(task.eval_docs)
    if options.longer == "skip" and task.OUTPUT_TYPE == "multiple_choice":
        adapter = _adapter(trained, length)
        task.build_all_requests()
        for request in task.instances:
            fit[request.doc_id] &= sum(map(len, map(adapter.tok_encode, request.args))) <= length + 1
    return [number for number, fits in enumerate(fit) if fits]
