"""MMLU, ARC, HellaSwag, LongBench v2 and WikiText, with the prompts and the scoring of the LM Evaluation Harness.

`bam_jax.evals.lm_eval_adapter` reads the tasks from the harness's own files. The questions are in a local folder; see
`bam_jax.data.tasks.benchmarks`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NotRequired

import numpy as np

from bam_jax.config import Config
from bam_jax.data.tasks.benchmarks import INVENTED, TASKS, count, leaves
from bam_jax.evals import schema
from bam_jax.evals.base import Place, TaskEvaluation, option
from bam_jax.evals.plan import Plan, Results, SampleRange, Trained, Wanted
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.extras import import_extra
from bam_jax.system.fields import Count, Line, Natural, Seconds

LONGER = ("cut", "skip")
ALL = 100_000
"""More questions than any of the tasks has."""


class HarnessRecord(schema.CellRecord):
    """Questions of a task, of which there are `of`."""

    value: Seconds
    depth: NotRequired[None]
    task: Line
    shots: Natural
    data: Line
    longer: Line
    data_hash: NotRequired[Line]
    pages: NotRequired[Natural]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Harness(TaskEvaluation):
    """The accuracy on benchmark questions; lengths are the maximum number of tokens that the model reads."""

    name = "harness"
    sample_noun = "questions"
    record = HarnessRecord
    identity = ("task", "shots", "data", "data_hash", "longer", "pages")
    grouped = True
    known = TASKS

    tasks: tuple[Line, ...] = option(("mmlu", "arc_easy", "arc_challenge"), f"with commas, of {', '.join(TASKS)}")
    questions: Count = option(ALL, "of each task at most")
    shots: Natural = option(0, "examples before each question")
    data: Line | None = option(None, f"the folder of the data sets, or {INVENTED}: questions made from templates")
    longer: Line = option("cut", "what is done with questions longer than --lengths: cut in the middle, or skip")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longer not in LONGER:
            raise UserError(f"unknown --longer={self.longer!r}; {nearest(self.longer, LONGER)}")

    @property
    def quantity(self) -> Literal["accuracy", "perplexity"]:
        return "perplexity" if {*self.tasks} == {"wikitext"} else "accuracy"  # perplexity of a word

    def plans(self, trained: Trained) -> list[Plan]:
        if self.data is None:
            raise UserError(f"--data is missing: the folder of the data sets, or --data={INVENTED}")
        for length in self.lengths:
            trained.decoder.check_length(length)
        plans = []
        for name, task in _import_adapter().load(leaves(self.tasks), self.data, self.shots).items():
            numbers = {length: self._numbers(trained, task, length) for length in self.lengths}
            identity = {"task": name, "shots": self.shots, "data": self.data, "data_hash": task.hash}
            identity["longer"] = self.longer
            if name == "wikitext":  # its perplexity is not a mean over pages
                identity["pages"] = min(self.questions, len(task.eval_docs))
            wanted: Wanted = {(length, None): min(self.questions, len(numbers[length])) for length in self.lengths}
            plans.append(Plan(identity, wanted, functools.partial(measure, trained, task=task, numbers=numbers)))
        return plans

    def _numbers(self, trained: Trained, task: Any, length: int) -> list[int]:
        """The numbers of the questions that can be asked."""
        fit = [True] * len(task.eval_docs)
        if self.longer == "skip" and task.OUTPUT_TYPE == "multiple_choice":
            adapter = _adapter(trained, length)
            task.build_all_requests()
            for request in task.instances:
                fit[request.doc_id] = fit[request.doc_id] and adapter.fits(*request.args)
        return [number for number, fits in enumerate(fit) if fits]

    def texts(self, length: int) -> float:
        return 4 * count(self.tasks, self.questions)  # each question with each of four answers

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        return None if record is None or "of" not in record else min(self.questions, record["of"])

    def places(self) -> list[Place]:
        return [(None, leaf) for leaf in leaves(self.tasks)]

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        required: dict[str, Any] = {"shots": self.shots, "data": self.data, "longer": self.longer}
        if "pages" in record and "of" in record:
            required["pages"] = min(self.questions, record["of"])
        return required

    def headings(self, record: Mapping[str, Any]) -> list[str]:
        return [task for task in self.tasks if record["task"] in TASKS[task]]

    @property
    def skips_samples(self) -> bool:
        return self.longer == "skip"

    def why_left_out(self) -> str:
        return "for which every question is too long"


def measure(trained: Trained, todo: Sequence[SampleRange], *, task: Any, numbers: dict[int, list[int]]) -> Results:
    from lm_eval import evaluator  # imported only when needed: it is large

    name = task.config.task
    for samples in sorted(todo):
        asked = numbers[samples.length][samples.first : samples.stop]
        adapter = _adapter(trained, samples.length)
        # One bootstrap iteration: standard errors of means need none, and others are not used.
        said = evaluator.evaluate(adapter, {"tasks": {name: task}}, samples={name: asked}, bootstrap_iters=1)
        metrics = {key.removesuffix(",none"): value for key, value in said["results"][name].items() if "," in key}
        metrics = {key: float(value) for key, value in metrics.items() if value != "N/A"}
        choices = [len(sample["arguments"]) for sample in said["samples"][name]]
        main, unit = ("acc", "accuracy") if "acc" in metrics else ("word_perplexity", "word perplexity")
        result = {"value": metrics.pop(main), "unit": unit, "stderr": metrics.pop(f"{main}_stderr", None)}
        if main == "acc":
            result["chance"] = float(np.mean(1 / np.array(choices)))
        rest = {"of": len(numbers[samples.length]), "cut": adapter.cut / sum(choices)}
        yield samples, result | metrics | rest


def _import_adapter() -> ModuleType:
    return import_extra("bam_jax.evals.lm_eval_adapter", "--eval=harness", "harness")


def _adapter(trained: Trained, length: int) -> Any:
    return _import_adapter().Adapter(trained.decoder, trained.tokenizer, budget=length, memory=trained.memory)
