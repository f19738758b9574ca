"""RULER's tracing and counting tasks: variable tracking (vt), common words (cwe) and frequent words (fwe).

The texts, their proportions and the example before vt and cwe are RULER's; the wording of the questions is ours. The words of cwe
are wonderwords' nouns, adjectives and verbs and, if a list needs more, pairs of an adjective and a noun.

Source: Hsieh et al. 2024 (arXiv 2404.06654), sections 3.2 and 3.3 and appendix B.
"""

import functools
import importlib.resources
import math
import random
import string

from bam_jax.data.tasks.passkey import FILLER
from bam_jax.system.extras import import_extra

Filled = tuple[str, tuple[str, ...]]
"""A prompt, and the answers that should follow."""

TRACK = (
    "The text below assigns values to variables. Follow the value of each.\n\n{context}\n"
    "Question: which variables of the text above have the value {value}, directly or through others? "
    "Answer: the {count} variables of the text above with the value {value} are"
)
COMMON = (
    "Below is a numbered list of words, some of which occur more often than others. Remember those that occur most.\n\n"
    "{context}\nQuestion: which {count} words occur most often in the list above? "
    "Answer: the {count} most common words of the list above are:"
)
FREQUENT = (
    "The text below consists of words in code and of dots. Count how often each word occurs.\n\n{context}\n"
    "Question: which three words of the text above occur most often, without the dots? "
    "Answer: the three most frequent words of the text above are:"
)
HOPS = 4
ASKED = 10
"""Number of common words; the question asks for all of them."""
SHORT = 4096
"""The length below which common words occur less often."""
LEAST = 100
"""Words of the shortest coded text. With fewer, the fourth word would be as frequent as the third."""


def track(size: int, length: int, rng: random.Random) -> Filled:
    """A value passed on through five variables, among lines of noise; after a solved example."""
    value, other = rng.sample(range(10_000, 100_000), 2)
    example, shown = _chain(1, other, 3, rng)
    prompt, names = _chain(size, value, 5, rng)
    return f"{example} {' '.join(shown)}\n\n{prompt}", names


def _chain(size: int, value: int, letters: int, rng: random.Random) -> Filled:
    names: dict[str, None] = {}
    while len(names) <= HOPS:
        names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
    lines = [FILLER] * (size + HOPS)
    places = sorted(rng.sample(range(len(lines)), len(names)))
    before = str(value)
    for number, (place, name) in enumerate(zip(places, names, strict=True)):
        lines.insert(place + number, f"VAR {name} = {before}")
        before = f"VAR {name}"
    return TRACK.format(context="\n".join(lines), value=value, count=len(names)), tuple(names)


def common(size: int, length: int, rng: random.Random) -> Filled:
    """A list of ten common words and `size` uncommon ones, each many times; after a solved example."""
    (uncommon, few, many), often, seldom = ((10, 3, 1), 6, 1) if length < SHORT else ((30, 10, 3), 30, 3)
    example, shown = _list(uncommon, few, many, rng)
    prompt, words = _list(size, often, seldom, rng)
    return f"{example} {_numbered(shown)}\n\n{prompt}", words


def _list(uncommon: int, often: int, seldom: int, rng: random.Random) -> Filled:
    pool, count = single_words(), ASKED + uncommon
    drawn = rng.sample(pool, min(count, len(pool)))
    known = dict.fromkeys(drawn)
    while len(known) < count:
        known[pair(rng)] = None
    words = list(known)
    listed = words[:ASKED] * often + words[ASKED:] * seldom
    rng.shuffle(listed)
    return COMMON.format(context=_numbered(listed), count=ASKED), tuple(words[:ASKED])


def _numbered(words: list[str] | tuple[str, ...]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))


def frequent(size: int, length: int, rng: random.Random) -> Filled:
    """Coded words: in a text of n, the k-th occurs n k^-2 / zeta(2) times. The first is dots, the next three are the answers."""
    words, total = {"...": None}, size + LEAST - 1
    while len(words) < max(length // 50, 5):
        words["".join(rng.choices(string.ascii_lowercase, k=6))] = None
    count = lambda rank: int(total * rank**-2 * 6 / math.pi**2)
    text = [word for rank, word in enumerate(words, start=1) for _ in range(count(rank))]
    rng.shuffle(text)
    return FREQUENT.format(context=" ".join(text)), tuple(words)[1:4]


TASKS = {"variables": track, "common": common, "frequent": frequent}
"""Functions that make samples: (size, length, rng) -> prompt and answers; a larger size makes a longer prompt."""


def pair(rng: random.Random) -> str:
    """One of the six million pairs, all equally likely, as in RULER's list of all pairs, which takes a gigabyte."""
    adjectives, nouns = _words("ADJECTIVES"), _words("NOUNS")
    adjective, noun = divmod(rng.randrange(len(adjectives) * len(nouns)), len(nouns))
    return f"{adjectives[adjective]}-{nouns[noun]}"


@functools.cache
def single_words() -> list[str]:
    return sorted({*_words("NOUNS"), *_words("ADJECTIVES"), *_words("VERBS")})


@functools.cache
def _words(kind: str) -> list[str]:
    name = import_extra("wonderwords", "a word of RULER", "ruler").Defaults[kind].value
    text = (importlib.resources.files("wonderwords") / "assets" / name).read_text(encoding="utf-8")
    return sorted({line.rstrip() for line in text.splitlines()})
