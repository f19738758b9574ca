"""The papers' claims, each judged by checks of what was measured; no verdict is written by hand."""

import dataclasses
import enum
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bam_jax.experiments.checks import Check, Finding, Measured
from bam_jax.system.errors import UserError


class Verdict(enum.Enum):
    """The answer of measurements to a claim, in the words of the page."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNMEASURED = "not measured"
    IN_PART = "in part"
    UNCHECKED = "not checked"
    UNDECIDED = "undecided"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper and how it is checked.

    Args:
        place: in the paper.
        says: the statement, in our words.
        checks: all of which it needs; none: `why` says why it is not checked.
        why: a remark.
        needs: what must hold for measurements to say anything about it, such as that some model can do the task.
    """

    place: str
    says: str
    checks: tuple[Check, ...] = ()
    why: str = ""
    needs: Check | None = None


class Judgement(NamedTuple):
    """A claim held against measurements.

    Args:
        verdict: by our runs.
        printed: by the paper's own numbers.
        evidence: the findings that decide it.
    """

    verdict: Verdict
    printed: Verdict
    evidence: Sequence[Finding]


def judge(claim: Claim, measured: Measured, printed: Measured) -> Judgement:
    """Holds a claim against our runs and against the paper's own numbers.

    Args:
        claim: with or without checks.
        measured: cells of our runs.
        printed: the paper's cells.

    Raises:
        UserError: the claim names a cell that there is not.
    """
    findings = [check(measured) for check in claim.checks]
    theirs = conclude([check(printed) for check in claim.checks])
    able = claim.needs(measured) if claim.needs else None
    if able is not None and able.holds is False:
        return Judgement(Verdict.UNDECIDED, theirs, [able])
    # One absent measurement says enough of why there is no verdict.
    absent = [finding for finding in findings if finding.holds is None]
    return Judgement(conclude(findings), theirs, absent[:1] or findings)


def conclude(findings: Sequence[Finding]) -> Verdict:
    """The verdict on a claim whose checks found this.

    >>> conclude([Finding(True, ""), Finding(False, "")]).value, conclude([]).value
    ('in part', 'not checked')
    """
    if not findings:
        return Verdict.UNCHECKED
    held = {finding.holds for finding in findings}
    if None in held:
        return Verdict.UNMEASURED
    if len(held) > 1:
        return Verdict.IN_PART
    return Verdict.HOLDS if True in held else Verdict.FAILS


def load(path: Path) -> tuple[Mapping[str, Sequence[Claim]], Sequence[str]]:
    """The claims by paper and the notes in a Python file with `get_claims()` and `NOTES`.

    Args:
        path: the file, beside the experiments.

    Raises:
        UserError: no such file, or no claims in it.
    """
    if not path.is_file():
        raise UserError(f"no file {path}; give one with get_claims(), such as experiments/claims.py")
    names = runpy.run_path(str(path))
    if "get_claims" not in names:
        raise UserError(f"{path} has no get_claims(), which returns the claims by paper")
    return names["get_claims"](), names["NOTES"]
