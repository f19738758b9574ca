"""Experiments that run together: their jobs, the cost of these, and the equivalent commands for a user."""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bam_jax.evals.passkey import Passkey
from bam_jax.experiments import benchmark, costs, experiment, recorded_runs, runner
from bam_jax.experiments.benchmark import Benchmark
from bam_jax.experiments.experiment import Experiment, Fetch, Preparation
from bam_jax.experiments.experiment_json import DESCRIPTION, read_description
from bam_jax.experiments.jobs import Job, jobs, with_later
from bam_jax.experiments.recording import Recorder
from bam_jax.system import files, jsonl, lock, regular
from bam_jax.system.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Experiments with one folder of runs: a single one, or several that share their runs, all on one platform."""

    experiments: tuple[Experiment, ...]
    named: tuple[str, ...]  # the command-line arguments that name them: files, corpus and scale
    folder: Path  # of the runs

    @classmethod
    def load(
        cls,
        paths: Sequence[str],
        *,
        source: str | None = None,
        scale: str | None = None,
        runs: Path | None = None,
        records: str | None = None,
    ) -> "Sweep":
        folder = runs or Path("runs") / Path(paths[0]).stem
        options = {"source": source, "scale": scale, "records": records}
        loaded = tuple(experiment.load(path, runs=folder, **options) for path in paths)
        for path, made in zip(paths, loaded, strict=True):
            _check_expected(made)
            if len(loaded) > 1 and not made.shared:
                raise UserError(f"{path} has a folder of runs and a report of its own; give it alone")
            if made.platform != loaded[0].platform:
                raise UserError(f"{path} and {paths[0]} are for different platforms; give them one by one")
            if made.records != loaded[0].records:
                where = (
                    f"the records of {path} belong into {made.records}, those of {paths[0]} into {loaded[0].records}"
                )
                raise UserError(f"{where}; give --records=FOLDER")
        named = (*paths, *(f"--{name}={value}" for name, value in options.items() if value is not None))
        # Experiments that share their runs have one folder; other experiments have their own subfolder.
        return cls(loaded, named, runs or (Path("runs") if loaded[0].shared else folder))

    @property
    def platform(self) -> str:
        """JAX_PLATFORMS of the jobs, unless the environment sets it."""
        return self.experiments[0].platform

    @property
    def recorder(self) -> Recorder:
        return Recorder(self.experiments[0].records, shlex.join(["python", "-m", "bam_jax.sweep", *self.named]))

    @functools.cached_property
    def rows(self) -> list[Job]:
        return jobs(*self.experiments)

    @functools.cached_property
    def benchmarks(self) -> list[Benchmark]:
        return benchmark.merge([each for made in self.experiments for each in made.benchmarks])

    @property
    def jobs(self) -> list[Job | Benchmark]:
        return [*self.rows, *self.benchmarks]

    @property
    def preparations(self) -> list[Preparation | Fetch]:
        return list(dict.fromkeys(each for made in self.experiments for each in made.preparations))

    def job(self, name: str) -> Job:
        found = {job.name: job for job in self.rows}
        if name not in found:
            raise UserError(f"no run {name}; {nearest(name, found, '--print')}")
        return found[name]

    def describe_costs(self, chip: str | None, utilisation: float) -> str:
        chip = chip or ("cpu" if self.platform == "cpu" else "h100")
        title = self.experiments[0].heading if len(self.experiments) == 1 else f"{len(self.experiments)} experiments"
        try:
            left = [job for job in self.find_unrecorded() if isinstance(job, Job)] if self.recorder.file else None
            text = costs.table(title, self.rows, chip, utilisation, left=left)
        except UserError as error:
            missing = [each for each in self.preparations if each.makes and not Path(each.makes).exists()]
            if not missing:
                raise
            raise UserError(f"{error}; or first {' && '.join(each.command() for each in missing)}") from error
        if self.benchmarks:
            text += f"\nbesides, models are compared in speed {len(self.benchmarks)} times, which trains nothing"
        return text

    def commands(self) -> list[str]:
        """A command for each job that is not recorded yet; after the preparations, it can run anywhere."""
        own = ["bam_jax.sweep", *self.named, f"--runs={self.folder}"]
        todo = self.find_unrecorded()
        commands = [[*own, f"--only={job.name}"] if isinstance(job, Job) else job.command(self.folder) for job in todo]
        return [shlex.join(["python", "-m", *command]) for command in commands]

    def describe(self) -> dict[str, Any]:
        """The `experiment.json` of an experiment with its own folder, which its report needs besides the runs' files."""
        (made,) = self.experiments
        order = [row.label for row in made.rows]
        trained = sorted(with_later(self.rows), key=lambda job: (order.index(job.row.label), job.seed))
        shell = lambda module, *arguments: shlex.join(["python", "-m", module, *arguments])
        runs = [
            {
                "name": job.name,
                "config": job.digest,
                "label": job.row.label,
                "seed": job.seed,
                "labels": [[dict(each.overrides), each.label] for each in job.row.evaluations if each.label],
                "commands": [shell(*command) for command in job.commands(self.folder)],
                "evaluations": [each.to_dict() for each in job.row.evaluations],
            }
            for job in trained
        ]
        return {
            "title": made.heading,
            "command": shell("bam_jax.sweep", *self.named, f"--runs={self.folder}"),
            "folder": str(self.folder),
            "claims": [dataclasses.asdict(expected) for expected in made.expected],
            "notes": list(made.notes),
            **({"records": str(made.records)} if made.records else {}),
            "runs": runs,
        }

    def run(self, count: int | None = None) -> list[Job | Benchmark]:
        """Do what is missing: first the preparations, then the jobs, `count` at a time; returns the failed jobs."""
        for each in self.benchmarks:
            if importlib.util.find_spec(each.module.partition(".")[0]) is None:
                missing = f"{each.module}, which is not installed; start in a clone of bam_jax"
                raise UserError(f"speed is measured by {missing}")
        if self.recorder.file is not None:
            recorded_runs.require_arrow(self.recorder.file)
        shared = self.experiments[0].shared
        with contextlib.ExitStack() as ends:
            busy = f"another sweep works in {self.folder}; wait for it, or give another --runs"
            try:
                ends.enter_context(lock.hold_folder(self.folder, busy))
            except UserError as error:
                if not shared:  # sweeps with shared runs may work on different ones
                    raise
                print(f"{error}: a run of both fails in one of them", file=sys.stderr)
            regular.check_folder(self.folder / "logs")
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            if not shared:  # only an experiment with its own folder has a report there
                self._check_folder()
                files.write_atomically(self.folder / DESCRIPTION, jsonl.document(self.describe(), 2))
            runner.prepare(self.preparations)
            todo = self.find_unrecorded()
            slots = runner.find_slots(os.environ.get("JAX_PLATFORMS", self.platform))
            slots = runner.share_slots(slots, len(slots) if count is None else count)
            return runner.run(todo, self.named, self.folder, slots, self.platform) if todo else []

    def _check_folder(self) -> None:
        """Raises: UserError: the folder belongs to another experiment, according to its description."""
        before = title = self.experiments[0].heading
        with contextlib.suppress(UserError):  # a missing or unreadable description is written again
            before = read_description(self.folder)["title"]
        if before != title:
            raise UserError(
                f"{self.folder} has the runs of {before!r}, and this is {title!r}; give another --runs, or move "
                f"{self.folder / DESCRIPTION} away"
            )

    def find_unrecorded(self) -> list[Job | Benchmark]:
        """The jobs that are missing from the records, in whole or in part; a line on stderr counts them."""
        recorder = self.recorder
        if recorder.file is None:
            return self.jobs
        todo = [job for job in self.rows if not recorder.is_done(job)]
        said = f"{recorder.file} holds {len(self.rows) - len(todo)} of {len(self.rows)} rows whole"
        asked = {job.digest for job in with_later(self.rows)}
        others = [run.name for digest, run in recorded_runs.read(recorder.file).items() if digest not in asked]
        if others:
            said += f"; {len(others)} runs of other configurations do not count: {files.shortened(others, 3)}"
        print(said, file=sys.stderr)
        return [*todo, *self.benchmarks]


def _check_expected(made: Experiment) -> None:
    """Raises: UserError: no row measures an expected result, so it could never be met."""
    lengths: dict[str, set[int]] = {}
    for row in made.rows:
        for each in row.evaluations:
            if each.name == Passkey.name:
                changes = [f"{name}={value}" for name, value in sorted(each.overrides.items())]
                lengths.setdefault(each.label or ", ".join([row.label, *changes]), set()).update(each.lengths)
    for label, length in ((expected.label, expected.length) for expected in made.expected):
        if label not in lengths:
            raise UserError(f"no row measures passkeys of the expected {label!r}; {nearest(label, lengths)}")
        if length not in lengths[label]:
            known = files.shortened(sorted(lengths[label]))
            raise UserError(f"{label!r} is expected at {length} tokens, and measured at {known} alone")
