"""RULER, measured on models that are known to find the needles, or not."""

import dataclasses
import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.attention import EMPTY
from bam_jax.config import Config, ModelConfig
from bam_jax.data.tasks import ruler as data
from bam_jax.data.tokenizers import ByteTokenizer
from bam_jax.evals import ruler
from bam_jax.evals.plan import SampleRange, Trained
from bam_jax.evals.ruler import Ruler
from bam_jax.system.errors import UserError

BYTE = ByteTokenizer()
LENGTH = 1300
NEEDLES = [task for task in data.TASKS if task.startswith("niah")]


def copied(text):
    """What stands behind the keys that a prompt asks for."""
    (query,) = re.findall(r"What (?:is|are all) the special magic \S+ for (.*) mentioned in the provided text\?", text)
    asked = re.split(", and |, ", query)
    return ", ".join(value for key in asked for value in re.findall(f"for {re.escape(key)} is: (\\S+)[.]", text))


def first(text):
    return re.search(r"is: (\S+)[.]", text)[1]


class Stub(nnx.Module):
    """A model that writes `answer(prompt)`, the end of the document and `end(prompt)`; its cache is the text."""

    def __init__(self, answer, end=first):
        self.config = ModelConfig(layers=1, width=8, heads=1, hidden=8)
        self.answer, self.end = answer, end
        self.head = nnx.Param(jnp.zeros(3))
        self.longest, self.prune_cache = 10**6, "off"

    def check_length(self, length):
        if length > self.longest:
            raise UserError(f"{length} tokens are too many")

    def caches(self, batch, slots, common_positions, groups):
        assert not common_positions
        empty = jnp.zeros((batch, slots), jnp.int32)
        return empty, empty + EMPTY, jnp.zeros((), jnp.int32)

    def layer_states(self):
        return []

    def __call__(self, tokens, *, position, caches, read, layers=None):
        seen, at, length = caches
        position = jnp.broadcast_to(position, tokens.shape)
        seen = jax.lax.dynamic_update_slice(seen, tokens, (0, length))
        at = jax.lax.dynamic_update_slice(at, position, (0, length))
        ids = jax.pure_callback(self.next, jax.ShapeDtypeStruct((len(tokens),), jnp.int32), seen, at)
        logits = jnp.broadcast_to(jax.nn.one_hot(ids, BYTE.size)[:, None], (len(tokens), read, BYTE.size))
        return logits, (seen, at, length + tokens.shape[1])

    def next(self, seen, at):
        ids = []
        for row, positions in zip(np.asarray(seen), np.asarray(at), strict=True):
            text = row[positions < EMPTY]
            assert np.array_equal(np.sort(positions[positions < EMPTY]), np.arange(len(text)))
            whole = r".* mentioned in the provided text (?:is|are)(?!.* mentioned)"
            prompt = re.match(whole, BYTE.decode(text), re.DOTALL)
            if prompt is None:  # not yet read to its end, or no prompt
                ids.append(0)
                continue
            reply = [*f" {self.answer(prompt[0])}".encode(), BYTE.eos, *self.end(prompt[0]).encode()]
            ids.append((reply + [0] * 200)[len(text) - len(prompt[0])])
        return np.array(ids, np.int32)


def measure(stub, tasks, *, samples=3, memory=2.0**30, first=0, essays="One two three. Four, five! Six."):
    text = data.Essays("test", tuple(essays.split()))
    make = data.Sampler(BYTE, text, 0)
    trained = Trained(stub, BYTE, Config(model=stub.config), lambda: np.zeros(0, np.int32), memory)
    return {
        task: dict(ruler.measure(trained, [SampleRange(LENGTH, None, first, first + samples)], make=make, task=task))
        for task in tasks
    }


def scores(found):
    return {task: [result["value"] for result in cells.values()] for task, cells in found.items()}


def test_who_copies_the_needles_finds_them_all():
    found = measure(Stub(copied), NEEDLES)
    assert scores(found) == {task: [1.0] for task in NEEDLES}
    (result,) = found["niah_multivalue"].values()
    assert 0.9 * LENGTH < result["tokens"] + 128 <= LENGTH
    assert len(result["example"]["answers"]) == 4
    assert set(re.findall(r"\d+", result["example"]["written"])) == set(result["example"]["answers"])


def test_who_takes_the_first_needle_finds_one_of_those_asked_for():
    found = scores(measure(Stub(first), ["niah_single_2", "niah_multikey_2", "niah_multivalue", "niah_multiquery"]))
    assert found["niah_single_2"] == [1.0] and found["niah_multikey_2"][0] < 1
    assert found["niah_multivalue"] == found["niah_multiquery"] == [0.25]


def test_what_follows_the_end_of_a_document_does_not_count():
    late = Stub(lambda prompt: "1", end=copied)
    (result,) = measure(late, ["niah_single_1"])["niah_single_1"].values()
    assert result["example"]["written"] == " 1" and result["value"] == 0


