"""The index of a site: the experiments with their status, then all runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.config import Config
from bam_jax.experiments.claims import TITLE
from bam_jax.experiments.results import Run
from bam_jax.render.page import Link, Section, Table, Words
from bam_jax.report.progress import Progress, Status, describe_training

INDEX = "index.html"
CLAIMS = "claims.html"


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
    claims: bool,
) -> list[Section]:
    """The page's sections, in their order.

    Args:
        papers: experiments with a paper's tables.
        descriptions: those with a folder of their own.
        runs: all runs by name.
        configs: theirs.
        folder: of the runs.
        claims: whether the papers' claims have a page.
    """
    sections = []
    if papers:
        sections.append(_papers_section(papers))
    if claims:
        sections.append(Section("The papers' claims", items=[Link(TITLE, CLAIMS)]))
    if descriptions:
        sections.append(_folders_section(descriptions, runs, folder))
    sections.append(_runs_section(runs, configs, folder))
    return sections


def _papers_section(papers: Sequence[Progress]) -> Section:
    counts = Counter(progress.status for progress in papers)
    rows: list[list[Words]] = []
    for progress in papers:
        sign = progress.status.value[0]
        asked = len(progress.asked)
        link = Link(progress.made.title, paper_file(progress.path))
        rows.append([link, f"{sign} {len(progress.settled)} of {asked}" if asked else sign])
    text = ", ".join(f"{counts[status]} {status.value}" for status in Status)
    return Section("Tables and figures of the papers", text, table=Table(["", "cells measured"], rows))


def _folders_section(descriptions: Mapping[Path, Mapping[str, Any]], runs: Mapping[str, Run], folder: Path) -> Section:
    rows: list[list[Words]] = []
    for path, description in descriptions.items():
        names = [str((path / entry["name"]).relative_to(folder)) for entry in description["runs"]]
        begun = sum(name in runs and bool(runs[name].cells) for name in names)
        rows.append([Link(description["title"], folder_file(path)), f"{begun} of {len(names)}"])
    return Section("Experiments with a folder of their own", table=Table(["", "runs measured"], rows))


def _runs_section(runs: Mapping[str, Run], configs: Mapping[str, Config], folder: Path) -> Section:
    rows: list[list[Words]] = []
    for name, run in runs.items():
        config = configs[name]
        sizes = f"{config.model.layers}×{config.model.width}"
        loss = f"{run.metrics['loss']:.3f}" if run.metrics else ""
        progress = [describe_training(run, folder / name), loss]
        rows.append([Link(name, run_file(name)), sizes, f"{config.context}", *progress, f"{len(run.cells)}"])
    head = ["", "layers×width", "context", "steps", "last loss", "measurements"]
    return Section("Runs", f"{len(runs)} of them.", table=Table(head, rows))
