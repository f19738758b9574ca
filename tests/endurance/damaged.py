"""Files that hold other bytes than were written: of every format, of runs, and of one byte each."""

import dataclasses
import functools
import gzip
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import zstandard
from convert import test_convert
from data import test_fuzz as texts
from endurance import commands, made
from endurance.figures import ROOT, Outcome
from endurance.spoil import spoilt
from safetensors.numpy import save

from bam_jax.data.prepared import shards
from bam_jax.data.prepared.manifest import SPLITS, read_manifest
from bam_jax.data.tokenizers.copies import load_tokenizer
from bam_jax.experiments import recorded_runs
from bam_jax.experiments.experiment_json import DESCRIPTION, read_description
from bam_jax.experiments.sweep import Sweep
from bam_jax.retrieval import embedding, results
from bam_jax.retrieval.results import Setting
from bam_jax.system import jsonl
from bam_jax.system.errors import UserError
from bam_jax.system.machine import machine
from bam_jax.training import bundled, run_folder

CLAIMS = b'title = "Invented"\n[[claim]]\nplace = "1"\nsays = "it is read"\n'
PREPARE = (
    "bam_jax.data.prepare --source={given}/FILE --tokenizer=TOKENIZER --out={out}/made --workers=0 --shard-tokens=900"
)
CONVERT = "bam_jax.convert --source={given} --run={out}/run --layout="
RETRIEVE = (
    "bam_jax.retrieve --run={folder}/run --corpus=PROBLEM/corpus.jsonl --queries=PROBLEM/queries.jsonl --qrels=PROBLEM/qrels.tsv "
    "--lengths=16 --no-progress --out="
)
JUDGE = "bam_jax.claims --runs={folder}/runs --scale=toy "


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files, of which one is damaged, and a command that reads it."""

    files: dict[str, bytes]
    template: str  # with the folder of the files, `given`, an empty one, `out`, and that of all else, `folder`
    refusal: str = ""  # words of the line that refuses the undamaged files; "": they are accepted
    renewed: bool = False  # whether the command rewrites the files that it accepts


def _problem(documents):
    """Documents, queries and judgements."""
    corpus = [{"_id": f"d{n}", "text": text, "title": ""} for n, text in enumerate(documents)]
    queries = [{"_id": f"q{n}", "text": documents[n][:9]} for n in range(9)]
    judgements = "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(9))
    lines = {"corpus.jsonl": made.to_lines(corpus), "queries.jsonl": made.to_lines(queries), "qrels.tsv": judgements}
    return {name: text.encode() for name, text in lines.items()}


def _prepare(file, tokenizer="byte"):
    return PREPARE.replace("FILE", file).replace("TOKENIZER", tokenizer)


def formats(folder):
    """All formats, by name; what their commands need besides is made in the folder."""
    well = lambda template, given=folder: made.well(template, given=given, out=folder, folder=folder)

    # What commands need besides the files of a format, and what they write.
    problem, bert = _problem(texts.TEXTS), commands.contents(ROOT / "tests" / "convert" / "bert_golden")
    bert = {name: bert[name] for name in ("config.json", "model.safetensors", "vocab.txt")}
    table = made.experiment("A paper", folder / "small.py", "BAM").encode()
    commands.put(folder, {"in.jsonl": texts.LINES, "claims.toml": CLAIMS, "tabled.py": table, **problem})
    commands.put(folder / "bert", bert)
    shutil.copy(made.common() / "small.py", folder)
    run = made.common() / "run"
    recorded_runs.append(folder / "kept", run, "run", run_folder.read_config(run))
    well(_prepare("in.jsonl"))
    well(f"{CONVERT}bert", folder / "bert")
    retrieve = RETRIEVE.replace("PROBLEM", "{folder}")
    well(f"{retrieve}{{folder}}/ranked")
    well(f"{JUDGE}{{folder}}/claims.toml --out={{folder}}/claims.md")
    rankings = {name: bits for name, bits in commands.contents(folder / "ranked").items() if not name.endswith(".run")}

    # Texts, plain and compressed, and columns, of which two have no texts.
    refused = {"b.parquet": "is of dictionary", "c.parquet": "is of int64"}
    sources = {**texts.SOURCES, "a.raw": texts.WIKI}
    plain = {name: bits for name, bits in sources.items() if not name.endswith(".parquet")}
    for suffix, compress in ((".gz", gzip.compress), (".zst", zstandard.compress)):
        sources |= {f"{name}{suffix}": compress(bits) for name, bits in plain.items()}
    found = {name: Format({name: bits}, _prepare(name), refused.get(name, "")) for name, bits in sources.items()}

    names = {"bpe": "bpe:{given}/tokenizer.json", "bert": "bert:{given}/vocab.txt", "gpt2": "gpt2:{given}"}
    for kind, files in texts.vocabularies().items():
        found[f"{kind} tokenizer"] = Format({**files, "in.jsonl": texts.LINES}, _prepare("in.jsonl", names[kind]))
    weights = commands.contents(bundled.FOLDER / "quickstart")
    weights = {name: weights[name] for name in weights if "/" in name or name in ("config.json", "model.safetensors")}
    draw, byte = np.random.default_rng(0), "--config.data.tokenizer=byte"
    bam = {"args.json": json.dumps(test_convert.bam_args("bam_ssmax")).encode()}
    bam["model.safetensors"] = save(test_convert.bam_weights(draw, "bam_ssmax"))
    cable = {"model.safetensors": save(test_convert.cable_weights(draw))}
    told = [{"text": " ".join(f"The tale {n} goes on for {at} days and ends." for at in range(40))} for n in range(30)]
    asked = {"in.jsonl": made.to_lines(told).encode()}
    page = {"claims.md": (folder / "claims.md").read_bytes()}
    prompt = {"prompt.txt": "".join(texts.TEXTS[:3]).encode()}  # read before the run, of which there is none
    kept, prepared = commands.contents(folder / "kept"), commands.contents(folder / "made")
    tables = "bam_jax.tables {folder}/tabled.py --format=markdown --runs={folder}/runs --records={given}"
    return found | {
        "prepared folder": Format(prepared, "bam_jax.data.inspect {given} --config.context=16 --no-plot --rows=1"),
        "exported weights": Format(weights, "bam_jax.convert --run={given} --export={out}/exported"),
        "BAM's weights": Format(bam, f"{CONVERT}bam {byte}"),
        "CABLE's weights": Format(cable, f"{CONVERT}cable {byte}"),
        "BERT's weights": Format(bert, f"{CONVERT}bert"),
        "retrieval problem": Format(problem, RETRIEVE.replace("PROBLEM", "{given}") + "{out}/ranked"),
        "rankings": Format(rankings, f"{retrieve}{{given}}", renewed=True),
        "documents to question": Format(
            asked, "bam_jax.data.make_retrieval --source={given}/in.jsonl --out={out}/problem"
        ),
        "prompt": Format(prompt, "bam_jax.generate --run={out}/none --file={given}/prompt.txt", "/none is not a run"),
        "experiment": Format({"two.py": table}, "bam_jax.sweep {given}/two.py --print --runs={out}/runs"),
        "records of an experiment": Format(kept, tables),
        "claims": Format({"claims.toml": CLAIMS}, f"{JUDGE}{{given}}/claims.toml"),
        "page of claims": Format(page, f"{JUDGE}{{folder}}/claims.toml --out={{given}}/claims.md", renewed=True),
    }


def malformed_files(seed, count, folder):
    """Damaged files of every format: refused in one line, with nothing overwritten."""
    (folder / "common").mkdir()
    known, outcome, given, out = formats(folder / "common"), Outcome(), folder / "given", folder / "out"
    refused = dict.fromkeys(known, 0)
    for number in (*range(-len(known), 0), *range(count)):  # the negative ones are undamaged
        name = list(known)[number % len(known)]
        format, chance = known[name], random.Random(f"{seed} {number}")
        file = chance.choice(sorted(format.files))
        contents = format.files[file] if number < 0 else spoilt(format.files[file], chance)
        commands.put(given, format.files | {file: contents})
        out.mkdir()
        command = commands.fill(format.template, given=given, out=out, folder=folder / "common")
        ended, wrong = commands.judge(command, given, read_only=not format.renewed)
        as_known = format.refusal in ended.err if format.refusal else ended.status == 0
        if not wrong and number < 0 and not as_known:
            wrong = f"undamaged, it ends with {ended.status}: {ended.err}"
        outcome.add(f"{name}, {file}, seed {seed}, case {number}", wrong)
        refused[name] += number >= 0 and ended.status == 2 and not as_known
        shutil.rmtree(given)
        shutil.rmtree(out)
    outcome.count, outcome.more = count, {"formats": len(known), "refused": refused}
    return outcome


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file: those of a folder that begin or end so, and all that the package reads of the folder."""

    files: dict[str, bytes]
    wanted: tuple[str, ...]
    read: Callable[[Path], Any]

    def names(self):
        fits = lambda name: name.startswith(self.wanted) or name.endswith(self.wanted)
        return [name for name in sorted(self.files) if self.files[name] and fits(name)]


