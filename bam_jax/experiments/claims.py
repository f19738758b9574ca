"""The papers' claims, each judged by checks of what was measured; no verdict is written by hand."""

import dataclasses
import enum
import math
import reprlib
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bam_jax.experiments import statistics
from bam_jax.experiments.cells import Measured
from bam_jax.experiments.checks import Check, Finding
from bam_jax.experiments.criteria import Criterion, quorum
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.statistics import SEEDS
from bam_jax.system.errors import UserError
from bam_jax.system.plugins import named_where_it_fails

TITLE = "What the papers claim, and what came out here"
FALSE_DISCOVERIES = 0.05
"""The share of verdicts on a page that may be false, and the level of the test that a model can do a task."""


class Verdict(enum.Enum):
    """The answer of measurements to a claim, in the words of the page."""

    HOLDS = "holds"
    CONTRADICTED = "contradicted"
    UNTOLD = "not told apart"
    UNTESTABLE = "cannot be tested at this scale"
    UNASKED = "not asked"
    ACCELERATOR = "needs an accelerator"
    UNMEASURED = "not measured"
    UNCHECKED = "not checked"
    NONE = "no verdict"


MEANINGS: Mapping[Verdict, str] = {
    Verdict.HOLDS: "every criterion is met, by tests against each of them not being met.",
    Verdict.CONTRADICTED: "some criterion is not met, by a test against all of them being met.",
    Verdict.UNTOLD: "the seeds decide neither; the number is said that would, if difference and spread are as they were seen.",
    Verdict.UNTESTABLE: "its condition is not met here (no model does the task), or it says why the scale does not ask it.",
    Verdict.UNASKED: "its experiment would repeat another's at this scale.",
    Verdict.ACCELERATOR: "speeds are compared where the papers compare them, and some runs are too long for a CPU.",
    Verdict.UNMEASURED: "fewer than {seeds} seeds, or cells that are missing.",
    Verdict.UNCHECKED: "mathematics, or no number.",
    Verdict.NONE: "the toy scale shows that the code runs, and its numbers.",
}
"""The meaning of each verdict, `seeds` being the least number of seeds that have one."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper and how it is checked.

    Args:
        place: in the paper.
        says: the statement, in our words.
        checks: all of which it needs; none: `why` says why it is not checked.
        why: a remark.
        needs: what must hold for measurements to say anything about it, such as that some model can do the task.
        accelerator: whether its runs are too long for a CPU, or its speeds mean something on an accelerator alone.
        unfit: why no scale below the paper's can ask it, such as that its criterion would be met, or missed, whatever happens.
        repeats: why its experiment would repeat another's at every scale below the paper's; "": it would not.
    """

    place: str
    says: str
    checks: tuple[Check, ...] = ()
    why: str = ""
    needs: Check | None = None
    accelerator: bool = False
    unfit: str = ""
    repeats: str = ""


