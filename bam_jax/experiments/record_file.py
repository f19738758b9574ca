"""Files of records: what trained runs measured, without their folders and weights, small enough for a repository.

Each line is JSON with a checksum, and lines are only ever appended. There are three kinds. Fields that many lines would repeat
stand once, under a key (`Header`). A run has one line (`RunLine`), and one more for each evaluation and length (`CellsLine`), in
which the values of all depths or tasks are lists. Keys are digests of what they stand for, so that two machines' files can be
joined line by line.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.evals import records
from bam_jax.evals.records import Cell
from bam_jax.experiments.record_lines import REMEDY, CellsLine, Header, RunLine, Source, kept_text, key_of, pack, unpack
from bam_jax.models.head_parameters import head_parameters
from bam_jax.system import console, jsonl, regular, strict_json
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint
from bam_jax.training.metrics import read_metrics

SOURCE = "trained.json"
_GONE = "mend or remove it"
"""The file in a run's folder that says by which command, code and machine it was trained."""
POINTS = 12
"""Steps of a training whose losses are kept, at most."""


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """A run as a file of records has it.

    Args:
        name: of its folder.
        config: its configuration; `start` is the name of a run.
        source: a `Source`; None where nothing tells it.
        history: some lines of its metrics.jsonl, the last among them.
        heads: see `head_parameters`, to four decimals.
        cells: of its last step.
        stops: see `records.divide`.
    """

    name: str
    config: Config
    source: Mapping[str, Any] | None
    history: Sequence[Mapping[str, Any]]
    heads: Mapping[str, np.ndarray]
    cells: Sequence[Cell]
    stops: Sequence[dict[str, Any]]


class Contents(NamedTuple):
    """The lines of a file of records, each checked alone.

    Args:
        headers: by key.
        runs: lines of runs by key, in the order of the file, each with its place in it.
        cells: lines of cells, each with its place, by the key of their run.
    """

    headers: dict[str, dict[str, Any]]
    runs: dict[str, tuple[dict[str, Any], str]]
    cells: dict[str, list[tuple[dict[str, Any], str]]]

    def unpack(self, run: str) -> Iterator[dict[str, Any]]:
        """The lines of results.jsonl of a run.

        Args:
            run: its key.

        Raises:
            UserError: a line has something impossible.
        """
        digest = self.runs[run][0]["digest"]
        for line, where in self.cells[run]:
            for cell in unpack(line, _refer(line["cells"], self.headers, where), digest, where):
                yield records.checked(cell, where, REMEDY)


def read(path: Path) -> Mapping[str, RecordedRun]:
    """The runs in a file of records, by the digest of their configuration.

    A run that was trained twice is there once, with all cells; of two about the same samples it has the newer one.

    Args:
        path: the file; a missing one has no runs.

    Raises:
        UserError: a line says something impossible; the message names the file and the line.
    """
    if not path.exists():
        return {}
    about = path.stat()
    return _read(path, about.st_size, about.st_mtime_ns)


def find(path: Path | None, digest: str) -> RecordedRun | None:
    """The run of a configuration in a file of records, None where there is none; errors as in `read`.

    Args:
        path: the file; None: no records are kept.
        digest: of the configuration.
    """
    runs = read(path) if path else {}
    return runs[digest] if digest in runs else None


@functools.lru_cache(maxsize=8)
def _read(path: Path, size: int, changed: int) -> Mapping[str, RecordedRun]:
    """The runs in a file of this size and time: a page reads it for each of its tables."""
    contents = read_lines(path)
    found: dict[str, RecordedRun] = {}
    for key in contents.runs:
        run = _recorded_run(contents, key)
        digest = configs.digest(run.config)
        if digest in found:
            older = found[digest]
            cells, stops = records.merge(older.cells, run.cells), [*older.stops, *run.stops]
            run = dataclasses.replace(run, cells=cells, stops=stops)
        found[digest] = run
    if jsonl.is_torn(path):
        console.say(f"{path}: its last line is not whole and is left out; put it back from a copy, or sweep again")
    elif not found:
        console.say(f"{path} holds no runs")
    return found


def read_lines(path: Path) -> Contents:
    """Reads the lines of a file of records.

    Args:
        path: the file; a missing one has no lines.

    Raises:
        UserError: a line is of no kind, or refers to none above it.
    """
    contents = Contents({}, {}, {})
    for number, line in enumerate(jsonl.read(path), start=1):
        where = f"{path}, line {number}"
        if "cells" in line:
            strict_json.check(line, CellsLine, where, REMEDY)
            _refer(line["run"], contents.runs, where)
            contents.cells[line["run"]].append((line, where))
        elif "run" in line:
            strict_json.check(line, RunLine, where, REMEDY)
            contents.runs[line["run"]] = line, where
            contents.cells.setdefault(line["run"], [])
        else:
            strict_json.check(line, Header, where, REMEDY)
            contents.headers[line["key"]] = line
    return contents


