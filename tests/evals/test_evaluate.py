"""The command, its results file, and what it refuses."""

import concurrent.futures
import dataclasses
import json
import os
import re

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
from bam_jax.system import errors, jsonl, lock
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, run_folder


def untrained(folder, name):
    """A run whose checkpoint at step 1 is the initial model."""
    (folder / "text.txt").write_text("a tale of some length, told again and again. " * 200)
    config = configs.from_dict(
        {
            "encoding": "rope",
            "context": 24,
            "model": {"layers": 1, "width": 16, "heads": 2, "hidden": 16},
            "data": {"source": str(folder / "text.txt"), "tokenizer": name},
        }
    )
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


def command(run, *arguments):
    with pytest.raises(SystemExit) as exit:
        errors.run(evaluate.main, [f"--run={run}", *arguments])
    return exit.value.code


def test_a_record_says_all_that_the_report_needs(run, capsys):
    assert not command(run, "--eval=passkey", "--lengths=32,16", "--depths=3", "--trials=2", "--seed=5")
    records = [json.loads(line) for line in lines(run)]
    assert [(r["length"], r["depth"]) for r in records] == [(n, d) for n in (16, 32) for d in (0.0, 0.5, 1.0)]
    for record in records:
        assert record.keys() >= {"value", "digits", "tokens", "seconds"} and 0 <= record["value"] <= 1
        expected = {
            "eval": "passkey",
            "unit": "accuracy",
            "n": 2,
            "seed": 5,
            "overrides": {},
            "step": 1,
            "prompt": "toy",
        }
        assert record | expected == record
        assert len(record["config"]) == 12 and "commit" in record
    assert "accuracy at 16 tokens" in capsys.readouterr().out


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
    measuring.evaluate(run, Perplexity((16,), tokens=32))
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


@pytest.mark.parametrize("asked", OF_TEXT)
def test_records_from_before_they_named_their_text_count_alone(run, of_text, asked):
    record = {name: value for name, value in of_text(run, asked(2))[0].items() if name != "data_hash"}
    (run / "results.jsonl").write_text(json.dumps(record) + "\n")
    assert of_text(run, asked(2)) == [record] and len(lines(run)) == 1
    assert [(each["first"], each["n"]) for each in of_text(run, asked(4))] == [(0, 4)]


def test_two_at_once_give_the_records_of_one(run, capsys):
    """The second is refused; and what got into the file twice, before there was a lock, counts once."""
    asked = ["--eval=passkey", "--lengths=16", "--depths=2"]
    with lock.hold(run / ".passkey.lock"):
        assert command(run, *asked, "--trials=2") == 2
        said = capsys.readouterr().err
        assert "is being evaluated by another --eval=passkey" in said and said.count("\n") == 1
        assert not (run / "results.jsonl").exists()
        measuring.evaluate(run, Perplexity((16,), tokens=32))
    assert not command(run, *asked, "--trials=2")
    one = capsys.readouterr().out
    before = lines(run)
    again = [jsonl.line(record | {"seconds": 9.0}) for record in jsonl.read(run / "results.jsonl")]
    (run / "results.jsonl").write_text("\n".join([*before, *again, *before, ""]))
    assert not command(run, *asked, "--trials=2")
    assert capsys.readouterr().out == one and "(4 prompts)" in one
    assert not command(run, *asked, "--trials=3")
    added = [json.loads(line) for line in lines(run)[3 * len(before) :]]
    assert [(record["depth"], record["first"], record["n"]) for record in added] == [(0.0, 2, 1), (1.0, 2, 1)]
    assert "(6 prompts)" in capsys.readouterr().out


@pytest.mark.full
def test_evaluations_of_a_run_in_several_threads_give_the_records_of_one(run):
    def work(name):
        try:
            measuring.evaluate(run, asked[name], progress=False)
        except UserError as error:
            return str(error)
        return ""

    asked = {"passkey": Passkey((16, 24), depths=3), "perplexity": Perplexity((16, 24))}
    names = [*asked] * 3
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        said = [*pool.map(work, names)]
    assert all("is being evaluated by another" in each for each in said if each)
    found = [json.loads(line) for line in lines(run)]
    assert sorted((r["eval"], r["length"], r["depth"] or 0.0) for r in found) == [
        *(("passkey", n, depth) for n in (16, 24) for depth in (0.0, 0.5, 1.0)),
        *(("perplexity", n, 0.0) for n in (16, 24)),
    ]