class ClaimsFile(NamedTuple):
    """A file of claims.

    Args:
        by_paper: the claims.
        notes: about the page.
        frozen: the commit in which criteria were frozen, before the first run that they judge; "": none yet.
        title: of the page.
        seeds: the number of training seeds that was fixed before the first run; with fewer there is no verdict, and whoever
            looks on the way sees none.
    """

    by_paper: Mapping[str, Sequence[Claim]]
    notes: Sequence[str]
    frozen: str = ""
    title: str = TITLE
    seeds: int = SEEDS


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A claim held against measurements.

    Args:
        claim: the claim.
        findings: of its checks.
        verdict: by our runs.
        remark: what the verdict rests on beside the numbers.
        printed: whether the paper's own numbers meet its criteria; None: it has none.
        p: the two-sided p-value that counts on the page; None: the verdict needs no test, or there is none.
        condition: that some model can do the task, where the claim needs it.
    """

    claim: Claim
    findings: Sequence[Finding]
    verdict: Verdict
    remark: str = ""
    printed: bool | None = None
    p: float | None = None
    condition: Criterion | None = None

    @property
    def criteria(self) -> list[Criterion]:
        """The criteria of all checks."""
        return [criterion for finding in self.findings for criterion in finding.criteria]

    @property
    def whole(self) -> Criterion:
        """The criterion that all of them are met; there must be one at least."""
        return quorum(self.claim.says, self.criteria, len(self.criteria))

    @property
    def decisive(self) -> Criterion | None:
        """The criterion that decides: the one that is least certain to be met; None where nothing was measured."""
        known = [criterion for criterion in self.criteria if criterion.met is not None]
        return max(known, key=lambda criterion: (not criterion.met, criterion.p_met), default=None)


def judge(
    by_paper: Mapping[str, Sequence[Claim]], measured: Measured, printed: Measured, seeds: int = SEEDS
) -> dict[str, list[Judgement]]:
    """Holds all claims of a page against our runs and against the papers' own numbers.

    A claim holds if all of its criteria do: an intersection-union test, whose p-value is the greatest of theirs. It is
    contradicted if one of its criteria is not met: the least of their p-values times their number (Bonferroni). The
    two-sided p-value of a claim is twice the smaller one of both, which gives the direction. Over the page these p-values go
    through the procedure of Benjamini and Hochberg, so that at most a share `FALSE_DISCOVERIES` of the verdicts is expected
    to be false.

    Args:
        by_paper: the claims.
        measured: cells of our runs.
        printed: the paper's cells.
        seeds: see `ClaimsFile`.

    Raises:
        UserError: a claim names a cell that there is not.
    """
    weighed = {paper: [_weigh(claim, measured, printed, seeds) for claim in said] for paper, said in by_paper.items()}
    family = [judgement.p for said in weighed.values() for judgement in said if judgement.p is not None]
    told = int(statistics.false_discoveries(family, FALSE_DISCOVERIES).sum())
    # The greatest p-value that counts, and the one that a further claim would have to have.
    count = max(len(family), 1)
    level, next_level = FALSE_DISCOVERIES * told / count, FALSE_DISCOVERIES * min(told + 1, count) / count
    return {paper: [_decide(judgement, level, next_level) for judgement in said] for paper, said in weighed.items()}


def _weigh(claim: Claim, measured: Measured, printed: Measured, seeds: int) -> Judgement:
    """A claim with its verdict so far: one that waits for the other claims of the page has a p-value and is not told apart."""
    findings = [check(measured) for check in claim.checks]
    theirs = _met([criterion for check in claim.checks for criterion in check(printed).criteria])
    (able,) = claim.needs(measured).criteria if claim.needs else (None,)
    made = Judgement(claim, findings, Verdict.UNTOLD, printed=theirs, condition=able)
    settled = _settle(made, measured, seeds)
    if settled is not None:
        verdict, remark = settled
        return dataclasses.replace(made, verdict=verdict, remark=remark)
    if able is not None:
        if able.n < seeds:
            remark = f"{able.n} of {seeds} seeds of its condition, {able.says}"
            return dataclasses.replace(made, verdict=Verdict.UNMEASURED, remark=remark)
        if able.p_met > FALSE_DISCOVERIES:
            # It stays a member of the page's family, since it was left out for what was measured.
            remark = f"its condition is not shown to be met, {able.says}: p = {able.p_met:.2g}"
            return dataclasses.replace(made, verdict=Verdict.UNTESTABLE, remark=remark, p=1.0)
    return dataclasses.replace(made, p=min(1.0, 2 * min(made.whole.p_met, made.whole.p_unmet)))


def _settle(made: Judgement, measured: Measured, seeds: int) -> tuple[Verdict, str] | None:
    """The verdict that needs no test, with a remark; None where seeds decide."""
    claim, criteria = made.claim, made.criteria
    if not criteria:
        return Verdict.UNCHECKED, ""
    met, seeded = _met(criteria), [criterion for criterion in criteria if criterion.has_seeds]
    on_cpu = any(criterion.device == "cpu" for criterion in criteria)
    timed = any(criterion.device for criterion in criteria)
    if measured.scale == SCALES[0] and (seeded or timed or claim.accelerator):
        return (Verdict.NONE, "") if any(criterion.n for criterion in criteria) else (Verdict.UNMEASURED, "")
    if claim.unfit and measured.scale != SCALES[-1]:
        return Verdict.UNTESTABLE, claim.unfit
    if claim.repeats and measured.scale != SCALES[-1]:
        return Verdict.UNASKED, claim.repeats
    enough = [criterion.n >= (seeds if criterion.has_seeds else 1) for criterion in criteria]
    if claim.accelerator and (on_cpu or not all(enough)):
        return Verdict.ACCELERATOR, "measured on a CPU" if on_cpu else ""
    if not all(enough):
        least = min((criterion.n for criterion in seeded), default=0)
        wanted = f"{least} of {seeds} seeds; " if seeded else ""
        return Verdict.UNMEASURED, f"{wanted}{sum(enough)} of {len(enough)} criteria have what they need"
    if not seeded:
        return Verdict.HOLDS if met else Verdict.CONTRADICTED, ""
    return None


def _met(criteria: Sequence[Criterion]) -> bool | None:
    """True where the estimates meet all criteria; None where one has none, or there are no criteria."""
    met = [criterion.met for criterion in criteria]
    return None if not met or None in met else all(met)


def _decide(judgement: Judgement, level: float, next_level: float) -> Judgement:
    """A claim that waited for the page, with its verdict.

    Args:
        judgement: a claim, weighed.
        level: the greatest two-sided p-value that counts.
        next_level: that of a page with one verdict more.
    """
    if judgement.p is None or judgement.verdict is not Verdict.UNTOLD:
        return judgement
    whole = judgement.whole
    if judgement.p <= level:
        return dataclasses.replace(
            judgement, verdict=Verdict.HOLDS if whole.p_met < whole.p_unmet else Verdict.CONTRADICTED
        )
    needed = whole.seeds_to_tell(next_level / 2, met=bool(whole.met))
    about = f"about {needed:,}" if needed < math.inf else f"more than {statistics.MOST_SEEDS:,}"
    return dataclasses.replace(judgement, remark=f"{about} seeds would tell")


def load(path: Path) -> ClaimsFile:
    """The claims in a Python file with `get_claims()`, `NOTES`, `FROZEN` once its criteria are, a `TITLE` and `SEEDS` of its own.

    Args:
        path: the file, beside the experiments.

    Raises:
        UserError: no such file, or no claims in it.
    """
    if not path.is_file():
        raise UserError(f"no file {path}; give one with get_claims(), such as experiments/claims.py")
    with named_where_it_fails(path, "claims file"):
        names = runpy.run_path(str(path))
        for name in ("get_claims()", "NOTES"):
            if name.removesuffix("()") not in names:
                raise UserError(
                    f"{path} has no {name}; define get_claims(), which returns lists of Claim by paper, and NOTES, the page's "
                    "first lines, as experiments/claims_prior.py does"
                )
        own = {name.lower(): names[name] for name in ("FROZEN", "TITLE", "SEEDS") if name in names}
        said, notes = names["get_claims"](), names["NOTES"]
    if type(own.get("seeds", SEEDS)) is not int or own.get("seeds", SEEDS) < 1:
        raise UserError(
            f"{path}: SEEDS is {reprlib.repr(own['seeds'])}; it must be the number of seeds that have a verdict"
        )
    lists = isinstance(said, Mapping) and all(isinstance(some, Sequence) for some in said.values())
    if not lists or not all(isinstance(claim, Claim) for some in said.values() for claim in some):
        raise UserError(f"{path}: get_claims() returns {reprlib.repr(said)}; it must be lists of Claim by paper")
    if isinstance(notes, str) or not isinstance(notes, Sequence) or not all(isinstance(note, str) for note in notes):
        raise UserError(
            f"{path}: NOTES is {reprlib.repr(notes)}; it must be a tuple of strings, the page's first lines"
        )
    return ClaimsFile(said, notes, **own)
