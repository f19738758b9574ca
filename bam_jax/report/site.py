"""A static site of many runs: an index and a page for each experiment and run, in one folder that needs no network."""

import dataclasses
import glob
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.config import Config
from bam_jax.experiments import experiment, frame, recorded_runs, results
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.experiment_json import read_description
from bam_jax.experiments.recorded_runs import RecordedRun
from bam_jax.experiments.results import Run
from bam_jax.render import style
from bam_jax.render.learned import Heads
from bam_jax.report import comparison, folder_page, page, paper_page, run_page
from bam_jax.report.learned import find_run_priors
from bam_jax.report.page import Link, Section, Skipped, Table, Words
from bam_jax.report.paper_page import Progress, Status, read_progress
from bam_jax.report.run_page import describe_training
from bam_jax.system import console
from bam_jax.system.errors import UserError
from bam_jax.system.files import keep_other, write_atomically
from bam_jax.training import run_folder

INDEX = "index.html"
TITLE_START = "What was found in"  # by which the command recognises its own index
FEW = 12  # largest number of runs that the index lists unfolded

type Descriptions = Mapping[Path, Mapping[str, Any]]
"""The contents of experiment.json by folder."""


def _described_runs(descriptions: Descriptions, folder: Path) -> Iterator[tuple[Path, Mapping[str, Any], str]]:
    """The runs of all descriptions: the experiment's folder, its entry for the run, and the run's path relative to `folder`."""
    for path, description in descriptions.items():
        for entry in description["runs"]:
            yield path, entry, str((path / entry["name"]).relative_to(folder))


def write(folder: Path, files: Sequence[Path], out: Path, *, scale: str | None = None) -> Path:
    """Writes the site, its index last, so that an interrupted write leaves the old one; returns the path of index.html."""
    style.library()  # fail before anything is written
    descriptions = {path.parent: read_description(path.parent) for path in sorted(folder.glob("*/experiment.json"))}
    skipped = Skipped()
    papers = _read_papers(files, folder, scale, skipped)
    recorded = _find_recorded(papers, descriptions, folder)
    commands = _find_commands(papers, descriptions, folder)
    runs, configs = _read_runs(_find_runs(folder, descriptions, recorded), recorded, commands, skipped)
    if not runs:
        make = "python -m bam_jax.train or bam_jax.sweep"
        none = f"{folder} has no runs; make some with {make}, or give experiments that have records after it"
        raise UserError(skipped.lines[0] if skipped.lines else none)
    given = [f"--scale={scale}"] if scale else []
    again = shlex.join(["python", "-m", "bam_jax.report", str(folder), *map(str, files), *given])
    priors: dict[str, Heads] = {}
    keep_other(out / INDEX, f"<title>{TITLE_START}")
    out.mkdir(parents=True, exist_ok=True)
    with console.progress(len(runs) + len(papers) + len(descriptions), unit="page") as bar:

        def save(name: str, title: str, sections: Sequence[Section]) -> None:
            keep_other(out / name, page.HEAD)
            write_atomically(out / name, page.to_html(title, sections, [Link("All experiments", INDEX)]))
            bar.update()

        for paper in [*papers]:
            with skipped.reading(f"the page of {paper.path}"):
                sections = paper_page.page_sections(paper, runs, run_file, folder, given)
                save(paper_file(paper.path), paper.made.heading, sections)
                continue
            papers.remove(paper)
        uses = _find_uses(papers, descriptions, folder)
        for name, run in runs.items():
            # Read once: restoring a model takes longer than everything else.
            with skipped.reading(f"the priors of {name}"):
                if found := find_run_priors(run, folder):
                    priors[name] = found
            links = uses.get(name, [])
            sections = run_page.page_sections(run, configs[name], folder / name, priors.get(name), links, again)
            save(run_file(name), name, sections)
        for path, description in descriptions.items():
            save(folder_file(path), description["title"], _folder_sections(path, description, runs, priors, folder))
    own = [name for name, run in runs.items() if name not in uses and run.cells and run.heads is None]
    compared = _compared_sections([folder / name for name in own], skipped)
    index = [
        *skipped.sections(),
        *compared,
        *_runs_sections("Your runs", [run for run in runs.values() if run.heads is None], configs, folder),
        *([_folders_section(descriptions, runs, folder)] if descriptions else []),
        *_papers_sections(papers),
        *_runs_sections("Recorded runs", [run for run in runs.values() if run.heads is not None], configs, folder),
    ]
    place = folder if _find_runs(folder, descriptions, {}) else "the records of sweeps"
    title = f"{TITLE_START} {place}" + (f", {scale or SCALES[0]} scale" if papers else "")
    write_atomically(out / INDEX, page.to_html(title, index))
    skipped.log()
    return out / INDEX


