"""The command, its results file, and what it refuses."""

import dataclasses
import functools
import json
import os

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax import evaluate
from bam_jax.data import loader, tokenizers
from bam_jax.evals import harness, measuring, passkey, perplexity, records
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.registry import EVALUATIONS
from bam_jax.experiments import results
from bam_jax.models import transformer
from bam_jax.system import jsonl, lock
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, run_folder


def untrained(folder, name):
    """A run that names its text, whose checkpoint at step 1 is the initial model."""
    (folder / "text.txt").write_text("a tale of some length, told again and again. " * 200)
    sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}
    data = {"source": str(folder / "text.txt"), "tokenizer": name}
    config = configs.from_dict({"encoding": "rope", "context": 24, "model": sizes, "data": data})
    tokenizer = tokenizers.tokenizer(name)
    initial = nnx.jit(lambda: transformer.build(config, vocab=tokenizer.size, rngs=nnx.Rngs(0)))()
    state = {"model": transformer.split(initial)[1], "optimizer": {"count": jnp.zeros(1)}}
    with run_folder.claim(folder / "run", config, tokenizer), checkpoint.Checkpoints(folder / "run") as checkpoints:
        checkpoints.save(1, state, loader.batches(config, tokenizer))
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("runs"), "char")


@pytest.fixture(autouse=True)
def fresh(run):
    (run / "results.jsonl").unlink(missing_ok=True)


def lines(run):
    return (run / "results.jsonl").read_text().splitlines()


@pytest.fixture
def ask(command, run):
    return functools.partial(command, evaluate.main, f"--run={run}")


def test_a_record_says_all_that_the_report_needs(run, ask):
    asked = "--eval=passkey", "--lengths=32,16", "--depths=3", "--trials=2", "--seed=5", "--progress"
    status, out, err = ask(*asked)
    assert not status and "accuracy at 16 tokens" in out and "run passkey" in err
    records = [json.loads(line) for line in lines(run)]
    assert [(r["length"], r["depth"]) for r in records] == [(n, d) for n in (16, 32) for d in (0.0, 0.5, 1.0)]
    expected = {"eval": "passkey", "unit": "accuracy", "n": 2, "seed": 5, "overrides": {}, "step": 1, "prompt": "toy"}
    for record in records:
        assert record.keys() >= {"value", "digits", "tokens", "seconds", "commit"} and 0 <= record["value"] <= 1
        assert record | expected == record and len(record["config"]) == 12


def test_what_is_there_is_not_measured_again(run, monkeypatch):
    measuring.evaluate(run, Passkey((16,), depths=2))
    before = lines(run)
    batches = []
    inner = passkey.correct
    monkeypatch.setattr(passkey, "correct", lambda *a, **k: batches.append(len(a[1])) or inner(*a, **k))
    assert len(measuring.evaluate(run, Passkey((16,), depths=2))) == 2
    assert lines(run) == before and not batches
    (run / "results.jsonl").write_text(before[0] + "\n" + before[1][:20])  # killed while it wrote the second
    records = measuring.evaluate(run, Passkey((16,), depths=2))
    assert batches == [1] and len(records) == 2
    assert [json.loads(line)["depth"] for line in lines(run)] == [0.0, 1.0] and lines(run)[0] == before[0]


def test_more_trials_add_those_that_are_missing(run):
    measuring.evaluate(run, Passkey((16,), depths=1, trials=2))
    records = measuring.evaluate(run, Passkey((16,), depths=1, trials=4))
    assert [record["n"] for record in records] == [2, 2]
    assert "seconds" in measuring.evaluate(run, Perplexity((16,), tokens=32))[0]
    records = measuring.evaluate(run, Perplexity((16,), tokens=64))
    assert [record["n"] for record in records] == [2, 2]


@pytest.fixture
def of_text(monkeypatch):
    """Measures the run, whose held-out text is as it was (1) or read backwards (-1)."""
    inner = loader.held_out

    def measure(run, evaluation, direction=1):
        measuring._held_out.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(loader, "held_out", lambda *arguments: inner(*arguments)[::direction])
            return measuring.evaluate(run, evaluation, progress=False)

    yield measure
    measuring._held_out.cache_clear()


OF_TEXT = [lambda n: Perplexity((16,), tokens=16 * n), lambda n: Passkey((16,), depths=1, trials=n)]


@pytest.mark.parametrize("asked", OF_TEXT)
def test_two_texts_of_one_name_are_not_one_number(run, of_text, asked):
    of_text(run, asked(2))
    other = of_text(run, asked(4), -1)
    assert [(record["first"], record["n"]) for record in other] == [(0, 4)]
    assert of_text(run, asked(2))[0]["data_hash"] != other[0]["data_hash"] and len(lines(run)) == 2
    assert results.read_run(run).cells == other, "the newer text's"


