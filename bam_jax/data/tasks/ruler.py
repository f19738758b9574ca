"""RULER's thirteen tasks: the eight needle-in-a-haystack tasks, made here, and those of `ruler_words` and `ruler_questions`.

Needles are magic numbers or UUIDs hidden in a text and asked for at its end. A sample has the words, depths and sizes of RULER's
own generator. Four things differ:

- Each sample has random numbers of its own.
- Haystacks may be smaller than RULER's smallest (500 words, or 5 or 25 sentences), down to one word or sentence.
- A sample that happens to be too long loses one word or sentence at a time, not 500 or 25.
- Essays come from the user, and are split into sentences by punctuation instead of NLTK's model.

Source: Hsieh et al. 2024, and NVIDIA's code (scripts/data/synthetic).
"""

import bisect
import dataclasses
import functools
import hashlib
import itertools
import random
import re
import uuid
from collections.abc import Callable, Mapping

import numpy as np

from bam_jax.data.sources.corpus import STDLIB, read_texts
from bam_jax.data.tasks import ruler_questions, ruler_words
from bam_jax.data.tasks.passkey import FILLER
from bam_jax.data.tasks.ruler_questions import Questions
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system.errors import UserError

NEEDLE = "One of the special magic {values} for {key} is: {value}."
PROMPT = (
    "{some} special magic {values} {are} hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {values} afterwards.\n{context}\n"
    "What {which} the special magic {values} for {query} mentioned in the provided text? "
    "The special magic {values} for {query} mentioned in the provided text {are}"
)
SINGULAR = {"some": "A", "are": "is", "which": "is"}
PLURAL = {"some": "Some", "are": "are", "which": "are all"}

DEPTHS = tuple(round(100 * n / 39) for n in range(40))  # of a needle in essays, per cent of their sentences
MOST = 2**20  # maximum words of essays that are read; longer haystacks repeat them

_SENTENCE = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]])) (?![a-z])""")


@dataclasses.dataclass(frozen=True)
class Task:
    """One of RULER's tasks."""

    # For needle tasks "noise" (a few short sentences, repeated), "essay" or "needle" (other keys and values); for others a name
    # in `ruler_words.TASKS` or `ruler_questions.FORMATS`.
    haystack: str
    key: str = "words"  # "words" (adjective-noun), "numbers" (7 digits) or "uuids"
    value: str = "numbers"
    keys: int = 1
    values: int = 1  # of each key
    queries: int = 1
    generated: int = 128  # tokens that a model may generate; they count towards the length

    @property
    def asks_questions(self) -> bool:
        """True if any one of the answers suffices; otherwise all are required."""
        return self.haystack in ruler_questions.FORMATS


TASKS = {
    "niah_single_1": Task("noise"),
    "niah_single_2": Task("essay"),
    "niah_single_3": Task("essay", value="uuids"),
    "niah_multikey_1": Task("essay", keys=4),
    "niah_multikey_2": Task("needle"),
    "niah_multikey_3": Task("needle", key="uuids", value="uuids"),
    "niah_multivalue": Task("essay", values=4),
    "niah_multiquery": Task("essay", keys=4, queries=4),
    "vt": Task("variables", generated=30),
    "cwe": Task("common", generated=120),
    "fwe": Task("frequent", generated=50),
    "qa_1": Task("squad", generated=32),
    "qa_2": Task("hotpotqa", generated=32),
}


