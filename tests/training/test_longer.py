import itertools
import re
import shutil

import jax
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax import train
from bam_jax.convert import __main__ as convert
from bam_jax.data import loader, tokenizers
from bam_jax.models import transformer
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop, optimizer, run_folder
from bam_jax.training.checkpoint import Checkpoints
from bam_jax.training.metrics import read_metrics
from bam_jax.training.step import define_training, initial_state, make_step


def longer(finished, steps):
    return configs.load(finished / "tiny.py", {"steps": steps})


def by_hand(config, run):
    """The model after the steps that a run's newest checkpoint lacks, at the rates of the whole schedule."""
    tokenizer = tokenizers.tokenizer("char")
    graph, initialise, tx = define_training(config, tokenizer.size)
    batches = loader.batches(config, tokenizer)
    with Checkpoints(run) as checkpoints:
        state = checkpoints.load(initial_state(initialise), batches)
    step = make_step(config, graph, tx)
    for batch in itertools.islice(batches, config.steps - run_folder.latest_step(run)):
        state, _ = step(state, batch)
    return state["model"]


@pytest.mark.full
def test_it_goes_on_from_parameters_moments_and_data_by_the_new_schedule(finished, run):
    config = longer(finished, 7)
    wanted = by_hand(config, run)
    records = loop.fit(config, run, progress=False, longer=True)
    assert [line["step"] for line in records] == [1, 2, 3, 4, 5, 6, 7]
    rates = [float(optimizer.schedule(config.optimizer, 7)(step)) for step in (4, 5, 6)]
    np.testing.assert_allclose([line["rate"] for line in records[4:]], rates, rtol=1e-6)
    found = transformer.split(checkpoint.restore_model(run)[2])[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, wanted)
    assert run_folder.read_config(run).steps == 7


def test_the_command_says_what_becomes_of_the_rate(finished, run, capsys):
    command = [f"--config={finished / 'tiny.py'}", f"--workdir={run}"]
    train.main(command)
    assert "a larger --config.steps trains it longer, --config.start=" in capsys.readouterr().out
    convert.main([f"--run={run}", f"--export={run.parent / 'out'}"])
    train.main([command[0], f"--workdir={run.parent / 'out'}"])  # weights alone
    said = capsys.readouterr().out
    assert "nothing to do, finished at step 4" in said and "longer" not in said
    assert f"; --config.start={run.parent / 'out'} trains another run from it" in said
    train.main([*command, "--config.steps=6"])
    said = capsys.readouterr()
    rate = optimizer.schedule(longer(finished, 6).optimizer, 6)
    assert f"going on to 6 steps, not 4: the rate of step 5 is {rate(4):.2g}, as the schedule" in said.err
    assert re.search(r"finished at step 6: loss \d\.\d+\n$", said.out)
    with pytest.raises(UserError, match=r"config.steps=6, not 4; .*--config.start="):
        train.main(command)


def test_torn_metrics_are_those_of_the_checkpoint(finished, run):
    whole = read_metrics(run)
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert read_metrics(run) == whole == loop.fit(longer(finished, 4), run, progress=False)


def test_other_text_and_damaged_checkpoints_leave_the_steps_of_before(finished, run):
    for path, contents, says in (
        (
            finished / "text.txt",
            "another Python's documentation",
            "^config.data names other documents .* --config.start$",
        ),
        (run / "checkpoints" / "4" / "sums.json", "{}", "checkpoints/4 cannot be read"),
    ):
        before = path.read_bytes()
        path.write_text(contents * 99 if path.suffix == ".txt" else contents)
        with pytest.raises(UserError, match=says):
            loop.fit(longer(finished, 6), run, progress=False, longer=True)
        path.write_bytes(before)
        assert run_folder.read_config(run).steps == 4
    assert len(loop.fit(longer(finished, 4), run, progress=False)) == 4


@pytest.mark.parametrize("steps", [4, 6])
def test_the_same_text_elsewhere_is_gone_on_with(finished, run, steps):
    moved = shutil.copyfile(finished / "text.txt", run.parent / "moved.txt")
    config = configs.override(longer(finished, steps), {"data.source": str(moved)})
    other = run.parent / "other.txt"
    other.write_text(moved.read_text() + "and one tale more")
    with pytest.raises(UserError, match=rf"holds a run with config.data.source='.*/text.txt', not '{other}'; use that"):
        loop.fit(configs.override(config, {"data.source": str(other)}), run, progress=False, longer=True)
    assert run_folder.read_config(run) == longer(finished, 4)
    assert len(loop.fit(config, run, progress=False, longer=True)) == steps
    assert run_folder.read_config(run) == config