def _compared_sections(runs: Sequence[Path], skipped: Skipped) -> list[Section]:
    """The runs that belong to no experiment, side by side; nothing if fewer than two have results."""
    if len(runs) < 2:
        return []
    with skipped.reading("the comparison of your runs"):
        return comparison.sections(frame.results([glob.escape(str(run)) for run in runs]))
    return []


def run_file(name: str) -> str:
    return f"run-{name.replace('/', '.')}.html"


def paper_file(path: Path) -> str:
    return f"{path.stem}.html"


def folder_file(path: Path) -> str:
    return f"folder-{path.name}.html"


def _read_papers(files: Sequence[Path], folder: Path, scale: str | None, skipped: Skipped) -> list[Progress]:
    """The experiments with their cells, figure 10 after figure 9; without those that have an unreadable run."""
    papers = []
    by_number = lambda path: [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.stem)]
    for path in sorted(files, key=by_number):
        made = experiment.load(path, runs=folder, scale=scale)
        if not made.tables:
            raise UserError(f"{path} has no tables of a paper; give python -m bam_jax.report the folder of its runs")
        with skipped.reading(f"the page of {path}"):
            papers.append(read_progress(path, made, folder))
    return papers


def _find_recorded(papers: Sequence[Progress], descriptions: Descriptions, folder: Path) -> dict[str, RecordedRun]:
    every = [(job.name, progress.made.records, job.digest) for progress in papers for job in progress.planned]
    found = {name: run for name, file, digest in every if (run := recorded_runs.find(file, digest)) is not None}
    for path, description in descriptions.items():
        own = results.find_recorded(description)
        found |= {str((path / name).relative_to(folder)): run for name, run in own.items()}
    return found


def _find_runs(folder: Path, descriptions: Descriptions, recorded: Mapping[str, RecordedRun]) -> dict[str, Path]:
    """The folders of all runs, recorded ones included, by their paths from the folder."""
    if (folder / "config.json").exists():
        raise UserError(f"{folder} is itself a run; give the folder that holds it, {folder.parent}")
    found = [path.parent for place in (folder, *descriptions) for path in sorted(place.glob("*/config.json"))]
    return {str(path.relative_to(folder)): path for path in found} | {name: folder / name for name in recorded}


def _read_runs(
    paths: Mapping[str, Path],
    recorded: Mapping[str, RecordedRun],
    commands: Mapping[str, Sequence[str]],
    skipped: Skipped,
) -> tuple[dict[str, Run], dict[str, Config]]:
    runs, configs = {}, {}
    for name, path in paths.items():
        with skipped.reading(str(path)):
            here = os.path.lexists(path / run_folder.CONFIG)
            config = run_folder.read_config(path) if here else recorded[name].config
            made_by = commands.get(name) or run_page.training_commands(config, path)
            run = results.read_run(path, seed=config.seed, commands=made_by, recorded=recorded.get(name))
            run_folder.latest_step(path)  # every page needs it
            runs[name], configs[name] = dataclasses.replace(run, name=name, label=name), config
    return runs, configs


def _folder_sections(
    path: Path, description: Mapping[str, Any], runs: Mapping[str, Run], priors: Mapping[str, Heads], folder: Path
) -> list[Section]:
    """The page of an experiment with its own folder, in which runs have short names."""
    own, learned = [], {}
    for _, entry, name in _described_runs({path: description}, folder):
        own.append(results.as_row(runs.get(name) or results.no_run(entry["name"]), entry))
        if name in priors:
            learned[entry["name"]] = priors[name]
    return folder_page.page_sections(description, own, path, learned)


