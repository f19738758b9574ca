"""RULER's samples: what a reader of the benchmark would check by hand, and generators that go wrong."""

import dataclasses
import hashlib
import random
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax.data.tasks import ruler
from bam_jax.data.tokenizers import ByteTokenizer, CharTokenizer, MistralTokenizer
from bam_jax.system.errors import UserError

BYTE = ByteTokenizer()
WORDS = random.Random(0).choices("""Once, the ship. sank." Why? harbour we left! At 3.5""".split(), k=400)
ESSAYS = ruler.Essays("test", tuple(WORDS))

VALUES = {"numbers": r"[1-9]\d{6}", "uuids": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"}
KEYS = {"words": r"[A-Za-zñ']+(?:[- ][A-Za-zñ']+)+", "uuids": VALUES["uuids"]}
# haystack, keys, values, needles beside the haystack's own, of one key, queries; the hash of a sample
UPSTREAM = {
    "niah_single_1": ("noise", "words", "numbers", 1, 1, 1, "cbee71e7553e"),
    "niah_single_2": ("essay", "words", "numbers", 1, 1, 1, "f3d5b3317c45"),
    "niah_single_3": ("essay", "words", "uuids", 1, 1, 1, "52e0def30759"),
    "niah_multikey_1": ("essay", "words", "numbers", 4, 1, 1, "651da0108f2b"),
    "niah_multikey_2": ("needle", "words", "numbers", 1, 1, 1, "41eaf922f32a"),
    "niah_multikey_3": ("needle", "uuids", "uuids", 1, 1, 1, "414e9bc63da0"),
    "niah_multivalue": ("essay", "words", "numbers", 4, 4, 1, "0681cd0e8a94"),
    "niah_multiquery": ("essay", "words", "numbers", 4, 1, 4, "774df3ae2af0"),
}
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
ONE = re.compile(
    "A special magic (?P<v>number|uuid) is hidden within the following text[.] Make sure to memorize it[.] "
    "I will quiz you about the (?P=v) afterwards[.]\n(?P<context>.*)\nWhat is the special magic (?P=v) for (?P<query>.*) "
    "mentioned in the provided text[?] The special magic (?P=v) for (?P=query) mentioned in the provided text is",
    re.DOTALL,
)
MANY = re.compile(
    "Some special magic (?P<v>numbers) are hidden within the following text[.] Make sure to memorize it[.] "
    "I will quiz you about the (?P=v) afterwards[.]\n(?P<context>.*)\nWhat are all the special magic (?P=v) for "
    "(?P<query>.*) mentioned in the provided text[?] The special magic (?P=v) for (?P=query) mentioned in the provided "
    "text are",
    re.DOTALL,
)


def faults(sample, task, length, tokenizer=BYTE, least=0.95):
    """What is wrong with a sample; found from its text alone, by the definitions of the benchmark."""
    haystack, key, value, needles, values, queries, _ = UPSTREAM[task]
    found = []
    used = len(tokenizer.encode(sample.prompt)) + 128
    if not least * length <= used <= length:
        found.append(f"{used} of {length} tokens")
    if not np.array_equal(sample.tokens, tokenizer.encode(sample.prompt)):
        found.append("tokens of another text")
    prompt = (ONE if queries * values == 1 else MANY).fullmatch(sample.prompt)
    if not prompt:
        return [*found, "another wording"]
    context = prompt["context"]
    needle = re.compile(f"One of the special magic {value} for ({KEYS[key]}) is: ({VALUES[value]})[.]")
    hidden = needle.findall(context)
    asked = re.split(", and |, ", prompt["query"])
    if len(asked) != queries or len(set(asked)) != queries:
        found.append(f"asks for {asked}")
    if sorted(sample.answers) != sorted(value for key, value in hidden if key in asked):
        found.append("the answers are not the values of the keys")
    if len(sample.answers) != queries * values:
        found.append(f"{len(sample.answers)} answers")
    if haystack == "essay":
        sentences = re.split(needle, context)
        pieces = [piece.strip(" ") for piece in sentences[::3]]
        text = " ".join(piece for piece in pieces if piece)
        if len(hidden) != needles:
            found.append(f"{len(hidden)} needles")
        if text.split(" ") != [WORDS[n % len(WORDS)] for n in range(len(text.split(" ")))]:
            found.append("not the essays' words")
        total = len(ESSAYS.sentences(len(text.split(" "))))
        depths = {int(total * (percent / 100)) for percent in np.round(np.linspace(0, 100, 40)).astype(int)}
        before = ""
        for piece in pieces[:-1]:
            before = f"{before} {piece}".strip(" ")
            place = len(ESSAYS.sentences(len(before.split(" ")))) if before else 0
            whole = before in ("", text) or re.search(r"""[.!?]["')\]]?$""", before)
            if place not in depths or not whole:
                found.append(f"a needle at sentence {place} of {total}")
    else:
        lines = context.split("\n")
        others = [line for line in lines if not needle.fullmatch(line)]
        if haystack == "noise" and not (len(hidden) == 1 and set(others) <= {NOISE}):
            found.append("not the noise with one needle")
        if haystack == "needle" and (others or len(dict(hidden)) < len(hidden) - 1):  # two may meet
            found.append("not needles alone, with keys of their own")
    return found


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(list(UPSTREAM)), st.integers(4096, 9000), st.integers(0, 10**6), st.integers(0, 500))
def test_samples_are_what_the_benchmark_says(task, length, seed, number):
    assert not faults(ruler.Sampler(BYTE, ESSAYS, seed)(task, length, number), task, length)


