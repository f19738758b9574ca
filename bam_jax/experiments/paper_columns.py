"""The columns of the papers' tables: what is measured at their lengths, at the papers' scale, the small and the toy one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bam_jax.data.tasks import benchmarks
from bam_jax.data.tasks.benchmarks import INVENTED, TASKS
from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments import small
from bam_jax.experiments.experiment import Column, Fetch, Speed

BAM_SHRINK = 8
"""Tokens of the paper to one token of the toy and small scales, beyond the context as within it."""


CABLE_SHRINK = 16


ESSAYS = "corpora/essays"
"""Where the user has essays for RULER's haystacks; RULER's own are those of Paul Graham."""

ESSAY_FILES = Fetch(ESSAYS, f"put essays into {ESSAYS} as .txt files (RULER takes Paul Graham's)")


BENCHMARKS = "corpora/benchmarks"
"""Where the user has the benchmarks of questions."""


def benchmark_files(dataset: str) -> Fetch:
    """The files of a data set of questions.

    Args:
        dataset: its place on the Hugging Face hub, such as "cais/mmlu".
    """
    folder = f"{BENCHMARKS}/{dataset}"
    return Fetch(folder, benchmarks.download(dataset, folder))


def tokens(length: int, scale: str, shrink: int = BAM_SHRINK) -> int:
    """A length or context of a paper at a scale.

    >>> tokens(15_360, "toy", CABLE_SHRINK), tokens(15_360, "paper")
    (960, 15360)
    """
    return length if scale == "paper" else length // shrink


def head(length: int) -> str:
    """A length of thousands as BAM's tables write it.

    >>> [head(length) for length in (1536, 12_288, 512, 51_200, 307_200, 512_000)]
    ['1.5K', '12K', '512', '51K', '307K', '512K']
    """
    if length < 1000:
        return str(length)
    return f"{length / 1024:g}K" if length % 512 == 0 and length < 50_000 else f"{length // 1000}K"


FAR_ASKED = ("<1K", "51K", "102K", "256K", "512K")
"""The heads that the small scale measures, unless an experiment says otherwise."""

PATIENCE = 2
"""Lengths one after another without any passkey found, after which the toy scale leaves longer ones out."""


FAR = tuple(51_200 * k for k in range(1, 11))
"""The lengths of BAM's Table 7 beyond."""

UNASKED = "the small scale does not ask for this length"


def passkey(length: int, scale: str, *, depths: int = 20) -> Passkey:
    """Passkeys at a length of the paper; at the small scale 100 prompts, at the toy scale at no more than 5 depths.

    The toy scale stops where two lengths have none. Elsewhere every length is measured: the paper's Table 7 has a tenth of the
    keys found again after four lengths without any.

    Args:
        length: tokens, the paper's.
        scale: "toy", "small" or "paper".
        depths: of the paper.
    """
    asked = Passkey((tokens(length, scale, BAM_SHRINK),), depths=depths)
    if scale == "toy":
        return dataclasses.replace(asked, depths=min(depths, 5), patience=PATIENCE)
    return dataclasses.replace(asked, depths=20, trials=5) if scale == "small" else asked


def far_passkeys(scale: str, asked: Sequence[str] = FAR_ASKED, *, depths: int = 20) -> tuple[Column, ...]:
    """Columns of passkeys within BAM's training context and at ten lengths to 512,000 tokens, by the heads of its Table 7.

    At the toy and small scales they are at 64 and to 64,000 tokens; at the small scale each has few prompts, at 5 depths. At the
    paper's scale the prompts give a first digit, as the authors' runs over long contexts do; keys that are planted in training
    have no sixth digit.

    Args:
        scale: "toy", "small" or "paper".
        asked: the heads of those columns that the small scale measures.
        depths: of the paper.
    """
    heads = {"<1K": 512} | {head(length): length for length in FAR}
    columns = []
    for label, length in heads.items():
        asks = passkey(length, scale, depths=depths)
        if scale == "paper":
            asks = dataclasses.replace(asks, prompt="first_digit")
        elif scale == "small":
            asks = dataclasses.replace(asks, depths=5, trials=small.far_trials(length))
        left_out = scale == "small" and label not in asked
        columns.append(Column(label, missing=UNASKED) if left_out else Column(label, asks))
    return tuple(columns)