def test_little_memory_gives_the_same_in_more_batches(monkeypatch):
    batches = []
    inner = ruler.write
    monkeypatch.setattr(ruler, "write", lambda *a, **k: batches.append((len(a[2]), k["rows"])) or inner(*a, **k))
    together = measure(Stub(copied), ["niah_single_1"], samples=5)
    row = 4 * LENGTH * (8 * 8 + 3 * 8 + 2 * 8)
    apart = measure(Stub(copied), ["niah_single_1"], samples=5, memory=2 * row)
    assert batches == [(5, 5), (2, 2), (2, 2), (1, 2)]
    assert scores(together) == scores(apart)
    (whole,), (parts,) = (found["niah_single_1"].values() for found in (together, apart))
    assert whole["tokens"] == parts["tokens"]
    (later,) = measure(Stub(copied), ["niah_single_1"], first=4, samples=1)["niah_single_1"].values()
    make = data.Sampler(BYTE, data.Essays("", ()), 0)
    assert later["example"]["answers"] == make("niah_single_1", LENGTH, 4).answers


def test_lengths_that_cannot_be_are_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "essay.txt").write_text("long" * LENGTH)
    stub = Stub(copied)
    trained = Trained(stub, BYTE, Config(model=stub.config), lambda: np.zeros(0, np.int32), 2.0**30)
    assert len(Ruler((LENGTH,), tasks=("niah_single_1", "niah_multikey_3")).plans(trained)) == 2
    with pytest.raises(UserError, match="too short for niah_multivalue"):
        Ruler((LENGTH,), tasks=("niah_single_1", "niah_multivalue"), essays=str(tmp_path)).plans(trained)
    stub.longest = LENGTH - 2
    with pytest.raises(UserError, match=f"{LENGTH - 1} tokens are too many"):
        Ruler((600, LENGTH), tasks=("niah_single_1",)).plans(trained)


def test_a_task_of_essays_says_which(tmp_path):
    (tmp_path / "essay.txt").write_text("One two three. Four.")
    trained = types.SimpleNamespace(tokenizer=BYTE, decoder=Stub(copied), config=Config(seed=5))
    tasks = ("niah_single_1", "niah_single_2")
    asked = Ruler((1024, 2048), tasks=tasks, essays=str(tmp_path), seed=3, samples=9)
    noise, essay = asked.plans(trained)
    assert noise.identity == {"task": "niah_single_1", "seed": 3}
    text = data.essays(str(tmp_path))
    assert essay.identity == {"task": "niah_single_2", "seed": 3, "essays": str(tmp_path), "essays_hash": text.hash}
    assert noise.wanted == essay.wanted == {(1024, None): 9, (2048, None): 9}
    (own,) = Ruler((1024,), tasks=("niah_single_1",)).plans(trained)
    assert own.identity["seed"] == 5


def squad(folder, answers=("the Seine", "Seine")):
    """A file of two articles, of which only one is asked about."""
    asked = {"question": "Which river?", "answers": [{"text": text} for text in answers]}
    paragraph = lambda text, *qas: {"context": text, "qas": list(qas)}
    articles = [
        {"title": "Paris", "paragraphs": [paragraph("Paris lies on the Seine.", asked), paragraph("Paris is old.")]},
        {"title": "Oslo", "paragraphs": [paragraph("Oslo is cold.")]},
    ]
    (folder / "squad.json").write_text(json.dumps({"data": articles}))
    return str(folder / "squad.json")


@pytest.mark.parametrize(
    ("task", "written", "value", "count"),
    [
        ("qa_1", lambda answers: " seine it is", 1.0, 32),  # any one of the answers, whatever its case
        ("qa_1", lambda answers: " Rhine", 0.0, 32),
        ("vt", lambda answers: " ".join(answers[:2]).lower(), 0.4, 30),  # the share of them all
        ("cwe", lambda answers: ", ".join(answers), 1.0, 120),
        ("fwe", lambda answers: answers[0], 1 / 3, 50),
    ],
)
def test_questions_want_one_answer_and_the_others_all(monkeypatch, tmp_path, task, written, value, count):
    said = {}

    def write(decoder, tokenizer, samples, **sizes):
        said.update(sizes)
        return [written(sample.answers) for sample in samples]

    monkeypatch.setattr(ruler, "write", write)
    stub = Stub(copied)
    trained = Trained(stub, BYTE, Config(model=stub.config), lambda: np.zeros(0, np.int32), 2.0**30)
    (plan,) = Ruler((9000,), tasks=(task,), samples=2, squad=squad(tmp_path)).plans(trained)
    ((_, result),) = plan.measure([SampleRange(9000, None, 0, 2)])
    assert result["value"] == pytest.approx(value, abs=0.01)
    assert said["count"] == count and said["slots"] == 9000 - count
    assert 0.8 * 9000 < result["tokens"] + count <= 9000


def test_questions_name_their_file_and_are_not_asked_without_one(tmp_path):
    trained = types.SimpleNamespace(tokenizer=BYTE, decoder=Stub(copied), config=Config(seed=5))
    path = squad(tmp_path)
    asked = Ruler((4096,), tasks=("qa_1",), squad=path)
    (plan,) = asked.plans(trained)
    record = {"eval": "ruler", "overrides": {}, **plan.identity}
    assert record["data"] == path and asked.asks(record, trained.config, {})
    assert not dataclasses.replace(asked, squad="other.json").asks(record, trained.config, {})
    squad(tmp_path, ["Loire"])
    assert asked.plans(trained)[0].identity["data_hash"] != record["data_hash"]
    assert not {"qa_1", "qa_2"} & {*Ruler((4096,)).tasks} and len(Ruler((4096,)).tasks) == 11
    for task, option in {"qa_1": "squad", "qa_2": "hotpotqa"}.items():
        with pytest.raises(UserError, match=f"{task} asks from a file of yours; give --{option}=FILE"):
            Ruler((4096,), tasks=(task,)).plans(trained)
