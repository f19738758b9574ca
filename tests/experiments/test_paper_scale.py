"""A rehearsal of every experiment at the papers' scale, by following the messages as a user would.

Corpora, benchmarks and vocabularies are tiny files with the names, folders and columns of the real ones. Overridden are: sizes of
models, batch, context, steps, lengths and numbers of samples, and the tokens that are held out or drawn. Of each experiment one
row is trained for two steps and one cell of a table is measured; the true configurations of all rows are laid out.
"""

import dataclasses
import fnmatch
import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from paper_columns import speed_benchmarks

from bam_jax import sweep
from bam_jax.data import prepare
from bam_jax.data.tasks import benchmarks
from bam_jax.data.tokenizers.training import train_wordpiece
from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.retrieval import Retrieval
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments import experiment, jobs, tables
from bam_jax.experiments.experiment import DASH, Preparation
from bam_jax.experiments.sweep import Sweep
from bam_jax.experiments.tables import State
from bam_jax.models import counts
from bam_jax.system.errors import UserError
from tests.marks import longest

pytestmark = pytest.mark.full

FOLDER = Path(__file__).parents[2] / "experiments"
FILES = sorted(path.stem for pattern in ("bam_*.py", "cable_*.py") for path in FOLDER.glob(pattern))

WORDS = "the of and in a river stone house light found under near year people city work old great small long".split()
RNG = random.Random(0)
TEXTS = [" ".join(RNG.choices(WORDS, k=150)).capitalize() + ".\n" for _ in range(60)]

CHOICES = {"text": ["a", "b", "c", "d"], "label": ["A", "B", "C", "D"]}


