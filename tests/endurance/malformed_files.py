"""Files of every format that commands read, damaged: texts, columns, tokenizers, prepared folders, weights, rankings, records.

A file that cannot be read ends the command in one line with status 2, and no file that it reads is another afterwards. Each
format is read undamaged as well: it is not refused, or with the words that are known of it.
"""

import dataclasses
import functools
import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zstandard
from endurance import commands, made
from endurance.figures import ROOT, Figure, Outcome
from safetensors.numpy import save

from bam_jax import claims, generate, retrieve, sweep, tables
from bam_jax.convert import __main__ as convert
from bam_jax.data import inspect, make_retrieval, prepare
from bam_jax.experiments import recorded_runs
from bam_jax.training import bundled, run_folder

EXPERIMENT = f"""
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row


def get_experiment():
    asked = (Passkey((64, 256), depths=5),)
    return Experiment("Two", (Row("BAM", {str(ROOT / "configs" / "quickstart.py")!r}, {{"steps": 40}}, (0, 1), asked),))
"""
TABLED = """
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Row, Table, tabled


def get_experiment():
    columns = (Column("text", Perplexity((16,), tokens=64)),)
    return tabled("A paper", [Row("BAM", {config!r}, {{}})], [Table("Table 1", columns, {{"BAM": ("9.0",)}})])
"""
CLAIMS = """
title = "Invented"

[[claim]]
place = "1"
says = "it is read"
"""
PROBLEM = ("corpus.jsonl", "queries.jsonl", "qrels.tsv")
NO_RUN = "/none is not a run"
"""The refusal of a command that reads its files before it looks for the run, which the harness does not give it."""
REFUSED = {"b.parquet": "is of dictionary", "c.parquet": "is of int64"}
"""Words of the refusals of columns that are none of texts."""

