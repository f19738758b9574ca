"""Damaged files of every format that commands read: texts, columns, tokenizers, prepared folders, weights, rankings, records.

A file that cannot be read must end the command in one line with status 2, and no input may change. Each format is also read
undamaged, and must be accepted or refused with the expected words.
"""

import dataclasses
import functools
import gzip
import json
import random
import shutil
from pathlib import Path

import numpy as np
import zstandard
from endurance import commands, made
from endurance.figures import ROOT, Outcome
from safetensors.numpy import save

from bam_jax.experiments import recorded_runs
from bam_jax.training import bundled, run_folder

WHAT = "damaged files of every format: refused in one line, with nothing overwritten"
EXPERIMENT = f"""
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row


def get_experiment():
    asked = (Passkey((64, 256), depths=5),)
    return Experiment("Two", (Row("BAM", {str(ROOT / "configs" / "quickstart.py")!r}, {{"steps": 40}}, (0, 1), asked),))
"""
CLAIMS = b"""
title = "Invented"

[[claim]]
place = "1"
says = "it is read"
"""
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


def _prepare(file: str, tokenizer: str = "byte") -> str:
    return PREPARE.replace("FILE", file).replace("TOKENIZER", tokenizer)


def _problem(texts: list[str]) -> dict[str, bytes]:
    """Documents, queries and judgements."""
    lines = lambda records: "".join(json.dumps(record) + "\n" for record in records).encode()
    return {
        "corpus.jsonl": lines({"_id": f"d{n}", "text": text, "title": ""} for n, text in enumerate(texts)),
        "queries.jsonl": lines({"_id": f"q{n}", "text": texts[n][:9]} for n in range(9)),
        "qrels.tsv": ("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(9))).encode(),
    }


def formats(folder: Path) -> dict[str, Format]:
    """All formats, by name; what their commands need besides is made in the folder."""
    shared, theirs = commands.of_test("data/test_fuzz"), commands.of_test("convert/test_convert")
    well = lambda template, given=folder: made.well(template, given=given, out=folder, folder=folder)

    # What commands need besides the files of a format, and what they write.
    problem, bert = _problem(shared.TEXTS), commands.contents(ROOT / "tests" / "convert" / "bert_golden")
    bert = {name: bert[name] for name in ("config.json", "model.safetensors", "vocab.txt")}
    experiment = made.experiment("A paper", folder / "small.py", "BAM").encode()
    commands.put(folder, {"in.jsonl": shared.LINES, "claims.toml": CLAIMS, "tabled.py": experiment, **problem})
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
    sources = {**shared.SOURCES, "a.raw": shared.WIKI}
    texts = {name: contents for name, contents in sources.items() if not name.endswith(".parquet")}
    sources |= {f"{name}.gz": gzip.compress(contents) for name, contents in texts.items()}
    sources |= {f"{name}.zst": zstandard.compress(contents) for name, contents in texts.items()}
    found = {
        name: Format({name: contents}, _prepare(name), refused.get(name, "")) for name, contents in sources.items()
    }

    names = {"bpe": "bpe:{given}/tokenizer.json", "bert": "bert:{given}/vocab.txt", "gpt2": "gpt2:{given}"}
    for kind, files in shared.vocabularies().items():
        found[f"{kind} tokenizer"] = Format({**files, "in.jsonl": shared.LINES}, _prepare("in.jsonl", names[kind]))
    weights = commands.contents(bundled.FOLDER / "quickstart")
    weights = {name: weights[name] for name in weights if "/" in name or name in ("config.json", "model.safetensors")}
    draw, byte = np.random.default_rng(0), "--config.data.tokenizer=byte"
    bam = {"args.json": json.dumps(theirs.bam_args("bam_ssmax")).encode()}
    bam["model.safetensors"] = save(theirs.bam_weights(draw, "bam_ssmax"))
    told = [{"text": " ".join(f"The tale {n} goes on for {at} days and ends." for at in range(40))} for n in range(30)]
    documents = "".join(json.dumps(record) + "\n" for record in told).encode()
    prepared, page = commands.contents(folder / "made"), (folder / "claims.md").read_bytes()
    found |= {
        "prepared folder": Format(prepared, "bam_jax.data.inspect {given} --config.context=16 --no-plot --rows=1"),
        "exported weights": Format(weights, "bam_jax.convert --run={given} --export={out}/exported"),
        "BAM's weights": Format(bam, f"{CONVERT}bam {byte}"),
        "CABLE's weights": Format({"model.safetensors": save(theirs.cable_weights(draw))}, f"{CONVERT}cable {byte}"),
        "BERT's weights": Format(bert, f"{CONVERT}bert"),
        "retrieval problem": Format(problem, RETRIEVE.replace("PROBLEM", "{given}") + "{out}/ranked"),
        "rankings": Format(rankings, f"{retrieve}{{given}}", renewed=True),
        "documents to question": Format(
            {"in.jsonl": documents}, "bam_jax.data.make_retrieval --source={given}/in.jsonl --out={out}/problem"
        ),
        "prompt": Format(  # read before the command looks for the run, of which there is none
            {"prompt.txt": "".join(shared.TEXTS[:3]).encode()},
            "bam_jax.generate --run={out}/none --file={given}/prompt.txt",
            "/none is not a run",
        ),
        "experiment": Format({"two.py": EXPERIMENT.encode()}, "bam_jax.sweep {given}/two.py --print --runs={out}/runs"),
        "records of an experiment": Format(
            commands.contents(folder / "kept"),
            "bam_jax.tables {folder}/tabled.py --format=markdown --runs={folder}/runs --records={given}",
        ),
        "claims": Format({"claims.toml": CLAIMS}, f"{JUDGE}{{given}}/claims.toml"),
        "page of claims": Format(
            {"claims.md": page}, f"{JUDGE}{{folder}}/claims.toml --out={{given}}/claims.md", renewed=True
        ),
    }
    return found


def spoilt(contents: bytes, chance: random.Random) -> bytes:
    """Other bytes than a file's: some flipped, cut away, put in or repeated; a field's value changed; or all of them others."""
    damage = commands.of_test("test_damage")
    made = bytearray(contents)
    left = chance.randint(1, 3)
    while left > 0 or made == contents:
        left -= 1
        at = chance.randrange(len(made) + 1)
        match chance.choice(["flip", "flip", "cut", "end", "insert", "repeat", "all", "field", "field"]):
            case "flip" if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case "cut":
                del made[at : at + chance.randint(1, 99)]
            case "end":
                del made[at:]
            case "insert":
                made[at:at] = chance.choice([*commands.of_test("data/test_fuzz").HOSTILE, chance.randbytes(9)])
            case "repeat":
                made[at:at] = made[: chance.randint(0, 9999)]
            case "all":
                made = bytearray(chance.choice([chance.randbytes(200), b"", b"null", b"[]", b"{}\n"]))
            case "field":
                made = bytearray(_field_changed(bytes(made), chance.choice(damage.WEIRD), chance))
    return bytes(made)


def _field_changed(contents: bytes, value: str, chance: random.Random) -> bytes:
    """A line of JSON, the head of weights, or the file as a whole, with another value in one place; anything else as it is."""
    damage = commands.of_test("test_damage")
    end = 8 + int.from_bytes(contents[:8], "little")
    if contents[8:9] == b"{" and end <= len(contents):  # safetensors: the size of its head, that, and the arrays
        head = _field_changed(contents[8:end], value, chance)
        return len(head).to_bytes(8, "little") + head + contents[end:]
    pieces = [contents] if contents.startswith(b"{\n") else contents.splitlines(keepends=True)
    number = chance.randrange(max(1, len(pieces)))
    try:
        tree = json.loads(pieces[number])
        *above, key = chance.choice(damage.places(tree)[1:])
    except (ValueError, IndexError, RecursionError):
        return contents
    parent = functools.reduce(lambda each, step: each[step], above, tree)
    if chance.random() < 0.3:
        del parent[key]
        pieces[number] = json.dumps(tree).encode() + b"\n"
    else:
        parent[key] = "<here>"
        pieces[number] = json.dumps(tree).replace('"<here>"', value, 1).encode() + b"\n"
    return b"".join(pieces)


def measure(seed: int, count: int, folder: Path) -> Outcome:
    (folder / "common").mkdir()
    known, outcome = formats(folder / "common"), Outcome()
    refused = dict.fromkeys(known, 0)
    given, out = folder / "given", folder / "out"
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
