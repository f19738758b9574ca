"""The jobs of tables about speed: a benchmark measures models side by side, and has the machine to itself."""

import dataclasses
import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bam_jax import config
from bam_jax.config import Config
from bam_jax.evals.records import RESULTS
from bam_jax.experiments.experiment import Experiment, Row, Table
from bam_jax.experiments.speed_records import read_speeds

BENCHMARK = "benchmarks.speed"
"""The command that measures models side by side."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Models whose speed is measured together; none of them is trained.

    Args:
        name: of its folder.
        config: path of the config file that all have in common.
        contenders: the changes that make each of them.
        cells: measures and lengths in tokens.
    """

    name: str
    config: str
    contenders: tuple[Mapping[str, Any], ...]
    cells: tuple[tuple[str, int], ...]

    def command(self, folder: Path) -> list[str]:
        """The command that measures what is missing, a module and its arguments; it is part of a clone, not of the package.

        Args:
            folder: of the runs.
        """
        models = [f"--contender={shlex.join(config.arguments(changes))}" for changes in self.contenders]
        cells = ",".join(f"{measure}:{length}" for measure, length in self.cells)
        out = f"--out={folder / self.name / RESULTS}"
        return [BENCHMARK, f"--config={self.config}", *models, f"--cells={cells}", out]

    def cost(self) -> float:
        """About how many seconds all of it takes on one core: nearly all of it is compiling."""
        return 3.0 * len(self.contenders) * len(self.cells)

    def spent(self, folder: Path) -> float:
        """The seconds of `cost` that its file shows as done."""
        done = {(each["measure"], each["length"]) for each in read_speeds(folder / self.name / RESULTS)}
        return 3.0 * len(self.contenders) * len(done.intersection(self.cells))

    def status(self, folder: Path) -> str:
        """The last thing that its file shows, in one line."""
        for record in reversed(read_speeds(folder / self.name / RESULTS)):
            return f"{record['measure']} at {record['length']} tokens is done"
        return "starting"


def comparisons(*experiments: Experiment) -> list[Comparison]:
    """The comparisons that the tables' columns about speed need: rows that have a config file in common are compared.

    Args:
        experiments: whose tables.
    """
    made: dict[str, Comparison] = {}
    for experiment in experiments:
        rows = {row.label: row for row in experiment.rows}
        for table in experiment.tables:
            for comparison in _compare(table, rows):
                before = made[comparison.name].cells if comparison.name in made else ()
                cells = tuple(dict.fromkeys((*before, *comparison.cells)))
                made[comparison.name] = dataclasses.replace(comparison, cells=cells)
    return list(made.values())


def read_newest(experiment: Experiment, table: Table, folder: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Reads the newest record of each row's label, measure and length, as far as they have been measured.

    Args:
        experiment: whose rows.
        table: of the experiment.
        folder: of the runs.
    """
    rows = {row.label: row for row in experiment.rows}
    newest: dict[tuple[str, str, int], dict[str, Any]] = {}
    for comparison in _compare(table, rows):
        for each in read_speeds(folder / comparison.name / RESULTS):
            newest[each["config"], each["measure"], each["length"]] = each
    cells = {column.speed for column in table.columns if column.speed}
    found = {}
    for label in table.values:
        digest = config.digest(_load(rows[table.row(label)]))
        for measure, length in cells:
            if (digest, measure, length) in newest:
                found[label, measure, length] = newest[digest, measure, length]
    return found


def _compare(table: Table, rows: Mapping[str, Row]) -> list[Comparison]:
    """A comparison for each config file that rows of a table have in common, if the table has columns about speed."""
    cells = tuple(dict.fromkeys(column.speed for column in table.columns if column.speed))
    together: dict[str, list[Row]] = {}
    for label in table.values if cells else ():
        row = rows[table.row(label)]
        together.setdefault(row.config, []).append(row)
    made = []
    for path, some in together.items():
        contenders: list[Mapping[str, Any]] = []
        for changes in ({**row.overrides, **row.changes} for row in some):
            contenders += [] if changes in contenders else [changes]
        configs = [_load(row) for row in some]
        digest = hashlib.sha256(" ".join(sorted({config.digest(each) for each in configs})).encode()).hexdigest()[:12]
        model = configs[0].model
        name = f"speed-{model.layers}x{model.width}-{configs[0].context}-{digest}"
        made.append(Comparison(name, path, tuple(contenders), cells))
    return made


def _load(row: Row) -> Config:
    return config.load(row.config, {**row.overrides, **row.changes})
