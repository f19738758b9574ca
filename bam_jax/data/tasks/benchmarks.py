"""Question benchmarks: the available tasks, by their names in the LM Evaluation Harness, and their local files.

A folder contains each data set in the format of the Hugging Face hub (`download`), or as .jsonl files of the same records. Small
models and tests use invented questions instead: sums, and passages of Python's documentation, on which the toy models are
trained. Right and wrong answers are drawn in the same way and shuffled, so guessing is right one time in four.
"""

import functools
import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bam_jax.data.sources.corpus import STDLIB, read_texts
from bam_jax.data.sources.fragment import decode
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.system.files import File

INVENTED = "invented"
LARGEST = 2**30  # bytes of a file, at most: LongBench v2 has half as many

RECORDS = 64
COLOURS = ("amber", "black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow")
LONG = (20, 600)  # minimum and maximum words on each side of a fact in a long context

Record = dict[str, Any]

_MMLU = """abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
college_computer_science college_mathematics college_medicine college_physics computer_security conceptual_physics
econometrics electrical_engineering elementary_mathematics formal_logic global_facts high_school_biology
high_school_chemistry high_school_computer_science high_school_european_history high_school_geography
high_school_government_and_politics high_school_macroeconomics high_school_mathematics high_school_microeconomics
high_school_physics high_school_psychology high_school_statistics high_school_us_history high_school_world_history
human_aging human_sexuality international_law jurisprudence logical_fallacies machine_learning management marketing
medical_genetics miscellaneous moral_disputes moral_scenarios nutrition philosophy prehistory professional_accounting
professional_law professional_medicine professional_psychology public_relations security_studies sociology
us_foreign_policy virology world_religions"""

LONGBENCH = "THUDM/LongBench-v2"
_DOMAINS = {
    "longbench2_single": "Single-Document QA",
    "longbench2_multi": "Multi-Document QA",
    "longbench2_incontext": "Long In-context Learning",
    "longbench2_history": "Long-dialogue History Understanding",
    "longbench2_code": "Code Repository Understanding",
    "longbench2_structured": "Long Structured Data Understanding",
}
_LONGBENCH = """
longbench2_single     | academic_single  | academic_single          | Academic
longbench2_single     | lit_single       | literary                 | Literary
longbench2_single     | legal_single     | legal_single             | Legal
longbench2_single     | fin_single       | financial_single         | Financial
longbench2_single     | govt_single      | government_single        | Governmental
longbench2_single     | detective        | detective                | Detective
longbench2_single     | event_order      | event_ordering           | Event ordering
longbench2_multi      | academic_multi   | academic_multi           | Academic
longbench2_multi      | legal_multi      | legal_multi              | Legal
longbench2_multi      | fin_multi        | financial_multi          | Financial
longbench2_multi      | govt_multi       | government_multi         | Governmental
longbench2_multi      | news_multi       | multinews                | Multi-news
longbench2_incontext  | user_guide       | user_guide_qa            | User guide QA
longbench2_incontext  | translate        | new_language_translation | New language translation
longbench2_incontext  | many_shot        | manyshot_learning        | Many-shot learning
longbench2_history    | agent_history    | agent_history_qa         | Agent history QA
longbench2_history    | dialogue_history | dialogue_history_qa      | Dialogue history QA
longbench2_code       | code             | code_repo_qa             | Code repo QA
longbench2_structured | table            | table_qa                 | Table QA
longbench2_structured | graph            | graph_reasoning          | Knowledge graph reasoning
"""


class _Kind(NamedTuple):
    """A kind of questions: its group, the harness's names for its task and data, and the data set's own name."""

    group: str
    task: str
    subset: str
    sub_domain: str


_KINDS = [_Kind(*map(str.strip, line.split("|"))) for line in _LONGBENCH.strip().splitlines()]


def _tasks_of(groups: Collection[str]) -> tuple[str, ...]:
    return tuple(f"longbench2_{kind.task}" for kind in _KINDS if kind.group in groups)


TASKS: Mapping[str, tuple[str, ...]] = {
    "mmlu": tuple(f"mmlu_{subject}" for subject in _MMLU.split()),
    "arc_easy": ("arc_easy",),
    "arc_challenge": ("arc_challenge",),
    "hellaswag": ("hellaswag",),
    "wikitext": ("wikitext",),
    "longbench2": _tasks_of(_DOMAINS),
    **{group: _tasks_of([group]) for group in _DOMAINS},
}
"""The names that a user can give, and the harness's tasks that each consists of."""