def _resumed(run):
    """The state that a training of one step more begins with: all arrays, the data's place, the metrics."""
    seen = []

    def begin(state, batch):
        leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((state, batch))]
        seen.append(hashlib.sha256(b"".join([*leaves, (run / "metrics.jsonl").read_bytes()])).hexdigest())

    with made.before_first_step(begin):
        ended = commands.call(commands.fill(made.OPENERS["resume"], folder=made.common(), run=run))
    if ended.status == 2:
        raise UserError(ended.err.strip())
    if ended.status != 0:
        raise RuntimeError(ended.err)
    return seen[0]


def _prepared(folder):
    """All documents, and what is said of them; bytes that no document has are seen by `prepare --verify` alone."""
    manifest = read_manifest(folder)
    found = [repr(manifest), load_tokenizer(folder, manifest.tokenizer["spec"]).hash]
    for split in SPLITS:
        opened = shards.open_split(folder, split)
        found += [opened.lengths.tolist(), [ids.tolist() for ids in opened.read(np.arange(len(opened)))]]
    return found


def _verified(folder):
    """The documents of a prepared folder, each byte of which is held against its checksum before."""
    shards.verify(folder)
    return _prepared(folder)


def kinds(folder):
    """All kinds, by name; their files are made in the folder."""
    run = made.common() / "run"
    commands.put(folder, {"in.jsonl": texts.LINES, "bpe.json": texts.vocabularies()["bpe"]["tokenizer.json"]})
    made.well(_prepare("in.jsonl", "bpe:{given}/bpe.json") + " --holdout-tokens=60", given=folder, out=folder)

    (folder / "two.py").write_text(made.experiment("Two", made.common() / "small.py", "BAM"))
    described = Sweep.load([str(folder / "two.py")], runs=folder / "runs").describe()
    described = jsonl.document(described, 2).encode()
    recorded_runs.append(folder / "kept", run, "run", run_folder.read_config(run))
    trained = {"command": "python -m bam_jax.sweep two.py", "commit": "abc1234", "machine": machine()}
    trained = jsonl.document(trained, 2).encode()

    names = {"run": "run", "config": "abc", "step": 3, "overrides": {}, "tokenizer": "def", "data_hash": "123"}
    origin = results.Origin(**names, queries=9, documents=40, corpus="c.jsonl")
    mean = {"mean": 0.5, "low": 0.25, "high": 0.75}
    (folder / "ranked").mkdir()
    result = {"commit": "abc1234", "ndcg_10": mean, "recall_100": mean, "mrr_10": mean}
    results.write_results(folder / "ranked", origin, {Setting("late", 16): result})
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    embedding._write(folder / "embeddings" / "x.npy", vectors)

    of_run, of_weights = commands.contents(run), commands.contents(made.common() / "exported")
    prepared, kept, embedded, ranked = (
        commands.contents(folder / name) for name in ("made", "kept", "embeddings", "ranked")
    )
    last = f"checkpoints/{run_folder.latest_step(run)}"
    return {
        "checkpoint: arrays of the model": Kind(of_run, (f"{last}/model/",), _resumed),
        "checkpoint: the optimiser's state": Kind(of_run, (f"{last}/optimizer/",), _resumed),
        "checkpoint: the data's place": Kind(of_run, (f"{last}/data/",), _resumed),
        "checkpoint: metrics and checksums": Kind(of_run, (f"{last}/metrics.jsonl", f"{last}/sums.json"), _resumed),
        "config.json of a run": Kind(of_run, ("config.json",), run_folder.read_config),
        "model.safetensors": Kind(of_weights, ("model.safetensors",), made.model),
        "prepared: shards": Kind(prepared, (".array_record",), _verified),
        "prepared: lengths": Kind(prepared, (".lengths",), _verified),
        "prepared: manifest.json": Kind(prepared, ("manifest.json",), _prepared),
        "tokenizer/ of a run or a folder": Kind(prepared, ("tokenizer/",), _prepared),
        "experiment.json": Kind({DESCRIPTION: described}, ("",), read_description),
        "records of an experiment": Kind(kept, ("",), recorded_runs.read),
        "trained.json of a run": Kind({recorded_runs.SOURCE: trained}, ("",), recorded_runs.read_source),
        "metrics.json of rankings": Kind(
            ranked, (results.METRICS,), lambda folder: results.read_results(folder, origin)
        ),
        "embeddings": Kind(
            embedded, (".npy",), lambda folder: embedding._read(*folder.glob("*.npy"), (10, 4)).tolist()
        ),
    }


