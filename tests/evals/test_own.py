"""An evaluation of one's own: a class and a line in the table, and the command, the records and the tables know it."""

import pytest

from bam_jax import config as configs
from bam_jax import evaluate
from bam_jax.config import CONFIGS
from bam_jax.evals import records
from bam_jax.evals.registry import EVALUATIONS
from bam_jax.experiments import costs, experiment, jobs, results, tables
from bam_jax.experiments.experiment import Column, Row, Table
from bam_jax.system.errors import UserError


@pytest.fixture(autouse=True)
def evaluation(contributed, monkeypatch):
    """The class that CONTRIBUTING.md shows."""
    kind = contributed("class NextToken").NextToken
    monkeypatch.setitem(EVALUATIONS, "next_token", kind)
    return kind


def test_a_column_of_a_table_is_measured_by_the_command(tmp_path, command, evaluation, write_initial):
    (tmp_path / "text.txt").write_text("a tale of some length, told again and again. " * 200)
    sizes = {"context": 16, "model.layers": 1, "model.width": 16, "model.heads": 2, "model.hidden": 16, "steps": 1}
    changes = {"encoding": "rope", "data.source": f"{tmp_path}/text.txt"} | sizes
    row = Row("RoPE", str(CONFIGS / "quickstart.py"), changes)
    column = Column("next", evaluation((16,), sequences=4))
    made = experiment.tabled("Mine", [row], [Table("T", (column,), {"RoPE": ()})])
    (job,) = jobs.jobs(made)
    assert costs.evaluating(job.config, job.row.evaluations) > 0 and job.cost() > 0

    run = write_initial(tmp_path / job.name, **configs.to_dict(job.config))
    (_, (module, *arguments)) = job.commands(tmp_path)
    status, said, _ = command(evaluate.main, *arguments)
    assert module == "bam_jax.evaluate" and not status
    assert f"{run}: accuracy at 16 tokens: " in said and "(4 sequences)" in said
    ((record,), _) = records.read_results(run)
    assert (record["eval"], record["length"], record["n"], record["step"]) == ("next_token", 16, 4, 1)
    assert 0 <= record["value"] <= 1
    ((entry,),) = [tables.compare(table, made, tmp_path) for table in made.tables]
    assert entry.ours == (record["value"],) and entry.settled
    assert not command(evaluate.main, *arguments[:2], "--lengths=16", "--sequences=6")[0]
    assert [(each["first"], each["n"]) for each in records.read_results(run)[0]] == [(0, 4), (4, 2)]

    entry = {"name": job.name, "label": "RoPE", "seed": 0, "labels": [], "commands": []}
    shown = results.as_row(results.read_run(run), entry | {"evaluations": job.row.evaluations})
    assert [cell["value"] for cell in shown.cells] == [record["value"]]


def test_its_options_are_its_own(refused, evaluation):
    with pytest.raises(UserError, match="--sequences=0, which must be `int` >= 1"):
        evaluation((16,), sequences=0)
    said = refused(evaluate.main, "--run=x", "--eval=passkey", "--lengths=16", "--sequences=4")
    assert "--sequences is no option of --eval=passkey" in said
