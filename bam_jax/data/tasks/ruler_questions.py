"""RULER's question tasks: a question of SQuAD (qa_1) or HotpotQA (qa_2), with its paragraphs among others of the same file.

The documents and their order are RULER's: the paragraphs with the answer, others of the same article or question and, if these
are too few, any others, repeated once all are in use. The wording of the instruction is ours.

Source: Hsieh et al. 2024 (arXiv 2404.06654), section 3.4; Rajpurkar et al. 2018; Yang et al. 2018.
"""

import dataclasses
import functools
import hashlib
import itertools
import random
from collections.abc import Callable
from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta

from bam_jax.system import files, typed_json
from bam_jax.system.errors import UserError

PROMPT = (
    "Below are documents and then a question about them. Answer in a few words, and write the answer alone.\n\n{documents}\n\n"
    "Answer the question from the documents above in a few words, and write the answer alone.\n\n"
    "Question: {question} Answer:"
)
Written = Annotated[str, Meta(pattern=r"\S")]
"""A text that is not empty: an empty answer would occur in any text."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, its answers, any of which is right, and the numbers of its documents."""

    text: str
    answers: tuple[str, ...]
    needed: tuple[int, ...]
    near: tuple[int, ...]  # that are used before all others


@dataclasses.dataclass(frozen=True)
class Questions:
    """The questions of a file and the paragraphs with their titles, each once."""

    source: str
    documents: tuple[str, ...]
    asked: tuple[Question, ...]

    @functools.cached_property
    def hash(self) -> str:
        """Sixteen hex digits of the SHA-256 of all texts, independent of the order of the questions."""
        return hashlib.sha256(repr((self.documents, sorted(map(repr, self.asked)))).encode()).hexdigest()[:16]

    def fill(self, number: int, size: int, rng: random.Random) -> tuple[str, tuple[str, ...]]:
        """The prompt of a question with `size` documents besides those that it needs, and its answers."""
        question = self.asked[number % len(self.asked)]
        near = rng.sample(question.near, min(size, len(question.near)))
        shown = [*question.needed, *near]
        if rest := size - len(near):
            known = {*shown}
            others = [number for number in range(len(self.documents)) if number not in known] or [*shown]
            drawn = rng.sample(others, min(rest, len(others)))
            shown += itertools.islice(itertools.cycle(drawn), rest)
        rng.shuffle(shown)
        documents = (f"Document {place}:\n{self.documents[each]}" for place, each in enumerate(shown, start=1))
        return PROMPT.format(documents="\n\n".join(documents), question=question.text), question.answers


def read(name: str, path: str, seed: int) -> Questions:
    """The questions in a file of SQuAD or HotpotQA, shuffled by the seed; UserError: it is not such a file."""
    outermost, kind, build, example = FORMATS[name]
    remedy = f"give --{name}={example}"
    parsed = typed_json.parse(files.read_small(path), path, remedy)
    if not isinstance(parsed, outermost):  # otherwise the error would show the whole contents
        raise UserError(f"{path} holds something else; {remedy}")
    documents, asked = build(typed_json.check(parsed, kind, path, remedy), path, remedy)
    if not asked or len(documents) < 2:
        raise UserError(
            f"{path} has {len(asked)} questions that have an answer, and {len(documents)} documents; {remedy}"
        )
    random.Random(seed).shuffle(asked)
    return Questions(path, tuple(documents), tuple(asked))


class _Answer(TypedDict):
    text: Written


class _Asked(TypedDict):
    question: Written
    answers: list[_Answer]
    is_impossible: NotRequired[bool]


class _Paragraph(TypedDict):
    context: Written
    qas: list[_Asked]


class _Article(TypedDict):
    title: str
    paragraphs: list[_Paragraph]


class _Squad(TypedDict):
    data: list[_Article]


class _Hotpot(TypedDict):
    question: Written
    answer: Written
    context: list[tuple[str, list[str]]]
    supporting_facts: list[tuple[str, int]]


def _squad(tree: _Squad, path: str, remedy: str) -> tuple[list[str], list[Question]]:
    numbers: dict[str, int] = {}
    asked = []
    for article in tree["data"]:
        texts = [f"{article['title']}\n{paragraph['context']}" for paragraph in article["paragraphs"]]
        article_numbers = {numbers.setdefault(text, len(numbers)) for text in texts}
        for text, paragraph in zip(texts, article["paragraphs"], strict=True):
            own = numbers[text]
            near = tuple(sorted(article_numbers - {own}))
            for each in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in each["answers"]))
                if answers and not each.get("is_impossible"):
                    asked.append(Question(each["question"], answers, (own,), near))
    return list(numbers), asked


def _hotpotqa(records: list[_Hotpot], path: str, remedy: str) -> tuple[list[str], list[Question]]:
    numbers: dict[str, int] = {}
    asked = []
    for place, record in enumerate(records, start=1):
        found: dict[str, int] = {}
        for title, sentences in record["context"]:
            found[title] = numbers.setdefault(f"{title}\n{''.join(sentences)}", len(numbers))
        titles = dict.fromkeys(title for title, _ in record["supporting_facts"])
        for title in titles:
            if title not in found:
                raise UserError(f"{path} record {place} has no paragraph {title!r}, which its answer needs; {remedy}")
        needed = tuple(dict.fromkeys(found[title] for title in titles))
        near = tuple(sorted({*found.values()} - {*needed}))
        asked.append(Question(record["question"], (record["answer"],), needed, near))
    return list(numbers), asked


FORMATS: dict[str, tuple[type, object, Callable[..., tuple[list[str], list[Question]]], str]] = {
    "squad": (dict, _Squad, _squad, "dev-v2.0.json of SQuAD"),
    "hotpotqa": (list, list[_Hotpot], _hotpotqa, "hotpot_dev_distractor_v1.json of HotpotQA"),
}
"""By the option that names the file: the types of its contents, the function that reads it, and the file that RULER uses."""
