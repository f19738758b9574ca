"""RULER's questions: their documents, read from files that may be anything."""

import json
import random
import re

import pytest

from bam_jax.data.tasks import ruler, ruler_questions
from bam_jax.data.tokenizers import ByteTokenizer
from bam_jax.system.errors import UserError


def qa(question, *answers, **fields):
    return {"question": question, "answers": [{"text": text, "answer_start": 0} for text in answers], **fields}


def article(title, *paragraphs):
    return {"title": title, "paragraphs": [{"context": text, "qas": list(qas)} for text, *qas in paragraphs]}


SQUAD = {
    "version": "v2.0",
    "data": [
        article(
            "Paris",
            (
                "It lies on the Seine.",
                qa("Which river?", "the Seine", "Seine", "Seine"),
                qa("Lake?"),
                qa("Sea?", "Seine", is_impossible=True),
            ),
            ("It is old.", qa("How is it?", "old")),
            ("It is large.",),
        ),
        *(article(f"Town {n}", (f"It has {n} gates.", qa(f"Gates of {n}?", str(n)))) for n in range(8)),
    ],
}
HOTPOT = [
    {
        "question": f"Who wrote book {n}, and where?",
        "answer": f"author {n}",
        "supporting_facts": [[f"B{n}", 0], [f"A{n}", 1], [f"B{n}", 1]],
        "context": [[f"{kind}{n}", [f"{kind} {n}. ", "More."]] for kind in "CABD"],
    }
    for n in range(5)
]
FILES = {"squad": SQUAD, "hotpotqa": HOTPOT}


@pytest.fixture
def write(tmp_path):
    def write(contents):
        path = tmp_path / "questions.json"
        path.write_text(contents if isinstance(contents, str) else json.dumps(contents))
        return str(path)

    return write


def documents(prompt):
    found = re.findall(r"Document (\d+):\n(.*\n.*)\n\n", prompt)
    assert [int(number) for number, _ in found] == [*range(1, len(found) + 1)]
    return [text for _, text in found]


def sampler(name, path, seed=0):
    questions = {name: ruler_questions.read(name, path, seed)}
    return ruler.Sampler(ByteTokenizer(), ruler.Essays("", ()), seed, questions)


def asked(sample):
    return re.findall("Question: (.*) Answer:", sample.prompt)[-1]


def test_the_paragraph_of_the_answer_is_among_others_its_own_article_first(write):
    questions = ruler_questions.read("squad", write(SQUAD), 0)
    assert questions.hash == ruler_questions.read("squad", questions.source, 1).hash
    assert len(questions.asked) == 10, "a question without an answer is asked, or one is not"
    number = [each.text for each in questions.asked].index("Which river?")
    prompt, answers = questions.fill(number, 2, random.Random(0))
    assert answers == ("the Seine", "Seine") and prompt.endswith("Question: Which river? Answer:")
    assert {*documents(prompt)} == {"Paris\nIt lies on the Seine.", "Paris\nIt is old.", "Paris\nIt is large."}
    prompt, _ = questions.fill(number, 7, random.Random(0))
    assert len({*documents(prompt)}) == 8 and sum("Paris" in text for text in documents(prompt)) == 3


def test_both_paragraphs_of_a_hop_are_there_and_its_others_come_first(write):
    questions = ruler_questions.read("hotpotqa", write(HOTPOT), 0)
    for number, question in enumerate(questions.asked):
        n = question.text[len("Who wrote book ")]
        for size in (1, 2, 6):
            prompt, answers = questions.fill(number, size, random.Random(size))
            shown = [text.split("\n")[0] for text in documents(prompt)]
            assert answers == (f"author {n}",) and len({*shown}) == size + 2 and {f"A{n}", f"B{n}"} <= {*shown}
            assert len({f"C{n}", f"D{n}"} & {*shown}) == min(size, 2)
    assert f"\nA {n}. More." in prompt


@pytest.mark.parametrize("name", FILES)
def test_samples_fit_repeat_documents_at_need_and_ask_every_question_once(write, name):
    path, task = write(FILES[name]), {"squad": "qa_1", "hotpotqa": "qa_2"}[name]
    make, number = sampler(name, path), 10 if name == "squad" else 5
    for length in (700, 6000):  # fewer documents than there are, and more
        samples = [make(task, length, n) for n in range(number)]
        assert all(0.9 * length < len(sample.tokens) + 32 <= length for sample in samples)
        assert len({asked(sample) for sample in samples}) == number and asked(make(task, length, number)) == asked(
            samples[0]
        )
    assert len(documents(samples[0].prompt)) > 30
    assert sampler(name, path)(task, 6000, 1).prompt == samples[1].prompt
    assert [asked(sampler(name, path, 1)(task, 6000, n)) for n in range(number)] != [asked(each) for each in samples]
    with pytest.raises(UserError, match=f"too short for {task}: its prompts and the 32 tokens"):
        make.check(task, 250, range(number))


def test_a_file_whose_documents_all_belong_to_the_question_fills_a_length_too(write):
    record = {**HOTPOT[0], "context": HOTPOT[0]["context"][1:3]}
    make = sampler("hotpotqa", write([record]))
    assert 900 < len(make("qa_2", 1000, 0).tokens) + 32 <= 1000


EMPTY = [{**HOTPOT[0], "answer": " "}]
OTHER = [{**HOTPOT[0], "supporting_facts": [["Z", 0]]}]
FAULTS = [
    ("squad", "{", "is not JSON"),
    ("squad", "[" * 10_000, "is nested too deep"),
    ("squad", "1", "holds something else"),
    ("squad", HOTPOT, "holds something else"),
    ("squad", {"data": 1}, "has data=1, which must be `array`"),
    ("squad", {"data": [article("x", ("y", qa("z", "")))]}, "has data.0..paragraphs"),
    ("squad", {"data": [article("x", ("y",), ("w",))]}, "has 0 questions that have an answer, and 2 documents"),
    ("squad", {"data": [article("x", ("y", qa("z", "v")))]}, "has 1 questions that have an answer, and 1 documents"),
    ("hotpotqa", SQUAD, "holds something else"),
    ("hotpotqa", EMPTY, "has .0..answer=' '"),
    ("hotpotqa", OTHER, "record 1 has no paragraph 'Z', which its answer needs"),
    ("hotpotqa", [{**HOTPOT[0], "context": [["A0"]]}], "has .0..context.0."),
]


@pytest.mark.parametrize(("name", "contents", "said"), FAULTS)
def test_a_file_that_is_another_is_named_in_one_line(write, name, contents, said):
    path = write(contents)
    with pytest.raises(UserError, match=f"{re.escape(path)} {said}.*; give --{name}=(dev|hotpot)") as error:
        ruler_questions.read(name, path, 0)
    assert "\n" not in str(error.value)


def test_no_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(UserError, match=re.escape(f"cannot read {path}")):
            ruler_questions.read("squad", str(path), 0)