def _refer[T](key: str, lines: Mapping[str, T], where: str) -> T:
    """The line that has a key."""
    if key not in lines:
        raise UserError(f"{where} refers to {key}, which no line above it has; {REMEDY}")
    return lines[key]


def _recorded_run(contents: Contents, key: str) -> RecordedRun:
    line, where = contents.runs[key]
    try:
        config = configs.from_fields({**_refer(line["config"], contents.headers, where)["fields"], **line["changes"]})
    except UserError as error:
        raise UserError(f"{where} has a configuration that cannot be read ({error}); {REMEDY}") from error
    source = None
    if line["source"] is not None:
        source = strict_json.check(_refer(line["source"], contents.headers, where)["fields"], Source, where, REMEDY)
    cells, stops = records.divide(contents.unpack(key))
    columns = [line["losses"][name] for name in ("step", "loss", "seconds")]
    return RecordedRun(
        name=line["name"],
        config=config,
        source=source,
        history=[
            {"step": step, "loss": loss, "seconds": seconds} for step, loss, seconds in zip(*columns, strict=True)
        ],
        heads={name: np.array(rows) for name, rows in line["heads"].items()},
        cells=cells,
        stops=stops,
    )


def append(path: Path, run: Path, name: str, config: Config) -> None:
    """Add what a trained run has measured to a file of records, as far as it is not there yet.

    Killed anywhere, it leaves a file of whole lines, or one whose torn last line the next one cuts off; done again, it adds the
    lines that are missing. Several processes may add to one file.

    Args:
        path: the file; it is made with its folder.
        run: the run's folder, trained to its end.
        name: by which others start from the run.
        config: the run's; `start` is the name of another run.

    Raises:
        UserError: a file of the run, or the file of records, cannot be read.
    """
    heads = head_parameters(checkpoint.restore_model(run, step=config.steps)[2])
    described = {
        "name": name,
        "digest": configs.digest(config),
        "source": None,
        "step": config.steps,
        "tokens": config.steps * config.sequences * config.context,
        "losses": _losses(run, config.steps),
        "heads": {name: np.round(values, 4).tolist() for name, values in heads.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with jsonl.appending(path, compact=True) as writer:
        contents = read_lines(path)
        for line in _lines(described, run, config, contents):
            writer.write(line)
        writer.sync()


def _lines(described: Mapping[str, Any], run: Path, config: Config, contents: Contents) -> Iterator[dict[str, Any]]:
    """The lines that a run adds to a file with these contents, each after those that it refers to."""
    fields = configs.to_fields(config)
    base = next((contents.headers[line["config"]]["fields"] for line, _ in contents.runs.values()), fields)
    if base.keys() != fields.keys():  # of a version with other fields
        base = fields
    changes = {name: value for name, value in fields.items() if json.dumps(value) != json.dumps(base[name])}
    headers = [{"fields": base}]
    line = {**described, "config": key_of(headers[0]), "changes": changes}
    source = read_source(run)
    if source is not None:
        headers.append({"fields": source})
        line["source"] = key_of(headers[1])
    key = key_of(line)
    there = {kept_text(cell) for cell in contents.unpack(key)} if key in contents.runs else set()
    measured = [cell for lines in records.read_results(run) for cell in lines if cell["step"] == config.steps]
    packed = list(pack(cell for cell in measured if kept_text(cell) not in there))
    headers += [header for header, _ in packed]
    for name, header in {key_of(header): header for header in headers}.items():
        if name not in contents.headers:
            yield {"key": name, **header}
    if key not in contents.runs:
        yield {"run": key, **line}
    for header, beside in packed:
        yield {"cells": key_of(header), "run": key, **beside}


def read_source(run: Path) -> dict[str, Any] | None:
    """The `Source` of a run; None of one that no sweep trained, or that is not there.

    Args:
        run: its folder.

    Raises:
        UserError: the file that says it cannot be read.
    """
    path = run / SOURCE
    if not path.exists():
        return None
    source: dict[str, Any] = strict_json.check(jsonl.parse(regular.read(path), str(path), _GONE), Source, str(path))
    return source


def _losses(run: Path, steps: int) -> dict[str, list[Any]]:
    """The losses of some steps, evenly over the training, the last among them."""
    history = [line for line in read_metrics(run) if line["step"] <= steps]
    places = np.unique(np.linspace(0, len(history) - 1, POINTS).round().astype(int))
    shown = [history[place] for place in places if history]
    return {
        "step": [line["step"] for line in shown],
        "loss": [round(line["loss"], 5) for line in shown],
        "seconds": [round(line["seconds"], 1) for line in shown],
    }
