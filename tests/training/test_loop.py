import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax import train
from bam_jax.data.tokenizers import tokenizer
from bam_jax.models import transformer
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop, run_folder
from bam_jax.training.metrics import metering, read_metrics
from bam_jax.training.step import define_training, initial_state


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


def test_command_line_finishes_once_and_refuses_another_configuration(path, command, refused):
    arguments = [f"--config={path / 'tiny.py'}", f"--workdir={path / 'run'}", "--config.steps=3"]
    code, _, said = command(train.main, *arguments)
    assert not code and said.startswith("run: encoding bam (init=uniform, ")
    contents = lambda: {file: file.read_bytes() for file in (path / "run").rglob("*") if file.is_file()}
    files = contents()
    assert "nothing to do" in command(train.main, *arguments)[1]
    assert "config.seed=0, not 1" in refused(train.main, *arguments, "--config.seed=1")
    assert files == contents()


def test_a_run_for_each_seed(path, command, refused):
    ask = train.main, f"--config={path / 'tiny.py'}", f"--workdir={path / 'run'}", "--config.steps=1"
    assert not command(*ask, "--seeds=3,7")[0]
    assert {each.name for each in path.iterdir() if each.is_dir()} == {"run-seed3", "run-seed7"}
    assert [run_folder.read_config(path / f"run-seed{seed}").seed for seed in (3, 7)] == [3, 7]
    assert "nothing to do" in command(*ask, "--seeds=3..3")[1]
    assert "nothing to do" in command(ask[0], ask[1], f"{ask[2]}/", ask[3], "--seeds=3")[1], "as a shell completes it"
    for seeds in ("4..3", "1,1", "x", "1..", "0..99999", "0..99999999999999999999"):
        assert f"--seeds={seeds} must be seeds such as 0..4 or 0,3" in refused(*ask, f"--seeds={seeds}")
    assert "--seeds=0..1 trains one run after another" in refused(*ask, "--seeds=0..1", "--config.seed=1")


def test_a_second_training_of_a_folder_is_refused_and_writes_nothing(path, monkeypatch, refused):
    def another(*_):
        files = sorted((path / "run").rglob("*"))
        said = refused(train.main, f"--config={path / 'tiny.py'}", f"--workdir={path / 'run'}", "--no-progress")
        assert "in use by another training" in said and files == sorted((path / "run").rglob("*"))
        raise SystemExit

    monkeypatch.setattr(loop, "make_step", another)
    with pytest.raises(SystemExit):
        loop.fit(tiny(path), path / "run", progress=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("seed=1", "is a file, not a run"),
        ("model.vocab=5", "vocab=5"),
        ("data.source=no-such-folder", "no-such-folder"),
        ("model.width=1000000", "the optimiser's state take [0-9,]+ GiB, .* give a smaller config.model"),
        ("batch=1000000000", "the tokens of a step take [0-9,]+ GiB, .* give a smaller config.batch"),
        ("model.causal=False", "an encoder .* is not trained on config.data.task='packed'; give masked or triplets"),
        ("data.task=triplets", "a decoder is not trained on .*'triplets'; give packed or passkey"),
    ],
)
def test_a_mistake_leaves_no_folder_behind(path, change, says, capsys):
    with pytest.raises(UserError, match=says):
        loop.fit(tiny(path, f"--config.{change}"), path / ("text.txt" if "file" in says else "run"))
    assert not (path / "run").exists()
    assert "file" not in says or not capsys.readouterr().err  # nothing has begun


def test_metrics_are_read_one_step_late_and_all_at_the_end(tmp_path):
    steps = lambda: [record["step"] for record in read_metrics(tmp_path)]
    with metering(configs.Config(steps=3, log_every=1), tmp_path, done=0, progress=False) as meter:
        for step in range(1, 4):
            meter.take(step, jnp.asarray([step / 2, 1.0]))
            assert steps() == list(range(1, step))
        meter.flush()
        meter.flush()
    assert steps() == [1, 2, 3] and read_metrics(tmp_path)[2]["loss"] == 1.5


def test_speed_stands_beside_the_peak_where_that_is_known(tmp_path, monkeypatch):
    now = itertools.count(0, 2.0)  # seconds
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    config = configs.Config(steps=4, log_every=1, batch=5, context=10)
    with metering(config, tmp_path, done=0, progress=False, full_speed=100.0) as meter:
        for step in range(1, 5):
            meter.take(step, jnp.ones(2))
        meter.flush()
    assert [record["mfu"] for record in read_metrics(tmp_path)] == [0, 0.25, 0.25, 0.25]  # 50 tokens in two seconds
    assert meter.productive == 8.0


def test_steps_are_profiled_once_and_the_run_stays_the_same(path, capsys):
    few = "--config.steps=4"
    loop.fit(tiny(path, few, "--config.profile_steps=2:3"), path / "profiled", progress=True)
    loop.fit(tiny(path, few), path / "plain", progress=False)
    same(final(path / "profiled"), final(path / "plain"))
    (trace,) = (path / "profiled").glob("profile/**/*.xplane.pb")
    assert b"train" in trace.read_bytes()
    said = capsys.readouterr().err
    assert "trace of steps up to 3" in said and "(goodput)" in said


