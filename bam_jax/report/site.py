"""A static site of many runs: an index, a page an experiment, a page a run; one folder that needs no network."""

import dataclasses
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.config import Config
from bam_jax.experiments import experiment, recorded_runs, results
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.experiment_json import read_description
from bam_jax.experiments.recorded_runs import RecordedRun
from bam_jax.experiments.results import Run
from bam_jax.render import page, style
from bam_jax.render.learned import Heads
from bam_jax.render.page import Link, Section
from bam_jax.report import claims_page, folder_page, index_page, paper_page, run_page
from bam_jax.report.index_page import CLAIMS, INDEX, folder_file, paper_file, run_file
from bam_jax.report.left_out import LeftOut
from bam_jax.report.progress import Progress, compare_with_runs, load_with_tables
from bam_jax.report.run_priors import find_priors
from bam_jax.system import console
from bam_jax.system.errors import UserError
from bam_jax.system.files import keep_other, write_atomically
from bam_jax.training import run_folder

EXPERIMENTS = Path("experiments")
PAPERS = ("bam_*.py", "cable_*.py")
"""The files of the papers' experiments in the clone."""
PAPERS_CLAIMS = EXPERIMENTS / "claims" / "papers.toml"

TITLE_START = "What was found in"
"""Its index is known by it."""

type Descriptions = Mapping[Path, Mapping[str, Any]]
"""Experiments with a folder of their own: `experiment.json` by the folder."""


def find_papers(folder: Path) -> list[Path]:
    """The papers' experiments that have tables.

    Args:
        folder: of the runs.

    Raises:
        UserError: the current directory is not the clone, or a file is no experiment.
    """
    files = [path for pattern in PAPERS for path in EXPERIMENTS.glob(pattern)]
    if not files:
        raise UserError(
            f"--scale adds the papers' experiments, and there is no {EXPERIMENTS}/{PAPERS[0]} here; run this in a clone of "
            "bam_jax, give experiment files after the folder, or leave --scale out"
        )
    return [path for path in files if experiment.load(path, runs=folder).tables]


def write(
    folder: Path, files: Sequence[Path], out: Path, *, scale: str | None = None, claims: Path | None = None
) -> Path:
    """Writes the site; its index at last, so that an interrupted one is still the old one.

    Args:
        folder: of the runs.
        files: experiments with tables of a paper.
        out: the site's folder.
        scale: "toy", "small" or "paper"; None: toy.
        claims: the file of the papers' claims; None: they are left out.

    Returns:
        the path of index.html.

    Raises:
        UserError: no run in the folder that can be read, an experiment without tables, or another file that cannot be read;
            runs that cannot are left out.
    """
    style.library()  # nothing is written without it
    descriptions = {path.parent: read_description(path.parent) for path in sorted(folder.glob("*/experiment.json"))}
    left_out = LeftOut()
    papers = _read_papers(files, folder, scale, left_out)
    recorded = _find_recorded(papers, descriptions, folder)
    commands = _find_commands(papers, descriptions, folder)
    runs, configs = _read_runs(_find_runs(folder, descriptions, recorded), recorded, commands, left_out)
    if not runs:
        none = f"{folder} has no runs; make some with python -m bam_jax.sweep, or add --scale=small for the papers' records"
        raise UserError(left_out.lines[0] if left_out.lines else none)
    given = [f"--scale={scale}"] if scale else []
    again = shlex.join(["python", "-m", "bam_jax.report", str(folder), *given])
    priors: dict[str, Heads] = {}
    keep_other(out / INDEX, f"<title>{TITLE_START}")
    out.mkdir(parents=True, exist_ok=True)
    with console.progress(len(runs) + len(papers) + len(descriptions) + (claims is not None), unit="page") as bar:

        def save(name: str, title: str, sections: Iterable[Section]) -> None:
            keep_other(out / name, page.HEAD)
            write_atomically(out / name, page.to_html(title, list(sections), [Link("All experiments", INDEX)]))
            bar.update()

        for paper in [*papers]:
            with left_out.reading(f"the page of {paper.path}"):
                sections = paper_page.page_sections(paper, runs, run_file, folder, given)
                save(paper_file(paper.path), paper.made.heading, sections)
                continue
            papers.remove(paper)
        uses = _find_uses(papers, descriptions, folder)
        for name, run in runs.items():
            # Read once, and page by page, since restoring a model takes longer than all the rest.
            with left_out.reading(f"the priors of {name}"):
                priors |= find_priors([run], folder)
            learned, links = priors.get(name), uses.get(name, [])
            sections = run_page.page_sections(run, configs[name], folder / name, learned, links, again)
            save(run_file(name), name, sections)
        for path, description in descriptions.items():
            save(folder_file(path), description["title"], _folder_page(path, description, runs, priors, folder))
        judged = None
        if claims is not None:
            with left_out.reading("the page of the papers' claims"):
                found = claims_page.judge(claims, folder, scale or SCALES[0])
                judged = found.by_paper
                pages = {paper.path.stem for paper in papers}
                save(CLAIMS, found.file.title, claims_page.page_sections(found, scale or SCALES[0], pages))
    index = index_page.page_sections(papers, descriptions, runs, configs, folder, claims=judged)
    place = folder if _find_runs(folder, descriptions, {}) else "the records of sweeps"
    title = f"{TITLE_START} {place}" + (f", {scale or SCALES[0]} scale" if papers else "")
    write_atomically(out / INDEX, page.to_html(title, [*left_out.sections(), *index]))
    left_out.say()
    return out / INDEX