def test_a_perplexity_that_is_no_number_is_not_written(run, monkeypatch, capsys):
    inner = perplexity.token_losses
    monkeypatch.setattr(perplexity, "token_losses", lambda *a, **k: np.nan * inner(*a, **k))
    assert command(run, "--eval=perplexity", "--lengths=16", "--tokens=32") == 2
    said = capsys.readouterr().err
    assert "perplexity found at 16 tokens has value=nan, which must be" in said
    assert not (run / "results.jsonl").exists()


def test_patience_leaves_no_shorter_length_out(run, monkeypatch):
    """Lengths that were measured before end nothing while one below those that are left out has no result."""
    monkeypatch.setattr(passkey, "correct", lambda decoder, samples, *, slots, rows: np.zeros((len(samples), 5), bool))
    measuring.evaluate(run, Passkey((20, 24), depths=1))
    found = measuring.evaluate(run, Passkey((12, 20, 24, 28, 32), depths=1, patience=2))
    assert [record["length"] for record in found] == [12, 20, 24]


def test_patience_ends_at_lengths_without_any_key_and_says_so(run, monkeypatch, capsys):
    measured = []

    def correct(decoder, samples, *, slots, rows):
        measured.append(len(samples[0][0]))
        return np.full((len(samples), 5), measured[-1] in (16, 24))

    monkeypatch.setattr(passkey, "correct", correct)
    asked = ["--eval=passkey", "--lengths=12,16,20,24,28,32,36,40", "--depths=2"]
    assert not command(run, *asked, "--patience=2")
    assert measured == [12, 16, 20, 24, 28, 32]
    *cells, stopped = [json.loads(line) for line in lines(run)]
    assert [cell["value"] for cell in cells] == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    expected = {"eval": "stopped", "of": "passkey", "lengths": [36, 40], "after": [28, 32], "seed": 0, "step": 1}
    assert stopped.items() >= expected.items() and "value" not in stopped
    assert "not measured: 36, 40 tokens" in capsys.readouterr().out
    before = lines(run)
    for kept in (3, 10, 11, 12, len(before)):  # killed after so many lines, within a length or between two
        (run / "results.jsonl").write_text("".join(f"{line}\n" for line in before[:kept]))
        assert not command(run, *asked, "--patience=2")
        again = [json.loads(line) for line in lines(run)]
        assert [(cell["eval"], cell.get("length"), cell.get("depth")) for cell in again] == [
            (cell["eval"], cell.get("length"), cell.get("depth")) for cell in (*cells, stopped)
        ]
    assert not command(run, *asked)
    assert [json.loads(line)["length"] for line in lines(run)[13:]] == [36, 36, 40, 40]


def test_without_skipping_is_another_question_with_the_same_answer(run):
    (plain,), (whole,) = (
        measuring.evaluate(run, Perplexity((48,), tokens=96, overrides={"encoding_options.window": 2}), skip=skip)
        for skip in (True, False)
    )
    assert whole["overrides"] == plain["overrides"] | {"skip": "off"} and len(lines(run)) == 2
    assert whole["value"] == pytest.approx(plain["value"], rel=1e-5)


@pytest.mark.parametrize("change", [{"overrides": {"encoding_options.window": 8}}, {"seed": 1}])
def test_another_question_is_another_cell(run, change):
    plain = Passkey((16,), depths=1, trials=2)
    measuring.evaluate(run, plain)
    (record,) = measuring.evaluate(run, dataclasses.replace(plain, **change))
    assert len(lines(run)) == 2
    assert record["overrides"] == ({"encoding_options.window": 8} if "overrides" in change else {})
    assert len(measuring.evaluate(run, plain)) == 1 and len(lines(run)) == 2


def test_an_override_changes_what_is_measured(run):
    (plain,) = measuring.evaluate(run, Perplexity((48,), tokens=96))
    (local,) = measuring.evaluate(run, Perplexity((48,), tokens=96, overrides={"encoding_options.window": 2}))
    assert plain["value"] != local["value"] and plain["windows"][0] != local["windows"][0]
    assert len(plain["windows"]) == 2 and plain["window"] == 24