def test_two_at_once_give_the_records_of_one(run, ask):
    """The second is refused; and what got into the file twice, before there was a lock, counts once."""
    asked = ["--eval=passkey", "--lengths=16", "--depths=2"]
    with lock.hold(run / ".passkey.lock"):
        status, _, said = ask(*asked, "--trials=2")
        assert status == 2 and "is being evaluated by another --eval=passkey" in said and said.count("\n") == 1
        assert not (run / "results.jsonl").exists()
        measuring.evaluate(run, Perplexity((16,), tokens=32))
    one = ask(*asked, "--trials=2")[1]
    before = lines(run)
    again = [jsonl.line(record | {"seconds": 9.0}) for record in jsonl.read(run / "results.jsonl")]
    (run / "results.jsonl").write_text("\n".join([*before, *again, *before, ""]))
    assert ask(*asked, "--trials=2")[1] == one and "(4 prompts)" in one
    assert "(6 prompts)" in ask(*asked, "--trials=3")[1]
    added = [json.loads(line) for line in lines(run)[3 * len(before) :]]
    assert [(record["depth"], record["first"], record["n"]) for record in added] == [(0.0, 2, 1), (1.0, 2, 1)]


def test_a_perplexity_that_is_no_number_is_not_written(run, monkeypatch, refused):
    inner = perplexity.token_losses
    monkeypatch.setattr(perplexity, "token_losses", lambda *a, **k: np.nan * inner(*a, **k))
    said = refused(evaluate.main, f"--run={run}", "--eval=perplexity", "--lengths=16", "--tokens=32")
    assert "perplexity found at 16 tokens has value=nan, which must be" in said
    assert not (run / "results.jsonl").exists()


def test_patience_leaves_no_shorter_length_out(run, monkeypatch):
    """Lengths that were measured before end nothing while one below those that are left out has no result."""
    monkeypatch.setattr(passkey, "correct", lambda decoder, samples, *, slots, rows: np.zeros((len(samples), 5), bool))
    measuring.evaluate(run, Passkey((20, 24), depths=1))
    found = measuring.evaluate(run, Passkey((12, 20, 24, 28, 32), depths=1, patience=2))
    assert [record["length"] for record in found] == [12, 20, 24]


def test_patience_ends_at_lengths_without_any_key_and_says_so(run, monkeypatch, ask):
    measured = []

    def correct(decoder, samples, *, slots, rows):
        measured.append(len(samples[0][0]))
        return np.full((len(samples), 5), measured[-1] in (16, 24))

    monkeypatch.setattr(passkey, "correct", correct)
    asked = ["--eval=passkey", "--lengths=12,16,20,24,28,32,36,40", "--depths=2"]
    assert "not measured: 36, 40 tokens" in ask(*asked, "--patience=2")[1]
    assert measured == [12, 16, 20, 24, 28, 32]
    *cells, stopped = [json.loads(line) for line in lines(run)]
    assert [cell["value"] for cell in cells] == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    expected = {"eval": "stopped", "of": "passkey", "lengths": [36, 40], "after": [28, 32], "seed": 0, "step": 1}
    assert stopped.items() >= expected.items() and "value" not in stopped
    before = lines(run)
    for kept in (3, 10, 11, 12, len(before)):  # killed after so many lines, within a length or between two
        (run / "results.jsonl").write_text("".join(f"{line}\n" for line in before[:kept]))
        assert not ask(*asked, "--patience=2")[0]
        places = lambda cells: [(cell["eval"], cell.get("length"), cell.get("depth")) for cell in cells]
        assert places(map(json.loads, lines(run))) == places([*cells, stopped])
    assert not ask(*asked)[0]
    assert [json.loads(line)["length"] for line in lines(run)[13:]] == [36, 36, 40, 40]


def test_an_override_changes_what_is_measured_and_skipping_does_not(run):
    plain, local, whole = (
        measuring.evaluate(run, Perplexity((48,), tokens=96, overrides=changes), skip=skip)[0]
        for changes, skip in (
            ({}, True),
            ({"encoding_options.window": 2}, True),
            ({"encoding_options.window": 2}, False),
        )
    )
    assert plain["value"] != local["value"] and plain["windows"][0] != local["windows"][0]
    assert len(plain["windows"]) == 2 and plain["window"] == 24
    assert whole["overrides"] == local["overrides"] | {"skip": "off"} and len(lines(run)) == 3
    assert whole["value"] == pytest.approx(local["value"], rel=1e-5)
    exact, share = (
        measuring.evaluate(run, Perplexity((48,), tokens=96), prune_cache=prune)[0]["overrides"]
        for prune in ("exact", 0.01)
    )
    # "exact" changes nothing, so its record is there already
    assert (exact, share) == ({}, {"prune_cache": 0.01}) and len(lines(run)) == 4
    with pytest.raises(UserError, match="prune_cache=2 must be exact"):
        measuring.evaluate(run, Perplexity((48,), tokens=96), prune_cache=2)


