"""A static site of many runs: an index, a page an experiment, a page a run; one folder that needs no network."""

import dataclasses
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.experiments import claims, results
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.manifest import read_manifest
from bam_jax.experiments.results import Run
from bam_jax.render import page
from bam_jax.render.page import Link, Section, Table, Words
from bam_jax.report import experiments
from bam_jax.report import folder as reports
from bam_jax.report import runs as pages
from bam_jax.report.standing import STATUSES, Standing, standing, state
from bam_jax.system import console
from bam_jax.system.errors import UserError
from bam_jax.system.files import write_atomically
from bam_jax.training import run_folder

INDEX = "index.html"
CLAIMS = "claims.html"


def write(
    folder: Path, files: Sequence[Path], out: Path, *, scale: str | None = None, said: Path | None = None
) -> Path:
    """Writes the site; its index at last, so that an interrupted one is still the old one.

    Args:
        folder: of the runs.
        files: experiments with tables of a paper.
        out: the site's folder.
        scale: "toy" or "paper"; None: toy.
        said: the file of the papers' claims; None: they are left out.

    Returns:
        the path of index.html.

    Raises:
        UserError: no run in the folder, an experiment without tables, or a file that cannot be read.
    """
    own = {path.parent: read_manifest(path.parent) for path in sorted(folder.glob("*/experiment.json"))}
    every = [path.parent for place in (folder, *own) for path in sorted(place.glob("*/config.json"))]
    if (folder / "config.json").exists():
        raise UserError(f"{folder} is itself a run; give the folder that holds it, {folder.parent}")
    if not every:
        raise UserError(f"{folder} has no runs; make some with python -m bam_jax.sweep, or give the folder of yours")
    again = shlex.join(["python", "-m", "bam_jax.report", str(folder)])
    given = [f"--scale={scale}"] if scale else []
    there = [standing(path, folder, scale) for path in sorted(files, key=_natural)]
    names = {path: str(path.relative_to(folder)) for path in every}
    made_by, uses = _commands(there, own, folder), _uses(there, own, folder)
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Run] = {}
    total = len(every) + len(there) + len(own) + (said is not None)
    with console.progress(total, unit="page") as bar:

        def save(name: str, title: str, parts: Sequence[Section]) -> None:
            write_atomically(out / name, page.to_html(title, parts, [Link("All experiments", INDEX)]))
            bar.update()

        for path, name in names.items():
            made = run_folder.read_config(path)
            commands = made_by[name] if name in made_by else [pages.command(made, path)]
            found[name] = dataclasses.replace(
                results.run(path, seed=made.seed, commands=commands), name=name, label=name
            )
            save(_run(name), name, pages.sections(found[name], path, uses[name], again))
        for each in there:
            save(_paper(each), each.made.title, experiments.sections(each, found, _run, folder, given))
        for path, manifest in own.items():
            runs = [_own_run(path / entry["name"], entry, found, folder) for entry in manifest["runs"]]
            save(_own(path), manifest["title"], reports.sections(manifest, runs, path))
        if said is not None:
            save(CLAIMS, claims.TITLE, claims.parts(said, folder, scale or SCALES[0]))
    index = _index(there, own, found, folder)
    if said is not None:
        index.insert(1, Section("The papers' claims", items=[Link(claims.TITLE, CLAIMS)]))
    write_atomically(out / INDEX, page.to_html(f"Experiments and runs in {folder}", index))
    return out / INDEX


def _natural(path: Path) -> list[tuple[int, str]]:
    """Figure 10 comes after figure 9."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.stem)]


def _run(name: str) -> str:
    return f"run-{name.replace('/', '.')}.html"


def _paper(each: Standing) -> str:
    return f"{each.path.stem}.html"


def _own(path: Path) -> str:
    return f"folder-{path.name}.html"


def _own_run(path: Path, entry: Mapping[str, Any], found: Mapping[str, Run], folder: Path) -> Run:
    """A run of an experiment with a folder of its own; its priors are not read twice."""
    name = str(path.relative_to(folder))
    return results.named(found[name] if name in found else results.run(path), entry)


def _commands(there: Sequence[Standing], own: Mapping[Path, Mapping[str, Any]], folder: Path) -> dict[str, list[str]]:
    """By run, what trains it, and the evaluations of all experiments that it belongs to."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for each in there:
        for job in each.planned:
            train, *evaluations = [shlex.join(["python", "-m", *command]) for command in job.commands(folder)]
            if job.row.train:
                known = job.name in found
                found[job.name] |= dict.fromkeys(evaluations if known else [train, *evaluations])
    for path, manifest in own.items():
        for entry in manifest["runs"]:
            found[str((path / entry["name"]).relative_to(folder))] = dict.fromkeys(entry["commands"])
    return {name: [command.replace(f"{Path.cwd()}/", "") for command in commands] for name, commands in found.items()}


def _uses(there: Sequence[Standing], own: Mapping[Path, Mapping[str, Any]], folder: Path) -> dict[str, list[Link]]:
    """By run, the experiments that it belongs to."""
    found: dict[str, dict[Link, None]] = defaultdict(dict)
    for each in there:
        for job in (job for job in each.planned if job.row.train):
            found[job.name][Link(each.made.title, _paper(each))] = None
    for path, manifest in own.items():
        for entry in manifest["runs"]:
            found[str((path / entry["name"]).relative_to(folder))][Link(manifest["title"], _own(path))] = None
    return defaultdict(list, {name: list(links) for name, links in found.items()})


def _index(
    there: Sequence[Standing], own: Mapping[Path, Mapping[str, Any]], found: Mapping[str, Run], folder: Path
) -> list[Section]:
    """What the index has: experiments with their status, then all runs."""
    parts = []
    if there:
        counts = Counter(each.status for each in there)
        text = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
        rows: list[list[Words]] = [
            [
                Link(each.made.title, _paper(each)),
                f"{each.status[0]} {f'{len(each.settled)} of {len(each.wanted)}' if each.wanted else ''}".strip(),
            ]
            for each in there
        ]
        parts.append(Section("Tables and figures of the papers", text, table=Table(["", "cells measured"], rows)))
    if own:
        rows = []
        for path, manifest in own.items():
            names = [str((path / entry["name"]).relative_to(folder)) for entry in manifest["runs"]]
            begun = sum(name in found and bool(found[name].cells) for name in names)
            rows.append([Link(manifest["title"], _own(path)), f"{begun} of {len(names)}"])
        parts.append(Section("Experiments with a folder of their own", table=Table(["", "runs measured"], rows)))
    rows = []
    for name, run in found.items():
        assert run.config is not None
        config = run.config
        sizes = f"{config.model.layers}×{config.model.width}"
        loss = f"{run.metrics['loss']:.3f}" if run.metrics else ""
        done = [state(run, folder / name), loss]
        rows.append([Link(name, _run(name)), sizes, f"{config.context}", *done, f"{len(run.cells)}"])
    head = ["", "layers×width", "context", "steps", "last loss", "measurements"]
    parts.append(Section("Runs", f"{len(found)} of them.", table=Table(head, rows)))
    return parts
