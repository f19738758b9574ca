"""What the runs of an experiment left in their folders, read back."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bam_jax import biases, checkpoint, log, theory
from bam_jax.config import Config
from bam_jax.errors import UserError
from bam_jax.experiment import STOPPED
from bam_jax.figures import Curves, Heads, Seed

Cell = dict[str, Any]
"""A line of results.jsonl."""

EVERY = ("eval", "value", "n", "step", "overrides")
"""What each of them has; those of some evaluations have more."""
FURTHER = {
    "passkey": ("length", "depth"),
    "perplexity": ("length", "window", "windows"),
    "ruler": ("length", "task"),
}
LEFT_OUT = ("eval", "of", "lengths", "after", "step", "overrides")
"""What a line has that says which lengths of an evaluation were left out, and after which ones."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One trained row, as its files show it.

    Args:
        name: its folder.
        label: its row's.
        seed: of training.
        labels: pairs of evaluation-time overrides and the label of the curve they make.
        commands: what made it, one string each.
        config: None before training has begun.
        cells: of results.jsonl, measured at the newest step.
        history: the lines of metrics.jsonl.
        heads: the learned BAM priors; None where there are none.
    """

    name: str
    label: str
    seed: int
    labels: Sequence[tuple[list[str], str]]
    commands: Sequence[str]
    config: Config | None
    cells: Sequence[Cell]
    history: Sequence[Mapping[str, Any]]
    heads: Heads | None

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The last line of metrics.jsonl; empty before the first."""
        return self.history[-1] if self.history else {}

    def curve(self, cell: Cell) -> str:
        """The label of the curve that a cell belongs to: evaluation-time overrides make one of their own."""
        overrides = sorted(f"--config.{name}={value}" for name, value in cell["overrides"].items())
        for theirs, label in self.labels:
            if sorted(theirs) == overrides:
                return label
        return ", ".join([self.label, *(each.removeprefix("--config.") for each in overrides)])


def there(folder: Path) -> None:
    """Nothing, if there is a folder.

    Args:
        folder: of runs.

    Raises:
        UserError: there is none.
    """
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; make runs with python -m bam_jax.sweep, or give theirs with --runs"
        )


def manifest(folder: Path) -> dict[str, Any]:
    """The `experiment.json` that `bam_jax.sweep` left in a folder.

    Args:
        folder: the sweep's --runs.

    Raises:
        UserError: it is not there, or cannot be read.
    """
    try:
        return json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} has no experiment.json; run python -m bam_jax.sweep FILE.py --runs={folder}"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'experiment.json'} cannot be read ({error}); run the sweep again") from error


def read(folder: Path) -> tuple[dict[str, Any], list[Run]]:
    """What `bam_jax.sweep` left in a folder: `experiment.json`, and its runs so far.

    Args:
        folder: the sweep's --runs.

    Raises:
        UserError: no experiment there, or a file that cannot be read.
    """
    described = manifest(folder)
    return described, [run(folder / each["name"], each) for each in described["runs"]]


def run(path: Path, entry: Mapping[str, Any]) -> Run:
    """What a run's folder holds.

    Args:
        path: the folder, which need not be there.
        entry: name, label, seed, labels and commands; see `Run`.

    Raises:
        UserError: a file that cannot be read.
    """
    config = checkpoint.read_config(path) if (path / checkpoint.CONFIG).exists() else None
    cells = records(path)
    newest = max((cell["step"] for cell in cells), default=0)
    return Run(
        **entry,
        config=config,
        cells=[cell for cell in cells if cell["step"] == newest],
        history=_checked(path / "metrics.jsonl", lambda _: ("step", "loss", "seconds")),
        heads=learned(path) if config and config.encoding == "bam" and checkpoint.latest(path) else None,
    )


def records(path: Path) -> list[Cell]:
    """The lines of a run's results.jsonl that say what was measured.

    Args:
        path: the run's folder; one without results has no lines.

    Raises:
        UserError: a line is not JSON, or lacks what each has.
    """
    return [record for record in _lines(path) if record["eval"] != STOPPED]


