"""The papers' claims as data, and their verdicts, which are computed from measurements and never written by hand."""

import contextlib
import dataclasses
import enum
import math
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from scipy import stats

from bam_jax.experiments import statistics
from bam_jax.experiments.cells import Measured, TableName
from bam_jax.experiments.comparisons import Check, Labels
from bam_jax.experiments.criteria import Criterion, quorum
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.statistics import SEEDS
from bam_jax.system import files
from bam_jax.system.errors import UserError, nearest

TITLE = "The papers' claims, tested"
FALSE_DISCOVERIES = 0.05  # the expected share of false verdicts on a page, and the level of a condition's test


class Verdict(enum.Enum):
    """What the measurements show about a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"
    UNTESTABLE = "not testable at this scale"
    REPEATED = "not repeated at this scale"
    ACCELERATOR = "needs an accelerator"
    UNMEASURED = "not measured"
    UNCHECKED = "not checked"
    NONE = "no verdict"


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A statement of a paper and how it is tested."""

    place: str  # its place in the paper
    says: str
    here: str = ""  # our criterion in words, if the paper gives no number
    note: str = ""
    checks: list[Check] = []  # the claim needs all of them. If there are none, the note explains why
    needs: list[Check] = []  # the condition for testing it, for example that some model can do the task
    accelerator: bool = False  # whether its runs are too long for a CPU, or its speeds are those of an accelerator
    untestable: str = ""  # the reason why no scale below the paper's can test it
    repeats: str = ""  # the reason why its experiment would repeat another one at every scale below the paper's
    paper: str = ""


class ClaimsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of claims."""

    title: str = TITLE
    frozen: str = ""  # the commit that froze the criteria, before the first run that they judge; "": none yet
    seeds: Annotated[int, msgspec.Meta(ge=1)] = SEEDS
    """The number of training seeds, fixed before the first run; with fewer there is no verdict."""
    notes: list[str] = []
    experiments: str = "."  # the folder of the experiment files, relative to the claims file
    include: list[str] = []  # further files whose claims belong to the same page
    paper: str = ""  # the paper of claims that name none
    reasons: dict[str, str] = {}
    tables: dict[str, TableName] = {}
    columns: dict[str, Labels] = {}
    rows: dict[str, Labels] = {}
    claim: list[dict[str, Any]] = []

    def claims(self, where: Path) -> list[Claim]:
        """The claims, with the names of tables, columns, rows and reasons replaced by their definitions."""
        made = []
        for count, raw in enumerate(self.claim, start=1):
            with _named(f"{where}, claim {count} ({str(raw.get('says', ''))[:60]})"):
                whole = self._resolve({"paper": self.paper, **raw})
                made.append(msgspec.convert(whole, Claim))
        return made

    def _resolve(self, value: Any, field: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self._resolve(each, name) for name, each in value.items()}
        if field.endswith("columns") or field in ("rows", "than", "over"):
            lists = self.columns if field.endswith("columns") else self.rows
            if isinstance(value, list) and any(isinstance(each, list) for each in value):
                return [self._resolve(each, field) for each in value]
            return lists.get(value, [value]) if isinstance(value, str) else value
        if isinstance(value, list):
            return [self._resolve(each, field) for each in value]
        if not isinstance(value, str):
            return value
        if field in ("table", "than_table", "tables"):
            if value not in self.tables:
                raise UserError(f"table {value!r} is not in [tables]; {nearest(value, self.tables)}")
            return msgspec.to_builtins(self.tables[value])
        return self.reasons.get(value, value) if field in ("untestable", "repeats") else value


class ClaimsPage(NamedTuple):
    """A page of claims: a file and the files that it includes."""

    file: ClaimsFile
    claims: Sequence[Claim]
    experiments: Path


def load(path: Path) -> ClaimsPage:
    """The claims in a TOML file and in the files that it includes."""
    if not path.is_file():
        raise UserError(f"no file {path}; give one of claims, such as experiments/claims/papers.toml")
    file = _read(path)
    if file.include and file.claim:
        raise UserError(f"{path} has claims and includes others; move them to a file of their own")
    paths = [path.parent / name for name in file.include] or [path]
    made = [claim for each in paths for claim in (_read(each) if file.include else file).claims(each)]
    return ClaimsPage(file, made, Path(os.path.normpath(path.parent / file.experiments)))


def _read(path: Path) -> ClaimsFile:
    with _named(str(path)):
        return msgspec.convert(tomllib.loads(files.read_small(path).decode()), ClaimsFile)


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except (UserError, ValueError, RecursionError) as error:  # of TOML, UTF-8 and msgspec
        raise UserError(f"{where}: {' '.join(str(error).split())[:300]}; mend that file") from error


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A claim with its measured criteria and its verdict."""

    claim: Claim
    criteria: Sequence[Criterion]
    printed: Sequence[Criterion]  # the same criteria, computed from the paper's numbers
    verdict: Verdict = Verdict.INCONCLUSIVE
    remark: str = ""
    p: float | None = None
    """The two-sided p-value that enters the page's procedure; None: the verdict needs no test, or there is no verdict."""
    condition: Criterion | None = None

    @property
    def whole(self) -> Criterion:
        return quorum(self.claim.says, self.criteria, len(self.criteria))

    @property
    def decisive(self) -> int | None:
        """The index of the criterion that is least certain to be met; None if nothing was measured."""
        known = [k for k, criterion in enumerate(self.criteria) if criterion.met is not None]
        return max(known, key=lambda k: (not self.criteria[k].met, self.criteria[k].p_met), default=None)