def _find_commands(papers: Sequence[Progress], descriptions: Descriptions, folder: Path) -> dict[str, list[str]]:
    """The command that trains each run, and the evaluations of all its experiments."""
    # Keys as an ordered set: experiments that share a run share some evaluations.
    commands: dict[str, dict[str, None]] = defaultdict(dict)
    for progress in papers:
        for job in progress.planned:
            train, *evaluations = [shlex.join(["python", "-m", *command]) for command in job.commands(folder)]
            if job.row.train:
                known = job.name in commands
                commands[job.name] |= dict.fromkeys(evaluations if known else [train, *evaluations])
    for _, entry, name in _described_runs(descriptions, folder):
        commands[name] = dict.fromkeys(entry["commands"])
    here = f"{Path.cwd()}/"
    return {name: [command.replace(here, "") for command in found] for name, found in commands.items()}


def _find_uses(papers: Sequence[Progress], descriptions: Descriptions, folder: Path) -> dict[str, list[Link]]:
    uses: dict[str, dict[Link, None]] = defaultdict(dict)
    for progress in papers:
        for job in progress.planned:
            if job.row.train:
                uses[job.name][Link(progress.made.heading, paper_file(progress.path))] = None
    for path, _, name in _described_runs(descriptions, folder):
        uses[name][Link(descriptions[path]["title"], folder_file(path))] = None
    return {name: list(links) for name, links in uses.items()}


def _papers_sections(papers: Sequence[Progress]) -> list[Section]:
    """The findings by experiment; then, folded, the experiments without measurements."""
    counts = Counter(progress.status for progress in papers)
    found: list[list[Words]] = []
    waiting: list[Words] = []
    for progress in papers:
        link = Link(progress.made.title, paper_file(progress.path))
        if progress.status in (Status.DONE, Status.PART):
            cells = f"{progress.status.value[0]} {len(progress.settled)} of {len(progress.asked)}"
            found.append([link, " ".join(paper_page.findings(progress)), cells])
        else:
            waiting.append(link)
    sections = []
    if found:
        progressed = ", ".join(f"{counts[status]} {status.value}" for status in Status)
        caveats = " ".join(dict.fromkeys(filter(None, (paper_page.caveat(progress.made) for progress in papers))))
        text = f"{progressed}. A finding compares means and is no verdict. {caveats}"
        table = Table(["experiment", "at the longest length", "cells measured"], found)
        sections.append(Section("Tables and figures of the papers", text, table=table))
    if waiting:
        title = f"Experiments of which nothing is measured here: {len(waiting)}"
        sections.append(Section(title, items=waiting, folded=bool(found)))
    return sections


def _folders_section(descriptions: Descriptions, runs: Mapping[str, Run], folder: Path) -> Section:
    rows: list[list[Words]] = []
    for path, description in descriptions.items():
        names = [name for _, _, name in _described_runs({path: description}, folder)]
        begun = sum(name in runs and bool(runs[name].cells) for name in names)
        rows.append([Link(description["title"], folder_file(path)), f"{begun} of {len(names)}"])
    return Section("Experiments with a folder of their own", table=Table(["experiment", "runs measured"], rows))


def _runs_sections(title: str, runs: Sequence[Run], configs: Mapping[str, Config], folder: Path) -> list[Section]:
    rows: list[list[Words]] = []
    for run in runs:
        config = configs[run.name]
        sizes = f"{config.model.layers}×{config.model.width}"
        loss = f"{run.metrics['loss']:.3f}" if run.metrics else ""
        progress = [describe_training(run, folder / run.name), loss]
        rows.append([Link(run.name, run_file(run.name)), sizes, f"{config.context}", *progress, f"{len(run.cells)}"])
    head = ["run", "layers×width", "context", "steps", "last loss", "measurements"]
    return [Section(f"{title}: {len(runs)}", table=Table(head, rows), folded=len(runs) > FEW)] if runs else []
