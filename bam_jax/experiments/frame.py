"""Results as one long pandas table."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.evals import records
from bam_jax.experiments import recorded_runs
from bam_jax.system import files
from bam_jax.system.errors import UserError, aliased, shown
from bam_jax.system.extras import import_extra
from bam_jax.training import remote, run_folder

if TYPE_CHECKING:
    import pandas

_GIVE = "give folders of runs or of records"
_CELL = ("eval", "length", "depth", "task", "value", "n", "unit", "step")


def results(paths: str | os.PathLike | Sequence[str | os.PathLike]) -> "pandas.DataFrame":
    """Reads the measurements of runs as one long table, with a row per measured cell.

    >>> found = bam_jax.results(["runs", "experiments/records/small/shared"])  # doctest: +SKIP
    >>> passkeys = found[found["eval"] == "passkey"]  # doctest: +SKIP
    >>> passkeys.groupby(["encoding", "length"])["value"].mean().unstack()  # doctest: +SKIP

    The columns, with missing values if a cell lacks a field:

    - `path`: where the row was read; `run`: the digest of the run's configuration; `name`: the run's folder.
    - `encoding` and `seed` of the run.
    - `eval`, `length` (tokens), `depth` (0 to 1), `task`, `overrides` (changes at evaluation, as text).
    - `value`, `n` (its samples), `unit`, `step` (of the checkpoint that was measured).
    - `cell.NAME`: the evaluation's other fields, such as `cell.seed` of its prompts.
    - `config.NAME`: every field of the configuration by its dotted name; lists and options are JSON.

    A cell that was measured in several parts has several rows: weight `value` by `n`. Average perplexities as
    `exp(mean(log(value)))`. A run that is found through several paths appears once.

    Args:
        paths: folders, searched at any depth for runs and for records, or single Parquet files of records; each may be a
            pattern such as `runs/bam-*`. At addresses (gs://..., s3://...) only runs are read.

    Raises:
        UserError: no path is given, a path has no results, or a file is damaged; or pandas and pyarrow are not installed (`pip
            install 'bam_jax[results]'`).
    """
    library = import_extra("pandas", "bam_jax.results", "results")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise UserError(f"the list of paths is empty; {_GIVE}")
    rows: dict[tuple[Path, str, str], list[dict[str, Any]]] = {}
    for pattern in dict.fromkeys(map(str, given)):
        measured = False
        for path, name, config, cells in itertools.chain.from_iterable(map(_read, matches(pattern))):
            run = _run_columns(path, name, config)
            rows[path.resolve(), name, run["run"]] = [run | _cell_columns(cell) for cell in cells]
            measured = measured or bool(cells)
        if not measured:
            raise UserError(f"{pattern} has no results; evaluate its runs, or {_GIVE}")
    return library.DataFrame([*itertools.chain.from_iterable(rows.values())])


def matches(pattern: str) -> list[Path]:
    """The path of that name, otherwise all paths that match it as a pattern; `UserError` if there are none."""
    if files.is_remote(pattern):
        found = remote.fetch_records(pattern)
    else:
        found = [*map(Path, files.matching(pattern))]
    if not found:
        raise UserError(f"{pattern or shown(pattern)} is not there; {_GIVE}")
    return found


def has_results(path: Path) -> bool:
    """True for a file, and for a folder that contains files of measurements."""
    return path.is_file() or any(_parents(path, pattern) for pattern in (recorded_runs.PARTS, records.RESULTS))


def find_runs(path: Path) -> list[Path]:
    """The runs at or below a folder, measured or not."""
    return _parents(path, run_folder.CONFIG)


def _read(path: Path) -> Iterator[tuple[Path, str, Config, Sequence[Mapping[str, Any]]]]:
    for place in [path] if path.is_file() else _parents(path, recorded_runs.PARTS):
        for recorded in recorded_runs.read(place).values():
            yield place, recorded.name, recorded.config, recorded.cells
    for run in _parents(path, records.RESULTS):
        if (run / run_folder.CONFIG).exists():  # a benchmark has results and no configuration
            yield run, run.name, run_folder.read_config(run), records.without_repeats(records.read_results(run)[0])


def _parents(path: Path, pattern: str) -> list[Path]:
    """The folders at or below a path with files of a pattern; linked folders are searched, but not their subfolders."""
    return sorted({found.parent for each in (pattern, f"**/*/{pattern}") for found in path.glob(each)})


def _run_columns(path: Path, name: str, config: Config) -> dict[str, Any]:
    columns: dict[str, Any] = {"path": aliased(str(path)), "run": configs.digest(config), "name": name}
    columns |= {"encoding": config.encoding, "seed": config.seed}
    columns |= dict.fromkeys((*_CELL, "overrides"))  # these columns come before the configuration
    for field, value in configs.to_fields(config).items():
        columns[f"config.{field}"] = json.dumps(value) if isinstance(value, list | tuple | dict) else value
    return columns


def _cell_columns(cell: Mapping[str, Any]) -> dict[str, Any]:
    columns = {field: cell[field] for field in _CELL if field in cell}
    columns["overrides"] = ", ".join(f"{field}={value}" for field, value in sorted(cell["overrides"].items()))
    return columns | {f"cell.{field}": cell[field] for field in cell if field not in (*_CELL, "overrides", "config")}
