"""An evaluation of one's own: a class and a line in the table, and the command, the records and the tables know it."""

import jax.numpy as jnp
import pytest
from flax import nnx

from bam_jax import evaluate
from bam_jax.config import CONFIGS
from bam_jax.data import loader, tokenizers
from bam_jax.evals import records
from bam_jax.evals.registry import EVALUATIONS
from bam_jax.experiments import costs, experiment, jobs, results, tables
from bam_jax.experiments.experiment import Column, Row, Table
from bam_jax.models import transformer
from bam_jax.system import errors
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, run_folder


@pytest.fixture(autouse=True)
def evaluation(contributed, monkeypatch):
    """The class that CONTRIBUTING.md shows."""
    kind = contributed("class NextToken").NextToken
    monkeypatch.setitem(EVALUATIONS, "next_token", kind)
    return kind


def command(*arguments):
    with pytest.raises(SystemExit) as exit:
        errors.run(evaluate.main, arguments)
    return exit.value.code


def test_a_column_of_a_table_is_measured_by_the_command(tmp_path, capsys, evaluation):
    (tmp_path / "text.txt").write_text("a tale of some length, told again and again. " * 200)
    sizes = {"context": 16, "model.layers": 1, "model.width": 16, "model.heads": 2, "model.hidden": 16, "steps": 1}
    row = Row(
        "RoPE",
        str(CONFIGS / "quickstart.py"),
        {"encoding": "rope", "data.source": f"{tmp_path}/text.txt"} | sizes,
    )
    column = Column("next", evaluation((16,), sequences=4))
    made = experiment.tabled("Mine", [row], [Table("T", (column,), {"RoPE": ()})])
    (job,) = jobs.jobs(made)
    assert costs.evaluating(job.config, job.row.evaluations) > 0 and job.cost() > 0

    tokenizer = tokenizers.tokenizer(job.config.data.tokenizer)
    initial = nnx.jit(lambda: transformer.build(job.config, vocab=tokenizer.size, rngs=nnx.Rngs(0)))()
    state = {"model": transformer.split(initial)[1], "optimizer": {"count": jnp.zeros(1)}}
    run = tmp_path / job.name
    with run_folder.claim(run, job.config, tokenizer), checkpoint.Checkpoints(run) as checkpoints:
        checkpoints.save(1, state, loader.batches(job.config, tokenizer))

    (_, (module, *arguments)) = job.commands(tmp_path)
    assert module == "bam_jax.evaluate" and not command(*arguments)
    assert f"{run}: accuracy at 16 tokens: " in (said := capsys.readouterr().out) and "(4 sequences)" in said
    ((record,), _) = records.read_results(run)
    assert (record["eval"], record["length"], record["n"], record["step"]) == ("next_token", 16, 4, 1)
    assert 0 <= record["value"] <= 1
    ((entry,),) = [tables.compare(table, made, tmp_path) for table in made.tables]
    assert entry.ours == (record["value"],) and entry.settled
    assert not command(*arguments[:2], "--lengths=16", "--sequences=6")
    assert [(each["first"], each["n"]) for each in records.read_results(run)[0]] == [(0, 4), (4, 2)]

    entry = {"name": job.name, "label": "RoPE", "seed": 0, "labels": [], "commands": []}
    shown = results.as_row(results.read_run(run), entry | {"evaluations": job.row.evaluations})
    assert [cell["value"] for cell in shown.cells] == [record["value"]]


def test_its_options_are_its_own(capsys, evaluation):
    with pytest.raises(UserError, match="--sequences=0, which must be `int` >= 1"):
        evaluation((16,), sequences=0)
    assert command("--run=x", "--eval=passkey", "--lengths=16", "--sequences=4") == 2
    assert "--sequences is no option of --eval=passkey" in capsys.readouterr().err
