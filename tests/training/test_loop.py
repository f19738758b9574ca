import random
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax import train
from bam_jax.data.tokenizers import tokenizer
from bam_jax.models import transformer
from bam_jax.system import errors, jsonl
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop, run_folder
from bam_jax.training.step import define_training, initial_state, jit_once


@pytest.fixture
def path(tmp_path, write_tiny):
    often = {"steps": 90, "checkpoint_every": 5, "log_every": 7, "optimizer": {"warmup": 5}}
    write_tiny(tmp_path, ssmax="on", batch=4, context=16, **often)
    return tmp_path


def tiny(path, *overrides):
    return configs.load(path / "tiny.py", configs.from_arguments(overrides))


def final(run):
    return transformer.split(checkpoint.restore_model(run)[2])[1]


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def lasting(records):
    return [
        {name: value for name, value in record.items() if "seconds" not in name and "second" not in name}
        for record in records
    ]


@pytest.mark.full
def test_killed_at_any_moment_and_started_again_ends_bitwise_the_same(path):
    unbroken = loop.fit(tiny(path), path / "unbroken")
    command = [
        sys.executable,
        "-m",
        "bam_jax.train",
        f"--config={path / 'tiny.py'}",
        f"--workdir={path / 'killed'}",
    ]
    for threshold in (5, 40):
        process = subprocess.Popen(command)
        while run_folder.latest_step(path / "killed") < threshold:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.2))
        process.kill()  # SIGKILL
        process.wait()
        assert 0 < run_folder.latest_step(path / "killed") < 90
    resumed = loop.fit(tiny(path), path / "killed")
    same(final(path / "unbroken"), final(path / "killed"))
    assert lasting(resumed) == lasting(unbroken)
    assert unbroken[-1]["step"] == 90 and len(unbroken) == 13
    assert unbroken[-1]["loss"] < unbroken[0]["loss"]


def test_command_line_finishes_once_and_refuses_another_configuration(path, capsys):
    arguments = [f"--config={path / 'tiny.py'}", f"--workdir={path / 'run'}", "--config.steps=3"]

    def run(*more):
        with pytest.raises(SystemExit) as exit:
            errors.run(train.main, [*arguments, *more])
        return exit.value.code, capsys.readouterr()

    code, output = run()
    assert not code and output.err.startswith("run: encoding bam (init=uniform, ")
    files = {file: file.read_bytes() for file in (path / "run").rglob("*") if file.is_file()}
    code, output = run()
    assert not code and "nothing to do" in output.out
    code, output = run("--config.seed=1")
    assert code == 2 and output.err.startswith("error: ") and output.err.count("\n") == 1
    assert "config.seed=0, not 1" in output.err
    assert files == {file: file.read_bytes() for file in (path / "run").rglob("*") if file.is_file()}
    assert run("--config.sead=1")[0] == 2


def test_a_second_training_of_a_folder_is_refused_and_writes_nothing(path, capsys):
    with run_folder.claim(path / "run", tiny(path), tokenizer("char")), pytest.raises(SystemExit) as exit:
        errors.run(train.main, [f"--config={path / 'tiny.py'}", f"--workdir={path / 'run'}"])
    said = capsys.readouterr().err
    assert exit.value.code == 2 and "in use by another training" in said.splitlines()[-1] and said.count("error") == 1
    assert {file.name for file in (path / "run").iterdir()} == {"config.json", "tokenizer", ".lock"}


@pytest.mark.full
def test_the_folder_stays_claimed_while_it_is_trained(path, monkeypatch):
    make_step = loop.make_step

    def another(*arguments):
        with pytest.raises(UserError, match="in use by another training"):
            loop.fit(tiny(path, "--config.steps=1"), path / "run")
        return make_step(*arguments)

    monkeypatch.setattr(loop, "make_step", another)
    assert len(loop.fit(tiny(path, "--config.steps=1"), path / "run")) == 1


def test_a_mistake_leaves_no_folder_behind(path):
    with pytest.raises(UserError, match="vocab=5"):
        loop.fit(tiny(path, "--config.model.vocab=5"), path / "run")
    with pytest.raises(UserError, match="no-such-folder"):
        loop.fit(tiny(path, "--config.data.source=no-such-folder"), path / "run")
    assert not (path / "run").exists()


@pytest.mark.parametrize(
    ("run", "says"),
    [("text.txt", "is a file, not a run"), ("text.txt/run", "text.txt is a file; give a new"), (".", "holds")],
)
def test_a_folder_that_will_not_do_is_refused_before_anything_begins(path, capsys, run, says):
    with pytest.raises(UserError, match=says):
        loop.fit(tiny(path), path / run)
    assert not capsys.readouterr().err


