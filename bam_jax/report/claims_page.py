"""The page of the papers' claims, each held against what was measured."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bam_jax.experiments import claims, origins, statistics
from bam_jax.experiments.cells import Measured, Printed
from bam_jax.experiments.checks import Check, Finding
from bam_jax.experiments.claims import MEANINGS, ClaimsFile, Judgement, Verdict
from bam_jax.experiments.criteria import Criterion, number
from bam_jax.render import page
from bam_jax.render.page import Section
from bam_jax.report.prior_checks import check_shapes

HEAD = ("criterion", "verdict, or estimate [95%]", "seeds", "meet it alone [95%]", "p, for it", "p, against it")
PROCEDURE = f"""
Training seeds are the sample; prompts and text estimate each seed's value. An interval is that of Student's t over seeds, of
logarithms where the values are perplexities, of differences seed by seed where rows are compared; seeds that agree on an accuracy
leave at least the binomial error of their prompts. "In most seeds" is a sign test. A claim holds if all of its criteria are met
(the greatest of their p-values), and is contradicted if one is not (the least, times their number). Over all claims of the page
the procedure of Benjamini and Hochberg keeps the expected share of false verdicts at {claims.FALSE_DISCOVERIES:g}. There is no
verdict on fewer than {{seeds}} seeds. The paper's own numbers meet a criterion or not: one number has no interval. More
is in `docs/statistics.md`.
"""


def to_markdown(path: Path, folder: Path, scale: str) -> str:
    """The page as Markdown; arguments and errors as in `page_sections`."""
    return page.to_markdown(claims.load(path).title, page_sections(path, folder, scale))


def page_sections(path: Path, folder: Path, scale: str) -> list[Section]:
    """The page's sections: the verdicts, what they and the scale mean, then every claim.

    Args:
        path: a Python file with `get_claims()` and `NOTES`, beside the experiments.
        folder: of the runs, which need not be there where records tell what they measured.
        scale: one of `experiment.SCALES`.

    Raises:
        UserError: a file without claims, or a run that cannot be read.
    """
    return judged_sections(judge(path, folder, scale), scale)


class Judged(NamedTuple):
    """The claims of a file, judged.

    Args:
        file: the claims.
        by_paper: all of them, judged.
        origins: lines that say where the models were trained.
    """

    file: ClaimsFile
    by_paper: Mapping[str, Sequence[Judgement]]
    origins: Sequence[str]


def judge(path: Path, folder: Path, scale: str) -> Judged:
    """The claims of a file, judged; arguments and errors as in `page_sections`."""
    file = claims.load(path)
    measured, printed = Measured(folder, scale, path.parent), Printed(folder, "paper", path.parent)
    return Judged(file, claims.judge(file.by_paper, measured, printed, file.seeds), measured.origins())


def judged_sections(judged: Judged, scale: str) -> list[Section]:
    """The page's sections of claims that are judged already.

    Args:
        judged: the claims.
        scale: at which they were.
    """
    return [
        verdicts_section(judged.file, judged.by_paper),
        *contradicted_sections(judged.by_paper),
        Section(of_scale(scale), items=judged.file.notes),
        Section("What the verdicts mean", procedure(judged.file, judged.by_paper)),
        *([Section(origins.TITLE, items=judged.origins)] if judged.origins else []),
        *claims_sections(judged.by_paper),
    ]


def of_scale(scale: str) -> str:
    """The heading of a page at a scale, by which a page tells its own.

    Args:
        scale: of the experiments.
    """
    return f"At the {scale} scale"


def verdicts_section(file: ClaimsFile, judged: Mapping[str, Sequence[Judgement]]) -> Section:
    """The number of each verdict.

    Args:
        file: the claims.
        judged: by paper.
    """
    found = {judgement.verdict for said in judged.values() for judgement in said}
    rows = [
        [
            verdict.value,
            *(str(count_verdicts(said, verdict)) for said in judged.values()),
            MEANINGS[verdict].format(seeds=file.seeds),
        ]
        for verdict in Verdict
        if verdict in found
    ]
    return Section("In short", table=page.Table(["verdict", *judged, "meaning"], rows))


def procedure(file: ClaimsFile, judged: Mapping[str, Sequence[Judgement]]) -> str:
    """The words for the way in which verdicts are come by; arguments as in `verdicts_section`."""
    frozen = (
        f"frozen in commit `{file.frozen}`, before the first run that they judge" if file.frozen else "not frozen yet"
    )
    tested = [judgement for said in judged.values() for judgement in said if judgement.p is not None]
    told = sum(judgement.verdict in (Verdict.HOLDS, Verdict.CONTRADICTED) for judgement in tested)
    level = (
        f", and told by a two-sided p of at most {claims.FALSE_DISCOVERIES * told / len(tested):.2g}" if told else ""
    )
    return (
        f"{PROCEDURE.strip().format(seeds=file.seeds)} {len(tested)} claims are tested here{level}. A claim whose condition is "
        f"not shown is one of them; a count of parameters needs no test. The criteria are {frozen}."
    )


def contradicted_sections(judged: Mapping[str, Sequence[Judgement]]) -> list[Section]:
    """The claims that are contradicted, in a line each, for readers who look for these first; no section where none is.

    Args:
        judged: the claims by paper.
    """
    items = [
        f"{paper}, {each.claim.place}: {each.claim.says}"
        for paper, said in judged.items()
        for each in said
        if each.verdict is Verdict.CONTRADICTED
    ]
    return [Section(f"What is contradicted: {len(items)} claims", items=items)] if items else []


def claims_sections(judged: Mapping[str, Sequence[Judgement]]) -> list[Section]:
    """Two sections for each paper: a point for each claim, and a table of the criteria of those that were measured.

    Args:
        judged: the claims by paper.
    """
    sections = []
    for paper, said in judged.items():
        counted = ", ".join(
            f"{each.value} {count_verdicts(said, each)}" for each in Verdict if count_verdicts(said, each)
        )
        items = [claim_item(judgement) for judgement in said]
        sections.append(Section(paper, f"{len(items)} claims: {counted}.", items=items))
        measured = [judgement for judgement in said if any(criterion.n for criterion in judgement.criteria)]
        rows = [row for judgement in measured for row in _criteria_rows(judgement)]
        if rows:
            sections.append(Section(f"{paper}: criterion by criterion", table=page.Table(HEAD, rows), folded=True))
    return sections


def claim_item(judgement: Judgement) -> str:
    """A claim with its verdict, the criterion that decides, all of its criteria in words, and its condition.

    Args:
        judgement: the claim, judged.
    """
    own = {
        True: " (by the paper's own numbers: holds)",
        False: " (by the paper's own numbers: does not hold)",
        None: "",
    }
    decisive, count = judgement.decisive, len(judgement.criteria)
    said = [judgement.remark]
    if decisive is not None:
        least = f", the least certain of {count} criteria" if count > 1 else ""
        said.append(f"{decisive.says}: {_estimate(decisive)}{_seeds(decisive)}{least}")
    said += [f"Criterion: {_words(judgement.findings)}"] if judgement.findings else []
    said += [f"Condition: {judgement.condition.says}"] if judgement.condition else []
    claim = judgement.claim
    said.append(claim.why[:1].upper() + claim.why[1:] if any(said) else claim.why)
    evidence = ". ".join(part.removesuffix(".") for part in said if part)
    return f"**{judgement.verdict.value}**{own[judgement.printed]} · {claim.place}: {claim.says} — {evidence}."


def count_verdicts(said: Sequence[Judgement], verdict: Verdict) -> int:
    """The number of claims that have a verdict.

    Args:
        said: the claims, judged.
        verdict: one.
    """
    return sum(judgement.verdict is verdict for judgement in said)


def _words(findings: Sequence[Finding]) -> str:
    """The criteria of checks in words, those that say the same in one; with their tables where those differ."""
    differ = len({finding.where for finding in findings}) > 1
    tables: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        tables.setdefault((finding.subject, finding.says), []).append(finding.where)
    subjects: dict[tuple[str, str], list[str]] = {}
    for (subject, says), found in tables.items():
        named = "; ".join(filter(None, dict.fromkeys(found)))
        where = f" ({named})" if differ and named else ""
        subjects.setdefault((says, where), []).append(subject)
    return "; ".join(f"{', '.join(some)} {says}{where}" for (says, where), some in subjects.items())


def _criteria_rows(judgement: Judgement) -> list[list[str]]:
    """A line for a claim, and one for each of its criteria, of those that they are made of, and of its condition."""
    claim = judgement.claim
    rows = [[f"{claim.place}: {claim.says}", judgement.verdict.value, "", "", "", ""]]
    conditions = [judgement.condition] if judgement.condition else []
    for criterion in _all_of([*judgement.criteria, *conditions]):
        word = "condition: " if criterion in conditions else ""
        rows.append([f" {word}{criterion.says}", _estimate(criterion), str(criterion.n), *_evidence(criterion)])
    return rows


def _all_of(some: Sequence[Criterion]) -> list[Criterion]:
    """Criteria, each before those that it is made of."""
    return [each for criterion in some for each in (criterion, *_all_of(criterion.several))]


def _evidence(criterion: Criterion) -> list[str]:
    """The seeds that meet a criterion by themselves and its p-values, where it has any."""
    if criterion.n < 2 or not criterion.has_seeds or criterion.met is None:
        return ["", "", ""]
    low, share, high = statistics.share_interval(criterion.agree, criterion.n)
    alone = "" if criterion.several else f"{criterion.agree}, {share:.2f} [{low:.2f}, {high:.2f}]"
    return [alone, f"{criterion.p_met:.2g}", f"{criterion.p_unmet:.2g}"]


def _estimate(criterion: Criterion) -> str:
    """The estimate with its interval, where it has one."""
    low, middle, high = criterion.shown
    if math.isnan(middle):
        return "none"
    if criterion.several:
        return f"{middle:.0f} of {len(criterion.several)}"
    return number(middle) if math.isnan(low) else f"{number(middle)} [{number(low)}, {number(high)}]"


def _seeds(criterion: Criterion) -> str:
    """The seeds behind a criterion, or the device that one number is of."""
    if not criterion.has_seeds:
        return f" on {criterion.device}" if criterion.device else ""
    if criterion.n < 2 or criterion.several:
        return f", {criterion.n} seed{'s' * (criterion.n != 1)}"
    alone = "meets it by itself" if criterion.agree == 1 else "meet it by themselves"
    return f", {criterion.n} seeds, of which {criterion.agree} {alone}"


def clusters(name: str, row: str, bounds: tuple[float, float]) -> Check:
    """A check that in most seeds each of three classes of learned shapes has a head, and the lowest class the fewest.

    Args:
        name: of the experiment's file, without ".py".
        row: whose priors are looked at.
        bounds: between the classes, ascending.

    Source: BAM, appendix H.8.
    """
    low, high = bounds
    says = f"in most seeds has shapes below {low:g}, from there to {high:g} and above, the fewest below"

    def is_so(shapes: Sequence[float]) -> bool:
        below, above = sum(shape < low for shape in shapes), sum(shape > high for shape in shapes)
        return 0 < below < min(len(shapes) - below - above, above)

    return check_shapes(name, row, says, is_so)
