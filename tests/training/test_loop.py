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
    return [{name: value for name, value in record.items() if "second" not in name} for record in records]


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


def test_a_mistake_leaves_no_folder_behind(path, capsys):
    with pytest.raises(UserError, match="vocab=5"):
        loop.fit(tiny(path, "--config.model.vocab=5"), path / "run")
    with pytest.raises(UserError, match="no-such-folder"):
        loop.fit(tiny(path, "--config.data.source=no-such-folder"), path / "run")
    assert not (path / "run").exists()
    capsys.readouterr()
    with pytest.raises(UserError, match="is a file, not a run"):  # before anything begins
        loop.fit(tiny(path), path / "text.txt")
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("--config.model.width=1000000", "the optimiser's state take [0-9,]+ GiB, .* give a smaller config.model"),
        ("--config.batch=1000000000", "the tokens of a step take [0-9,]+ GiB, .* give a smaller config.batch"),
    ],
)
def test_a_state_or_a_batch_beyond_all_memory_is_refused(path, change, says):
    with pytest.raises(UserError, match=says):
        loop.fit(tiny(path, change), path / "run", progress=False)
    assert not (path / "run").exists()


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

    with pytest.raises(UserError, match="^step 7: "):
        poison(spoil, tiny(path, "--config.log_every=1"), path / "run")
    assert run_folder.latest_step(path / "run") == 5  # the next would have been at 10
    assert [record["step"] for record in jsonl.read(path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert (path / "run" / run_folder.DIVERGED).read_text().startswith("step 7: the loss is nan")


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_no_checkpoint_has_arrays_that_are_not_finite(path, poison, capsys, part):
    def spoil(state, metrics):
        if int(state["optimizer"][1].count) == 10:  # its own loss is of the parameters before
            worse = lambda x: x * jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else x
            state = {**state, part: jax.tree.map(worse, state[part])}
        return state, metrics

    config = tiny(path, "--config.steps=12")
    for said in ("making the first parameters", "ended at step 10: "):  # the second goes on from step 5
        with pytest.raises(UserError, match="^step 10: .* not finite.*config.optimizer.rate"):
            poison(spoil, config, path / "run")
        assert said in capsys.readouterr().err
        assert run_folder.latest_step(path / "run") == 5
        assert (path / "run" / run_folder.DIVERGED).read_text().startswith("step 10: ")
    if part == "model":
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
    changed = lambda a, b: bool((a != np.asarray(b)).any())
    assert all(jax.tree.leaves(jax.tree.map(changed, before["model"]["params"], after["model"]["params"])))


@pytest.mark.full
def test_positions_of_the_batch_are_those_of_the_model(path):
    config = tiny(path, "--config.encoding=learned")
    own, none = np.tile(np.arange(16, dtype=np.int32), (4, 1)), np.zeros((4, 16), int)
    plain, same_, other = (one_step(config, **more)[2] for more in ({}, {"position": own}, {"position": none}))
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