def parquet(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def pages(folder, **more):
    """Pages of the web, as FineWeb has them."""
    n = len(TEXTS)
    common = {"text": TEXTS, "id": [f"<urn:uuid:{k}>" for k in range(n)], "dump": ["CC-MAIN-2013-20"] * n}
    common |= {"url": ["https://example.org"] * n, "language": ["en"] * n, "token_count": [len(TEXTS[0])] * n}
    parquet(folder / "sample/10BT/000_00000.parquet", common | more)


def wikitext(folder):
    for split in ("train", "validation", "test"):
        lines = [line for k, text in enumerate(TEXTS) for line in ("", f" = Page {k} = \n", "", f" {text}")]
        parquet(folder / f"wikitext-103-raw-v1/{split}-00000-of-00001.parquet", {"text": lines})


def wikipedia(folder):
    n = len(TEXTS)
    columns = {"id": list(map(str, range(n))), "url": ["https://example.org"] * n, "title": ["Page"] * n, "text": TEXTS}
    parquet(folder / "20231101.en/train-00000-of-00041.parquet", columns)


def triplets(folder):
    columns = {"query": [text[:20] for text in TEXTS], "positive": TEXTS, "negative": TEXTS[::-1]}
    parquet(folder / "triplet-hard/train-00000-of-00001.parquet", columns)


def mmlu(folder):
    columns = {"question": ["Which one?"] * 5, "subject": ["any"] * 5, "choices": [list("abcd")] * 5, "answer": [0] * 5}
    for task in benchmarks.TASKS["mmlu"]:
        for split in ("test", "validation", "dev"):
            parquet(folder / task.removeprefix("mmlu_") / f"{split}-00000-of-00001.parquet", columns)


def arc(folder):
    columns = {"id": ["x"], "question": ["Which one?"], "choices": [CHOICES], "answerKey": ["B"]}
    for subset in ("ARC-Easy", "ARC-Challenge"):
        for split in ("train", "validation", "test"):
            parquet(folder / subset / f"{split}-00000-of-00001.parquet", columns)


def longbench(folder):
    common = {"difficulty": "easy", "length": "short", "question": "Which?", "answer": "C", "context": TEXTS[0] * 3}
    common |= {f"choice_{letter}": letter * 3 for letter in "ABCD"}
    records = [
        common | {"_id": name, "domain": domain, "sub_domain": name}
        for domain, names in LONGBENCH.items()
        for name in names.split(", ")
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.json").write_text(json.dumps(records))


LONGBENCH = {
    "Single-Document QA": "Academic, Literary, Legal, Financial, Governmental, Detective, Event ordering",
    "Multi-Document QA": "Academic, Legal, Financial, Governmental, Multi-news",
    "Long In-context Learning": "User guide QA, New language translation, Many-shot learning",
    "Long-dialogue History Understanding": "Agent history QA, Dialogue history QA",
    "Code Repository Understanding": "Code repo QA",
    "Long Structured Data Understanding": "Table QA, Knowledge graph reasoning",
}
"""The domains and their parts, as the card of LongBench v2 lists them."""

HUB = {
    "HuggingFaceFW/fineweb": pages,
    "HuggingFaceFW/fineweb-edu": lambda folder: pages(folder, score=[3.1] * len(TEXTS), int_score=[3] * len(TEXTS)),
    "Salesforce/wikitext": wikitext,
    "wikimedia/wikipedia": wikipedia,
    "sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1": triplets,
    "cais/mmlu": mmlu,
    "allenai/ai2_arc": arc,
    "THUDM/LongBench-v2": longbench,
}
"""What makes the files of a data set in a folder, by its place on the Hugging Face hub."""

DOWNLOAD = re.compile(r"hf download (\S+) --repo-type dataset (?:--include '(.*?)' )?--local-dir ([^\s`]+)")


def follow(act, *arguments):
    """Does something again and again, each time with the files that its message says how to fetch."""
    for _ in range(5):
        try:
            return act(*arguments)
        except UserError as error:
            found = DOWNLOAD.search(str(error))
            if found is None:
                raise
            repository, include, folder = found.groups()
            HUB[repository](Path(folder))
            names = [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()]
            assert include is None or fnmatch.filter(names, include)
    raise AssertionError("the message asks for what is there")


def vocabularies():
    """GPT-2's two files, in a folder of the user's choice, and BERT's one, where the experiments have it."""
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = [chr(byte) for byte in letters] + [chr(256 + n) for n in range(256 - len(letters))]
    pairs = [("t", "h"), ("a", "n"), ("th", "e")]
    names = [*symbols, *map("".join, pairs), "<|endoftext|>"]
    Path("gpt2").mkdir()
    Path("gpt2/encoder.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    Path("gpt2/vocab.bpe").write_text("\n".join(["#version: 0.2", *map(" ".join, pairs), ""]))
    Path("corpora/bert-base-uncased").mkdir(parents=True)
    Path("corpora/bert-base-uncased/vocab.txt").write_text(train_wordpiece(TEXTS, 200))


def users_files():
    """What the notes of the experiments ask the user for, without a command that fetches it."""
    Path("corpora/essays").mkdir(parents=True)
    Path("corpora/essays/worked.txt").write_text("\n\n".join(TEXTS))
    mldr = Path("corpora/mldr/mldr-v1.0-en")
    mldr.mkdir(parents=True)
    documents = [{"docid": f"doc-en-{k}", "text": text} for k, text in enumerate(TEXTS[:8])]
    one = lambda k: {"positive_passages": [documents[k]], "negative_passages": documents[:k]}
    queries = [{"query_id": f"q-en-{k}", "query": TEXTS[k][:30]} | one(k) for k in range(3)]
    for name, records in (("corpus", documents), ("test", queries)):
        with gzip.open(mldr / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder in which nothing is prepared."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("paper")
        patch.chdir(folder)
        vocabularies()
        users_files()
        yield folder


TINY_MODEL = {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.hidden": 16, "model.remat": False}
TINY_TRAINING = {"batch": 8, "steps": 2, "optimizer.warmup": 1, "optimizer.accumulate": 1, "checkpoint_every": 2}


def tiny_length(length):
    return max(16, min(length // 16, 128))


def tiny_evaluation(asked):
    changes = {"lengths": (tiny_length(*asked.lengths),)}
    if "context" in asked.overrides:
        changes["overrides"] = {**asked.overrides, "context": tiny_length(asked.overrides["context"])}
    match asked:
        case Passkey():
            changes |= {"lengths": (128,)}
        case Ruler():
            changes |= {"lengths": (1536,), "samples": 1}
        case Harness():
            changes |= {"lengths": (1024,), "questions": 1}
        case Retrieval():
            changes |= {"samples": 2}
        case _:
            changes |= {"batch": 8} if hasattr(asked, "batch") else {"tokens": 64}
    return dataclasses.replace(asked, **changes)


def tiny_column(column):
    if column.speed is not None:
        return dataclasses.replace(column, speed=column.speed._replace(length=32))
    evaluation = None if column.evaluation is None else tiny_evaluation(column.evaluation)
    return dataclasses.replace(column, evaluation=evaluation, position=0)


def tiny_row(row, context):
    changes = {name: tiny_length(value) if name.endswith("window") else value for name, value in row.changes.items()}
    overrides = {**row.overrides, **TINY_MODEL, **TINY_TRAINING, "context": tiny_length(context)}
    return dataclasses.replace(row, overrides=overrides, changes=changes)


def tiny_preparation(each):
    limits = {"ms-marco": ("--holdout-records=8", "--sample-records=40"), "wikitext-103": (), "wikipedia-en": ()}
    preset = each.arguments[0].removeprefix("--preset=")
    own = limits[preset] if preset in limits else ("--holdout-tokens=1000",)
    return dataclasses.replace(each, arguments=(*each.arguments, *own, "--workers=0"))


def rehearsed(name):
    """An experiment with one cell of one row, another row in each file."""
    whole = experiment.load(FOLDER / f"{name}.py", scale="paper", records="")
    cells = [
        (table, label, column, value)
        for table in whole.tables
        for label in table.values
        for column, value in table.cells(label)
        if not column.missing and value != DASH
    ]
    places = list(dict.fromkeys((table.title, label) for table, label, _, _ in cells))
    wanted = places[7 * FILES.index(name) % len(places)]
    table, label, column, value = next(cell for cell in cells if (cell[0].title, cell[1]) == wanted)
    table = dataclasses.replace(table, columns=(tiny_column(column),), values={label: (value,)})
    contexts = {job.row.label: job.config.context for job in jobs.row_jobs(whole)}
    rows = [tiny_row(row, contexts[row.label]) for row in whole.rows]
    commands = [each for each in whole.preparations if isinstance(each, Preparation)]  # `users_files` has the others
    preparations, benchmarks = map(tiny_preparation, commands), speed_benchmarks(rows, [table])
    fields = {"preparations": tuple(preparations), "benchmarks": tuple(benchmarks)}
    return whole, experiment.tabled(whole.title, rows, [table], platform="cpu", **fields)


@pytest.mark.parametrize("name", [longest(name) if n % 5 else name for n, name in enumerate(FILES)])
def test_a_cell_is_measured_by_following_the_messages(name, place, capfd):
    whole, made = rehearsed(name)
    for config in {job.digest: job.config for job in jobs.row_jobs(whole)}.values():
        assert counts.parameters(config).transformer > 10**6
    sweep.main([str(FOLDER / f"{name}.py"), "--scale=paper", "--print", "--records="])
    assert capfd.readouterr().err.count("first: ") == len(whole.preparations)
    for each in made.preparations:
        try:
            follow(prepare.main, each.arguments)
        except UserError as error:
            assert "give --tokenizer=gpt2:PATH" in str(error) and "vocab.bpe and encoder.json" in str(error)
            follow(prepare.main, [*each.arguments, "--tokenizer=gpt2:gpt2"])
        prepare.main(each.arguments)  # as the sweep does before its rows
    swept = Sweep((made,), (), Path("runs"))
    for row in swept.rows:
        follow(swept.recorder.work, row, swept.folder)
    for benchmark in swept.benchmarks:
        subprocess.run([sys.executable, "-m", *benchmark.command(swept.folder)], check=True)
    (table,) = made.tables
    (entry,) = tables.compare(table, made, swept.folder)
    assert [outcome.state for outcome in entry.outcomes] == [State.MEASURED]