def _read_papers(files: Sequence[Path], folder: Path, scale: str | None, left_out: LeftOut) -> list[Progress]:
    """The experiments compared with their runs; a table lacks no run that is there, so that one is left out as a whole."""
    papers = []
    for path in sorted(files, key=_by_number):
        made = load_with_tables(path, folder, scale)
        with left_out.reading(f"the page of {path}"):
            papers.append(compare_with_runs(path, made, folder))
    return papers


def _find_recorded(papers: Sequence[Progress], descriptions: Descriptions, folder: Path) -> dict[str, RecordedRun]:
    """The runs in the folders of records of all experiments, by their names."""
    found: dict[str, RecordedRun] = {}
    for progress in papers:
        for job in progress.planned:
            run = recorded_runs.find(progress.made.records, job.digest)
            if run is not None:
                found[job.name] = run
    for path, description in descriptions.items():
        own = results.find_recorded(description)
        found |= {str((path / name).relative_to(folder)): run for name, run in own.items()}
    return found


def _find_runs(folder: Path, descriptions: Descriptions, recorded: Mapping[str, RecordedRun]) -> dict[str, Path]:
    """The folders of all runs by their names, which are paths from the folder of the runs; recorded ones need not be there."""
    if (folder / "config.json").exists():
        raise UserError(f"{folder} is itself a run; give the folder that holds it, {folder.parent}")
    found = [path.parent for place in (folder, *descriptions) for path in sorted(place.glob("*/config.json"))]
    return {str(path.relative_to(folder)): path for path in found} | {name: folder / name for name in recorded}


def _read_runs(
    paths: Mapping[str, Path],
    recorded: Mapping[str, RecordedRun],
    commands: Mapping[str, Sequence[str]],
    left_out: LeftOut,
) -> tuple[dict[str, Run], dict[str, Config]]:
    """The runs that can be read, and their configurations, by name."""
    runs, configs = {}, {}
    for name, path in paths.items():
        with left_out.reading(str(path)):
            config = (
                run_folder.read_config(path) if os.path.lexists(path / run_folder.CONFIG) else recorded[name].config
            )
            made_by = commands[name] if name in commands else run_page.training_commands(config, path)
            known = recorded[name] if name in recorded else None
            run = results.read_run(path, seed=config.seed, commands=made_by, recorded=known)
            run_folder.latest_step(path)  # it is a part of every page
            runs[name], configs[name] = dataclasses.replace(run, name=name, label=name), config
    return runs, configs


def _folder_page(
    path: Path, description: Mapping[str, Any], runs: Mapping[str, Run], priors: Mapping[str, Heads], folder: Path
) -> list[Section]:
    """The page of an experiment with a folder of its own, whose runs are called there by their own names."""
    own, learned = [], {}
    for entry in description["runs"]:
        name = str((path / entry["name"]).relative_to(folder))
        own.append(results.as_row(runs[name] if name in runs else results.no_run(entry["name"]), entry))
        if name in priors:
            learned[entry["name"]] = priors[name]
    return folder_page.page_sections(description, own, path, learned)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """A key that sorts figure 10 after figure 9."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.stem)]


def _find_commands(papers: Sequence[Progress], descriptions: Descriptions, folder: Path) -> dict[str, list[str]]:
    """The command that trains each run, and the evaluations of all experiments that it belongs to."""
    # The keys of a dict are an ordered set: experiments that share a run share some of its evaluations.
    commands: dict[str, dict[str, None]] = defaultdict(dict)
    for progress in papers:
        for job in progress.planned:
            train, *evaluations = [shlex.join(["python", "-m", *command]) for command in job.commands(folder)]
            if job.row.train:
                known = job.name in commands
                commands[job.name] |= dict.fromkeys(evaluations if known else [train, *evaluations])
    for path, description in descriptions.items():
        for entry in description["runs"]:
            commands[str((path / entry["name"]).relative_to(folder))] = dict.fromkeys(entry["commands"])
    here = f"{Path.cwd()}/"
    return {name: [command.replace(here, "") for command in found] for name, found in commands.items()}


def _find_uses(papers: Sequence[Progress], descriptions: Descriptions, folder: Path) -> dict[str, list[Link]]:
    """The experiments that each run belongs to, each once; a run that no experiment names is left out."""
    uses: dict[str, dict[Link, None]] = defaultdict(dict)
    for progress in papers:
        for job in progress.planned:
            if job.row.train:
                uses[job.name][Link(progress.made.heading, paper_file(progress.path))] = None
    for path, description in descriptions.items():
        for entry in description["runs"]:
            name = str((path / entry["name"]).relative_to(folder))
            uses[name][Link(description["title"], folder_file(path))] = None
    return {name: list(links) for name, links in uses.items()}