@dataclasses.dataclass(frozen=True)
class Essays:
    """The text of the haystacks that are essays."""

    source: str
    words: tuple[str, ...]

    @functools.cached_property
    def hash(self) -> str:
        """Sixteen hex digits of the words' SHA-256."""
        return hashlib.sha256(" ".join(self.words).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def sentences(self, size: int) -> list[str]:
        """The first `size` words, repeated if there are fewer, as sentences.

        >>> Essays("here", ("Is", "it?", "Yes.")).sentences(4)
        ['Is it?', 'Yes.', 'Is']
        """
        return _SENTENCE.split(" ".join(itertools.islice(itertools.cycle(self.words), size)))


@dataclasses.dataclass(frozen=True)
class Sample:
    """A prompt, its answers, and the prompt's tokens."""

    prompt: str  # ends where the answer should begin
    answers: tuple[str, ...]  # all of them should occur in the continuation, in any order; for questions any one
    tokens: np.ndarray  # [at most length - generated] int32


def essays(source: str = STDLIB) -> Essays:
    """The words of a source, in sequence; only the first 2^20 of a large source."""
    words = (word[0] for document in read_texts(source) for word in re.finditer(r"\S+", document))
    return Essays(source, tuple(itertools.islice(words, MOST)))


class Sampler:
    """Samples for a tokenizer, texts and a seed: a pure function of task, length (including generated tokens) and number.

    Args:
        questions: the questions of the tasks that are drawn, by the names of `ruler_questions.FORMATS`; see
            `ruler_questions.read`.
    """

    def __init__(self, tokenizer: Tokenizer, text: Essays, seed: int, questions: Mapping[str, Questions] = {}):
        probe = NEEDLE.format(values="numbers", key="Wary-MP", value="0123456789") + "\n" + FILLER
        if tokenizer.decode(tokenizer.encode(probe)) != probe:
            raise UserError(
                f"tokenizer {tokenizer.spec!r} changes texts, and RULER's answers with them; "
                "use a model with the tokenizer byte, mistral, gpt2 or bpe"
            )
        self._tokenizer, self._text, self._seed, self._questions = tokenizer, text, seed, questions
        self._sizes: dict[tuple[str, int], int] = {}

    def __call__(self, task: str, length: int, number: int) -> Sample:
        if (task, length) not in self._sizes:
            self._sizes[task, length] = self._largest(task, length)
        for size in range(self._sizes[task, length], 0, -1):
            sample = self._draw(task, length, number, size)
            if _taken(task, sample) <= length:
                return sample
        raise _too_short(task, length, _taken(task, sample))

    def check(self, task: str, length: int, numbers: range) -> None:
        """Raise UserError if the length is too short for some of the samples; the arguments are those of a call."""
        least = max(_taken(task, self._draw(task, length, number, 1)) for number in numbers)
        if least > length:
            raise _too_short(task, length, least)

    def _draw(self, task: str, length: int, number: int | str, size: int) -> Sample:
        rng = random.Random(f"{self._seed} {task} {length} {number}")
        haystack = TASKS[task].haystack
        if TASKS[task].asks_questions:
            place = number if isinstance(number, int) else -1
            prompt, answers = self._questions[haystack].fill(place, size, rng)
        elif haystack in ruler_words.TASKS:
            prompt, answers = ruler_words.TASKS[haystack](size, length, rng)
        else:
            prompt, answers = _fill(TASKS[task], size, rng, self._text, self._seed)
        return Sample(prompt, answers, self._tokenizer.encode(prompt))

    def _largest(self, task: str, length: int) -> int:
        """The size of a haystack (words, sentences or documents): the largest with which a sample drawn for this purpose fits."""
        too_long = lambda size: _taken(task, self._draw(task, length, "size", size)) > length
        most = 1
        while not too_long(most):
            most *= 2
        return max(1, bisect.bisect_left(range(most), True, lo=most // 2 + 1, key=too_long) - 1)


def _taken(task: str, sample: Sample) -> int:
    return len(sample.tokens) + TASKS[task].generated


def _too_short(task: str, length: int, least: int) -> UserError:
    return UserError(
        f"length {length} is too short for {task}: its prompts and the {TASKS[task].generated} tokens to be written take {least} "
        "with the smallest haystack; give some words more"
    )


def _fill(task: Task, size: int, rng: random.Random, text: Essays, seed: int) -> tuple[str, tuple[str, ...]]:
    """The prompt with a haystack of a size, and the answers."""
    needle = lambda key, value: NEEDLE.format(values=task.value, key=key, value=value)
    draw_key, draw_value = _DRAW[task.key], _DRAW[task.value]
    hidden = [(draw_key(rng), [draw_value(rng) for _ in range(task.values)]) for _ in range(task.keys)]
    needles = [needle(key, value) for key, values in hidden for value in values]
    random.Random(seed).shuffle(needles)

    if task.haystack == "essay":
        context = _among_sentences(needles, text.sentences(size), rng)
    else:
        lines = [FILLER] * size
        if task.haystack == "needle":
            lines = [needle(draw_key(rng), draw_value(rng)) for _ in range(size)]
        places = sorted(rng.sample(range(size), len(needles)), reverse=True)
        for place, line in zip(places, needles, strict=True):
            lines.insert(place, line)
        context = "\n".join(lines)

    asked = [hidden[n] for n in rng.sample(range(task.keys), task.queries)]
    answers = tuple(value for _, values in asked for value in values)
    *others, last = [key for key, _ in asked]
    query = f"{', '.join(others)}, and {last}" if others else last
    form, values = (SINGULAR, task.value.removesuffix("s")) if len(answers) == 1 else (PLURAL, task.value)
    return PROMPT.format(**form, values=values, query=query, context=context), answers


def _among_sentences(needles: list[str], sentences: list[str], rng: random.Random) -> str:
    places = sorted(int(len(sentences) * (depth / 100)) for depth in rng.sample(DEPTHS, len(needles)))
    parts = []
    for start, stop, needle in zip([0, *places], places, needles, strict=False):
        parts += [" ".join(sentences[start:stop]), needle]
    return " ".join([*parts, " ".join(sentences[places[-1] :])])


_DRAW: dict[str, Callable[[random.Random], str]] = {
    "numbers": lambda rng: str(rng.randint(10**6, 10**7 - 1)),
    "words": ruler_words.pair,
    "uuids": lambda rng: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
}