def test_a_loss_that_is_not_finite_stops_with_its_step(path, monkeypatch):
    make_step = loop.make_step

    def poisoned(*arguments):
        step, calls = make_step(*arguments), []

        def update(state, batch):
            calls.append(None)
            state, metrics = step(state, batch)
            return state, metrics * (jnp.nan if len(calls) == 7 else 1)

        return update

    monkeypatch.setattr(loop, "make_step", poisoned)
    with pytest.raises(UserError, match="^step 7: "):
        loop.fit(tiny(path, "--config.log_every=1"), path / "run")
    assert run_folder.latest_step(path / "run") == 5  # the next would have been at 10
    assert [record["step"] for record in jsonl.read(path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert (path / "run" / run_folder.DIVERGED).read_text().startswith("step 7: the loss is nan")


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_no_checkpoint_has_arrays_that_are_not_finite(path, monkeypatch, capsys, part):
    make_step = loop.make_step

    def poisoned(*arguments):
        step = make_step(*arguments)

        def update(state, batch):
            state, metrics = step(state, batch)
            if int(state["optimizer"][1].count) == 10:  # its own loss is of the parameters before
                spoil = lambda x: x * jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else x
                state = {**state, part: jax.tree.map(spoil, state[part])}
            return state, metrics

        return update

    config = tiny(path, "--config.steps=12")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "make_step", poisoned)
        for said in ("making the first parameters", "ended at step 10: "):  # the second goes on from step 5
            with pytest.raises(UserError, match="^step 10: .* not finite.*config.optimizer.rate"):
                loop.fit(config, path / "run")
            assert said in capsys.readouterr().err
            assert run_folder.latest_step(path / "run") == 5
            assert (path / "run" / run_folder.DIVERGED).read_text().startswith("step 10: ")
    assert lasting(loop.fit(config, path / "run")) == lasting(loop.fit(config, path / "alone"))
    same(final(path / "run"), final(path / "alone"))
    assert not (path / "run" / run_folder.DIVERGED).exists()


def one_step(config, **more):
    graph, init, tx = define_training(config, 11)
    state = jit_once(init)()
    before = jax.tree.map(np.asarray, state)
    rng = np.random.default_rng(0)
    shape = config.batch, config.context
    batch = {
        "tokens": rng.integers(0, 11, shape, np.int32),
        "targets": rng.integers(0, 11, shape, np.int32),
        "weights": rng.choice([0, 1, 1.5], shape, p=[0.5, 0.3, 0.2]).astype(np.float32),
        "segment": np.ones(shape, np.int32),
        **more,
    }
    return before, *loop.make_step(config, graph, tx)(state, batch)


@pytest.mark.full
def test_accumulation_is_exact_where_micro_batches_weigh_differently(path):
    whole = one_step(tiny(path, "--config.optimizer.warmup=0"))
    parts = one_step(tiny(path, "--config.optimizer.warmup=0", "--config.optimizer.accumulate=4"))
    np.testing.assert_allclose(whole[2], parts[2], rtol=1e-5)
    second = lambda state: state["optimizer"][1].mu  # the mean of the gradients: the update itself has unit scale
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), second(whole[1]), second(parts[1]))


def test_a_step_trains_everything_but_the_frozen_prior(path):
    before, after, _ = one_step(tiny(path, "--config.optimizer.warmup=0"))
    same(before["model"]["frozen"], after["model"]["frozen"])
    assert jax.tree.leaves(before["model"]["frozen"])
    moved = jax.tree.map(
        lambda a, b: bool((np.asarray(a) != np.asarray(b)).any()),
        *(state["model"]["params"] for state in (before, after)),
    )
    assert all(jax.tree.leaves(moved))


@pytest.mark.full
def test_positions_of_the_batch_are_those_of_the_model(path):
    config = tiny(path, "--config.encoding=learned")
    plain, same_, other = (
        one_step(config, **more)[2]
        for more in (
            {},
            {"position": np.tile(np.arange(16, dtype=np.int32), (4, 1))},
            {"position": np.zeros((4, 16), int)},
        )
    )
    assert (plain == same_).all() and not (plain == other).all()


@pytest.mark.full
def test_decoders_and_encoders_have_tasks_of_their_own(path, capsys):
    masked = "--config.model.causal=false", "--config.data.task=masked", "--config.data.tokenizer=byte"
    loop.fit(tiny(path, *masked, "--config.steps=2"), path / "encoder", progress=False)
    assert capsys.readouterr().err == ""
    assert run_folder.latest_step(path / "encoder") == 2
    for overrides, says in (
        (masked[:1], "an encoder .* is not trained on config.data.task='packed'; give masked or triplets"),
        (["--config.data.task=triplets"], "a decoder is not trained on .*'triplets'; give packed or passkey"),
    ):
        with pytest.raises(UserError, match=says):
            loop.fit(tiny(path, *overrides), path / "run")
    assert not (path / "run").exists()


@pytest.mark.full
def test_a_run_may_start_from_anothers_parameters(path):
    loop.fit(tiny(path, "--config.steps=2", "--config.checkpoint_every=2"), path / "short")
    longer = tiny(path, f"--config.start={path / 'short'}", "--config.context=48")
    size = tokenizer(longer.data.tokenizer).size
    _, init, tx = define_training(longer, size)
    first = initial_state(init, longer.start)
    same(first["model"], final(path / "short"))
    same(first["optimizer"], tx.init(first["model"]["params"]))
    with pytest.raises(UserError, match="not a run"):
        initial_state(init, str(path / "nowhere"))
    with pytest.raises(UserError, match="does not fit"):
        wide = tiny(path, f"--config.start={path / 'short'}", "--config.model.width=32")
        initial_state(define_training(wide, size)[1], wide.start)