def flipped(seed, count, folder):
    """One byte changed in every kind of file: refused in one line, or without effect."""
    (folder / "common").mkdir()
    known, outcome, place = kinds(folder / "common"), Outcome(), folder / "place"

    @functools.cache
    def expected(name):
        commands.put(place, known[name].files)
        found = repr(known[name].read(place))
        shutil.rmtree(place)
        return found

    noticed, meaningless = dict.fromkeys(known, 0), dict.fromkeys(known, 0)
    for number in range(count):
        name, chance = list(known)[number % len(known)], random.Random(f"{seed} {number}")
        kind, wrong = known[name], ""
        file = chance.choice(kind.names())
        changed = bytearray(kind.files[file])
        at = chance.randrange(len(changed))
        changed[at] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
        before = expected(name)
        commands.put(place, kind.files | {file: bytes(changed)})
        try:
            found = repr(kind.read(place))
        except UserError as error:
            noticed[name] += 1
            wrong = f"several lines: {error}" if "\n" in str(error) else ""
        except Exception as error:
            wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            meaningless[name] += found == before
            wrong = "" if found == before else f"{kind.files[file][at]} to {changed[at]} goes unnoticed"
        outcome.add(f"{name}, {file}, byte {at} of {len(changed)}", wrong)
        shutil.rmtree(place)
    outcome.more = {"noticed": noticed, "without_meaning": meaningless}
    return outcome
