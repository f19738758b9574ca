"""Questions made from templates, in the schemas of the benchmarks: for models too small for the real ones, and for tests.

They are sums, and passages of Python's documentation to go on with: what the toy models are trained on. Right and wrong
answers are drawn alike, and their order is drawn, so that guessing finds one in four.
"""

import functools
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

from bam_jax.data.sources.corpus import STDLIB, read_texts

RECORDS = 64  # records in every split of every subset
PAGES = 8  # pages of WikiText in every split
COLOURS = ("amber", "black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow")
LONG = (20, 600)  # words around a fact of a long context

Record = dict[str, Any]


def sums(rng: random.Random) -> list[Record]:
    """Additions, as questions of MMLU."""

    def record() -> Record:
        first, second = rng.randint(2, 49), rng.randint(2, 49)
        answer = rng.randrange(4)
        # The right sum is as often the least of the four as the greatest.
        least = first + second - rng.randrange(4)
        choices = [least + k for k in range(4)]
        rng.shuffle(choices)
        choices.remove(first + second)
        choices.insert(answer, first + second)
        return {"question": f"What is {first} + {second}?", "choices": [*map(str, choices)], "answer": answer}

    return [record() for _ in range(RECORDS)]


def next_words(rng: random.Random) -> list[Record]:
    """Questions after the word that follows in a passage, in the form of ARC."""

    def record() -> Record:
        *before, right = _passage(rng, 8).split()
        choices: list[str] = []
        while len(choices) < 3:
            wrong = _passage(rng, 1)
            # The beginning of an answer would be as likely as the whole of it.
            if not any(wrong.startswith(other) or other.startswith(wrong) for other in (right, *choices)):
                choices.append(wrong)
        answer = rng.randrange(4)
        choices.insert(answer, right)
        return {
            "question": f"Which word follows: {' '.join(before)}?",
            "choices": {"text": choices, "label": list("ABCD")},
            "answerKey": "ABCD"[answer],
        }

    return [record() for _ in range(RECORDS)]


def endings(rng: random.Random) -> list[Record]:
    """Passages with four endings, in the form of HellaSwag."""

    def record() -> Record:
        words = _passage(rng, 20).split()
        found = [_passage(rng, 8) for _ in range(4)]
        answer = rng.randrange(4)
        found[answer] = " ".join(words[12:])
        return {
            "activity_label": "Documentation",
            "ctx_a": " ".join(words[:8]),
            "ctx_b": " ".join(words[8:12]),
            "endings": found,
            "label": str(answer),
        }

    return [record() for _ in range(RECORDS)]


def pages(rng: random.Random) -> list[Record]:
    return [{"page": _passage(rng, 200)} for _ in range(PAGES)]


def long_contexts(rng: random.Random) -> list[Record]:
    """A number hidden in a passage of any length, as questions of LongBench v2."""

    def record() -> Record:
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

    return [record() for _ in range(RECORDS)]


MAKE: Mapping[str, Callable[[random.Random], list[Record]]] = {
    "cais/mmlu": sums,
    "allenai/ai2_arc": next_words,
    "Rowan/hellaswag": endings,
    "EleutherAI/wikitext_document_level": pages,
    "THUDM/LongBench-v2": long_contexts,
}
"""The function that makes the records of a split, by data set."""


@functools.cache
def _words() -> list[str]:
    return list(itertools.chain.from_iterable(text.split() for text in read_texts(STDLIB)))


def _passage(rng: random.Random, size: int) -> str:
    start = rng.randrange(len(_words()) - size)
    return " ".join(_words()[start : start + size])
