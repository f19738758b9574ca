"""Records: the measurements of trained runs, without their folders and weights, small enough for a repository.

Records are a folder of Parquet files ("parts"), one for each batch of runs as it finishes. Parts are only ever added, so two
machines' records are merged by copying their parts into one folder. A part has one row per cell, which includes columns of its
run. Its metadata contains the numbers of runs, cells and seeds and a SHA-256 of all values, which every reader checks.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.evals import records
from bam_jax.evals.records import Cell
from bam_jax.evals.schema import Setting
from bam_jax.models.head_parameters import head_parameters
from bam_jax.system import files, jsonl, lock, regular, typed_json
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.system.fields import Finite, Line, Name, Natural, Seconds
from bam_jax.system.machine import Machine
from bam_jax.training import checkpoint
from bam_jax.training.metrics import read_metrics

SOURCE = "trained.json"  # the file in a run's folder that names the command, code and machine that trained it
PARTS = "part-*.parquet"
POINTS = 12  # largest number of training steps whose losses are kept
ROWS = 5_000_000  # largest number of rows of a part, because a small file can claim more than memory holds
METADATA = b"bam_jax"  # the key of the counts and the digest in a part's metadata
DROPPED = ("config", "digits", "example", "peak_bytes", "tokens")
"""Fields of cells that are not kept: the run's columns contain its configuration, and no table reads the others."""
REMEDY = "put it back from the repository or a copy"

RUN = ("run", "name", "config", "source", "losses", "heads")
"""Columns of a run: the digest of its configuration, its name, and JSON."""
CELL: dict[str, type] = {
    "eval": str,
    "length": int,
    "depth": float,
    "task": str,
    "first": int,
    "n": int,
    "value": float,
    "unit": str,
    "step": int,
    "seed": int,
    "seconds": float,
    "prompt": str,
    "data_hash": str,
    "tokenizer": str,
    "commit": str,
}
"""Columns of a cell. Two more are JSON: `overrides`, and `details` with all other fields, including null ones."""


class Source(TypedDict):
    """The command that trained a run, the code's commit ("-dirty" where files differed), and the machine."""

    command: Line
    commit: Line | None
    machine: Machine


class Losses(TypedDict):
    """Some training steps, including the last."""

    step: list[Natural]
    loss: list[Finite]
    seconds: list[Seconds]


class RunColumns(TypedDict):
    """The columns of a run except its digest, read from JSON."""

    name: Name
    config: dict[str, Setting]
    source: Source | None
    losses: Losses
    heads: dict[str, list[list[Finite]]]


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """A run in records."""

    name: str
    config: Config  # its `start` is the name of a run
    source: Mapping[str, Any] | None  # a `Source`
    history: Sequence[Mapping[str, Any]]  # some lines of its metrics.jsonl, including the last
    heads: Mapping[str, np.ndarray]  # `head_parameters`, to four decimals
    cells: Sequence[Cell]  # of its last step
    stops: Sequence[dict[str, Any]]  # see `records.divide`


def read(path: Path) -> Mapping[str, RecordedRun]:
    """The runs in a folder of records, or in one part, by the digest of their configuration.

    A run that was trained twice appears once, with all cells; of two cells about the same samples, the newer one is used.
    """
    if not path.exists():
        return {}
    parts = sorted(path.glob(PARTS)) if path.is_dir() else [path]
    return _merge(path, tuple((part, part.stat().st_size, part.stat().st_mtime_ns) for part in parts))


def find(path: Path | None, digest: str) -> RecordedRun | None:
    """The run of a configuration in records; None if there is none, or if no records are kept (no path)."""
    return read(path).get(digest) if path else None


@functools.lru_cache(maxsize=8)
def _merge(path: Path, parts: tuple[tuple[Path, int, int], ...]) -> Mapping[str, RecordedRun]:
    found: dict[str, RecordedRun] = {}
    for part in parts:
        for digest, run in _read_part(*part).items():
            if digest in found:
                older = found[digest]
                cells, stops = records.merge(older.cells, run.cells), [*older.stops, *run.stops]
                run = dataclasses.replace(run, cells=cells, stops=stops)
            found[digest] = run
    return found


