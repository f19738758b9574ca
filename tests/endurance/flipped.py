"""One random byte changed in a file of every kind that the package writes and reads.

Whatever reads the file must refuse it in one line, or read exactly what it read before. Some bytes have no meaning: a space
between two JSON fields, or a statistic in a Parquet header. Any other outcome is a failure.
"""

import dataclasses
import functools
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from endurance import commands, made
from endurance.figures import Figure, Outcome
from endurance.malformed_files import EXPERIMENT

from bam_jax import config as configs
from bam_jax.data.prepared import shards
from bam_jax.data.prepared.manifest import SPLITS, read_manifest
from bam_jax.data.tokenizers.copies import load_tokenizer
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.experiments import experiment, recorded_runs
from bam_jax.experiments.experiment_json import DESCRIPTION, read_description
from bam_jax.experiments.sweep import Sweep
from bam_jax.models import transformer
from bam_jax.retrieval import embedding, results
from bam_jax.retrieval.results import Setting
from bam_jax.system import jsonl
from bam_jax.system.errors import UserError
from bam_jax.system.machine import machine
from bam_jax.training import checkpoint, run_folder


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file."""

    files: dict[str, bytes]  # of a folder
    wanted: Callable[[str], bool]  # whether a file of this name is of the kind
    read: Callable[[Path], Any]  # all that the package reads of the folder


def _going_on(common: Path, run: Path) -> str:
    """The state that a training of one step more begins with: all arrays, the data's place, the metrics."""
    seen = []

    def begin(state: Any, batch: Any) -> None:
        leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((state, batch))]
        seen.append(hashlib.sha256(b"".join([*leaves, (run / "metrics.jsonl").read_bytes()])).hexdigest())

    with made.before_first_step(begin):
        ended = commands.call(commands.fill(made.OPENERS["resume"], folder=common, run=run))
    if ended.status == 2:
        raise UserError(ended.err.strip())
    if ended.status != 0:
        raise RuntimeError(ended.err)
    return seen[0]


def model(run: Path) -> str:
    """The configuration, the tokenizer and the arrays of a trained model."""
    config, tokenizer, model = checkpoint.restore_model(run)
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(transformer.split(model)[1])]
    return f"{configs.to_json(config)} {tokenizer.hash} {hashlib.sha256(b''.join(leaves)).hexdigest()}"


def _prepared(folder: Path) -> list[Any]:
    """All documents, and what is said of them; bytes that no document has are seen by `prepare --verify` alone."""
    manifest = read_manifest(folder)
    found: list[Any] = [repr(manifest), load_tokenizer(folder, manifest.tokenizer["spec"]).hash]
    for split in SPLITS:
        opened = shards.open_split(folder, split)
        found += [opened.lengths.tolist(), [ids.tolist() for ids in opened.read(np.arange(len(opened)))]]
    return found


def _embeddings(folder: Path) -> list[Any]:
    """The embeddings that are kept of ten documents."""
    (path,) = folder.rglob("*.npy")
    return embedding._read(path, (10, 4)).tolist()


