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
from endurance.figures import Outcome
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

WHAT = "one byte changed in every kind of file: refused in one line, or without effect"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file: those of a folder that begin or end so, and all that the package reads of the folder."""

    files: dict[str, bytes]
    wanted: tuple[str, ...]
    read: Callable[[Path], Any]

    def names(self) -> list[str]:
        fits = lambda name: name.startswith(self.wanted) or name.endswith(self.wanted)
        return [name for name in sorted(self.files) if self.files[name] and fits(name)]


def _resumed(common: Path, run: Path) -> str:
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


def _verified(folder: Path) -> list[Any]:
    """The documents of a prepared folder, each byte of which is held against its checksum before."""
    shards.verify(folder)
    return _prepared(folder)


def _embeddings(folder: Path) -> list[Any]:
    """The embeddings that are kept of ten documents."""
    (path,) = folder.rglob("*.npy")
    return embedding._read(path, (10, 4)).tolist()


def kinds(folder: Path) -> dict[str, Kind]:
    """All kinds, by name; their files are made in the folder."""
    common = made.common()
    run = common / "run"

    texts = [f"{n} words and more of them, of day {n % 7}" for n in range(40)]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "bpe.json").write_text(train_bpe(texts, 300, progress=False))
    prepare = (
        "bam_jax.data.prepare --source={folder}/in.jsonl --tokenizer=bpe:{folder}/bpe.json --out={folder}/prepared "
    )
    made.well(prepare + "--workers=0 --shard-tokens=200 --holdout-tokens=60", folder=folder)

    (folder / "two.py").write_text(EXPERIMENT)
    loaded = experiment.load(folder / "two.py", runs=folder / "runs")
    described = jsonl.document(Sweep((loaded,), ("two.py",), folder / "runs").describe(), 2).encode()
    recorded_runs.append(folder / "kept", run, "run", run_folder.read_config(run))
    trained = {"command": "python -m bam_jax.sweep two.py", "commit": "abc1234", "machine": machine()}

    names = {"run": "run", "config": "abc", "step": 3, "overrides": {}, "tokenizer": "def", "data_hash": "123"}
    origin = results.Origin(**names, queries=9, documents=40, corpus="c.jsonl")
    mean = {"mean": 0.5, "low": 0.25, "high": 0.75}
    (folder / "ranked").mkdir()
    result = {"commit": "abc1234", "ndcg_10": mean, "recall_100": mean, "mrr_10": mean}
    results.write_results(folder / "ranked", origin, {Setting("late", 16): result})

    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    embedding._write(folder / "embeddings" / "x.npy", vectors)

    of_run, of_weights = commands.contents(run), commands.contents(common / "exported")
    prepared, kept, embedded = (commands.contents(folder / name) for name in ("prepared", "kept", "embeddings"))
    last, resumed = f"checkpoints/{run_folder.latest_step(run)}", functools.partial(_resumed, common)
    source, metrics = recorded_runs.SOURCE, results.METRICS
    return {
        "checkpoint: arrays of the model": Kind(of_run, (f"{last}/model/",), resumed),
        "checkpoint: the optimiser's state": Kind(of_run, (f"{last}/optimizer/",), resumed),
        "checkpoint: the data's place": Kind(of_run, (f"{last}/data/",), resumed),
        "checkpoint: metrics and checksums": Kind(of_run, (f"{last}/metrics.jsonl", f"{last}/sums.json"), resumed),
        "config.json of a run": Kind(of_run, ("config.json",), run_folder.read_config),
        "model.safetensors": Kind(of_weights, ("model.safetensors",), model),
        "prepared: shards": Kind(prepared, (".array_record",), _verified),
        "prepared: lengths": Kind(prepared, (".lengths",), _verified),
        "prepared: manifest.json": Kind(prepared, ("manifest.json",), _prepared),
        "tokenizer/ of a run or a folder": Kind(prepared, ("tokenizer/",), _prepared),
        "experiment.json": Kind({DESCRIPTION: described}, ("",), lambda folder: repr(read_description(folder))),
        "records of an experiment": Kind(kept, ("",), lambda folder: repr(recorded_runs.read(folder))),
        "trained.json of a run": Kind(
            {source: jsonl.document(trained, 2).encode()}, ("",), lambda folder: repr(recorded_runs.read_source(folder))
        ),
        "metrics.json of rankings": Kind(
            {metrics: (folder / "ranked" / metrics).read_bytes()},
            ("",),
            lambda folder: repr(results.read_results(folder, origin)),
        ),
        "embeddings": Kind(embedded, (".npy",), _embeddings),
    }


def measure(seed: int, count: int, folder: Path) -> Outcome:
    (folder / "common").mkdir()
    known, outcome, place = kinds(folder / "common"), Outcome(), folder / "place"
    noticed, meaningless = dict.fromkeys(known, 0), dict.fromkeys(known, 0)
    expected = {}
    for name, kind in known.items():
        commands.put(place, kind.files)
        expected[name] = kind.read(place)
        shutil.rmtree(place)
    for number in range(count):
        name, chance = list(known)[number % len(known)], random.Random(f"{seed} {number}")
        kind, wrong = known[name], ""
        file = chance.choice(kind.names())
        changed = bytearray(kind.files[file])
        at = chance.randrange(len(changed))
        changed[at] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
        commands.put(place, kind.files | {file: bytes(changed)})
        try:
            found = kind.read(place)
        except UserError as error:
            noticed[name] += 1
            wrong = f"several lines: {error}" if "\n" in str(error) else ""
        except Exception as error:
            wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            meaningless[name] += found == expected[name]
            wrong = "" if found == expected[name] else f"{kind.files[file][at]} to {changed[at]} goes unnoticed"
        outcome.add(f"{name}, {file}, byte {at} of {len(changed)}", wrong)
        shutil.rmtree(place)
    outcome.more = {"noticed": noticed, "without_meaning": meaningless}
    return outcome
