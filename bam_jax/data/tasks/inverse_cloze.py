"""A retrieval problem made from any text: a sentence taken out of a document is a query for that document.

Short triplets come from the training documents. The test documents are long, and their queries come from anywhere in them, mostly
from far beyond the training length. Triplets are held out together with their documents, because the text around a sentence is
the query or the positive of neighbouring sentences.

A mean over all hidden rows covers every token, however far attention reaches. The problem therefore measures robustness to
length: whether the rows of a long text are still worth averaging.

Source: the inverse cloze task, Lee et al. 2019.
"""

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bam_jax.system.errors import UserError

# Minimum and maximum characters of a sentence that may be a query, and its minimum words: shorter ones are not specific.
SHORTEST, LONGEST, WORDS = 40, 200, 6
HELD_OUT = 0.2  # the share of the training characters whose triplets are held out

Records = list[dict[str, Any]]

_END = re.compile(r"(?<=[.!?:])\s+|\n\s*\n")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the problem."""

    passage: int = 200  # minimum characters of a text in a triplet, if its document has as many
    # minimum characters of a test document, including the sentences that are taken out of it
    document: int = 10_000
    questions: int = 12  # sentences taken out of each test document, besides its title
    test: float = 0.5  # share of the characters used for testing, above 0 and below 1

    def __post_init__(self) -> None:
        for name in ("passage", "document", "questions"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)} must be 1 or more")
        if not 0 < self.test < 1:
            raise UserError(f"--test={self.test} must be above 0 and below 1")


@dataclasses.dataclass(frozen=True)
class InverseCloze:
    """The problem as records; `corpus` and `queries` in MLDR's columns."""

    texts: Records  # {"text"} of the training documents, for a tokenizer and for masked language modelling
    triplets: Records  # {"query", "positive", "negative"} of most of the same documents
    held_out_triplets: Records  # of the rest of them, for choosing hyperparameters
    test_triplets: Records  # of the test documents
    corpus: Records  # the test documents, each long
    queries: Records  # with "kind" (title or sentence) and "character", its former position in the text

    def files(self) -> Iterator[tuple[str, str]]:
        """The name of each file and its contents, the queries last."""
        for field in dataclasses.fields(self):
            lines = [json.dumps(record) + "\n" for record in getattr(self, field.name)]
            yield f"{field.name}.jsonl", "".join(lines)


def make(texts: Iterable[str], sizes: Sizes, *, seed: int) -> InverseCloze:
    """Make the problem. Equal texts, sizes and seeds give equal records. Duplicate texts count once."""
    unique = [cut_sentences(text) for text in dict.fromkeys(texts)]
    counts = Counter(_key(sentence) for sentences in unique for sentence in sentences)
    trained, tested = _divide([sentences for sentences in unique if sentences], sizes.test, seed)
    rng = np.random.default_rng(seed)
    corpus, queries = _test(tested, counts, sizes, rng)
    learned, held_out = _divide(trained, HELD_OUT, seed)
    triplets = [_triplets(group, counts, sizes.passage, rng) for group in (learned, held_out, tested)]
    if not all(triplets) or len(corpus) < 2 or not queries:
        raise UserError(
            f"the text gives {' + '.join(str(len(group)) for group in triplets)} triplets to train on, to hold out and to test "
            f"with, {len(corpus)} documents and {len(queries)} queries, too few; give more text, or a smaller --document"
        )
    whole = [{"text": " ".join(sentences)} for sentences in trained]
    return InverseCloze(whole, triplets[0], triplets[1], triplets[2], corpus, queries)


def cut_sentences(text: str) -> list[str]:
    """The sentences of a text, each with single spaces.

    >>> cut_sentences("One is here. Two\\nis there:\\n\\n three")
    ['One is here.', 'Two is there:', 'three']
    """
    sentences = (" ".join(part.split()) for part in _END.split(text))
    return [sentence for sentence in sentences if sentence]


def _key(sentence: str) -> str:
    return " ".join(re.findall(r"\w+", sentence.lower()))


def _is_question(sentence: str, counts: Counter[str]) -> bool:
    key = _key(sentence)
    words = [word for word in key.split() if word.isalpha()]
    # A sentence that occurs twice would be a query for several documents, or be part of the training text.
    return SHORTEST <= len(sentence) <= LONGEST and len(words) >= WORDS and counts[key] == 1