@pytest.mark.full
def test_rulers_cells_are_tasks_and_lengths(tmp_path, capsys):
    run = untrained(tmp_path, "byte")
    before = measuring.evaluate(run, Perplexity((16,), tokens=32))
    asked = (
        "--eval=ruler",
        "--lengths=600",
        "--tasks=niah_single_1,niah_single_2",
        f"--essays={tmp_path / 'text.txt'}",
    )
    assert not command(run, *asked, "--samples=1") and not command(run, *asked, "--samples=3")
    assert "niah_single_2 accuracy at 600 tokens: 0.000 (3 samples)" in capsys.readouterr().out
    records = [json.loads(line) for line in lines(run)[1:]]
    assert [(r["task"], r["length"], r["n"]) for r in records] == [
        ("niah_single_1", 600, 1),
        ("niah_single_2", 600, 1),
        ("niah_single_1", 600, 2),
        ("niah_single_2", 600, 2),
    ]
    assert all(r["step"] == 1 and r["seed"] == 0 and r["example"]["answers"] for r in records)
    assert [("essays" in r, "essays_hash" in r) for r in records[:2]] == [(False, False), (True, True)]
    written = lines(run)
    assert not command(run, *asked, "--samples=2") and lines(run) == written
    assert measuring.evaluate(run, Perplexity((16,), tokens=32)) == before and lines(run) == written


@pytest.mark.full
def test_questions_go_on_with_the_task_that_was_interrupted(tmp_path, monkeypatch, capsys):
    run = untrained(tmp_path, "byte")
    asked = ("--eval=harness", "--lengths=32", "--data=invented", "--tasks=arc_easy,longbench2_history")
    inner, tasks = harness.measure, []

    def interrupted(trained, todo, *, task, numbers):
        tasks.extend([task.config.task] if todo else [])
        if todo and len(tasks) == 2:
            raise KeyboardInterrupt
        return inner(trained, todo, task=task, numbers=numbers)

    monkeypatch.setattr(harness, "measure", interrupted)
    assert command(run, *asked, "--questions=2") == 130 and len(lines(run)) == 1
    assert not command(run, *asked, "--questions=2") and not command(run, *asked, "--questions=2")
    names = ["arc_easy", "longbench2_agent_history", "longbench2_dialogue_history"]
    assert tasks == [*names[:2], *names[1:]]
    assert not command(run, *asked, "--questions=3")
    records = [json.loads(line) for line in lines(run)]
    assert [(r["task"], r["n"]) for r in records] == [(name, n) for n in (2, 1) for name in names]
    for record in records:
        expected = {"eval": "harness", "unit": "accuracy", "length": 32, "chance": 0.25, "shots": 0, "longer": "cut"}
        expected |= {"data": "invented", "step": 1, "of": 64, "cut": 1.0}
        assert record | expected == record and len(record["data_hash"]) == 16
        assert ("acc_norm" in record) == (record["task"] == "arc_easy")
    said = capsys.readouterr().out
    assert "arc_easy accuracy at 32 tokens" in said and "longbench2_history accuracy at 32 tokens" in said
    assert "(6 questions)" in said and "agent_history accuracy" not in said


def test_progress_is_shown_when_asked_for(run, capsys):
    assert not command(run, "--eval=perplexity", "--lengths=16", "--tokens=32", "--progress")
    assert "run perplexity" in capsys.readouterr().err


