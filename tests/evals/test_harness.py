"""The harness's own tasks, asked of models that know the answers or do not; what the adapter reads and writes."""

import math
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax.config import Config, ModelConfig
from bam_jax.data.tasks import benchmarks
from bam_jax.data.tokenizers import ByteTokenizer, CharTokenizer
from bam_jax.evals import harness, likelihood
from bam_jax.evals.harness import Harness
from bam_jax.evals.plan import SampleRange, Trained
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

BYTE = ByteTokenizer()
lm_eval_adapter = pytest.importorskip("bam_jax.evals.lm_eval_adapter")


class Stub(nnx.Module):
    """What is asked of a model beside its logits, which `says` gives."""

    def __init__(self):
        self.config = ModelConfig(layers=1, width=8, heads=1, hidden=8)

    def check_length(self, length):
        pass


def says(after):
    """In the place of the compiled program, a model whose next byte after each prefix is given by a function.

    Args:
        after: gives the logits of the next byte.
    """

    def logprobs(graph, state, tokens, places, targets):
        found, best = np.zeros(places.shape), np.zeros(places.shape, bool)
        for row, column in np.ndindex(places.shape):
            logits = after(tokens[row, : places[row, column] + 1].astype(np.uint8).tobytes())
            found[row, column] = logits[targets[row, column]] - np.log(np.sum(np.exp(logits)))
            best[row, column] = np.argmax(logits) == targets[row, column]
        return found, best

    return logprobs


def knowing(task):
    """The logits of a model that knows the right answers of a task, and nothing else."""
    task.build_all_requests()
    table = {}
    for request in task.instances:
        right = task.doc_to_target(request.doc)
        if request.idx == right:
            context, answer = (part.encode() for part in request.args)
            for n, byte in enumerate(answer):
                table[context + answer[:n]] = 50 * np.eye(BYTE.size)[byte]
    return lambda prefix: table[prefix] if prefix in table else np.zeros(BYTE.size)


def at_random(prefix):
    """The same for the same prefix, and without any sense."""
    return np.random.default_rng(list(prefix[-40:])).normal(size=BYTE.size)


TASKS = ("mmlu_anatomy", "arc_challenge", "hellaswag", "longbench2_code")


@pytest.fixture(scope="module")
def tasks():
    return lm_eval_adapter.load(TASKS, benchmarks.INVENTED, 0)


def trained(tokenizer=BYTE):
    stub = Stub()
    return Trained(stub, tokenizer, Config(model=stub.config), lambda: np.zeros(0, np.int32), 2.0**28)


def measure(task, n=12, length=300):
    numbers = {length: list(range(len(task.eval_docs)))}
    ((_, result),) = harness.measure(trained(), [SampleRange(length, None, 0, n)], task=task, numbers=numbers)
    return result


@pytest.mark.parametrize("name", TASKS)
def test_who_knows_the_answers_has_them_all_right(tasks, name, monkeypatch):
    monkeypatch.setattr(likelihood, "_logprobs", says(knowing(tasks[name])))
    result = measure(tasks[name], length=10_000)
    assert (result["value"], result["unit"], result["stderr"], result["chance"]) == (1.0, "accuracy", 0.0, 0.25)
    assert result["cut"] == 0 and result["of"] == 64


@pytest.mark.parametrize("name", ["hellaswag", "longbench2_code"])
def test_who_guesses_has_what_chance_says(tasks, name, monkeypatch):
    monkeypatch.setattr(likelihood, "_logprobs", says(at_random))
    result = measure(tasks[name], n=32, length=300)  # of long contexts the question is left
    assert abs(result["value"] - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 32)
    assert result["stderr"] == pytest.approx(math.sqrt(result["value"] * (1 - result["value"]) / 31))
    assert result["cut"] == (name == "longbench2_code")


@pytest.fixture(scope="module")
def decoder():
    sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "scan": True}
    config = configs.from_dict({"encoding": "alibi", "context": 24, "model": sizes})
    made = transformer.build(config, vocab=BYTE.size, rngs=nnx.Rngs(0))
    made.head.kernel[...] *= 20
    return made


def adapter(decoder, budget, tokenizer=BYTE):
    return lm_eval_adapter.Adapter(decoder, tokenizer, budget=budget, memory=2.0**28)


def asked(*arguments):
    return types.SimpleNamespace(args=arguments)


def log_softmax(decoder, ids):
    """After each token of a text; in one shape, as what stands behind is not seen."""
    padded = np.pad(ids, (0, 32 - len(ids)))[None]
    return np.asarray(DIRECT(decoder, jnp.asarray(padded, jnp.int32)), np.float64)[0, : len(ids)]


DIRECT = nnx.jit(lambda decoder, text: jax.nn.log_softmax(decoder(text)[0]))