def stops(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's results.jsonl that say what was left out; arguments and errors as in `records`."""
    return [record for record in _lines(path) if record["eval"] == STOPPED]


def _lines(path: Path) -> list[dict[str, Any]]:
    def wanted(name: Any) -> Sequence[str]:
        if name == STOPPED:
            return LEFT_OUT
        return (*EVERY, *(FURTHER[name] if name in FURTHER else ()))

    return _checked(path / "results.jsonl", wanted)


def _checked(path: Path, wanted: Callable[[Any], Sequence[str]]) -> list[dict[str, Any]]:
    """The records of a file, each with what is wanted of its evaluation."""
    found = []
    for number, record in enumerate(log.read(path), start=1):
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number} is no record but {record!r}; remove that line")
        for name in wanted(record["eval"] if "eval" in record else None):
            if name not in record:
                raise UserError(f"{path}, line {number} has no {name!r}; remove that line")
        found.append(record)
    return found


def learned(run: Path) -> Heads:
    """The priors of a trained BAM model.

    Args:
        run: its folder.

    Raises:
        UserError: there is no checkpoint, or it cannot be read.
    """
    _, tree = checkpoint.split(checkpoint.restore_model(run)[2])
    kinds = [kind["layers"]["attention"]["encoding"] for kind in tree.values() if "layers" in kind]
    # One that all layers share has no axis of layers.
    found = {name: np.atleast_2d(np.asarray(value, np.float64)) for kind in kinds for name, value in kind.items()}
    return Heads(found["shape"], found["log_scale"], found["loc"])


def curves(runs: Iterable[Run], evaluation: str) -> Curves:
    """By label and seed, the mean over the cells of each length.

    Args:
        runs: their cells are put together by label and seed.
        evaluation: "passkey" or "perplexity".
    """
    cells: dict[str, dict[int, dict[int, list[Cell]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for run in runs:
        for cell in run.cells:
            if cell["eval"] == evaluation:
                cells[run.curve(cell)][run.seed][cell["length"]].append(cell)
    return {
        label: [
            Seed(seed, {length: mean(lengths[length]) for length in sorted(lengths)}) for seed, lengths in seeds.items()
        ]
        for label, seeds in cells.items()
    }


def positions(runs: Iterable[Run]) -> Curves:
    """By label and seed, the perplexity of each window of positions, at the greatest length that was measured.

    Its key is where the window ends: what is found there, a model found with nearly as many tokens before it.

    Args:
        runs: their cells are put together by label and seed.
    """
    found: dict[str, list[Seed]] = defaultdict(list)
    for run in runs:
        cells: dict[str, list[Cell]] = defaultdict(list)
        for cell in run.cells:
            if cell["eval"] == "perplexity":
                cells[run.curve(cell)].append(cell)
        for label, group in cells.items():
            length = max(cell["length"] for cell in group)
            longest = [cell for cell in group if cell["length"] == length]
            losses = np.average([cell["windows"] for cell in longest], 0, [cell["n"] for cell in longest])
            ends = [min((number + 1) * longest[0]["window"], length) for number in range(len(losses))]
            found[label].append(Seed(run.seed, dict(zip(ends, np.exp(losses).tolist(), strict=True))))
    return dict(found)


def mean(cells: Sequence[Cell]) -> float:
    """The mean value of cells, every prompt or token weighing the same."""
    return float(np.average([cell["value"] for cell in cells], weights=[cell["n"] for cell in cells]))


def weights(heads: Heads, context: int) -> np.ndarray:
    """The prior of every head for the last query of a context, [layers, heads, context].

        p(j) = exp(b(i, j)) / sum_j' exp(b(i, j')),   j <= i = context - 1

    Args:
        heads: the parameters.
        context: tokens the query sees, itself included.

    Source: BAM, definition 2 and figure 1.
    """
    layers = (biases.GeneralisedGaussian(*layer) for layer in zip(*map(jnp.asarray, heads), strict=True))
    return np.stack([theory.prior_by_distance(layer, context)[:, ::-1] for layer in layers]).astype(np.float64)