@functools.cache  # a sweep adds parts one by one, and reads all parts after each
def _read_part(path: Path, size: int, changed: int) -> Mapping[str, RecordedRun]:
    arrow, parquet = require_arrow(path)
    data = arrow.BufferReader(regular.read(path, regular.RECORDS))
    try:
        head = parquet.read_metadata(data)
        if METADATA not in (head.metadata or {}) or head.schema.names != _schema(arrow).names:
            raise UserError(f"{path} is not a part of records; take it away, or {REMEDY}")
        if head.num_rows > ROWS:
            raise UserError(f"{path} has more than {ROWS:,} rows; {REMEDY}")
        # Strings that repeat in every row of a run are stored once in memory.
        file = parquet.ParquetFile(data, page_checksum_verification=True, read_dictionary=RUN)
        if not file.schema_arrow.equals(_schema(arrow)):
            raise UserError(f"{path} has columns of other types; {REMEDY}")
        runs, cells = _rows(file.read())
    except UserError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as error:  # a text that is not UTF-8 is a ValueError
        raise UserError(f"{path} cannot be read ({' '.join(str(error).split())[:200]}); {REMEDY}") from error
    made = {row["run"]: _parse_run(row, f"{path}, run {row['run']}") for row in runs}
    found = _summary(runs, cells)
    written = typed_json.parse(head.metadata[METADATA], f"the metadata of {path}", REMEDY)
    if written != found:
        raise UserError(f"{path} has {_counts(found)}, other than it was written with, {_counts(written)}; {REMEDY}")
    lines: dict[str, list[dict[str, Any]]] = {digest: [] for digest in made}
    for number, row in enumerate(cells):
        if row["details"] is not None:  # a run without cells has one row, without details
            lines[row["run"]].append(_parse_cell(row, f"{path}, row {number}"))
    for digest, run in made.items():
        cells, stops = records.divide(lines[digest])
        made[digest] = dataclasses.replace(run, cells=cells, stops=stops)
    return made


def _parse_run(row: Mapping[str, Any], where: str) -> RecordedRun:
    columns = {name: typed_json.parse(row[name] or "", f"{where}: {name}", REMEDY) for name in RUN[2:]}
    typed_json.check({"name": row["name"], **columns}, RunColumns, where, REMEDY)
    if len({len(values) for values in columns["losses"].values()}) != 1:
        raise UserError(f"{where} has losses of several lengths; {REMEDY}")
    if any(len({len(layer) for layer in layers}) != 1 for layers in columns["heads"].values()):
        raise UserError(f"{where} has layers with several numbers of heads; {REMEDY}")
    try:
        config = configs.from_fields(columns["config"])
    except UserError as error:
        raise UserError(f"{where} has a configuration that cannot be read ({error}); {REMEDY}") from error
    if row["run"] != configs.digest(config):
        raise UserError(f"{where} has the configuration of {configs.digest(config)}; {REMEDY}")
    steps = zip(*columns["losses"].values(), strict=True)
    losses = [dict(zip(columns["losses"], values, strict=True)) for values in steps]
    heads = {name: np.array(layers) for name, layers in columns["heads"].items()}
    return RecordedRun(row["name"], config, columns["source"], losses, heads, (), ())