SIZES: Mapping[str, int] = {
    "mmlu": 14_042,
    "arc_easy": 2376,
    "arc_challenge": 1172,
    "hellaswag": 10_042,
    "wikitext": 62,
    "longbench2": 503,
    "longbench2_single": 175,
    "longbench2_multi": 125,
    "longbench2_incontext": 81,
    "longbench2_history": 39,
    "longbench2_code": 50,
    "longbench2_structured": 33,
}
"""Numbers of questions (for WikiText, pages) in the published benchmarks, for estimates of the cost."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "cais/mmlu": ("question", "choices", "answer"),
    "allenai/ai2_arc": ("question", "choices", "answerKey"),
    "Rowan/hellaswag": ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    "EleutherAI/wikitext_document_level": ("page",),
    LONGBENCH: ("domain", "sub_domain", "question", *(f"choice_{c}" for c in "ABCD"), "answer", "context"),
}
"""The fields of a record that are read, by data set."""


def leaves(tasks: Sequence[str]) -> tuple[str, ...]:
    """The harness's tasks that some names consist of, each once."""
    return tuple(dict.fromkeys(leaf for task in tasks for leaf in TASKS[task]))


def count(tasks: Sequence[str], questions: int) -> int:
    """The number of questions of the published benchmarks, each counted once.

    >>> count(["longbench2_code", "longbench2", "arc_easy"], 10)
    210
    """
    whole = [t for t in tasks if not any(set(TASKS[t]) < set(TASKS[other]) for other in tasks)]
    return sum(min(SIZES[task], questions * len(TASKS[task])) for task in dict.fromkeys(whole))


def read(data: str, dataset: str, subset: str | None, split: str) -> list[Record]:
    """The records of one split of a data set, in the form that the harness's task needs."""
    own = LONGBENCH if dataset == "recursal/longbench-v2" else dataset  # the harness names a copy in another schema
    if data == INVENTED:
        rng, (make, count) = random.Random(f"{own} {subset} {split}"), _MAKE[own]
        return [make(rng) for _ in range(count)]
    folder = Path(data) / own
    if own == LONGBENCH:
        return _long_questions(_longbench(folder), subset)
    place = folder / (subset or "data")
    for pattern in (f"{split}-*.parquet", f"{split}.parquet", f"{split}.jsonl"):
        if found := sorted(place.glob(pattern)):
            return _read_files(found, own)
    raise _missing(f"{place}/{split}-*.parquet or {split}.jsonl", own, folder)


def download(dataset: str, folder: str | Path) -> str:
    return f"hf download {dataset} --repo-type dataset --local-dir {folder}"


def _missing(file: str, dataset: str, folder: Path) -> UserError:
    return UserError(
        f"there is no {file} (records with {', '.join(COLUMNS[dataset])}); fetch it with "
        f"`{download(dataset, folder)}`, or give --data={INVENTED}"
    )


def _read_files(paths: Sequence[Path], dataset: str) -> list[Record]:
    records, columns = [record for path in paths for record in _read_file(path)], COLUMNS[dataset]
    if not records:
        raise UserError(f"{paths[0]} holds no record; fetch it again")
    for number, record in enumerate(records, 1):
        for column in columns:
            if not isinstance(record, dict) or column not in record:
                raise UserError(
                    f"{paths[0]} record {number} has no field {column!r}, which those of {dataset} have; give that data set"
                )
    return [{column: record[column] for column in columns} for record in records]


def _read_file(path: Path) -> list[Any]:
    file = File(str(path), path.name, path.stat().st_size)
    if file.size > LARGEST:
        raise _too_large(path)
    if path.suffix == ".parquet":
        import_extra("pyarrow", file.path, "data")
        import pyarrow.parquet

        records, size = [], 0
        with file.named_in_errors(pyarrow.ArrowException), file.open_raw() as raw:
            for batch in pyarrow.parquet.ParquetFile(raw).iter_batches(batch_size=64):
                size += batch.nbytes
                if size > LARGEST:  # a small file may decompress to any size
                    raise _too_large(path)
                records += batch.to_pylist()
        return records
    if path.suffix == ".json":
        listed = typed_json.parse(decode(file.read_whole(LARGEST), "strict", file.path), file.path, strict=False)
        if not isinstance(listed, list):
            raise UserError(f"{path} is not a list of records; fetch it again")
        return listed
    return [
        typed_json.parse(decode(line, "strict", file.path), f"{path} line {number}", strict=False)
        for number, (line, _) in enumerate(file.read_lines(LARGEST), 1)
        if not line.isspace()
    ]


