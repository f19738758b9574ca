"""Files of every format that commands read, damaged: texts, records, columns, tokenizers, prepared folders, weights, queries.

A file that cannot be read ends the command in one line with status 2, and no file that it reads is another afterwards.
"""

import dataclasses
import functools
import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import zstandard
from endurance import commands
from endurance.figures import ROOT, Figure, Outcome

from bam_jax import claims, generate, retrieve, sweep
from bam_jax.convert import __main__ as convert
from bam_jax.data import inspect, make_retrieval, prepare
from bam_jax.training import bundled

EXPERIMENT = f"""
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row


def get_experiment():
    asked = (Passkey((64, 256), depths=5),)
    return Experiment("Two", (Row("BAM", {str(ROOT / "configs" / "quickstart.py")!r}, {{"steps": 40}}, (0, 1), asked),))
"""
CLAIMS = """
from bam_jax.experiments.claims import Claim

NOTES = ()
get_claims = lambda: {"Invented": []}
"""
NO_RUN = "/none is not a run"
"""The end of a command that reads its files before it looks for the run, which the harness does not give it."""


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files, and a command that reads it.

    Args:
        files: by their names in the folder; one of them is damaged.
        command: takes the folder of the files and one to write to; gives a command's main and its arguments.
    """

    files: dict[str, bytes]
    command: Callable[[Path, Path], tuple[commands.Main, list[str]]]


def _prepare(name: str = "", tokenizer: str = "byte") -> Callable[[Path, Path], tuple[commands.Main, list[str]]]:
    return lambda given, out: (
        prepare.main,
        [
            *(f"--source={given / (name or 'in.jsonl')}", f"--tokenizer={tokenizer.format(given)}"),
            *(f"--out={out / 'made'}", "--workers=0", "--shard-tokens=900"),
        ],
    )


def _retrieve(given: Path, out: Path) -> tuple[commands.Main, list[str]]:
    """Reads the problem, and ends at the run that is not there."""
    asked = [
        f"--corpus={given / 'corpus.jsonl'}",
        f"--queries={given / 'queries.jsonl'}",
        f"--qrels={given / 'qrels.tsv'}",
    ]
    return retrieve.main, [f"--run={out / 'none'}", *asked, "--lengths=16", f"--out={out / 'ranked'}"]


def _inspect(given: Path, out: Path) -> tuple[commands.Main, list[str]]:
    return inspect.main, [str(given), "--config.context=16", "--no-plot", "--rows=1"]


@functools.cache
def formats(folder: Path) -> dict[str, Format]:
    """All formats, by name.

    Args:
        folder: where what takes a command is made.
    """
    shared = commands.of_test("data/test_fuzz")
    found = {}
    for name, contents in shared.SOURCES.items():
        suffix = name.partition(".")[2]
        found.setdefault(suffix, Format({name: contents}, _prepare(name)))
        if suffix in ("txt", "jsonl", "tokens"):
            for packing, packed in ((".gz", gzip.compress(contents)), (".zst", zstandard.compress(contents))):
                found[f"{suffix}{packing}"] = Format({name + packing: packed}, _prepare(name + packing))
    for kind, files in shared.vocabularies().items():
        name = {"bpe": "bpe:{}/tokenizer.json", "bert": "bert:{}/vocab.txt", "gpt2": "gpt2:{}"}[kind]
        found[f"{kind} tokenizer"] = Format({**files, "in.jsonl": shared.LINES}, _prepare("in.jsonl", name))
    (folder / "in.jsonl").write_bytes(shared.LINES)
    main, argv = _prepare("in.jsonl")(folder, folder)
    assert commands.call(main, argv).status == 0
    whole = {path.relative_to(folder / "made").as_posix(): path.read_bytes() for path in _files(folder / "made")}
    found["prepared folder"] = Format(whole, _inspect)
    quickstart = bundled.FOLDER / "quickstart"
    weights = {path.relative_to(quickstart).as_posix(): path.read_bytes() for path in _files(quickstart)}
    weights = {
        name: contents
        for name, contents in weights.items()
        if "/" in name or name in ("config.json", "model.safetensors")
    }
    found["exported weights"] = Format(
        weights, lambda given, out: (convert.main, [f"--run={given}", f"--export={out / 'exported'}"])
    )
    corpus = [{"_id": f"d{n}", "text": text, "title": ""} for n, text in enumerate(shared.TEXTS)]
    queries = [{"_id": f"q{n}", "text": shared.TEXTS[n][:9]} for n in range(9)]
    judged = "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(9))
    lines = lambda records: "".join(json.dumps(record) + "\n" for record in records).encode()
    problem = {"corpus.jsonl": lines(corpus), "queries.jsonl": lines(queries), "qrels.tsv": judged.encode()}
    found["retrieval problem"] = Format(problem, _retrieve)
    told = [{"text": " ".join(f"The tale {n} goes on for {at} days and ends." for at in range(40))} for n in range(30)]
    found["documents to question"] = Format(
        {"in.jsonl": lines(told)},
        lambda given, out: (make_retrieval.main, [f"--source={given / 'in.jsonl'}", f"--out={out / 'problem'}"]),
    )
    found["prompt"] = Format(
        {"prompt.txt": "".join(shared.TEXTS[:3]).encode()},
        lambda given, out: (generate.main, [f"--run={out / 'none'}", f"--file={given / 'prompt.txt'}"]),
    )
    found["experiment"] = Format(
        {"two.py": EXPERIMENT.encode()},
        lambda given, out: (sweep.main, [str(given / "two.py"), "--print", f"--runs={out / 'runs'}"]),
    )
    found["claims"] = Format(
        {"claims.py": CLAIMS.encode()},
        lambda given, out: (claims.main, [str(given / "claims.py"), f"--runs={out / 'runs'}", "--scale=toy"]),
    )
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def spoilt(contents: bytes, chance: random.Random) -> bytes:
    """The bytes of a file with some of them flipped, cut away, put in or repeated; or other ones; or a field's value changed."""
    damage = commands.of_test("test_damage")
    made = bytearray(contents)
    for _ in range(chance.randint(1, 3)):
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
    """A line of JSON, or the file as a whole, with another value in one place; anything else as it is."""
    damage = commands.of_test("test_damage")
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
    known, failures, refused = formats(folder / "common"), [], dict.fromkeys(formats(folder / "common"), 0)
    given, out = folder / "given", folder / "out"
    cases = [(name, None) for name in known]
    cases += [(list(known)[number % len(known)], number) for number in range(count)]
    for name, number in cases:
        chance = random.Random(f"{seed} {number}")
        file = chance.choice(sorted(known[name].files))
        contents = known[name].files[file] if number is None else spoilt(known[name].files[file], chance)
        for path, whole in known[name].files.items():
            (given / path).parent.mkdir(parents=True, exist_ok=True)
            (given / path).write_bytes(contents if path == file else whole)
        out.mkdir()
        before = commands.snapshot(given)
        ended = commands.call(*known[name].command(given, out))
        wrong = commands.complaint(ended)
        if number is None and ended.status and NO_RUN not in ended.err:
            wrong = f"refused as it is: {ended.err}"
        if not wrong and commands.snapshot(given) != before:
            wrong = "a file that is read is another afterwards"
        if wrong:
            failures.append(f"{name}, {file}, seed {seed}, case {number}: {wrong}")
        refused[name] += number is not None and ended.status == 2 and NO_RUN not in ended.err
        shutil.rmtree(given)
        shutil.rmtree(out)
    return Outcome(count, failures, {"formats": len(known), "refused": refused})


FIGURE = Figure(
    what="malformed files of every format that commands read: one line, status 2, nothing overwritten",
    unit="files",
    wanted=2000,
    part=250,
    short=20,
    minutes=10,
    measure=measure,
)