def _parse_cell(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    details = typed_json.check(typed_json.parse(row["details"], where, REMEDY), dict, where, REMEDY)
    cell = details | {name: row[name] for name in CELL if row[name] is not None} | {"config": row["run"]}
    if row["overrides"] is not None:
        cell["overrides"] = typed_json.parse(row["overrides"], where, REMEDY)
    return records.checked(cell, where, REMEDY)


def append(path: Path, run: Path, name: str, config: Config) -> None:
    """Add a part with those measurements of a trained run that are not recorded yet.

    If the process is killed, it leaves either no part or a complete one. Several processes may add to one folder.
    """
    heads = head_parameters(checkpoint.restore_model(run, step=config.steps)[2])
    measured = [cell for lines in records.read_results(run) for cell in lines if cell["step"] == config.steps]
    digest = configs.digest(config)
    row = {
        "run": digest,
        "name": name,
        "config": configs.to_fields(config),
        "source": read_source(run),
        "losses": _losses(run, config.steps),
        "heads": {name: np.round(values, 4).tolist() for name, values in heads.items()},
    }
    path.mkdir(parents=True, exist_ok=True)
    with lock.hold(path.with_name(f".{path.name}.lock")):
        files.sweep(path)
        recorded = find(path, digest)
        there = {_text(cell) for cell in (*recorded.cells, *recorded.stops)} if recorded else set()
        new = [cell for cell in measured if _text(cell) not in there]
        if new or not recorded:
            write_part(path, [(row, new)])


def write_part(path: Path, runs: Iterable[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]) -> None:
    """Add a part to a folder of records: runs as columns, each with its lines of results.jsonl."""
    arrow, parquet = require_arrow(path)
    rows = []
    for run, cells in runs:
        columns = {name: run[name] if name in RUN[:2] else json.dumps(run[name], sort_keys=True) for name in RUN}
        rows += [columns | _cell_columns(cell) for cell in cells] or [columns]
    table = arrow.Table.from_pylist(rows, schema=_schema(arrow))
    summary = _summary(*_rows(table))
    stream = arrow.BufferOutputStream()
    kept = {"compression": "zstd", "write_page_checksum": True, "write_statistics": False}
    kept |= {"store_schema": False, "dictionary_pagesize_limit": 2**24}
    with parquet.ParquetWriter(stream, table.schema, **kept) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({METADATA: json.dumps(summary)})
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S%f")  # sorted by name, the newest part is last
    files.write_atomically(path / f"part-{now}-{summary['digest'][:12]}.parquet", stream.getvalue().to_pybytes())


def _cell_columns(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a line of results.jsonl; fields without a column, or of another type, are in `details`."""
    columns = {name: cell[name] for name, kind in CELL.items() if name in cell and type(cell[name]) is kind}
    details = {name: cell[name] for name in cell if name not in (*columns, *DROPPED, "overrides")}
    if "overrides" in cell:
        columns["overrides"] = json.dumps(cell["overrides"], sort_keys=True)
    return columns | {"details": json.dumps(details, sort_keys=True)}


def require_arrow(path: Path) -> tuple[Any, Any]:
    """The modules that read and write records; a one-line error if they are not installed."""
    return import_extra("pyarrow", str(path), "results"), import_extra("pyarrow.parquet", str(path), "results")


def _schema(arrow: Any) -> Any:
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    texts = dict.fromkeys(RUN, arrow.dictionary(arrow.int32(), arrow.string()))
    columns = CELL | {"overrides": str, "details": str}
    return arrow.schema(texts | {name: types[kind] for name, kind in columns.items()})


def _rows(table: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The runs of an Arrow table, in order, and its rows with the digests of their runs."""
    rows = table.drop_columns([*RUN[1:]]).to_pylist()
    firsts = {row["run"]: number for number, row in reversed([*enumerate(rows)])}
    if table.group_by(RUN).aggregate([]).num_rows != len(firsts):
        raise ValueError("its rows describe a run in two ways")
    return table.select(RUN).take(sorted(firsts.values())).to_pylist(), rows


def _summary(runs: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "runs": len(runs),
        "cells": sum(cell["details"] is not None for cell in cells),
        "seeds": len({json.loads(run["config"])["seed"] for run in runs}),
        "digest": hashlib.sha256(json.dumps([runs, cells]).encode()).hexdigest(),
    }


def _counts(summary: Any) -> str:
    known = isinstance(summary, dict)
    return ", ".join(f"{value} {name}" for name, value in summary.items()) if known else repr(summary)


def _text(cell: Mapping[str, Any]) -> str:
    """A text that identifies a cell: all fields that are kept, except the time."""
    return json.dumps({name: cell[name] for name in cell if name not in ("seconds", *DROPPED)}, sort_keys=True)


def read_source(run: Path) -> dict[str, Any] | None:
    """The `Source` of a run; None if no sweep trained it, or if it does not exist."""
    path = run / SOURCE
    if not path.exists():
        return None
    source: dict[str, Any] = typed_json.check(jsonl.parse(regular.read(path), str(path)), Source, str(path))
    return source


def _losses(run: Path, steps: int) -> dict[str, list[Any]]:
    """The losses of some steps, evenly spaced over the training and including the last."""
    history = [line for line in read_metrics(run) if line["step"] <= steps]
    places = np.unique(np.linspace(0, len(history) - 1, POINTS).round().astype(int))
    shown = [history[place] for place in places if history]
    return {
        "step": [line["step"] for line in shown],
        "loss": [round(line["loss"], 5) for line in shown],
        "seconds": [round(line["seconds"], 1) for line in shown],
    }