@pytest.mark.parametrize("change", [{"overrides": {"encoding_options.window": 8}}, {"seed": 1}])
def test_another_question_is_another_cell(run, change):
    plain = Passkey((16,), depths=1, trials=2)
    measuring.evaluate(run, plain)
    (record,) = measuring.evaluate(run, dataclasses.replace(plain, **change))
    assert len(lines(run)) == 2
    assert record["overrides"] == ({"encoding_options.window": 8} if "overrides" in change else {})
    assert len(measuring.evaluate(run, plain)) == 1 and len(lines(run)) == 2


@pytest.mark.full
def test_rulers_cells_are_tasks_and_lengths(tmp_path, command):
    run = untrained(tmp_path, "byte")
    before = measuring.evaluate(run, Perplexity((16,), tokens=32))
    tasks, essays = "--tasks=niah_single_1,niah_single_2", f"--essays={tmp_path / 'text.txt'}"
    ask = functools.partial(command, evaluate.main, f"--run={run}", "--eval=ruler", "--lengths=600", tasks, essays)
    assert not ask("--samples=1")[0]
    assert "niah_single_2 accuracy at 600 tokens: 0.000 (3 samples)" in ask("--samples=3")[1]
    records = [json.loads(line) for line in lines(run)[1:]]
    names = ["niah_single_1", "niah_single_2"]
    assert [(r["task"], r["length"], r["n"]) for r in records] == [(name, 600, n) for n in (1, 2) for name in names]
    assert all(r["step"] == 1 and r["seed"] == 0 and r["example"]["answers"] for r in records)
    assert [("essays" in r, "essays_hash" in r) for r in records[:2]] == [(False, False), (True, True)]
    written = lines(run)
    assert not ask("--samples=2")[0] and lines(run) == written
    assert measuring.evaluate(run, Perplexity((16,), tokens=32)) == before and lines(run) == written


@pytest.mark.full
def test_questions_go_on_with_the_task_that_was_interrupted(tmp_path, monkeypatch, command):
    run = untrained(tmp_path, "byte")
    asked = f"--run={run}", "--eval=harness", "--lengths=32", "--data=invented", "--tasks=arc_easy,longbench2_history"
    ask = functools.partial(command, evaluate.main, *asked)
    inner, tasks = harness.measure, []

    def interrupted(trained, todo, *, task, numbers):
        tasks.extend([task.config.task] if todo else [])
        if todo and len(tasks) == 2:
            raise KeyboardInterrupt
        return inner(trained, todo, task=task, numbers=numbers)

    monkeypatch.setattr(harness, "measure", interrupted)
    assert ask("--questions=2")[0] == 130 and len(lines(run)) == 1
    assert not ask("--questions=2")[0] and not ask("--questions=2")[0]
    names = ["arc_easy", "longbench2_agent_history", "longbench2_dialogue_history"]
    assert tasks == [*names[:2], *names[1:]]
    said = ask("--questions=3")[1]
    records = [json.loads(line) for line in lines(run)]
    assert [(r["task"], r["n"]) for r in records] == [(name, n) for n in (2, 1) for name in names]
    for record in records:
        expected = {"eval": "harness", "unit": "accuracy", "length": 32, "chance": 0.25, "shots": 0, "longer": "cut"}
        expected |= {"data": "invented", "step": 1, "of": 64, "cut": 1.0}
        assert record | expected == record and len(record["data_hash"]) == 16
        assert ("acc_norm" in record) == (record["task"] == "arc_easy")
    assert "arc_easy accuracy at 32 tokens" in said and "longbench2_history accuracy at 32 tokens" in said
    assert "(6 questions)" in said and "agent_history accuracy" not in said


