"""The page of the papers' claims, each held against what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bam_jax.analysis import priors
from bam_jax.evals import records
from bam_jax.experiments import claims, jobs, results
from bam_jax.experiments.checks import Check, Finding, Measured, Printed
from bam_jax.experiments.claims import Claim, Verdict
from bam_jax.render import page
from bam_jax.render.page import Section

TITLE = "What the papers claim, and what came out here"


def to_markdown(path: Path, folder: Path, scale: str) -> str:
    """The page as Markdown; arguments and errors as in `page_sections`."""
    return page.to_markdown(TITLE, page_sections(path, folder, scale))


def page_sections(path: Path, folder: Path, scale: str) -> list[Section]:
    """The page's sections: what the scale means, then every claim.

    Args:
        path: a Python file with `get_claims()` and `NOTES`, beside the experiments.
        folder: of the runs.
        scale: "toy" or "paper".

    Raises:
        UserError: a file without claims, no folder, or a run that cannot be read.
    """
    by_paper, notes = claims.load(path)
    results.require_folder(folder)
    measured, printed = Measured(folder, scale, path.parent), Printed(folder, "paper", path.parent)
    return [Section(f"At the {scale} scale", items=notes), *claims_sections(by_paper, measured, printed)]


def claims_sections(
    by_paper: Mapping[str, Sequence[Claim]], measured: Measured, printed: Measured
) -> Iterator[Section]:
    """A list for each paper, a point for each claim.

    Args:
        by_paper: the claims.
        measured: what they are held against.
        printed: the papers' own numbers, which they are held against as well.

    Raises:
        UserError: a claim names a cell that there is not.
    """
    for paper, said in by_paper.items():
        items, verdicts = [], []
        for claim in said:
            judged = claims.judge(claim, measured, printed)
            verdicts.append(judged.verdict)
            own = f" (by the paper's own numbers: {judged.printed.value})"
            if judged.printed in (Verdict.UNMEASURED, Verdict.UNCHECKED):
                own = ""
            evidence = ". ".join([*_worded(judged.evidence), *filter(None, [claim.why])])
            items.append(f"**{judged.verdict.value}**{own} · {claim.place}: {claim.says} — {evidence}.")
        counted = ", ".join(f"{each.value} {verdicts.count(each)}" for each in Verdict if each in verdicts)
        yield Section(paper, f"{len(items)} claims: {counted}.", items=items)


def _worded(findings: Sequence[Finding]) -> list[str]:
    """The words of findings, with their tables where those differ."""
    differ = len({finding.where for finding in findings}) > 1
    return [f"{finding.where}: {finding.says}" if differ and finding.where else finding.says for finding in findings]


def clusters(name: str, row: str, bounds: tuple[float, float]) -> Check:
    """A check that each of the three classes of learned shapes has a head, and the lowest class the fewest.

    It stands here and not with the other checks, which read tables: this one reads the weights of a run.

    Args:
        name: of the experiment's file, without ".py".
        row: whose first seed's priors are looked at.
        bounds: between the classes, ascending.

    Source: BAM, appendix H.8.
    """

    def check(measured: Measured) -> Finding:
        planned = [job for job in jobs.row_jobs(measured.load(name, measured.scale)) if job.row.label == row]
        run = measured.folder / planned[0].name
        if not (run / records.RESULTS).exists():
            return Finding(None, f"{row}: not trained")
        shapes = priors.learned_priors(run).shape.ravel()
        low, high = bounds
        below, above = int((shapes < low).sum()), int((shapes > high).sum())
        between = shapes.size - below - above
        says = f"{row}: {below} shapes below {low:g}, {between} from there to {high:g}, {above} above"
        return Finding(0 < below < min(between, above), says)

    return check