def _too_large(path: Path) -> UserError:
    return UserError(f"{path} has more than {LARGEST:,} bytes, as no benchmark has; fetch it again")


@functools.lru_cache(maxsize=1)
def _longbench(folder: Path) -> list[Record]:
    """All 503 questions, read once for twenty tasks."""
    path = folder / "data.json"
    if not path.exists():
        raise _missing(str(path), LONGBENCH, folder)
    records = _read_files([path], LONGBENCH)
    for number, record in enumerate(records, 1):
        if record["answer"] not in list("ABCD"):
            raise UserError(f"{LONGBENCH}/data.json record {number}: the answer is not A, B, C or D; fetch it again")
    return records


def _long_questions(records: Sequence[Mapping[str, Any]], subset: str | None) -> list[Record]:
    (kind,) = [kind for kind in _KINDS if kind.subset == subset]
    questions = [
        {
            "context": record["context"],
            "question": record["question"],
            "choices": [record[f"choice_{letter}"] for letter in "ABCD"],
            "answer": "ABCD".index(record["answer"]),
        }
        for record in records
        if (record["domain"], record["sub_domain"]) == (_DOMAINS[kind.group], kind.sub_domain)
    ]
    if not questions:
        raise UserError(
            f"{LONGBENCH}/data.json has no question of {_DOMAINS[kind.group]}, {kind.sub_domain}; fetch the data set again"
        )
    return questions


def _addition(rng: random.Random) -> Record:
    first, second = rng.randint(2, 49), rng.randint(2, 49)
    answer = rng.randrange(4)
    # The right sum is equally often the smallest and the largest of the four.
    least = first + second - rng.randrange(4)
    choices = [*range(least, least + 4)]
    rng.shuffle(choices)
    choices.remove(first + second)
    choices.insert(answer, first + second)
    return {"question": f"What is {first} + {second}?", "choices": [*map(str, choices)], "answer": answer}


def _next_word(rng: random.Random) -> Record:
    *before, right = _passage(rng, 8).split()
    choices: list[str] = []
    while len(choices) < 3:
        wrong = _passage(rng, 1)
        # The beginning of an answer would be at least as likely as the whole answer.
        if not any(wrong.startswith(other) or other.startswith(wrong) for other in (right, *choices)):
            choices.append(wrong)
    answer = rng.randrange(4)
    choices.insert(answer, right)
    return {
        "question": f"Which word follows: {' '.join(before)}?",
        "choices": {"text": choices, "label": list("ABCD")},
        "answerKey": "ABCD"[answer],
    }


def _ending(rng: random.Random) -> Record:
    words = _passage(rng, 20).split()
    endings = [_passage(rng, 8) for _ in range(4)]
    answer = rng.randrange(4)
    endings[answer] = " ".join(words[12:])
    context = {"ctx_a": " ".join(words[:8]), "ctx_b": " ".join(words[8:12])}
    return {"activity_label": "Documentation", **context, "endings": endings, "label": str(answer)}


def _long_context(rng: random.Random) -> Record:
    """A number hidden in a passage of any length."""
    choices = rng.sample(range(100, 1000), 4)
    answer, colour = rng.randrange(4), rng.choice(COLOURS)
    fact = f"The {colour} box holds the number {choices[answer]}."
    before, after = (_passage(rng, rng.randint(*LONG)) for _ in range(2))
    return {
        "context": f"{before} {fact} {after}",
        "question": f"Which number does the {colour} box hold?",
        "choices": [*map(str, choices)],
        "answer": answer,
    }


_MAKE: Mapping[str, tuple[Callable[[random.Random], Record], int]] = {
    "cais/mmlu": (_addition, RECORDS),
    "allenai/ai2_arc": (_next_word, RECORDS),
    "Rowan/hellaswag": (_ending, RECORDS),
    "EleutherAI/wikitext_document_level": (lambda rng: {"page": _passage(rng, 200)}, 8),
    LONGBENCH: (_long_context, RECORDS),
}
"""By data set: the function that makes a record, and the number of records in every split of every subset."""


@functools.cache
def _words() -> list[str]:
    return list(itertools.chain.from_iterable(text.split() for text in read_texts(STDLIB)))


def _passage(rng: random.Random, size: int) -> str:
    start = rng.randrange(len(_words()) - size)
    return " ".join(_words()[start : start + size])
