"""What an experiment is: rows to train, how to evaluate them, what they should show; the jobs that makes."""

import dataclasses
import inspect
import re
import runpy
from pathlib import Path

from bam_jax import config, log
from bam_jax.data import ruler
from bam_jax.data.documents import STDLIB
from bam_jax.errors import UserError

OPTIONS = {
    "passkey": ("depths", "trials", "seed"),
    "perplexity": ("tokens",),
    "ruler": ("tasks", "samples", "essays", "seed"),
}
"""Which fields of an `Evaluation` matter to which evaluation."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation of a trained row: the arguments of `bam_jax.evaluate`.

    Args:
        name: "passkey", "perplexity" or "ruler".
        lengths: tokens.
        depths: equally spaced depths of a passkey.
        trials: prompts at each depth.
        seed: of the prompts or samples.
        tokens: of text for the perplexity at each length.
        tasks: of RULER.
        samples: of each of them and each length.
        essays: in which RULER hides needles.
        overrides: "--config.a.b=value", changes at evaluation only.
        label: the curve's name; "" means the row's.
    """

    name: str
    lengths: tuple[int, ...]
    depths: int = 20
    trials: int = 1
    seed: int = 0
    tokens: int = 2**15
    tasks: tuple[str, ...] = tuple(ruler.TASKS)
    samples: int = 50
    essays: str = STDLIB
    overrides: tuple[str, ...] = ()
    label: str = ""

    def arguments(self) -> list[str]:
        """What stands behind `python -m bam_jax.evaluate --run=FOLDER`.

        >>> Evaluation("perplexity", (64, 128)).arguments()
        ['--eval=perplexity', '--lengths=64,128', '--tokens=32768']
        """
        given = dataclasses.asdict(self) | {"tasks": ",".join(self.tasks)}
        lengths = ",".join(map(str, self.lengths))
        options = [f"--{option}={given[option]}" for option in OPTIONS[self.name]]
        return [f"--eval={self.name}", f"--lengths={lengths}", *options, *self.overrides]


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of an experiment's table: a configuration, trained once for each seed.

    Args:
        label: its name in the report.
        config: path of a config file.
        overrides: "--config.a.b=value".
        seeds: of training.
        evaluations: done after training, in this order.
    """

    label: str
    config: str
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    evaluations: tuple[Evaluation, ...] = ()


@dataclasses.dataclass(frozen=True)
class Claim:
    """What should come out: mean passkey accuracy of the curve `label` at `length` tokens, within bounds."""

    label: str
    length: int
    least: float = 0.0
    most: float = 1.0


@dataclasses.dataclass(frozen=True)
class Step:
    """A command before the rows, such as one that prepares their data; done again, it does what is missing.

    Args:
        module: what stands behind `python -m`.
        arguments: its arguments.
        makes: a file; the step is left out once it is there. "": the command itself sees what is missing.
    """

    module: str
    arguments: tuple[str, ...]
    makes: str = ""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What an experiment file's `get_experiment()` returns.

    Args:
        title: heads the report.
        steps: done in their order before the rows.
        rows: the first is the main one: its heat map and its priors are drawn.
        claims: reported beside what was measured.
        notes: paragraphs about what the numbers do and do not say.
        platform: JAX_PLATFORMS of the rows, unless the environment sets it.
    """

    title: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    platform: str = "cpu"
    steps: tuple[Step, ...] = ()


def load(path: str | Path, *, source: str | None = None, runs: Path = Path("runs")) -> Experiment:
    """The experiment in a Python file with `get_experiment()`, or `get_experiment(source, runs)` if it is about a corpus.

    Args:
        path: the file.
        source: where the user has the corpus.
        runs: folder of the runs, below which steps may put what they make of it.

    Raises:
        UserError: no such file, or no `get_experiment` in it, or a corpus missing or not wanted.
    """
    if not Path(path).is_file():
        raise UserError(f"no experiment file {path}; give the path of one such as experiments/quickstart.py")
    try:
        names = runpy.run_path(str(path))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"experiment file {path} is not Python: {error}") from error
    if "get_experiment" not in names:
        raise UserError(f"{path} defines no get_experiment(); it must return a bam_jax.experiment.Experiment")
    about_a_corpus = bool(inspect.signature(names["get_experiment"]).parameters)
    if about_a_corpus and source is None:
        raise UserError(f"{path} needs --source=PATH, where the corpus is that its docstring names")
    if source is not None and not about_a_corpus:
        raise UserError(f"--source={source}: {path} takes no corpus; leave the option out")
    return names["get_experiment"](source, runs) if about_a_corpus else names["get_experiment"]()


@dataclasses.dataclass(frozen=True)
class Job:
    """A row with one of its seeds: what one process does.

    Args:
        row: the row.
        seed: of training.
        config: the row's configuration with that seed.
    """

    row: Row
    seed: int
    config: config.Config

    @property
    def name(self) -> str:
        """Its folder: row "BAM SSMax (spread)" with seed 0 is bam-ssmax-spread-seed0."""
        return f"{re.sub('[^a-z0-9]+', '-', self.row.label.lower()).strip('-')}-seed{self.seed}"

    def commands(self, folder: Path) -> list[list[str]]:
        """The commands that a person would type instead, each a module and its arguments."""
        run = str(folder / self.name)
        train = [
            f"--config={self.row.config}",
            *self.row.overrides,
            f"--config.seed={self.seed}",
            f"--workdir={run}",
        ]
        evaluations = [["bam_jax.evaluate", f"--run={run}", *each.arguments()] for each in self.row.evaluations]
        return [["bam_jax.train", *train], *evaluations]

    def cost(self) -> float:
        """About how many seconds all of it takes on one core."""
        passkeys = [each for each in self.row.evaluations if each.name == "passkey"]
        prompts = sum(each.depths * each.trials * _prompt(length) for each in passkeys for length in each.lengths)
        return self._training(self.config.steps) + prompts

    def spent(self, folder: Path) -> float:
        """How many of those seconds its files show as done."""
        steps = [record["step"] for record in log.read(folder / self.name / "metrics.jsonl") if "step" in record]
        cells = [cell for cell in log.read(folder / self.name / "results.jsonl") if cell["eval"] == "passkey"]
        return self._training(max(steps, default=0)) + sum(cell["n"] * _prompt(cell["length"]) for cell in cells)

    def status(self, folder: Path) -> str:
        """The last thing that its files show, in one line."""
        for cell in reversed(list(log.read(folder / self.name / "results.jsonl"))):
            return f"{cell['eval']} at {cell['length']} tokens"
        for record in reversed(list(log.read(folder / self.name / "metrics.jsonl"))):
            if "loss" in record:
                return f"step {record['step']} of {self.config.steps}, loss {record['loss']:.3f}"
        return "starting"

    def _training(self, steps: int) -> float:
        return steps * self.config.batch * self.config.context / 1e5


def _prompt(length: int) -> float:
    """Seconds that a prompt takes: linear layers, then attention."""
    return length / 1e5 + length**2 / 3e8


def jobs(experiment: Experiment) -> list[Job]:
    """Every row with every seed, the longest first, so that no core waits long for another at the end.

    Raises:
        UserError: a row's configuration is wrong, or two rows would share a folder.
    """
    made = [
        Job(row, seed, config.load(row.config, [*row.overrides, f"--config.seed={seed}"]))
        for row in experiment.rows
        for seed in row.seeds
    ]
    names = [job.name for job in made]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two rows would be written to {name}; give them different labels")
    return sorted(made, key=Job.cost, reverse=True)
