"""Questions in local files, and invented ones."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from bam_jax.data.tasks import benchmarks
from bam_jax.data.tasks.benchmarks import COLUMNS, INVENTED, LONGBENCH, read
from bam_jax.system.errors import UserError

SETS = [
    ("cais/mmlu", "anatomy", "test"),
    ("allenai/ai2_arc", "ARC-Easy", "test"),
    ("Rowan/hellaswag", None, "validation"),
    ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test"),
]


@pytest.mark.parametrize(("dataset", "subset", "split"), SETS)
def test_what_is_in_files_is_read(tmp_path, dataset, subset, split):
    records = read(INVENTED, dataset, subset, split)
    assert all(record.keys() == set(COLUMNS[dataset]) for record in records)
    written = [record | {"of no interest": 1} for record in records]
    place = tmp_path / dataset / (subset or "data")
    place.mkdir(parents=True)
    (place / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in written))
    assert read(str(tmp_path), dataset, subset, split) == records
    for number, part in enumerate((written[:3], written[3:])):  # goes before the other
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), place / f"{split}-{number:05}-of-00002.parquet")
    (place / f"{split}.jsonl").write_text("")
    assert read(str(tmp_path), dataset, subset, split) == records


def test_invented_questions_are_always_the_same_and_differ_by_split():
    first, again, other = (read(INVENTED, "cais/mmlu", "anatomy", split) for split in ("test", "test", "dev"))
    assert first == again and first != other != read(INVENTED, "cais/mmlu", "astronomy", "dev")
    ranks = set()
    for record in first:
        one, two = record["question"].removeprefix("What is ").removesuffix("?").split(" + ")
        assert record["choices"][record["answer"]] == str(int(one) + int(two)) and len(set(record["choices"])) == 4
        ranks.add(sum(int(choice) < int(one) + int(two) for choice in record["choices"]))
    assert ranks == {0, 1, 2, 3}, "neither the least nor the greatest is always right"


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("cais/mmlu", lambda r: r["answer"]),
        ("allenai/ai2_arc", lambda r: r["choices"]["label"].index(r["answerKey"])),
        ("Rowan/hellaswag", lambda r: int(r["label"])),
        (LONGBENCH, lambda r: r["answer"]),
    ],
)
def test_answers_stand_at_every_place(dataset, answer):
    places = [answer(record) for record in read(INVENTED, dataset, "x", "test")]
    assert len(places) == benchmarks.RECORDS
    assert all(5 <= places.count(place) <= 28 for place in range(4))  # of 16 expected, within 3.5 deviations


def test_questions_of_longbench_go_to_their_tasks(tmp_path):
    (tmp_path / LONGBENCH).mkdir(parents=True)
    records = [
        {"domain": benchmarks._DOMAINS[part.group], "sub_domain": part.sub_domain, "question": f"{part.task}?"}
        | {f"choice_{letter}": f"{letter}{number}" for letter in "ABCD"}
        | {"answer": "ABCD"[number % 4], "context": "text"}
        for number, part in enumerate(benchmarks._KINDS)
    ]
    (tmp_path / LONGBENCH / "data.json").write_text(json.dumps(records * 2))
    for number, part in enumerate(benchmarks._KINDS):
        first, second = read(str(tmp_path), "recursal/longbench-v2", part.subset, "train")
        choices = [f"{letter}{number}" for letter in "ABCD"]
        wanted = {"context": "text", "question": f"{part.task}?", "choices": choices, "answer": number % 4}
        assert first == second == wanted
    names = [part.sub_domain for part in benchmarks._KINDS if part.group == "longbench2_multi"]
    assert names == ["Academic", "Legal", "Financial", "Governmental", "Multi-news"]


def test_what_is_missing_is_named_with_the_command_that_fetches_it(tmp_path):
    asked = (str(tmp_path), "allenai/ai2_arc", "ARC-Easy", "test")
    folder = tmp_path / "allenai/ai2_arc"
    with pytest.raises(UserError) as error:
        read(*asked)
    assert f"{folder}/ARC-Easy/test-*.parquet" in str(error.value) and "question, choices, answerKey" in str(
        error.value
    )
    assert f"hf download allenai/ai2_arc --repo-type dataset --local-dir {folder}`" in str(error.value)
    with pytest.raises(UserError, match="LongBench-v2/data.json"):
        read(str(tmp_path), "recursal/longbench-v2", "literary", "train")
    (folder / "ARC-Easy").mkdir(parents=True)
    for name, text, says in (
        ("test.jsonl", '{"question": "why?"}', "record 1 has no field 'choices'"),
        ("test.jsonl", "[1]", "record 1 has no field 'question'"),
        ("test.jsonl", "{", "line 1 is not JSON"),
        ("test.jsonl", "\n", "holds no record"),
        ("test.parquet", "PAR1 no more", "cannot read .*test.parquet"),
    ):
        (folder / "ARC-Easy" / name).write_text(text)
        with pytest.raises(UserError, match=says):
            read(*asked)


def test_the_parts_of_a_benchmark_are_its_tasks():
    parts = [name for name in benchmarks.TASKS if name.startswith("longbench2_")]
    assert sorted(benchmarks.leaves(parts)) == sorted(benchmarks.TASKS["longbench2"])
    assert sum(benchmarks.SIZES[part] for part in parts) == benchmarks.SIZES["longbench2"] == 503
    assert (len(benchmarks.TASKS["mmlu"]), len(benchmarks.TASKS["longbench2"])) == (57, 20)
    assert benchmarks.SIZES.keys() == benchmarks.TASKS.keys()