def test_a_text_longer_than_the_budget_is_scored_once_in_full_windows(decoder):
    text, budget = "abcdefghijklmnopqrstuvwxyz 0123456789, and so on", 20
    found, short = adapter(decoder, budget).loglikelihood_rolling([asked(text), asked("abc")])
    ids = [BYTE.eos, *text.encode()]
    expected, known = 0.0, 1  # ids whose likelihood is counted, the first being given
    while known < len(ids):
        stop = min(len(ids), known + budget)
        start = stop - 1 - budget if known > 1 else 0  # the last window goes back to be full
        rows = log_softmax(decoder, ids[start : stop - 1])
        expected += sum(rows[n - start - 1, ids[n]] for n in range(known, stop))
        known = stop
    assert found == pytest.approx(expected, rel=1e-4)
    whole = log_softmax(decoder, [BYTE.eos, *b"ab"])
    assert short == pytest.approx(sum(whole[range(3), list(b"abc")]), rel=1e-4)


def test_likelihood_after_nothing_is_that_at_the_start_of_a_document(decoder):
    ((nats, greedy),) = adapter(decoder, 30).loglikelihood([asked("", "be")])
    rows = log_softmax(decoder, [BYTE.eos, ord("b")])
    assert nats == pytest.approx(rows[0, ord("b")] + rows[1, ord("e")], rel=1e-4) and not greedy
    assert adapter(decoder, 30, CharTokenizer()).eot_token_id == CharTokenizer().encode("\n")[0]


class Marked(ByteTokenizer):
    """A tokenizer that begins each text with a space, as Mistral's does: two texts apart have one token more than together."""

    def encode(self, text):
        return super().encode(f" {text}")


def test_questions_that_are_too_long_can_be_left_out_and_no_other(tasks, monkeypatch):
    monkeypatch.setattr(likelihood, "_logprobs", says(at_random))
    task, encode = tasks["longbench2_code"], Marked().encode
    read = [len(encode(f"{task.doc_to_text(doc)} A")) - 1 for doc in task.eval_docs]  # the last token is not read
    budget = sorted(read)[3]
    asked = {"tasks": ("longbench2_code",), "data": "invented", "longer": "skip"}
    (plan,) = Harness((budget - 1, budget), **asked).plans(trained(Marked()))
    fit = {most: sum(n <= most for n in read) for most in (budget - 1, budget)}
    assert plan.wanted == {(most, None): n for most, n in fit.items()}
    assert plan.identity["longer"] == "skip" and plan.identity["task"] == "longbench2_code"
    found = dict(plan.measure([SampleRange(budget, None, 1, fit[budget])]))
    assert [(result["cut"], result["of"]) for result in found.values()] == [(0, fit[budget])]
    (few,) = Harness((2500,), questions=2, **asked).plans(trained())
    assert few.wanted == {(2500, None): 2}


def test_examples_come_from_the_split_that_is_meant_for_them():
    one = lm_eval_adapter.load(["mmlu_anatomy"], "invented", 2)["mmlu_anatomy"]
    one.build_all_requests(limit=1)
    prompt, _ = one.instances[0].args
    dev = benchmarks.read("invented", "cais/mmlu", "anatomy", "dev")
    asked = one.eval_docs[0]["question"]
    places = [prompt.index(question) for question in (dev[0]["question"], dev[1]["question"], asked)]
    assert places == sorted(places) and prompt.startswith("The following are multiple choice questions")


@pytest.mark.full
def test_every_task_is_the_harnesss_own_and_its_questions_are_found():
    names = benchmarks.leaves(benchmarks.TASKS)
    found = lm_eval_adapter.load(names, "invented", 0)
    assert tuple(found) == names
    for part in benchmarks._KINDS:
        assert found[f"longbench2_{part.task}"].config.dataset_name == part.subset


def test_a_group_consists_of_the_tasks_of_the_harnesss_group():
    index = lm_eval_adapter.manager("invented").task_index

    def leaves(name):
        entry = index[name]
        if entry.kind.name == "TAG":
            return set.union(*(leaves(child) for child in entry.tags))
        if entry.kind.name == "GROUP":
            return set.union(*(leaves(child) for child in entry.cfg["task"]))
        return {name}

    for group in ("mmlu", "longbench2"):
        assert leaves(group) == set(benchmarks.TASKS[group])


def test_what_is_not_there_is_one_line(monkeypatch, tmp_path):
    with pytest.raises(UserError, match="--data is missing"):
        Harness((64,)).plans(trained())
    with pytest.raises(UserError, match="hf download allenai/ai2_arc"):
        Harness((64,), tasks=("arc_easy",), data=str(tmp_path)).plans(trained())
    with pytest.raises(UserError, match="did you mean 'cut'"):
        Harness((64,), longer="cat")
    monkeypatch.delitem(sys.modules, "bam_jax.evals.lm_eval_adapter")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delattr("bam_jax.evals.lm_eval_adapter")
    with pytest.raises(UserError, match="needs the package lm_eval.*: pip install '..harness.'"):
        Harness((64,), data="invented").plans(trained())