def _divide(texts: Sequence[list[str]], share: float, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """Texts to train on, and at least two others, which have a share of the characters; both in the order of the source."""
    size = lambda sentences: sum(map(len, sentences))
    room = share * sum(map(size, texts))
    # By hash, so that texts added to a source leave nearly all others on the same side.
    rank = lambda number: hashlib.sha256(f"{seed}\0{' '.join(texts[number])}".encode("utf-8", "replace")).digest()
    tested = set[int]()
    for number in sorted(range(len(texts)), key=rank):
        if room > 0 or len(tested) < 2:  # a negative comes from another text
            tested.add(number)
            room -= size(texts[number])
    train = [sentences for number, sentences in enumerate(texts) if number not in tested]
    return train, [texts[number] for number in sorted(tested)]


def _triplets(texts: Sequence[list[str]], counts: Counter[str], passage: int, rng: np.random.Generator) -> Records:
    """Triplets in random order: a query, the sentences around it, and a passage of another text."""
    found = [
        (number, sentence, _around(sentences, place, passage, rng))
        for number, sentences in enumerate(texts)
        for place, sentence in enumerate(sentences)
        if _is_question(sentence, counts)
    ]
    found = [(number, query, positive) for number, query, positive in found if len(positive) >= SHORTEST]
    numbers = np.array([number for number, _, _ in found])
    made = []
    for place in rng.permutation(len(found)):
        number, query, positive = found[place]
        first, end = np.searchsorted(numbers, (number, number + 1))  # texts are in order
        if others := len(found) - int(end - first):
            other = rng.choice(others)
            negative = found[other if other < first else other + end - first][2]
            made.append({"query": query, "positive": positive, "negative": negative})
    return made


def _around(sentences: Sequence[str], place: int, size: int, rng: np.random.Generator) -> str:
    """The sentences on both sides of one, at least `size` characters if there are as many; a random share of them precedes it."""
    before = after = place
    room = float(rng.uniform(0, size))
    while before > 0 and room > 0:
        before -= 1
        room -= len(sentences[before])
    room = size - sum(map(len, sentences[before:place]))
    while after + 1 < len(sentences) and room > 0:
        after += 1
        room -= len(sentences[after])
    return " ".join([*sentences[before:place], *sentences[place + 1 : after + 1]])


def _test(
    texts: Sequence[list[str]], counts: Counter[str], sizes: Sizes, rng: np.random.Generator
) -> tuple[Records, Records]:
    corpus: Records = []
    queries: Records = []
    for number, sentences in enumerate(_long_documents(texts, sizes.document)):
        asked = _choose(sentences, counts, sizes.questions, rng)
        text = " ".join(sentence for place, sentence in enumerate(sentences) if place not in asked)
        name = f"d{number:05}"
        corpus.append({"docid": name, "text": text})
        for order, (place, kind) in enumerate(sorted(asked.items())):
            kept = [sentence for other, sentence in enumerate(sentences[:place]) if other not in asked]
            queries.append(
                {
                    "query_id": f"q{number:05}-{order}",
                    "query": sentences[place],
                    "positive_passages": [{"docid": name, "text": text}],
                    "kind": kind,
                    "character": sum(len(sentence) + 1 for sentence in kept),
                }
            )
    return corpus, queries


def _long_documents(texts: Sequence[list[str]], size: int) -> Iterator[list[str]]:
    """Documents of at least `size` characters, as sentences: long texts are split, short ones joined; a short rest is dropped."""
    sentences, length = list[str](), 0
    for text in texts:
        for sentence in text:
            sentences.append(sentence)
            length += len(sentence) + 1
            if length >= size:
                yield sentences
                sentences, length = [], 0


def _choose(sentences: Sequence[str], counts: Counter[str], questions: int, rng: np.random.Generator) -> dict[int, str]:
    """The indices of the sentences to take out: the first suitable one as the title, and one from each equal part."""
    places = [place for place, sentence in enumerate(sentences) if _is_question(sentence, counts)]
    if not places:
        return {}
    chosen = {places[0]: "title"}
    for part in np.array_split(np.arange(len(sentences)), min(questions, len(sentences))):
        inside = [place for place in places[1:] if part.size and part[0] <= place <= part[-1]]
        if inside:
            chosen[int(rng.choice(inside))] = "sentence"
    return chosen