Call = Callable[[Path, Path], tuple[commands.Main, list[str]]]


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files, and a command that reads it.

    Args:
        files: by their names in the folder; one of them is damaged.
        command: takes the folder of the files and one to write to; gives a command's main and its arguments.
        refusal: words of the line with which the files are refused as they are; "": they are not.
        renewed: whether the command writes the files again, where it does not refuse them.
    """

    files: dict[str, bytes]
    command: Call
    refusal: str = ""
    renewed: bool = False


def _prepare(name: str, tokenizer: str = "byte") -> Call:
    return lambda given, out: (
        prepare.main,
        [
            *(f"--source={given / name}", f"--tokenizer={tokenizer.format(given)}"),
            *(f"--out={out / 'made'}", "--workers=0", "--shard-tokens=900"),
        ],
    )


def _convert(layout: str, *options: str) -> Call:
    return lambda given, out: (
        convert.main,
        [f"--layout={layout}", f"--source={given}", f"--run={out / 'run'}", *options],
    )


def _retrieve(problem: Path, run: Path, out: Path) -> tuple[commands.Main, list[str]]:
    asked = [f"--{name}={problem / file}" for name, file in zip(("corpus", "queries", "qrels"), PROBLEM, strict=True)]
    return retrieve.main, [f"--run={run}", *asked, "--lengths=16", f"--out={out}", "--no-progress"]


def _inspect(given: Path, out: Path) -> tuple[commands.Main, list[str]]:
    return inspect.main, [str(given), "--config.context=16", "--no-plot", "--rows=1"]


def _problem(texts: list[str]) -> dict[str, bytes]:
    """Documents, queries and judgements."""
    lines = lambda records: "".join(json.dumps(record) + "\n" for record in records).encode()
    corpus = lines({"_id": f"d{n}", "text": text, "title": ""} for n, text in enumerate(texts))
    queries = lines({"_id": f"q{n}", "text": texts[n][:9]} for n in range(9))
    judged = "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(9))
    return dict(zip(PROBLEM, (corpus, queries, judged.encode()), strict=True))


@functools.cache
def formats(folder: Path) -> dict[str, Format]:
    """All formats, by name.

    Args:
        folder: where what takes a command is made.
    """
    shared = commands.of_test("data/test_fuzz")
    sources = {**shared.SOURCES, "a.raw": shared.WIKI}
    texts = {name: contents for name, contents in sources.items() if not name.endswith(".parquet")}
    sources |= {f"{name}.gz": gzip.compress(contents) for name, contents in texts.items()}
    sources |= {f"{name}.zst": zstandard.compress(contents) for name, contents in texts.items()}
    found = {
        name: Format({name: contents}, _prepare(name), REFUSED.get(name, "")) for name, contents in sources.items()
    }
    for kind, files in shared.vocabularies().items():
        name = {"bpe": "bpe:{}/tokenizer.json", "bert": "bert:{}/vocab.txt", "gpt2": "gpt2:{}"}[kind]
        found[f"{kind} tokenizer"] = Format({**files, "in.jsonl": shared.LINES}, _prepare("in.jsonl", name))
    made.put(folder, {"in.jsonl": shared.LINES, "claims.toml": CLAIMS.encode(), **_problem(shared.TEXTS)})
    made.well(*_prepare("in.jsonl")(folder, folder))
    found["prepared folder"] = Format(made.contents(folder / "made"), _inspect)
    weights = made.contents(bundled.FOLDER / "quickstart")
    weights = {name: weights[name] for name in weights if "/" in name or name in ("config.json", "model.safetensors")}
    found["exported weights"] = Format(
        weights, lambda given, out: (convert.main, [f"--run={given}", f"--export={out / 'exported'}"])
    )
    theirs, draw = commands.of_test("convert/test_convert"), np.random.default_rng(0)
    byte = "--config.data.tokenizer=byte"
    bam = {"args.json": json.dumps(theirs.bam_args("bam_ssmax")).encode()}
    bam["model.safetensors"] = save(theirs.bam_weights(draw, "bam_ssmax"))
    found["BAM's weights"] = Format(bam, _convert("bam", byte))
    found["CABLE's weights"] = Format({"model.safetensors": save(theirs.cable_weights(draw))}, _convert("cable", byte))
    bert = made.contents(ROOT / "tests" / "convert" / "bert_golden")
    bert = {name: bert[name] for name in ("config.json", "model.safetensors", "vocab.txt")}
    found["BERT's weights"] = Format(bert, _convert("bert"))
    made.put(folder / "bert", bert)
    made.well(*_convert("bert")(folder / "bert", folder))
    made.well(*_retrieve(folder, folder / "run", folder / "ranked"))
    found["retrieval problem"] = Format(
        _problem(shared.TEXTS), lambda given, out: _retrieve(given, folder / "run", out / "ranked")
    )
    ranked = {name: bits for name, bits in made.contents(folder / "ranked").items() if not name.endswith(".run")}
    found["rankings"] = Format(ranked, lambda given, out: _retrieve(folder, folder / "run", given), renewed=True)
    told = [{"text": " ".join(f"The tale {n} goes on for {at} days and ends." for at in range(40))} for n in range(30)]
    found["documents to question"] = Format(
        {"in.jsonl": "".join(json.dumps(record) + "\n" for record in told).encode()},
        lambda given, out: (make_retrieval.main, [f"--source={given / 'in.jsonl'}", f"--out={out / 'problem'}"]),
    )
    found["prompt"] = Format(
        {"prompt.txt": "".join(shared.TEXTS[:3]).encode()},
        lambda given, out: (generate.main, [f"--run={out / 'none'}", f"--file={given / 'prompt.txt'}"]),
        NO_RUN,
    )
    found["experiment"] = Format(
        {"two.py": EXPERIMENT.encode()},
        lambda given, out: (sweep.main, [str(given / "two.py"), "--print", f"--runs={out / 'runs'}"]),
    )
    run = made.common() / "run"
    small = shutil.copy(
        made.configuration(made.common()).partition("=")[2], folder
    )  # that one is written again by others
    (folder / "tabled.py").write_text(TABLED.format(config=str(small)))
    recorded_runs.append(folder / "kept", run, "run", run_folder.read_config(run))
    kept = [str(folder / "tabled.py"), "--format=markdown", f"--runs={folder / 'runs'}"]
    found["records of an experiment"] = Format(
        made.contents(folder / "kept"), lambda given, out: (tables.main, [*kept, f"--records={given}"])
    )
    judge = lambda file, *options: (claims.main, [str(file), f"--runs={folder / 'runs'}", "--scale=toy", *options])
    found["claims"] = Format({"claims.toml": CLAIMS.encode()}, lambda given, out: judge(given / "claims.toml"))
    made.well(*judge(folder / "claims.toml", f"--out={folder / 'claims.md'}"))
    found["page of claims"] = Format(
        {"claims.md": (folder / "claims.md").read_bytes()},
        lambda given, out: judge(folder / "claims.toml", f"--out={given / 'claims.md'}"),
        renewed=True,
    )
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
    """Damages so many files of each format; see `figures.Figure`."""
    (folder / "common").mkdir()
    known, failures = formats(folder / "common"), []
    refused = dict.fromkeys(known, 0)
    given, out = folder / "given", folder / "out"
    cases = [(name, None) for name in known]
    cases += [(list(known)[number % len(known)], number) for number in range(count)]
    for name, number in cases:
        chance = random.Random(f"{seed} {number}")
        file = chance.choice(sorted(known[name].files))
        contents = known[name].files[file] if number is None else spoilt(known[name].files[file], chance)
        made.put(given, known[name].files | {file: contents})
        out.mkdir()
        before = commands.snapshot(given)
        ended = commands.call(*known[name].command(given, out))
        wrong = commands.complaint(ended)
        refusal = known[name].refusal
        as_known = refusal in ended.err if refusal else ended.status == 0
        if not wrong and number is None and not as_known:
            wrong = f"undamaged, it ends with {ended.status}: {ended.err}"
        if not wrong and (ended.status or not known[name].renewed) and commands.snapshot(given) != before:
            wrong = "a file that is read is another afterwards"
        if wrong:
            failures.append(f"{name}, {file}, seed {seed}, case {number}: {wrong}")
        refused[name] += number is not None and ended.status == 2 and not as_known
        shutil.rmtree(given)
        shutil.rmtree(out)
    return Outcome(count, failures, {"formats": len(known), "refused": refused})


FIGURE = Figure(
    what="malformed files of every format that commands read: one line, status 2, nothing overwritten",
    unit="files",
    wanted=2000,
    part=250,
    short=31,
    minutes=10,
    measure=measure,
)
