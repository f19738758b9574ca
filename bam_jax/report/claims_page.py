"""The page of claims: a table for each paper, with folded criteria."""

import csv
import html
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bam_jax.experiments import claims
from bam_jax.experiments.cells import Measured, Printed
from bam_jax.experiments.claims import ClaimsFile, Judgement, Verdict
from bam_jax.experiments.criteria import Criterion, number
from bam_jax.experiments.jobs import Job
from bam_jax.report import page
from bam_jax.report.learned import find_job_priors
from bam_jax.report.page import Estimated, Section, Table
from bam_jax.report.tables_page import PROVENANCE

HEAD = ("place", "claim", "verdict", "direction", "paper", "ours [95%]", "n")
CSV_HEAD = (
    *("paper", "place", "claim", "verdict", "criterion", "printed", "estimate", "low", "high"),
    *("seeds", "seeds_that_meet_it", "p_for", "p_against"),
)

MEANINGS: Mapping[Verdict, str] = {
    Verdict.SUPPORTED: "all criteria are met",
    Verdict.CONTRADICTED: "a criterion is not met",
    Verdict.INCONCLUSIVE: "neither is shown",
    Verdict.UNTESTABLE: "its condition is not met, or small models cannot decide it",
    Verdict.REPEATED: "repeats another experiment",
    Verdict.ACCELERATOR: "a speed, or runs too long for a CPU",
    Verdict.UNMEASURED: "fewer than {seeds} seeds, or missing cells",
    Verdict.UNCHECKED: "mathematics, or no number",
    Verdict.NONE: "the toy scale shows that the code runs",
}


class Judged(NamedTuple):
    """The tested claims of a file."""

    file: ClaimsFile
    by_paper: Mapping[str, Sequence[Judgement]]
    provenance: Sequence[str]


def judge(path: Path, folder: Path, scale: str) -> Judged:
    file, said, experiments = claims.load(path)
    measured, printed = Measured(folder, scale, experiments, _read_shapes), Printed(folder, "paper", experiments)
    return Judged(file, claims.judge(said, measured, printed, file.seeds), measured.provenance())


def _read_shapes(job: Job, folder: Path, file: Path | None) -> np.ndarray | None:
    heads = find_job_priors(job, folder, file)
    return None if heads is None else np.asarray(heads.shape)


def of_scale(scale: str) -> str:
    """The heading from which the command reads a page's scale."""
    return f"At the {scale} scale"


def to_markdown(judged: Judged, scale: str) -> str:
    """The page for the documentation; each claim unfolds to its criterion."""
    parts = [page.to_markdown(judged.file.title, _head_sections(judged, scale)).rstrip()]
    for paper, said in judged.by_paper.items():
        lines = [HEAD, ["-", "-", "-", "-", "-:", "-:", "-:"], *(_markdown_cells(each) for each in said)]
        parts += [f"## {paper}", "\n".join(f"|{'|'.join(line)}|" for line in lines)]
    return "\n\n".join(parts) + "\n"


