"""RULER's samples: what a reader of the benchmark would check by hand."""

import dataclasses
import hashlib
import random
import re

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
PROMPT = (
    "{} special magic (?P<v>{}) {} hidden within the following text[.] Make sure to memorize it[.] "
    "I will quiz you about the (?P=v) afterwards[.]\n(?P<context>.*)\nWhat {} the special magic (?P=v) for "
    "(?P<query>.*) mentioned in the provided text[?] The special magic (?P=v) for (?P=query) mentioned in the provided "
    "text {}"
)
ONE = re.compile(PROMPT.format("A", "number|uuid", "is", "is", "is"), re.DOTALL)
MANY = re.compile(PROMPT.format("Some", "numbers", "are", "are all", "are"), re.DOTALL)


def check(sample, task, length, tokenizer=BYTE, least=0.95):
    """Holds a sample against the definitions of the benchmark, from its text alone."""
    haystack, key, value, needles, values, queries, _ = UPSTREAM[task]
    ids = tokenizer.encode(sample.prompt)
    assert least * length <= len(ids) + 128 <= length
    np.testing.assert_array_equal(sample.tokens, ids)
    prompt = (ONE if queries * values == 1 else MANY).fullmatch(sample.prompt)
    assert prompt, "another wording"
    context = prompt["context"]
    needle = re.compile(f"One of the special magic {value} for ({KEYS[key]}) is: ({VALUES[value]})[.]")
    hidden = needle.findall(context)
    asked = re.split(", and |, ", prompt["query"])
    assert len(asked) == len(set(asked)) == queries
    assert sorted(sample.answers) == sorted(value for key, value in hidden if key in asked)
    assert len(sample.answers) == queries * values
    if haystack == "essay":
        pieces = [piece.strip(" ") for piece in re.split(needle, context)[::3]]
        text = " ".join(piece for piece in pieces if piece)
        assert len(hidden) == needles
        assert text.split(" ") == [WORDS[n % len(WORDS)] for n in range(len(text.split(" ")))]
        total = len(ESSAYS.sentences(len(text.split(" "))))
        depths = {int(total * (percent / 100)) for percent in np.round(np.linspace(0, 100, 40)).astype(int)}
        before = ""
        for piece in pieces[:-1]:
            before = f"{before} {piece}".strip(" ")
            assert (len(ESSAYS.sentences(len(before.split(" ")))) if before else 0) in depths
            assert before in ("", text) or re.search(r"""[.!?]["')\]]?$""", before), "a needle within a sentence"
    else:
        others = [line for line in context.split("\n") if not needle.fullmatch(line)]
        if haystack == "noise":
            assert len(hidden) == 1 and set(others) <= {NOISE}
        else:  # needles alone, with keys of their own; two may meet
            assert not others and len(dict(hidden)) >= len(hidden) - 1


@settings(max_examples=30)
@given(st.sampled_from(list(UPSTREAM)), st.integers(4096, 9000), st.integers(0, 10**6), st.integers(0, 500))
def test_samples_are_what_the_benchmark_says(task, length, seed, number):
    check(ruler.Sampler(BYTE, ESSAYS, seed)(task, length, number), task, length)


@pytest.mark.parametrize("task", UPSTREAM)
def test_golden_samples_short_haystacks_and_tokens_of_a_vocabulary(task):
    sample = ruler.Sampler(BYTE, ESSAYS, 42)(task, 4096, 7)
    text = "\n".join([sample.prompt, *sample.answers])
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == UPSTREAM[task][-1]
    make = ruler.Sampler(BYTE, ESSAYS, 0)
    for length in (800, 1200):  # below RULER's own minimum of 500 words or 5 sentences
        check(make(task, length, 3), task, length, least=0.8)
    with pytest.raises(UserError, match=f"length 400 is too short for {task}: .* take [4-9].. with"):
        make(task, 400, 0)
    mistral = MistralTokenizer()
    check(ruler.Sampler(mistral, ESSAYS, 0)(task, 4096, 0), task, 4096, mistral)


@given(st.sampled_from(list(UPSTREAM)), st.integers(450, 800), st.integers(0, 99))
def test_a_length_that_is_not_refused_holds_every_sample(task, length, first):
    make, numbers = ruler.Sampler(BYTE, ESSAYS, 0), range(first, first + 4)
    try:
        make.check(task, length, numbers)
    except UserError:
        with pytest.raises(UserError, match="too short"):
            [make(task, length, number) for number in numbers]
    else:
        assert all(len(make(task, length, number).tokens) + 128 <= length for number in numbers)


def test_one_more_would_not_fit():
    make, longest_word = ruler.Sampler(BYTE, ESSAYS, 0), 50
    for number in range(10):
        room = 5000 - 128 - len(make("niah_single_1", 5000, number).tokens)
        assert 0 <= room < len(NOISE) + 1 + longest_word


def test_a_sample_depends_on_its_arguments_alone():
    make, again = ruler.Sampler(BYTE, ESSAYS, 0), ruler.Sampler(BYTE, ESSAYS, 0)
    keys, single = "niah_multikey_1", "niah_single_2"
    places = [(keys, 4096, 0), (keys, 4096, 1), (keys, 5000, 0), (single, 4096, 0)]
    first = [make(*place) for place in places]
    assert [again(*place).prompt for place in reversed(places)] == [sample.prompt for sample in reversed(first)]
    other = ruler.Sampler(BYTE, ESSAYS, 1)(*places[0])
    assert len({sample.answers for sample in [*first, other]}) == 5


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