MISTAKES = [
    ("--eval=passkey --lengths=-4", "lengths -4"),
    ("--eval=passkey --lengths=64,x", "64,x"),
    ("--eval=passkey --lengths=7", "length 7 is shorter"),
    ("--eval=passkee --lengths=64", "did you mean 'passkey'"),
    ("--eval=passkey --lengths=64 --prompt=pape", "did you mean 'paper'"),
    ("--eval=passkey --lengths=900 --prompt=paper", "does not keep each digit"),
    ("--eval=passkey --lengths=64 --depths=0", "--depths=0"),
    ("--eval=passkey --lengths=64 --depths=many", "--depths"),
    ("--eval=passkey --lengths=64 --memory=nan", "--memory=nan"),
    ("--eval=passkey --lengths=64 --config.mesh.tensor=4", "heads=2 must be a multiple of the mesh's tensor=4"),
    ("--eval=passkey --lengths=64 --config.seed=3", "prompts have one of their own, --seed"),
    ("--eval=perplexity --lengths=64 --depths=3", "--depths is no option of --eval=perplexity; known: tokens"),
    ("--eval=ruler --lengths=4096 --tasks=niah_multikey", "did you mean 'niah_multikey_3'"),
    ("--eval=ruler --lengths=4096 --essays=none", "none"),
    ("--eval=ruler --lengths=4096 --tasks=niah_single_1", "'char' changes texts"),
    ("--eval=harness --lengths=64 --data=nowhere --tasks=hellaswag", "hf download Rowan/hellaswag"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(run, refused, arguments, message):
    assert message in refused(evaluate.main, f"--run={run}", *arguments.split())
    assert not (run / "results.jsonl").exists()


def test_no_run_no_checkpoint_bad_results(run, tmp_path, refused):
    refusal = lambda run: refused(evaluate.main, f"--run={run}", "--eval=perplexity", "--lengths=16")
    assert "not a run" in refusal(tmp_path / "none")
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    assert "has no checkpoint" in refusal(tmp_path)
    assert os.listdir(tmp_path) == ["config.json"]
    (run / "results.jsonl").write_text("not json\n")
    assert "line 1 is not JSON" in refusal(run) and lines(run) == ["not json"]
    with pytest.raises(UserError, match="lengths"):
        measuring.evaluate(run, Passkey(()))


def test_text_that_changed_since_the_training_is_not_held_out(tmp_path, command, refused):
    run, text = untrained(tmp_path, "char"), tmp_path / "text.txt"
    text.write_text("another tale, with other words in it for once. " * 200)
    asked = evaluate.main, f"--run={run}", "--eval=perplexity", "--lengths=16", "--tokens=64"
    assert f"the text of {run} is another than it was trained on" in refused(*asked)
    assert not (run / "results.jsonl").exists()
    for name in ("source", "held_out_source"):  # the records have it among their overrides
        assert not command(*asked, f"--config.data.{name}={text}")[0]
    assert not command(*asked[:2], "--eval=passkey", "--lengths=16", "--depths=1")[0]  # its keys are in no text
    assert {cell["eval"] for cell in records.read_results(run)[0]} == {"perplexity", "passkey"}


def test_encoders_and_decoders_are_asked_for_different_things(run, encoder_run):
    for kind in EVALUATIONS.values():
        wrong, what = (run, "a decoder") if kind.encoder else (encoder_run, "an encoder")
        known = ", ".join(name for name, other in EVALUATIONS.items() if other.encoder != kind.encoder)
        with pytest.raises(
            UserError, match=f"is {what}, which is not asked for --eval={kind.name}; give one of {known}"
        ):
            measuring.evaluate(wrong, kind((16,)))
    assert not (run / "results.jsonl").exists()


def test_several_runs_and_evaluations_at_once(tmp_path, command, refused):
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        runs.append(untrained(tmp_path / name, "char"))
    ask = evaluate.main, "--run", *runs, "--eval=passkey,perplexity", "--lengths=16"
    status, said, _ = command(*ask, "--depths=2", "--tokens=32")
    assert not status and said.count("accuracy at 16 tokens") == said.count("perplexity per token at 16 tokens") == 2
    for run in runs:
        assert [(cell["eval"], cell["n"]) for cell in records.read_results(run)[0]] == [
            *[("passkey", 1)] * 2,
            ("perplexity", 2),
        ]
    assert "--samples is no option of --eval=passkey,perplexity; known: depths, " in refused(*ask, "--samples=3")
    assert "unknown evaluation 'perplexit'" in refused(*ask[:4], "--eval=passkey,perplexit", "--lengths=16")
    before = [(run / "results.jsonl").read_bytes() for run in runs]
    assert "no is not a run" in refused(*ask[:3], f"{tmp_path}/no", *ask[4:5], "--lengths=32"), (
        "before the first is read"
    )
    assert before == [(run / "results.jsonl").read_bytes() for run in runs]
    pattern = runs[0].with_name(f"{runs[0].name[:-1]}?")
    more = ask[0], f"--run={pattern}", f"--run={runs[1]}", "--eval=perplexity", "--lengths=16", "--tokens=32"
    assert command(*more)[1].count("perplexity per token") == 2, "patterns, and the option twice"
    assert "/none* matches nothing" in refused(evaluate.main, f"--run={tmp_path}/none*", *more[-3:])