def to_csv(judged: Judged) -> str:
    """A line for each criterion, each of its parts, and each condition."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for paper, said in judged.by_paper.items():
        for each in said:
            head = [paper, each.claim.place, each.claim.says, each.verdict.value]
            printed = {mine.says: theirs.shown.middle for mine, theirs in zip(each.criteria, each.printed, strict=True)}
            conditions = [each.condition] if each.condition else []
            for criterion in _flat([*each.criteria, *conditions]):
                low, middle, high = criterion.shown
                numbers = (printed.get(criterion.says, math.nan), middle, low, high)
                shown = ["" if math.isnan(value) else f"{value:.6g}" for value in numbers]
                word = "condition: " if criterion in conditions else ""
                tests = (
                    [criterion.agree, f"{criterion.p_met:.3g}", f"{criterion.p_unmet:.3g}"] if criterion.n else [""] * 3
                )
                writer.writerow([*head, f"{word}{criterion.says}", *shown, criterion.n, *tests])
    return text.getvalue()


def _flat(criteria: Sequence[Criterion]) -> Iterator[Criterion]:
    for criterion in criteria:
        yield criterion
        yield from _flat(criterion.several)


def _head_sections(judged: Judged, scale: str) -> list[Section]:
    file, by_paper = judged.file, judged.by_paper
    every = [each for said in by_paper.values() for each in said]
    count = lambda judged, verdict: sum(each.verdict is verdict for each in judged)
    rows = []
    for verdict in Verdict:
        if count(every, verdict):
            counts = [f"{count(said, verdict)}" for said in by_paper.values()]
            rows.append([verdict.value, *counts, MEANINGS[verdict].format(seeds=file.seeds)])
    tested = [each for each in every if each.p is not None]
    told = sum(each.verdict in (Verdict.SUPPORTED, Verdict.CONTRADICTED) for each in tested)
    level = f" A two-sided p of at most {claims.FALSE_DISCOVERIES * told / len(tested):.2g} decides." if told else ""
    frozen = f"Criteria are frozen in commit `{file.frozen}`." if file.frozen else "Criteria are not frozen yet."
    method = (
        f"{len(every)} claims, of which {len(tested)} are tested over at least {file.seeds} training seeds; the expected share "
        f"of false verdicts is {claims.FALSE_DISCOVERIES:g} (Benjamini–Hochberg, `docs/statistics.md`).{level} {frozen} The "
        "numbers are those of the least certain criterion; open a claim to read it. The direction shows which row does better or "
        "worse than claimed. A place links to the table's experiment."
    )
    sections = [
        Section("In short", table=Table(["verdict", *by_paper, "meaning"], rows)),
        Section(of_scale(scale), method, items=file.notes),
    ]
    return sections + ([Section(PROVENANCE, items=judged.provenance)] if judged.provenance else [])


def _markdown_cells(judgement: Judgement) -> list[str]:
    """A row in Markdown: the place links to the experiment, the claim unfolds to its criterion."""
    place, _, *others = _cells(judgement)
    file = next(_files(msgspec.to_builtins(judgement.claim.checks)), None)
    says, details = (html.escape(text, quote=False) for text in (judgement.claim.says, _details(judgement)))
    words = [
        f"[{place}](../experiments/{file}.py)" if file else place,
        f"<details><summary>{says}</summary>{details}</details>" if details else says,
    ]
    words += [f"{each.text} {each.below}" if isinstance(each, Estimated) else str(each) for each in others]
    return [word.replace("|", "\\|") for word in words]


def _files(part: Any) -> Iterator[str]:
    """The experiments whose tables a claim reads, from its checks as plain values."""
    if isinstance(part, dict):
        for name, each in part.items():
            yield from [each] if name == "file" else _files(each)
    elif isinstance(part, list):
        for each in part:
            yield from _files(each)


def _cells(judgement: Judgement) -> list[Any]:
    claim, at = judgement.claim, judgement.decisive
    printed, ours, n, verdict, direction = "", Estimated("", ""), "", judgement.verdict.value, ""
    if at is not None:
        criterion, theirs = judgement.criteria[at], judgement.printed[at]
        printed, ours, n = _estimate(theirs).text, _estimate(criterion), f"{criterion.n}" if criterion.has_seeds else ""
        direction = criterion.unmet if judgement.verdict is Verdict.CONTRADICTED else ""
    if judgement.verdict is Verdict.INCONCLUSIVE:
        verdict += f" ({judgement.remark})"
    return [claim.place, claim.says, verdict, direction, printed, ours if ours.below else ours.text, n]


def _details(judgement: Judgement) -> str:
    claim, at, count = judgement.claim, judgement.decisive, len(judgement.criteria)
    words = [claim.here]
    if at is not None:
        met = sum(criterion.met is True for criterion in judgement.criteria)
        words.append(f"{met} of {count}: {judgement.criteria[at].says}" if count > 1 else judgement.criteria[at].says)
    words += [f"needs {judgement.condition.says}"] if judgement.condition else []
    if judgement.verdict is not Verdict.INCONCLUSIVE:
        words.append(judgement.remark)
    return "; ".join(filter(None, [*words, claim.note]))


def _estimate(criterion: Criterion) -> Estimated:
    low, middle, high = criterion.shown
    if math.isnan(middle):
        return Estimated("", "")
    if criterion.several:
        return Estimated(f"{middle:.0f} of {len(criterion.several)}", "")
    return Estimated(number(middle), "" if math.isnan(low) else f"[{number(low)}, {number(high)}]")
