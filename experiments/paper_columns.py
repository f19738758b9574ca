"""The columns of the papers' tables: what is measured at their lengths, at each scale.

Lengths are tokens of the paper, and scales are "toy", "small" or "paper".
"""

import dataclasses
import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import small_scale

from bam_jax import config
from bam_jax.data.tasks import benchmarks
from bam_jax.data.tasks.benchmarks import INVENTED, TASKS
from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments.benchmark import Benchmark
from bam_jax.experiments.experiment import Column, Fetch, Row, Speed, Table

BAM_SHRINK, CABLE_SHRINK = 8, 16
"""Tokens of the paper to one token of the toy and small scales, beyond the context as within it."""

ESSAYS = "corpora/essays"
"""The user's essays for RULER's haystacks; RULER's own are those of Paul Graham."""
ESSAY_FILES = Fetch(ESSAYS, f"put essays into {ESSAYS} as .txt files (RULER takes Paul Graham's)")

BENCHMARKS = "corpora/benchmarks"
"""The user's benchmarks of questions."""

FAR = tuple(51_200 * k for k in range(1, 11))
"""The lengths of BAM's Table 7 beyond the context."""
FAR_ASKED = ("<1K", "51K", "102K", "256K", "512K")
"""The heads that the small scale measures, unless an experiment says otherwise."""
UNASKED = "the small scale does not ask for this length"
TOO_HARD = "a model of the small scale cannot do this task"

PATIENCE = 2
"""Successive lengths without any passkey found, after which the toy scale skips longer ones. Elsewhere every length is measured:
the paper's Table 7 has a tenth of the keys found again after four lengths without any."""


def benchmark_files(dataset: str) -> Fetch:
    """The files of a data set of questions, by its place on the Hugging Face hub, such as "cais/mmlu"."""
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


def passkey(length: int, scale: str, *, depths: int = 20) -> Passkey:
    """Passkeys at the paper's depths; at the small scale 100 prompts, at the toy scale at no more than 5 depths."""
    asked = Passkey((tokens(length, scale),), depths=depths)
    if scale == "toy":
        return dataclasses.replace(asked, depths=min(depths, 5), patience=PATIENCE)
    return dataclasses.replace(asked, depths=20, trials=5) if scale == "small" else asked


def passkeys(first: int, scale: str) -> tuple[Column, ...]:
    """Columns of passkeys at doubled lengths, from the first to 32,768 tokens."""
    return tuple(Column(head(length), passkey(length, scale)) for length in _doubled(first))


def far_passkeys(scale: str, asked: Sequence[str] = FAR_ASKED, *, depths: int = 20) -> tuple[Column, ...]:
    """Columns of passkeys within BAM's training context and at ten lengths to 512,000 tokens, by the heads of its Table 7.

    At the toy and small scales they are at 64 and to 64,000 tokens; at the small scale each has few prompts, at 5 depths. At the
    paper's scale the prompts give a first digit, as the authors' runs over long contexts do; keys that are planted in training
    have no sixth digit.
    """
    columns = []
    for label, length in ({"<1K": 512} | {head(length): length for length in FAR}).items():
        asks = passkey(length, scale, depths=depths)
        if scale == "paper":
            asks = dataclasses.replace(asks, prompt="first_digit")
        elif scale == "small":
            trials = 4 if length <= small_scale.MIDDLE else 2
            asks = dataclasses.replace(asks, depths=5, trials=trials)
        skipped = scale == "small" and label not in asked
        columns.append(Column(label, missing=UNASKED) if skipped else Column(label, asks))
    return tuple(columns)


def perplexity(
    length: int, scale: str, *, shrink: int = BAM_SHRINK, held_out: str = "", budget: int = 3_932_160
) -> Perplexity:
    """Perplexity at a length."""
    text = {"toy": "", "small": small_scale.OTHER_TEXT, "paper": held_out}[scale] if held_out else ""
    measured = {"toy": 2**15, "small": 2**17, "paper": budget}[scale]
    other = {"data.held_out_source": text} if text else {}
    return Perplexity((tokens(length, scale, shrink),), tokens=measured, overrides=other)


def cable_perplexities(lengths: Iterable[str], scale: str) -> tuple[Column, ...]:
    """Columns of perplexity at the lengths of CABLE's tables."""
    return tuple(
        Column(length, perplexity(int(length), scale, shrink=CABLE_SHRINK, budget=100_000_000)) for length in lengths
    )


def windows(first: int, scale: str, held_out: str = "") -> tuple[Column, ...]:
    """Columns of perplexity in windows of 32,768 tokens that end at doubled positions, by their ends; see `perplexity`."""
    *_, longest = ends = _doubled(first)
    measured = perplexity(longest, scale, held_out=held_out)
    return tuple(Column(head(end), measured, position=tokens(end, scale)) for end in ends)


def _doubled(first: int) -> list[int]:
    return [first * 2**k for k in range((32_768 // first).bit_length())]


def ruler(label: str, length: int, task: str, scale: str) -> Column:
    """A task of RULER at a length, such as "niah_single_1", as a column; at the toy scale two samples, in bytes."""
    if scale == "small":
        return Column(label, missing=TOO_HARD)
    if scale == "toy":  # a RULER prompt needs 1024 tokens; the length beyond is an eighth of the paper's
        return Column(label, Ruler((1024 + (length - 1024) // BAM_SHRINK,), tasks=(task,), samples=2))
    return Column(label, Ruler((length,), tasks=(task,), essays=ESSAYS))


def questions(label: str, evaluation: Harness, scale: str, *, shrink: int = BAM_SHRINK, unit: float = 1.0) -> Column:
    """A benchmark of questions as a column; at the toy scale 64 invented ones, or four of each of many tasks, in bytes."""
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


def speed(
    label: str, measure: str, length: int, scale: str, *, shrink: int, unit: float = 1.0, room: int = 0
) -> Column:
    """The speed or memory of a model with random parameters, as a column.

    The small scale has none: a small model's speed on a CPU says nothing about an accelerator's.
    """
    if scale == "small":
        return Column(
            label, unit=unit, missing="an accelerator measures it with --scale=paper; nothing is trained for it"
        )
    return Column(label, speed=Speed(measure, tokens(length, scale, shrink) - room), unit=unit)


def speed_benchmarks(rows: Sequence[Row], tables: Sequence[Table]) -> list[Benchmark]:
    """The benchmarks of the tables' columns of speed: a table's rows with one config file are compared side by side."""
    by_label = {row.label: row for row in rows}
    made = []
    for table in tables:
        cells = tuple(dict.fromkeys(column.speed for column in table.columns if column.speed))
        together: dict[str, list[Mapping[str, Any]]] = {}
        for label in table.values if cells else ():
            row = by_label[table.row(label)]
            contenders, changes = together.setdefault(row.config, []), {**row.overrides, **row.changes}
            contenders += [] if changes in contenders else [changes]
        for path, contenders in together.items():
            configs = [config.load(path, changes) for changes in contenders]
            digests = " ".join(sorted({config.digest(each) for each in configs}))
            name = f"speed-{configs[0].model.layers}x{configs[0].model.width}-{configs[0].context}"
            models = (f"--contender={shlex.join(config.arguments(changes))}" for changes in contenders)
            made.append(
                Benchmark(
                    f"{name}-{hashlib.sha256(digests.encode()).hexdigest()[:12]}",
                    "benchmarks.speed",
                    (f"--config={path}", *models),
                    cells,
                    seconds=3.0 * len(contenders),
                )
            )
    return made
