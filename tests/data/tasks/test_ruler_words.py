"""RULER's texts to trace and to count, solved from the prompt alone."""

import random
import re
from collections import Counter

import pytest

from bam_jax.data.tasks import ruler, ruler_words
from bam_jax.data.tokenizers import ByteTokenizer
from bam_jax.system.errors import UserError

MAKE = ruler.Sampler(ByteTokenizer(), ruler.Essays("", ()), 0)
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def halves(prompt):
    """The example, and the sample after it."""
    beginning = prompt.split("\n", 1)[0]
    example, rest = prompt.split(f"\n\n{beginning}")
    return example, rest


def variables(text):
    """The names that lead to the value that a text asks for, in the order of their assignments."""
    (value,) = re.findall(r"have the value (\d{5}),", text)
    found = {}
    for name, number, other in re.findall(r"^VAR ([A-Z]+) = (?:(\d{5})|VAR ([A-Z]+))$", text, re.MULTILINE):
        assert number or other == [*found][-1], "assigned from another variable than the one before"
        assert not number or not found, "a second variable has a value of its own"
        found[name] = number or found[other]
    return [name for name, number in found.items() if number == value]


def listed(text):
    """How often each word of a numbered list occurs."""
    body = text.split("\n\n")[-1].split("\nQuestion:")[0]
    entries = re.findall(r"(\d+)\. (\S+(?: (?!\d+\. )\S+)*)", body)
    assert [int(number) for number, _ in entries] == [*range(1, len(entries) + 1)]
    return Counter(word for _, word in entries)


@pytest.mark.parametrize("length", [2048, 9000])
def test_a_value_passes_through_five_variables(length):
    sample = MAKE("vt", length, 3)
    example, asked = halves(sample.prompt)
    assert variables(asked) == list(sample.answers) and len({*sample.answers}) == 5
    assert example.endswith(f" {' '.join(variables(example))}")
    assert not {*variables(example)} & {*sample.answers}
    body = asked.split("\n\n")[1].split("\nQuestion:")[0].split("\n")
    assert {line for line in body if not line.startswith("VAR")} == {NOISE}


@pytest.mark.parametrize(("length", "often", "seldom", "shown"), [(4095, 6, 1, (3, 1)), (4096 * 3, 30, 3, (10, 3))])
def test_ten_words_are_common(length, often, seldom, shown):
    sample = MAKE("cwe", length, 3)
    example, asked = halves(sample.prompt)
    counts = listed(asked)
    assert {word for word, count in counts.items() if count == often} == {*sample.answers} and len(sample.answers) == 10
    assert {*counts.values()} == {often, seldom}
    top = {word for word, count in listed(example).items() if count == shown[0]}
    assert {*listed(example).values()} == {*shown} and len(top) == 10
    assert all(f". {word}" in example.rpartition(":")[2] for word in top)


def test_a_list_of_more_words_than_there_are_has_pairs(monkeypatch):
    monkeypatch.setattr(ruler_words, "single_words", lambda: [f"word{n}" for n in range(60)])
    prompt, words = ruler_words.common(300, 8192, random.Random(0))
    counts = listed(halves(prompt)[1])
    assert len(counts) == 310 and sum("-" in word for word in counts) == 250
    assert {counts[word] for word in words} == {30}


@pytest.mark.parametrize("length", [1024, 20_000])
def test_words_in_code_are_frequent_by_zeta(length):
    sample = MAKE("fwe", length, 3)
    counts = Counter(sample.prompt.split("\n\n")[1].split("\nQuestion:")[0].split())
    ranked = [word for word, _ in counts.most_common()]
    assert ranked[0] == "..." and tuple(ranked[1:4]) == sample.answers
    assert all(re.fullmatch("[a-z]{6}", word) for word in ranked[1:])
    first, second, third, fourth, fifth = (counts[word] for word in ranked[:5])
    assert first > second > third > fourth > fifth
    # k^-2: a quarter, a ninth, a sixteenth of the first
    assert (second, third, fourth) == pytest.approx((first / 4, first / 9, first / 16), abs=1)
    assert len(counts) <= length // 50


@pytest.mark.parametrize(("task", "generated"), [("vt", 30), ("cwe", 120), ("fwe", 50)])
def test_prompts_fit_and_depend_on_their_arguments_alone(task, generated):
    for length in (2500, 9000):
        samples = [MAKE(task, length, number) for number in range(3)]
        for sample in samples:
            assert 0.9 * length < len(sample.tokens) + generated <= length
        assert len({sample.answers for sample in samples}) == 3
    again = ruler.Sampler(ByteTokenizer(), ruler.Essays("", ()), 0)(task, 9000, 2)
    other = ruler.Sampler(ByteTokenizer(), ruler.Essays("", ()), 1)(task, 9000, 2)
    assert again.prompt == samples[2].prompt and other.answers != again.answers
    with pytest.raises(UserError, match=f"too short for {task}: its prompts and the {generated} tokens"):
        MAKE.check(task, 500, range(2))