MISTAKES = [
    (["--eval=passkey", "--lengths=-4"], "lengths -4"),
    (["--eval=passkey", "--lengths=64,x"], "64,x"),
    (["--eval=passkey", "--lengths=7"], "length 7 is shorter"),
    (["--eval=passkee", "--lengths=64"], "did you mean 'passkey'"),
    (["--eval=passkey", "--lengths=64", "--prompt=pape"], "did you mean 'paper'"),
    (["--eval=passkey", "--lengths=900", "--prompt=paper"], "does not keep each digit"),
    (["--eval=passkey", "--lengths=64", "--depths=0"], "--depths=0"),
    (["--eval=passkey", "--lengths=64", "--depths=many"], "--depths"),
    (["--eval=passkey", "--lengths=64", "--memory=nan"], "--memory=nan"),
    (["--eval=passkey", "--lengths=64", "--memory=inf"], "--memory=inf must be a number of GiB above 0"),
    (["--eval=passkey", "--lengths=64", "--seed=-1"], "--seed=-1"),
    (["--eval=perplexity", "--lengths=99999999"], "too few for a sequence of length 99999999"),
    (["--eval=passkey", "--lengths=64", "--config.mesh.fsdp=2"], "runs on one device; leave it out"),
    (["--eval=passkey", "--lengths=64", "--config.seed=3"], "prompts have one of their own, --seed"),
    (["--eval=passkey", "--lengths=64", "--seed=two"], "--seed"),
    (["--eval=passkey", "--lengths=64", "--config.encodin=bam"], "did you mean 'encoding'"),
    (["--eval=passkey", "--lengths=64", "--dephts=4"], "did you mean '--depths'"),
    (["--eval=passkey"], "--lengths"),
    (["--eval=perplexity", "--lengths=64", "--depths=3"], "--depths is no option of --eval=perplexity; known: tokens"),
    (["--eval=ruler", "--lengths=4096", "--tasks=niah_multikey"], "did you mean 'niah_multikey_3'"),
    (["--eval=ruler", "--lengths=4096", "--essays=none"], "none"),
    (["--eval=ruler", "--lengths=4096", "--tasks=niah_single_1"], "'char' changes texts"),
    (["--eval=harness", "--lengths=64"], "--data is missing"),
    (["--eval=harness", "--lengths=64", "--data=invented", "--tasks=niah_single_1"], "unknown task 'niah_single_1'"),
    (["--eval=harness", "--lengths=64", "--data=invented", "--questions=0"], "--questions=0"),
    (["--eval=harness", "--lengths=64", "--data=invented", "--shots=-1"], "--shots=-1"),
    (["--eval=harness", "--lengths=64", "--data=nowhere", "--tasks=hellaswag"], "hf download Rowan/hellaswag"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(run, capsys, arguments, message):
    assert command(run, *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and message in said
    assert not (run / "results.jsonl").exists()


def test_no_run_no_checkpoint_bad_results(run, tmp_path, capsys):
    asked = ("--eval=perplexity", "--lengths=16")
    assert command(tmp_path / "none", *asked) == 2 and "not a run" in capsys.readouterr().err
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    assert command(tmp_path, *asked) == 2 and "has no checkpoint" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["config.json"]
    (run / "results.jsonl").write_text("not json\n")
    assert command(run, *asked) == 2 and "line 1 is not JSON" in capsys.readouterr().err
    assert (run / "results.jsonl").read_text() == "not json\n"


def test_text_that_changed_since_the_training_is_not_held_out(tmp_path, capsys):
    run, text = untrained(tmp_path, "char"), tmp_path / "text.txt"
    text.write_text("another tale, with other words in it for once. " * 200)
    perplexity = "--eval=perplexity", "--lengths=16", "--tokens=64"
    assert command(run, *perplexity) == 2
    assert f"the text of {run} is another than it was trained on" in (said := capsys.readouterr().err)
    assert said.count("\n") == 1 and not (run / "results.jsonl").exists()
    for name in ("source", "held_out_source"):  # the records have it among their overrides
        assert not command(run, *perplexity, f"--config.data.{name}={text}")
    assert not command(run, "--eval=passkey", "--lengths=16", "--depths=1")  # its keys are in no text
    assert {cell["eval"] for cell in records.read_results(run)[0]} == {"perplexity", "passkey"}


def test_an_encoder_is_not_asked_for_the_next_token(tmp_path):
    run = untrained(tmp_path, "char")
    text = (run / "config.json").read_text()
    changed = text.replace('"causal": true', '"causal": false')
    (run / "config.json").write_text(changed)
    with pytest.raises(UserError, match="config.json was changed after it was written"):
        run_folder.read_config(run)
    (run / "config.json").write_text(re.sub(r',\s*"crc32": \d+', "", changed))
    for kind in EVALUATIONS.values():
        if not kind.encoder:
            with pytest.raises(
                UserError, match=f"is an encoder, which is not asked for --eval={kind.name}; give one of"
            ):
                measuring.evaluate(run, kind((16,)))
    assert not (run / "results.jsonl").exists()


def test_records_are_read_by_those_who_read_results(run):
    measuring.evaluate(run, Passkey((16,), depths=2))
    assert [record["depth"] for record in jsonl.read(run / "results.jsonl")] == [0.0, 1.0]
    with pytest.raises(UserError, match="lengths"):
        measuring.evaluate(run, Passkey(()))
