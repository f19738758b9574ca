"""Speed of whole models: who is measured when, that what is timed is what is meant, and records that go on."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bam_jax.attention import op
from bam_jax.config import Config, ModelConfig
from bam_jax.encodings import ENCODINGS, context_aware
from bam_jax.models import embedding, generate
from bam_jax.system.errors import UserError
from benchmarks import speed, torch_decoder, workloads
from benchmarks.workloads import Contender, Workload

FILE = str(Path(__file__).parents[2] / "configs" / "quickstart.py")
MODEL = ModelConfig(layers=1, width=16, heads=2, hidden=16, vocab=11)
made = functools.cache(lambda encoding: Contender(Config(encoding=encoding, model=MODEL, context=12, batch=4)))


def test_contenders_take_turns_and_warm_up():
    done = []
    fake = lambda name: Workload(lambda: 0, lambda state: done.append((name, state)) or state + 1, work=1)
    seconds = speed.race({"a": fake("a"), "b": fake("b")}, rounds=2, calls=3)
    assert done == [(name, state) for _ in range(2) for name in "ab" for state in range(4)]
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 6, "b": 6}


def test_what_is_timed_as_decoding_writes_what_generate_writes():
    contender = made("alibi")
    tree = contender.parameters()
    text = contender.texts(1, 5)
    expected = generate.greedy(contender.decoder(tree), text, 1 + 2 * workloads.TOKENS)
    workload = workloads.decoding(contender, 5, calls=2)
    state = workload.start()
    for call in range(2):
        assert int(state[2][0, 0]) == int(expected[0, call * workloads.TOKENS])
        state = workload.call(state)
    assert int(state[2][0, 0]) == int(expected[0, -1]) and int(state[3][0, 0]) == 5 + 2 * workloads.TOKENS


@pytest.mark.full
def test_decoding_sums_over_the_new_token_alone(monkeypatch):
    sizes, inner = [], context_aware.running_sum
    monkeypatch.setattr(context_aware, "running_sum", lambda x, axis=None: sizes.append(x.shape[-1]) or inner(x, axis))
    workload = workloads.decoding(made("cable"), 5, calls=1)
    state = workload.start()
    assert max(sizes) == 2 + 5
    sizes.clear()
    workload.call(state)
    assert set(sizes) == {3}, "the sum so far, high and low, and one step"


def test_latency_is_the_time_of_one_token(monkeypatch):
    taken = lambda work, *, rounds, calls: {name: np.full(rounds * calls, 3.2) for name in work}
    monkeypatch.setattr(speed, "race", taken)
    contenders = {"first": made("nope"), "second": made("learned")}
    found = {which: speed.measure(which, 5, contenders, rounds=1) for which in ("latency", "decoding")}
    assert set(found["latency"]) == {"first"}, "a table of 12 positions has no place for what is decoded"
    assert found["latency"]["first"]["value"] == pytest.approx(0.2)
    assert found["decoding"]["first"]["value"] == pytest.approx(5.0)


@pytest.mark.full
def test_a_step_of_training_reads_as_many_tokens_as_it_says_and_learns():
    contender = made("nope")
    workload = workloads.training(contender, 6)
    assert workload.work == 4 * 12 and contender.batch(8, 6)["tokens"].shape == (8, 6)
    first = workload.start()
    before = jax.tree.map(np.array, first["model"]["params"])
    after = workload.call(workload.call(first))["model"]["params"]  # the first has a rate of 0: warm-up
    assert any(np.abs(new - old).max() > 0 for new, old in zip(*map(jax.tree.leaves, (after, before)), strict=True))


def test_the_memory_of_a_backward_pass_holds_parameters_and_gradients_and_grows_with_the_text():
    contender = made("nope")
    parameters = 4 * sum(x.size for x in jax.tree.leaves(contender.shapes["params"]))
    short, run = workloads.gradient_memory(contender, 4)
    long, _ = workloads.gradient_memory(contender, 12)
    assert 2 * parameters < short < long
    assert run() is None, "a CPU counts nothing"


def test_ratios_are_to_the_first_and_what_has_no_positions_is_left_out():
    contenders = {"first": made("nope"), "second": made("learned")}
    found = speed.measure("inference", 12, contenders, rounds=1)
    assert found["first"]["ratio"] == 1.0
    assert found["second"]["ratio"] == found["second"]["value"] / found["first"]["value"]
    assert all(each["n"] == 20 and 0 < each["low"] <= each["value"] <= each["high"] for each in found.values())
    assert set(speed.measure("memory", 13, contenders, rounds=1)) == {"first"}  # a table of 12 positions


@pytest.fixture
def asked(monkeypatch):
    """The cells that are measured, in no time: the value is their number so far."""
    done = []

    def fake(which, length, contenders, *, rounds):
        done.append((which, length))
        return {name: {"value": float(len(done)), "ratio": 1.0, "n": 1} for name in contenders}

    monkeypatch.setattr(speed, "measure", fake)
    return done


def test_cells_that_are_there_are_not_measured_again(tmp_path, asked):
    path, contenders = tmp_path / "results.jsonl", {"d1": made("nope"), "d2": made("alibi")}
    cells = [("inference", 8), ("memory", 8)]
    list(speed.compare(contenders, cells, path, rounds=1))
    assert asked == cells and len(path.read_text().splitlines()) == 4
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:20])  # killed while it wrote the second cell
    found = {which: records for which, _, records in speed.compare(contenders, cells, path, rounds=1)}
    assert asked == [*cells, ("memory", 8)]
    assert [each["value"] for each in found["inference"]] == [1.0, 1.0]
    assert [each["value"] for each in found["memory"]] == [3.0, 3.0]
    lines = map(json.loads, path.read_text().splitlines())
    newest = {(each["measure"], each["config"]): each["value"] for each in lines}
    assert newest == {("inference", "d1"): 1.0, ("inference", "d2"): 1.0, ("memory", "d1"): 3.0, ("memory", "d2"): 3.0}


def test_times_of_another_machine_do_not_count_and_another_commit_is_named(tmp_path, asked, monkeypatch, capsys):
    path, contenders = tmp_path / "x", {"d": made("nope")}
    speed.measure_cells(contenders, [("memory", 8)], path)
    assert "commit" not in capsys.readouterr().out
    monkeypatch.setattr(speed.git, "describe", lambda: "abc1234")
    speed.measure_cells(contenders, [("memory", 8)], path)
    assert len(asked) == 1 and "measured before, with the code of commit" in capsys.readouterr().out
    monkeypatch.setattr(speed, "machine", lambda here=speed.machine: here() | {"cores": 1234})
    speed.measure_cells(contenders, [("memory", 8)], path)
    said = capsys.readouterr().out
    assert len(asked) == 2 and "1234 cores" in said and "commit" not in said


@pytest.mark.full
def test_every_encoding_takes_part_with_and_without_ssmax_and_nope_is_first():
    every = speed.enter(FILE, [{**changes, "model.vocab": 11} for changes in speed.every_encoding()])
    labels = [speed.label(each.config) for each in every.values()]
    assert sorted(labels) == sorted([*ENCODINGS, *(f"{name} SSMax" for name in ENCODINGS)]) and labels[0] == "nope"
    some = speed.enter(FILE, [{"model.vocab": 11, "encoding": "rope", "context": 32}])
    found = [(each.config.encoding, each.config.ssmax, each.config.context) for each in some.values()]
    assert found[0] == ("nope", "off", 32) and [encoding for encoding, _, _ in found] == ["nope", "rope"]


@pytest.mark.full
def test_an_encoder_embeds_with_and_without_all_logits_in_memory(monkeypatch):
    asked = {"model.vocab": 11, "model.causal": False, "data.task": "masked", "encoding": "alibi", "ssmax": "off"}
    both = speed.enter(FILE, [asked], dense=True)
    labels = [speed.label(each.config, each.backend) for each in both.values()]
    assert labels == ["nope", "alibi", "nope, dense", "alibi, dense"]
    _, alibi, _, dense = both.values()
    tree, tokens, filled = alibi.parameters(), alibi.texts(1, 24), np.array([24])
    plain = embedding.embed_texts(alibi.decoder(tree), tokens, filled)
    monkeypatch.setattr(op, "choose", lambda *arguments: pytest.fail("a dense model chooses no backend"))
    np.testing.assert_allclose(embedding.embed_texts(dense.decoder(tree), tokens, filled), plain, rtol=1e-5, atol=1e-6)
    found = speed.measure("embedding", 16, {"dense": dense}, rounds=1)
    assert found["dense"]["value"] > 0 and found["dense"]["n"] == speed.CALLS["embedding"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells=inferense:8"], "did you mean 'inference'"),
        (["--cells=inference"], "must be a measure and tokens, as in inference:512"),
        (["--cells=memory:0"], "'memory:0' must be"),
        (["--rounds=0"], "--rounds=0 must be 1 or more"),
        (["--contender=--config.encoding=alibo"], "did you mean 'alibi'"),
        (
            ["--config.model.causal=False", "--config.data.task=masked", "--cells=training:8"],
            "encoders have the measures",
        ),
        (["--cells=embedding:8"], "decoders have the measures inference, memory"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, arguments, message):
    out = tmp_path / "out" / "speed.jsonl"
    with pytest.raises(UserError, match=message):
        speed.main([f"--config={FILE}", "--config.model.vocab=11", *arguments, f"--out={out}"])
    assert not out.parent.exists()


@pytest.mark.parametrize(("encoding", "ssmax"), [("bam", "on"), ("bam", "off"), ("alibi", "on"), ("nope", "off")])
def test_the_decoder_in_torch_is_this_one(encoding, ssmax):
    torch = pytest.importorskip("torch")
    config = Config(encoding=encoding, ssmax=ssmax, model=MODEL, context=12, batch=4)
    torch_decoder.require(config)
    ours, contender = Contender(config), Contender(config, torch_decoder.BACKEND)
    batch = contender.batch(4, 6)
    logits, _ = ours.decoder(ours.parameters())(batch["tokens"])
    chosen = np.take_along_axis(np.array(jax.nn.log_softmax(logits)), np.array(batch["targets"])[..., None], -1)
    tokens, targets = (torch.tensor(np.array(batch[name])).long() for name in ("tokens", "targets"))
    found = torch_decoder.loss(config, torch_decoder.parameters(contender), tokens, targets)
    np.testing.assert_allclose(found.item(), -chosen.mean(), rtol=1e-5)

    workload = torch_decoder.training(contender, 6)
    assert workload.work == 4 * 12
    state = workload.start()
    before = {name: x.detach().clone() for name, x in state[0].items()}
    after, _ = workload.call(state)
    changed = {name for name, x in after.items() if not torch.equal(x, before[name])}
    assert changed == {name for name, x in after.items() if x.requires_grad}


def test_who_is_not_in_torch_is_told_so(monkeypatch):
    def enter(says, **changes):
        with pytest.raises(UserError, match=says):
            speed.enter(FILE, [{"model.vocab": 11, "encoding": "alibi"} | changes], torch=True)

    monkeypatch.setattr(torch_decoder.importlib.util, "find_spec", lambda name: None)
    enter("--torch needs PyTorch")
    monkeypatch.setattr(torch_decoder.importlib.util, "find_spec", lambda name: name)
    enter("--torch has the encodings nope, alibi, bam", encoding="rope")
    enter("plain decoder of the family llama", **{"model.family": "gpt2"})
    with monkeypatch.context() as patched:
        patched.setattr(jax, "default_backend", lambda: "gpu")
        enter("JAX has a gpu here; set JAX_PLATFORMS=cpu")
    arguments = ["--contender=--config.encoding=alibi --config.ssmax=off", "--torch"]
    with pytest.raises(UserError, match="give --cells=training:64"):
        speed.main([f"--config={FILE}", "--config.model.vocab=11", *arguments])