@pytest.mark.parametrize("task", UPSTREAM)
def test_a_short_haystack_is_still_one(task):
    """Below RULER's own minimum of 500 words or 5 sentences, down to the shortest length that is not refused."""
    make = ruler.Sampler(BYTE, ESSAYS, 0)
    for length in (800, 1200):
        assert not faults(make(task, length, 3), task, length, least=0.8)
    with pytest.raises(UserError, match=f"length 400 is too short for {task}: .* take [4-9].. with"):
        make(task, 400, 0)


@given(st.sampled_from(list(UPSTREAM)), st.integers(450, 800), st.integers(0, 99))
@settings(deadline=None)
def test_a_length_that_is_not_refused_holds_every_sample(task, length, first):
    make, numbers = ruler.Sampler(BYTE, ESSAYS, 0), range(first, first + 4)
    try:
        make.check(task, length, numbers)
    except UserError:
        with pytest.raises(UserError, match="too short"):
            [make(task, length, number) for number in numbers]
    else:
        assert all(len(make(task, length, number).tokens) + 128 <= length for number in numbers)


def test_tokens_of_a_vocabulary_are_counted():
    tokenizer = MistralTokenizer()
    make = ruler.Sampler(tokenizer, ESSAYS, 0)
    for task in UPSTREAM:
        assert not faults(make(task, 4096, 0), task, 4096, tokenizer)


def test_one_more_would_not_fit():
    make, longest_word = ruler.Sampler(BYTE, ESSAYS, 0), 50
    for number in range(10):
        room = 5000 - 128 - len(make("niah_single_1", 5000, number).tokens)
        assert 0 <= room < len(NOISE) + 1 + longest_word


@pytest.mark.parametrize("task", UPSTREAM)
def test_golden_samples(task):
    sample = ruler.Sampler(BYTE, ESSAYS, 42)(task, 4096, 7)
    text = "\n".join([sample.prompt, *sample.answers])
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == UPSTREAM[task][-1]


def test_a_sample_depends_on_its_arguments_alone():
    make, again = ruler.Sampler(BYTE, ESSAYS, 0), ruler.Sampler(BYTE, ESSAYS, 0)
    keys, single = "niah_multikey_1", "niah_single_2"
    places = [(keys, 4096, 0), (keys, 4096, 1), (keys, 5000, 0), (single, 4096, 0)]
    first = [make(*place) for place in places]
    assert [again(*place).prompt for place in reversed(places)] == [sample.prompt for sample in reversed(first)]
    other = ruler.Sampler(BYTE, ESSAYS, 1)(*places[0])
    assert len({sample.answers for sample in [*first, other]}) == 5


def test_depths_and_asked_keys_are_spread():
    """Over many samples every part of the text has needles, and none of the four keys is asked for more than another."""
    make = ruler.Sampler(BYTE, ESSAYS, 0)
    depths, ranks = [], []
    for number in range(100):
        sample = make("niah_multikey_1", 3000, number)
        values = re.findall(r"is: (\d{7})\.", sample.prompt)
        ranks.append(values.index(sample.answers[0]))
        depths.append(sample.prompt.index(sample.answers[0]) / len(sample.prompt))
    assert np.histogram(depths, bins=4, range=(0, 1))[0].min() > 10
    assert np.bincount(ranks, minlength=4).min() > 10


def test_essays_are_read_word_by_word_and_repeated(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("One  two.\n\nThree")
    (tmp_path / "b.txt").write_text("four?")
    text = ruler.essays(str(tmp_path))
    assert text.words == ("One", "two.", "Three", "four?")
    assert text.sentences(6) == ["One two.", "Three four?", "One two."]
    assert text.hash != dataclasses.replace(text, words=text.words[:3]).hash
    text = ruler.Essays("x", ("He", "said", '"Go!"', "at", "3.", "p.m.", "(Yes.)", "No"))
    assert text.sentences(8) == ['He said "Go!" at 3. p.m.', "(Yes.)", "No"]
    monkeypatch.setattr(ruler, "MOST", 3)
    assert len(ruler.essays(str(tmp_path)).words) == 3


def test_what_changes_text_is_refused():
    with pytest.raises(UserError, match="'char' changes texts.*byte, mistral, gpt2 or bpe"):
        ruler.Sampler(CharTokenizer(), ESSAYS, 0)


def test_words_need_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    ruler._words.cache_clear()
    with pytest.raises(UserError, match=r"pip install '\.\[ruler\]'"):
        ruler.Sampler(BYTE, ESSAYS, 0)("niah_single_1", 4096, 0)