def judge(
    claims: Sequence[Claim], measured: Measured, printed: Measured, seeds: int = SEEDS
) -> dict[str, list[Judgement]]:
    """Tests all claims of a page, by paper.

    A claim is supported if all of its criteria are met: an intersection-union test, whose p-value is the largest of the
    criteria's. It is contradicted if any criterion is not met: the p-value is the smallest one against a criterion times the
    number of criteria (Bonferroni). The two-sided p-value of a claim is twice the smaller of these two, which also gives the
    direction. The p-values of a page go through the procedure of Benjamini and Hochberg, which is proven for independent or
    positively dependent p-values. Claims that share a row of a table may be correlated in either direction;
    `tests/experiments/test_statistics.py` simulates this.
    """
    weighed = [_weigh(claim, measured, printed, seeds) for claim in claims]
    family = [each.p for each in weighed if each.p is not None]
    rejected = int((stats.false_discovery_control(family) <= FALSE_DISCOVERIES).sum()) if family else 0
    # The threshold of the page's p-values, and the threshold if the page had one more verdict.
    level, next_level = (
        FALSE_DISCOVERIES * n / max(len(family), 1) for n in (rejected, min(rejected + 1, len(family)))
    )
    by_paper: dict[str, list[Judgement]] = {}
    for each in weighed:
        by_paper.setdefault(each.claim.paper, []).append(_decide(each, level, next_level))
    return by_paper


def _weigh(claim: Claim, measured: Measured, printed: Measured, seeds: int) -> Judgement:
    """A claim with its verdict, or with the p-value from which the page decides."""
    criteria, theirs = (
        [each for check in claim.checks for each in check.criteria(cells)] for cells in (measured, printed)
    )
    needed = [criterion for check in claim.needs for criterion in check.criteria(measured)]
    condition = None
    if needed:
        says = " and ".join(dict.fromkeys(criterion.says for criterion in needed))
        condition = needed[0] if len(needed) == 1 else quorum(says, needed, len(needed))
    made = Judgement(claim, criteria, theirs, condition=condition)
    settled = _settle(made, measured.scale, seeds)
    if settled is not None:
        return dataclasses.replace(made, verdict=settled[0], remark=settled[1])
    if condition is not None and condition.n < seeds:
        remark = f"{condition.n} of {seeds} seeds of its condition"
        return dataclasses.replace(made, verdict=Verdict.UNMEASURED, remark=remark)
    if condition is not None and condition.p_met > FALSE_DISCOVERIES:
        # It stays in the page's family of tests, because a measurement excluded it.
        remark = f"condition not met: p = {condition.p_met:.2g}"
        return dataclasses.replace(made, verdict=Verdict.UNTESTABLE, remark=remark, p=1.0)
    return dataclasses.replace(made, p=min(1.0, 2 * min(made.whole.p_met, made.whole.p_unmet)))


def _settle(made: Judgement, scale: str, seeds: int) -> tuple[Verdict, str] | None:
    """The verdict if it needs no test, with a remark; None if it depends on the seeds."""
    claim, criteria = made.claim, made.criteria
    if not criteria:
        return Verdict.UNCHECKED, ""
    seeded = [criterion for criterion in criteria if criterion.has_seeds]
    timed = any(criterion.device for criterion in criteria)
    if scale == SCALES[0] and (seeded or timed or claim.accelerator):
        return (Verdict.NONE, "") if any(criterion.n for criterion in criteria) else (Verdict.UNMEASURED, "")
    if scale != SCALES[-1] and claim.untestable:
        return Verdict.UNTESTABLE, claim.untestable
    if scale != SCALES[-1] and claim.repeats:
        return Verdict.REPEATED, claim.repeats
    enough = [criterion.n >= (seeds if criterion.has_seeds else 1) for criterion in criteria]
    on_cpu = any(criterion.device == "cpu" for criterion in criteria)
    if claim.accelerator and (on_cpu or not all(enough)):
        return Verdict.ACCELERATOR, "measured on a CPU" if on_cpu else ""
    if not all(enough):
        wanted = f"{min(criterion.n for criterion in seeded)} of {seeds} seeds; " if seeded else ""
        return Verdict.UNMEASURED, f"{wanted}{sum(enough)} of {len(enough)} criteria measured"
    if not seeded:
        return Verdict.SUPPORTED if _met(criteria) else Verdict.CONTRADICTED, ""
    return None


def _met(criteria: Sequence[Criterion]) -> bool | None:
    met = [criterion.met for criterion in criteria]
    return None if not met or None in met else all(met)


def _decide(made: Judgement, level: float, next_level: float) -> Judgement:
    """The verdict, from the page's threshold of p-values and the threshold with one more verdict."""
    if made.p is None or made.verdict is not Verdict.INCONCLUSIVE:
        return made
    whole = made.whole
    if made.p <= level:
        verdict = Verdict.SUPPORTED if whole.p_met < whole.p_unmet else Verdict.CONTRADICTED
        return dataclasses.replace(made, verdict=verdict)
    needed = whole.seeds_needed(next_level / 2, bool(whole.met))
    about = f"about {needed:,}" if needed < math.inf else f"more than {statistics.MAX_SEEDS:,}"
    return dataclasses.replace(made, remark=f"{about} seeds needed")