@functools.cache
def kinds(folder: Path) -> dict[str, Kind]:
    """All kinds, by name; their files are made in the folder."""
    common = made.common()
    run = common / "run"
    of_run, of_weights = commands.contents(run), commands.contents(common / "exported")
    last = max((name for name in of_run if name.startswith("checkpoints/")), key=lambda name: int(name.split("/")[1]))
    last = "/".join(last.split("/")[:2])
    within = lambda part: lambda name: name.startswith(f"{last}/{part}")
    only = lambda wanted: lambda name: name == wanted
    going_on = functools.partial(_going_on, common)
    found = {
        "checkpoint: arrays of the model": Kind(of_run, within("model/"), going_on),
        "checkpoint: the optimiser's state": Kind(of_run, within("optimizer/"), going_on),
        "checkpoint: the data's place": Kind(of_run, within("data/"), going_on),
        "checkpoint: metrics and checksums": Kind(
            of_run, lambda name: name in (f"{last}/metrics.jsonl", f"{last}/sums.json"), going_on
        ),
        "config.json of a run": Kind(of_run, only("config.json"), run_folder.read_config),
        "model.safetensors": Kind(of_weights, only("model.safetensors"), model),
    }
    texts = [f"{n} words and more of them, of day {n % 7}" for n in range(40)]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "bpe.json").write_text(train_bpe(texts, 300, progress=False))
    prepare = (
        "bam_jax.data.prepare --source={folder}/in.jsonl --tokenizer=bpe:{folder}/bpe.json --out={folder}/prepared --workers=0 "
        "--shard-tokens=200 --holdout-tokens=60"
    )
    made.well(commands.fill(prepare, folder=folder))
    prepared = commands.contents(folder / "prepared")
    for name, wanted in (
        ("prepared: shards", lambda name: name.endswith(".array_record")),
        ("prepared: lengths", lambda name: name.endswith(".lengths")),
        ("prepared: manifest.json", only("manifest.json")),
        ("tokenizer/ of a run or a folder", lambda name: name.startswith("tokenizer/")),
    ):
        found[name] = Kind(prepared, wanted, _verified if "shards" in name or "lengths" in name else _prepared)
    (folder / "two.py").write_text(EXPERIMENT)
    loaded = experiment.load(folder / "two.py", runs=folder / "runs")
    described = jsonl.document(Sweep((loaded,), ("two.py",), folder / "runs").describe(), 2)
    found["experiment.json"] = Kind(
        {DESCRIPTION: described.encode()}, only(DESCRIPTION), lambda folder: repr(read_description(folder))
    )
    recorded_runs.append(folder / "kept", run, "run", run_folder.read_config(run))
    found["records of an experiment"] = Kind(
        commands.contents(folder / "kept"), lambda name: True, lambda folder: repr(recorded_runs.read(folder))
    )
    source = {"command": "python -m bam_jax.sweep two.py", "commit": "abc1234", "machine": machine()}
    found["trained.json of a run"] = Kind(
        {recorded_runs.SOURCE: jsonl.document(source, 2).encode()},
        only(recorded_runs.SOURCE),
        lambda folder: repr(recorded_runs.read_source(folder)),
    )
    folder.joinpath("ranked").mkdir()
    origin = results.Origin(
        run="run",
        config="abc",
        step=3,
        overrides={},
        tokenizer="def",
        data_hash="123",
        queries=9,
        documents=40,
        corpus="c.jsonl",
    )
    mean = {"mean": 0.5, "low": 0.25, "high": 0.75}
    result = {"commit": "abc1234", "ndcg_10": mean, "recall_100": mean, "mrr_10": mean}
    results.write_results(folder / "ranked", origin, {Setting("late", 16): result})
    found["metrics.json of rankings"] = Kind(
        commands.contents(folder / "ranked"),
        only(results.METRICS),
        lambda folder: repr(results.read_results(folder, origin)),
    )
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    embedding._write(folder / "embeddings" / "x.npy", vectors)
    found["embeddings"] = Kind(
        commands.contents(folder / "embeddings"), lambda name: name.endswith(".npy"), _embeddings
    )
    return found


def _verified(folder: Path) -> list[Any]:
    """The documents of a prepared folder, each byte of which is held against its checksum before."""
    shards.verify(folder)
    return _prepared(folder)


def measure(seed: int, count: int, folder: Path) -> Outcome:
    (folder / "common").mkdir()
    known, failures = kinds(folder / "common"), []
    noticed, meaningless = dict.fromkeys(known, 0), dict.fromkeys(known, 0)
    place = folder / "place"
    expected = {}
    for name, kind in known.items():
        commands.put(place, kind.files)
        expected[name] = kind.read(place)
        shutil.rmtree(place)
    for number in range(count):
        name, chance = list(known)[number % len(known)], random.Random(f"{seed} {number}")
        kind = known[name]
        file = chance.choice([each for each in sorted(kind.files) if kind.wanted(each) and kind.files[each]])
        changed = bytearray(kind.files[file])
        at = chance.randrange(len(changed))
        changed[at] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
        commands.put(place, kind.files | {file: bytes(changed)})
        try:
            found = kind.read(place)
        except UserError as error:
            noticed[name] += 1
            if "\n" in str(error):
                failures.append(f"{name}, {file}, byte {at}: several lines: {error}")
        except Exception as error:
            failures.append(f"{name}, {file}, byte {at}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        else:
            meaningless[name] += found == expected[name]
            if found != expected[name]:
                failures.append(
                    f"{name}, {file}, byte {at} of {len(changed)}, {kind.files[file][at]} to {changed[at]}: unnoticed"
                )
        shutil.rmtree(place)
    return Outcome(count, failures, {"noticed": noticed, "without_meaning": meaningless})


FIGURE = Figure(
    what="one byte changed in every kind of file: refused in one line, or without effect",
    unit="bytes",
    wanted=3000,
    part=300,
    short=34,
    minutes=80,
    measure=measure,
)