def perplexity(length: int, scale: str, *, shrink: int, held_out: str = "", budget: int = 3_932_160) -> Perplexity:
    """Perplexity at a length of the paper.

    Args:
        length: tokens, the paper's.
        scale: "toy", "small" or "paper".
        shrink: tokens of the paper to one of the toy scale.
        held_out: another corpus to measure it on; "": the one held out in training. The toy scale has no other.
        budget: tokens to measure.
    """
    text = {"toy": "", "small": small.OTHER_TEXT, "paper": held_out}[scale] if held_out else ""
    measured = {"toy": 2**15, "small": 2**17, "paper": budget}[scale]
    other = {"data.held_out_source": text} if text else {}
    return Perplexity((tokens(length, scale, shrink),), tokens=measured, overrides=other)


def speed(
    label: str, measure: str, length: int, scale: str, *, shrink: int, unit: float = 1.0, room: int = 0
) -> Column:
    """The speed or memory of a model with random parameters at a length of the paper, as a column.

    The small scale has none: a small model's speed on a CPU tells nothing of an accelerator's.

    Args:
        label: the column's head.
        measure: a name in `benchmarks.speed.MEASURES`.
        length: tokens, the paper's.
        scale: "toy", "small" or "paper".
        shrink: tokens of the paper to one of the toy scale.
        unit: what the paper counts in, in ours.
        room: tokens of the length that are left for what is decoded.
    """
    if scale == "small":
        return Column(
            label, unit=unit, missing="an accelerator measures it with --scale=paper; nothing is trained for it"
        )
    return Column(label, speed=Speed(measure, tokens(length, scale, shrink) - room), unit=unit)


TOO_HARD = "a model of the small scale cannot do this task"


def ruler(label: str, length: int, task: str, scale: str) -> Column:
    """A task of RULER at a length of the paper, as a column; at the toy scale two samples, in bytes.

    What is beyond 1024 tokens is an eighth at the toy scale: below, a prompt of RULER does not fit.

    Args:
        label: the column's head.
        length: tokens, the paper's.
        task: such as "niah_single_1".
        scale: "toy", "small" or "paper".
    """
    if scale == "small":
        return Column(label, missing=TOO_HARD)
    if scale == "toy":
        return Column(label, Ruler((1024 + (length - 1024) // BAM_SHRINK,), tasks=(task,), samples=2))
    return Column(label, Ruler((length,), tasks=(task,), essays=ESSAYS))


def questions(label: str, evaluation: Harness, scale: str, *, shrink: int = BAM_SHRINK, unit: float = 1.0) -> Column:
    """A benchmark of questions as a column; at the toy scale 64 invented ones, or four of each of many tasks, in bytes.

    Args:
        label: the column's head.
        evaluation: the harness, one benchmark, and the tokens of the paper that are read at most.
        scale: "toy", "small" or "paper".
        shrink: tokens of the paper to one of the toy scale.
        unit: 0.01 for percent.
    """
    if scale == "small":
        return Column(label, unit=unit, missing=TOO_HARD)
    (length,), (task,) = evaluation.lengths, evaluation.tasks
    asked = dataclasses.replace(evaluation, lengths=(tokens(length, scale, shrink),), data=BENCHMARKS)
    if scale == "toy":
        asked = dataclasses.replace(asked, questions=64 if len(TASKS[task]) == 1 else 4, data=INVENTED)
    return Column(label, asked, unit=unit)


def ruler_overrides(scale: str) -> dict[str, Any]:
    """The changes that RULER and questions need: at the toy scale a tokenizer that keeps every text as it is."""
    return {"data.tokenizer": "byte", "data.task": "packed", "steps": 300} if scale == "toy" else {}
