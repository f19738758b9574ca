"""The index of a site: the experiments with their status, then all runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.config import Config
from bam_jax.experiments.claims import TITLE, Judgement, Verdict
from bam_jax.experiments.results import Run
from bam_jax.render.page import Link, Section, Table, Words
from bam_jax.report.claims_page import count_verdicts
from bam_jax.report.paper_page import caveat, findings
from bam_jax.report.progress import Progress, Status, describe_training

INDEX = "index.html"
CLAIMS = "claims.html"
FEW = 12
"""Runs that the index lists without being asked."""


def run_file(name: str) -> str:
    """The file of a run's page."""
    return f"run-{name.replace('/', '.')}.html"


def paper_file(path: Path) -> str:
    """The page's file of an experiment with a paper's tables, by the experiment's own file."""
    return f"{path.stem}.html"


def folder_file(path: Path) -> str:
    """The page's file of an experiment with a folder of its own."""
    return f"folder-{path.name}.html"


def page_sections(
    papers: Sequence[Progress],
    descriptions: Mapping[Path, Mapping[str, Any]],
    runs: Mapping[str, Run],
    configs: Mapping[str, Config],
    folder: Path,
    *,
    claims: Mapping[str, Sequence[Judgement]] | None,
) -> list[Section]:
    """The page's sections, in their order.

    Args:
        papers: experiments with a paper's tables.
        descriptions: those with a folder of their own.
        runs: all runs by name.
        configs: theirs.
        folder: of the runs.
        claims: the papers' claims, judged, by paper; None: they have no page.
    """
    sections = []
    if claims is not None:
        sections.append(_claims_section(claims))
    if papers:
        sections += _papers_sections(papers)
    if descriptions:
        sections.append(_folders_section(descriptions, runs, folder))
    sections.append(_runs_section(runs, configs, folder))
    return sections


def _claims_section(judged: Mapping[str, Sequence[Judgement]]) -> Section:
    """The number of the papers' claims with each verdict."""
    shown = [verdict for verdict in Verdict if any(count_verdicts(said, verdict) for said in judged.values())]
    rows: list[list[Words]] = [
        [verdict.value, *(f"{count_verdicts(said, verdict)}" for said in judged.values())] for verdict in shown
    ]
    return Section(
        "The papers' claims",
        "Each with its criterion, interval and number of seeds:",
        items=[Link(TITLE, CLAIMS)],
        table=Table(["verdict", *judged], rows),
    )


def _papers_sections(papers: Sequence[Progress]) -> list[Section]:
    """The findings, experiment by experiment; then, folded, the experiments of which nothing is measured."""
    counts = Counter(progress.status for progress in papers)
    found: list[list[Words]] = []
    waiting: list[Words] = []
    for progress in papers:
        link = Link(progress.made.title, paper_file(progress.path))
        if progress.status in (Status.DONE, Status.PART):
            cells = f"{progress.status.value[0]} {len(progress.settled)} of {len(progress.asked)}"
            found.append([link, " ".join(findings(progress)), cells])
        else:
            waiting.append(link)
    sections = []
    if found:
        progressed = ", ".join(f"{counts[status]} {status.value}" for status in Status)
        caveats = " ".join(dict.fromkeys(filter(None, (caveat(progress.made) for progress in papers))))
        text = f"{progressed}. A finding compares means and is no verdict. {caveats}"
        table = Table(["experiment", "at the longest length", "cells measured"], found)
        sections.append(Section("Tables and figures of the papers", text, table=table))
    if waiting:
        title = f"Experiments of which nothing is measured here: {len(waiting)}"
        sections.append(Section(title, items=waiting, folded=bool(found)))
    return sections


def _folders_section(descriptions: Mapping[Path, Mapping[str, Any]], runs: Mapping[str, Run], folder: Path) -> Section:
    rows: list[list[Words]] = []
    for path, description in descriptions.items():
        names = [str((path / entry["name"]).relative_to(folder)) for entry in description["runs"]]
        begun = sum(name in runs and bool(runs[name].cells) for name in names)
        rows.append([Link(description["title"], folder_file(path)), f"{begun} of {len(names)}"])
    return Section("Experiments with a folder of their own", table=Table(["experiment", "runs measured"], rows))


def _runs_section(runs: Mapping[str, Run], configs: Mapping[str, Config], folder: Path) -> Section:
    rows: list[list[Words]] = []
    for name, run in runs.items():
        config = configs[name]
        sizes = f"{config.model.layers}×{config.model.width}"
        loss = f"{run.metrics['loss']:.3f}" if run.metrics else ""
        progress = [describe_training(run, folder / name), loss]
        rows.append([Link(name, run_file(name)), sizes, f"{config.context}", *progress, f"{len(run.cells)}"])
    head = ["run", "layers×width", "context", "steps", "last loss", "measurements"]
    return Section(f"All runs: {len(runs)}", table=Table(head, rows), folded=len(runs) > FEW)
