"""Where results come from: the machines and the commits of the code that trained an experiment's models."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bam_jax.experiments import jobs, recorded_runs
from bam_jax.experiments.experiment import Experiment

TITLE = "Where the models were trained"
"""The heading of the lines that `describe` gives."""


def read_sources(made: Experiment, folder: Path) -> dict[str, Mapping[str, Any]]:
    """The `Source` of each model that an experiment has trained, by the digest of its configuration."""
    found = {}
    for job in jobs.row_jobs(made):
        recorded = recorded_runs.find(made.records, job.digest)
        source = recorded.source if recorded else recorded_runs.read_source(folder / job.name)
        if source is not None:
            found[job.digest] = source
    return found


def describe(sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each machine: how many models it trained, by which commits."""
    commits: dict[str, Counter[str]] = {}
    for source in sources:
        machine = source["machine"]
        cores = "" if machine["cores"] is None else f", {machine['cores']} core{'s' * (machine['cores'] != 1)} a model"
        device = "" if machine["device"] == "cpu" else f"{machine['device']}, "
        where = f"{device}{machine['processor']}{cores}, jax {machine['versions'].get('jax', 'of no version')}"
        commits.setdefault(where, Counter())[source["commit"] or "no checkout"] += 1
    return [
        f"{where}: {counts.total()} model{'s' * (counts.total() > 1)}, of the commits "
        f"{', '.join(f'{name} ({n})' for name, n in counts.items())}."
        for where, counts in sorted(commits.items())
    ]