@pytest.mark.parametrize("steps", ["3", "3:2", "0:2", "2:900", "a:b"])
def test_steps_to_profile_are_within_the_training(steps):
    with pytest.raises(UserError, match="config.profile_steps=.* must be FIRST:LAST within the 20 steps"):
        configs.Config(steps=20, profile_steps=steps)


@pytest.fixture
def poison(monkeypatch):
    """Trains with a step of whose state and metrics a function makes others."""
    make_step = loop.make_step

    def fit(spoil, config, run):
        def poisoned(*arguments):
            step = make_step(*arguments)
            return lambda state, batch: spoil(*step(state, batch))

        with monkeypatch.context() as patch:
            patch.setattr(loop, "make_step", poisoned)
            loop.fit(config, run)

    return fit


def test_a_loss_that_is_not_finite_stops_with_its_step(path, poison):
    def spoil(state, metrics):
        return state, metrics * (jnp.nan if int(state["optimizer"][1].count) == 7 else 1)

    with pytest.raises(UserError, match="^step 7: the loss is nan"):
        poison(spoil, tiny(path, "--config.log_every=1"), path / "run")
    assert run_folder.latest_step(path / "run") == 5  # the next would have been at 10
    assert [record["step"] for record in read_metrics(path / "run")] == [1, 2, 3, 4, 5, 6]
    assert (path / "run" / run_folder.DIVERGED).read_text().startswith("step 7: the loss is nan")


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_no_checkpoint_has_arrays_that_are_not_finite(path, poison, capsys, part):
    def spoil(state, metrics):
        if int(state["optimizer"][1].count) == 10:  # its own loss is of the parameters before
            worse = lambda x: x * jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else x
            state = {**state, part: jax.tree.map(worse, state[part])}
        return state, metrics

    config = tiny(path, "--config.steps=12")
    for said in ("making the first parameters", "ended at step 10: ")[: 2 if part == "model" else 1]:
        with pytest.raises(UserError, match="^step 10: .* not finite.*config.optimizer.rate"):
            poison(spoil, config, path / "run")
        assert said in capsys.readouterr().err
        assert run_folder.latest_step(path / "run") == 5  # from which the second goes on
        assert (path / "run" / run_folder.DIVERGED).read_text().startswith("step 10: ")
    if part == "model":
        lasting = lambda run: [(each["step"], each["loss"], each["rate"]) for each in loop.fit(config, path / run)]
        assert lasting("run") == lasting("alone")
        same(final(path / "run"), final(path / "alone"))
        assert not (path / "run" / run_folder.DIVERGED).exists()


@pytest.fixture
def one_step(take_steps, rng):
    """The states before and after a step, and its metrics."""
    tokens, targets = rng.integers(0, 11, (2, 4, 16), np.int32)
    weights = rng.choice([0, 1, 1.5], (4, 16), p=[0.5, 0.3, 0.2]).astype(np.float32)
    batch = {"tokens": tokens, "targets": targets, "weights": weights, "segment": np.ones((4, 16), np.int32)}

    def step(config, **more):
        (metrics,), states = take_steps(config, batch | more, vocab=11)
        return *states, metrics

    return step


@pytest.mark.full
def test_accumulation_is_exact_where_micro_batches_weigh_differently(path, one_step):
    """A step trains everything but the frozen prior."""
    before, whole, metrics = one_step(tiny(path, "--config.optimizer.warmup=0"))
    _, parts, same_metrics = one_step(tiny(path, "--config.optimizer.warmup=0", "--config.optimizer.accumulate=4"))
    np.testing.assert_allclose(metrics, same_metrics, rtol=1e-5)
    gradients = [state["optimizer"][1].mu for state in (whole, parts)]  # times 1 - b1: the update itself has unit scale
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *gradients)
    before, after = before["model"], whole["model"]
    same(before["frozen"], after["frozen"])
    assert jax.tree.leaves(before["frozen"])
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, before["params"], after["params"])))


@pytest.mark.full
def test_positions_of_the_batch_are_those_of_the_model(path, one_step):
    config = tiny(path, "--config.encoding=learned")
    own, none = np.tile(np.arange(16, dtype=np.int32), (4, 1)), np.zeros((4, 16), int)
    plain, same_, other = (one_step(config, **more)[2] for more in ({}, {"position": own}, {"position": none}))
    assert (plain == same_).all() and not (plain == other).all()


@pytest.mark.full
def test_an_encoder_is_trained_without_a_word(path, capsys):
    masked = "--config.model.causal=false", "--config.data.task=masked", "--config.data.tokenizer=byte"
    loop.fit(tiny(path, *masked, "--config.steps=2"), path / "encoder", progress=False)
    assert capsys.readouterr().err == "" and run_folder.latest_step(path / "encoder") == 2


@pytest.mark.full
def test_a_run_may_start_from_anothers_parameters(finished):
    start, path = finished / "run", finished
    longer = tiny(path, f"--config.start={start}", "--config.context=48")
    size = tokenizer(longer.data.tokenizer).size
    _, init, tx = define_training(longer, size)
    first = initial_state(init, longer.start)
    same(first["model"], final(start))
    same(first["optimizer"], tx.init(first["model"]["params"]))
    with pytest.raises(UserError, match="not a run"):
        initial_state(init, str(path / "nowhere"))
    with pytest.raises(UserError, match="does not fit"):
        initial_state(define_training(tiny(path, "--config.model.width=32"), size)[1], str(start))
