"""The jobs of an experiment: the work of one process, training and evaluation, and its progress."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from bam_jax import config
from bam_jax.config import Config
from bam_jax.data.sources.source import is_fetched
from bam_jax.evals import measuring, records
from bam_jax.evals.base import Evaluation
from bam_jax.evals.registry import kind_of
from bam_jax.experiments.experiment import Experiment, Row, join_evaluations
from bam_jax.system.errors import UserError
from bam_jax.training import loop
from bam_jax.training.metrics import read_metrics


@dataclasses.dataclass(frozen=True)
class Job:
    """A row with one of its seeds: the work of one process."""

    row: Row
    seed: int
    config: Config  # its `start` is the name of another job
    name: str  # of its folder
    then: tuple["Job", ...] = ()  # jobs that start from this one's parameters, run after it in the same process

    @property
    def digest(self) -> str:
        return config.digest(self.config)

    def train(self, folder: Path) -> None:
        start = str(folder / self.config.start) if self.row.start else self.config.start
        loop.train(dataclasses.replace(self.config, start=start), folder / self.name)

    def evaluate(self, folder: Path, evaluation: Evaluation) -> None:
        run = folder / self.name
        found = measuring.evaluate(run, evaluation, allow=_addresses(self.config))
        for line in measuring.summarise(run, evaluation, found):
            print(line)

    def commands(self, folder: Path) -> list[list[str]]:
        """The equivalent commands for a user, each a module and its arguments."""
        run = str(folder / self.name)
        start = {"start": str(folder / self.config.start)} if self.row.start else {}
        changes = {**self.row.overrides, **start, "seed": self.seed}
        train = [f"--config={self.row.config}", *config.arguments(changes), f"--workdir={run}"]
        allow = [f"--allow={name}" for name in (*self.config.modules(), *_addresses(self.config))]
        evaluations = [["bam_jax.evaluate", f"--run={run}", *each.arguments(), *allow] for each in self.row.evaluations]
        after = [command for job in self.then for command in job.commands(folder)]
        return [["bam_jax.train", *train], *evaluations, *after]

    def cost(self) -> float:
        """The estimated time on one core, in seconds."""
        asked = [(each, length) for each in self.row.evaluations for length in each.lengths]
        samples = sum(each.texts(length) * each.seconds(length) for each, length in asked)
        return self._training(self.config.steps) + samples + sum(job.cost() for job in self.then)

    def spent(self, folder: Path) -> float:
        """The part of `cost` that is done, according to its files."""
        steps = [record["step"] for record in read_metrics(folder / self.name)]
        cells = records.without_repeats(records.read_results(folder / self.name)[0])
        samples = sum(cell["n"] * kind_of(cell["eval"]).seconds(cell["length"]) for cell in cells)
        return self._training(max(steps, default=0)) + samples + sum(job.spent(folder) for job in self.then)

    def status(self, folder: Path) -> str:
        for job in reversed(self.then):
            if (folder / job.name).exists():
                return job.status(folder)
        for cell in reversed(records.read_results(folder / self.name)[0]):
            return f"{cell['eval']} at {cell['length']} tokens"
        for record in reversed(read_metrics(folder / self.name)):
            return f"step {record['step']} of {self.config.steps}, loss {record['loss']:.3f}"
        return "starting"

    def _training(self, steps: int) -> float:
        return steps * self.config.sequences * self.config.context / 1e5


def _addresses(config: Config) -> list[str]:
    """Addresses of text that an evaluation may fetch: those that the experiment's file names."""
    texts = [part.held_out_source or part.source for _, part in config.data.parts().values()]
    return list(dict.fromkeys(filter(is_fetched, texts)))


def row_jobs(experiment: Experiment) -> list[Job]:
    """A job for every row and seed, in the order of the rows; jobs with equal names are the same run.

    In a `shared` experiment, a run is named by its method, layers x width, context, seed and configuration, for example
    bam-ssmax-12x768-512-seed0-0123456789ab. Otherwise it is named by the row's label and the seed.
    """
    rows = {row.label: row for row in experiment.rows}

    def job(row: Row, seed: int) -> Job:
        start = {}
        if row.start:
            if row.start not in rows or rows[row.start].start:
                raise UserError(f"{row.label!r} starts from {row.start!r}, which must be a row that starts from none")
            start = {"start": job(rows[row.start], seed).name}
        made = config.load(row.config, {**row.overrides, **start, "seed": seed})
        return Job(row, seed, made, _shared_name(made) if experiment.shared else f"{_plain(row.label)}-seed{seed}")

    return [job(row, seed) for row in experiment.rows for seed in row.seeds]


def jobs(*experiments: Experiment) -> list[Job]:
    """The jobs that train, each run once, with all evaluations that the experiments request."""
    made: dict[str, Job] = {}
    for shared, job in ((one.shared, job) for one in experiments for job in row_jobs(one)):
        if not job.row.train:
            continue
        if job.name in made:
            if not shared:
                raise UserError(f"two rows would be written to {job.name}; give them different labels")
            row = made[job.name].row
            evaluations = join_evaluations(row.evaluations + job.row.evaluations)
            job = dataclasses.replace(job, row=dataclasses.replace(row, evaluations=evaluations))
        made[job.name] = job
    roots = {name: job for name, job in made.items() if not job.row.start}
    for job in made.values():
        if job.row.start:
            base = job.config.start
            if base not in roots:
                raise UserError(f"{job.row.label!r} starts from {job.row.start!r}, which is not trained")
            roots[base] = dataclasses.replace(roots[base], then=(*roots[base].then, job))
    # The first seed of each row, then the second, and so on, so that later seeds reuse its compiled programs. The longest jobs
    # come first, so that no core waits long for another at the end.
    return sorted(roots.values(), key=lambda job: (job.row.seeds.index(job.seed), -job.cost()))


def with_later(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, each followed by those that start from it."""
    return [each for job in jobs for each in (job, *job.then)]


def _shared_name(made: Config) -> str:
    sharpened = {"off": "", "entmax": "-entmax", "asentmax": "-asentmax", "adaptive": "-adaptive"}
    method = f"{made.encoding}{sharpened.get(made.ssmax, '-ssmax')}"
    sizes = f"{made.model.layers}x{made.model.width}-{made.context}"
    if "/" in method:  # a pattern may be too long for a folder name
        method = f"pattern-{method[:60]}"
    return f"{_plain(method)}-{sizes}-seed{made.seed}-{config.digest(made)}"


def _plain(text: str) -> str:
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
