"""The columns of the papers' tables: what is measured at their lengths, at the papers' scale and at a toy one."""

import dataclasses
from typing import Any

from bam_jax.data.tasks.benchmarks import INVENTED, TASKS
from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments.experiment import Column, Speed

BAM_SHRINK = 8
"""Tokens of the paper to one token of the toy scale, beyond the context as within it."""


CABLE_SHRINK = 16


ESSAYS = "corpora/essays"
"""Where the user has essays for RULER's haystacks; RULER's own are those of Paul Graham."""


BENCHMARKS = "corpora/benchmarks"
"""Where the user has the benchmarks of questions."""


def tokens(length: int, scale: str, shrink: int = BAM_SHRINK) -> int:
    """A length or context of a paper at a scale.

    >>> tokens(15_360, "toy", CABLE_SHRINK), tokens(15_360, "paper")
    (960, 15360)
    """
    return length // shrink if scale == "toy" else length


def head(length: int) -> str:
    """A length of thousands as BAM's tables write it.

    >>> [head(length) for length in (1536, 12_288, 512, 51_200, 307_200, 512_000)]
    ['1.5K', '12K', '512', '51K', '307K', '512K']
    """
    if length < 1000:
        return str(length)
    return f"{length / 1024:g}K" if length % 512 == 0 and length < 50_000 else f"{length // 1000}K"


PATIENCE = 2
"""Lengths one after another without any passkey found, after which the toy scale leaves longer ones out."""


def passkey(length: int, scale: str, *, depths: int = 20) -> Passkey:
    """Passkeys at a length of the paper; at the toy scale at no more than 5 depths, and until two lengths have none.

    Elsewhere every length is measured: the paper's Table 7 has a tenth of the keys found again after four lengths without any.
    """
    asked = Passkey((tokens(length, scale, BAM_SHRINK),), depths=depths)
    return dataclasses.replace(asked, depths=min(depths, 5), patience=PATIENCE) if scale == "toy" else asked


def far_passkeys(scale: str, *, depths: int = 20) -> dict[str, Passkey]:
    """Passkeys within BAM's training context and at ten lengths to 512,000 tokens, by the heads of its Table 7.

    At the toy scale they are at 64 and to 64,000 tokens. At the paper's scale the prompts give a first digit, as the authors'
    runs over long contexts do; keys that are planted in training have no sixth digit.
    """
    heads = {"<1K": 512} | {head(51_200 * k): 51_200 * k for k in range(1, 11)}
    asked = {label: passkey(length, scale, depths=depths) for label, length in heads.items()}
    prompt = "first_digit" if scale == "paper" else None
    return {label: dataclasses.replace(each, prompt=prompt) for label, each in asked.items()}


def perplexity(length: int, scale: str, *, shrink: int, held_out: str = "", budget: int = 3_932_160) -> Perplexity:
    """Perplexity at a length of the paper.

    Args:
        length: tokens, the paper's.
        scale: "toy" or "paper".
        shrink: tokens of the paper to one of the toy scale.
        held_out: another corpus to measure it on; "": the one held out in training.
        budget: tokens to measure.
    """
    toy = scale == "toy"
    other = {"data.held_out_source": "stdlib" if toy else held_out} if held_out else {}
    return Perplexity((tokens(length, scale, shrink),), tokens=2**15 if toy else budget, overrides=other)


def speed(measure: str, length: int, scale: str, *, shrink: int) -> Speed:
    """The speed or memory of a model with random parameters at a length of the paper.

    Args:
        measure: a name in `bam_jax.bench.speed.MEASURES`.
        length: tokens, the paper's.
        scale: "toy" or "paper".
        shrink: tokens of the paper to one of the toy scale.
    """
    return Speed(measure, tokens(length, scale, shrink))


def ruler(label: str, length: int, task: str, scale: str) -> Column:
    """A task of RULER at a length of the paper, as a column; at the toy scale two samples, in bytes.

    What is beyond 1024 tokens is an eighth at the toy scale: below, a prompt of RULER does not fit.

    Args:
        label: the column's head.
        length: tokens, the paper's.
        task: such as "niah_single_1".
        scale: "toy" or "paper".
    """
    if scale == "toy":
        return Column(label, Ruler((1024 + (length - 1024) // BAM_SHRINK,), tasks=(task,), samples=2))
    return Column(label, Ruler((length,), tasks=(task,), essays=ESSAYS))


def questions(label: str, evaluation: Harness, scale: str, *, shrink: int = BAM_SHRINK, unit: float = 1.0) -> Column:
    """A benchmark of questions as a column; at the toy scale 64 invented ones, or four of each of many tasks, in bytes.

    Args:
        label: the column's head.
        evaluation: the harness, one benchmark, and the tokens of the paper that are read at most.
        scale: "toy" or "paper".
        shrink: tokens of the paper to one of the toy scale.
        unit: 0.01 for percent.
    """
    (length,), (task,) = evaluation.lengths, evaluation.tasks
    asked = dataclasses.replace(evaluation, lengths=(tokens(length, scale, shrink),), data=BENCHMARKS)
    if scale == "toy":
        asked = dataclasses.replace(asked, questions=64 if len(TASKS[task]) == 1 else 4, data=INVENTED)
    return Column(label, asked, unit=unit)


def ruler_overrides(scale: str) -> dict[str, Any]:
    """The changes that RULER and questions need: at the toy scale a tokenizer that keeps every text as it is."""
    return {"data.tokenizer": "byte", "data.task": "packed", "steps": 300} if scale == "toy" else {}
