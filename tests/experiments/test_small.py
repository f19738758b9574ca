"""The small scale end to end: one row with one seed and few steps, from the corpus to the table."""

from pathlib import Path

import pytest
import small_scale

from bam_jax import tables
from bam_jax.experiments.sweep import Sweep
from bam_jax.system.errors import UserError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CUT = """
import dataclasses

from bam_jax.experiments.experiment import load, tabled

TINY = {{"steps": 2, "model.layers": 1, "model.width": 16, "model.heads": 2, "model.hidden": 16}}


def get_experiment(scale):
    made = load({path!r}, scale=scale)
    (row,) = [row for row in made.rows if row.label == "BAM SSMax"]
    columns = [column for column in made.tables[0].columns if column.label in {columns!r}]
    columns = tuple(dataclasses.replace(c, evaluation=dataclasses.replace(c.evaluation, **{fewer!r})) for c in columns)
    row = dataclasses.replace(row, overrides={{**row.overrides, **TINY}}, seeds=(0,))
    table = dataclasses.replace(made.tables[0], columns=columns, values={{"BAM SSMax": ()}})
    return tabled(made.title, [row], [table], scale=made.scale)
"""


@pytest.mark.parametrize("name", ["small_rates", "encoder_rates", "synthetic_rates", "patterns_rates"])
def test_missing_rates_name_their_search(name, tmp_path):
    with pytest.raises(UserError, match=f"after python experiments/{name}.py"):
        small_scale.chosen_rates("ALiBi", tmp_path / f"{name}.json")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "columns", "fewer"),
    [
        ("bam_figure2_passkey", ("128",), {"depths": 2, "trials": 1}),
        ("bam_table2_perplexity", ("Wikipedia", "Fineweb"), {"tokens": 640}),
    ],
)
def test_a_row_from_the_corpus_to_the_table(tmp_path, monkeypatch, capsys, name, columns, fewer):
    monkeypatch.chdir(tmp_path)
    english = tmp_path / "corpora" / "english"
    english.mkdir(parents=True)
    for number in range(20):
        (english / f"{number}.txt").write_text(f"Text number {number}, of no great length. " * 100)
    path = tmp_path / f"{name}.py"
    path.write_text(CUT.format(path=str(EXPERIMENTS / f"{name}.py"), columns=columns, fewer=fewer))
    sweep = Sweep.load([str(path)], scale="small", runs=tmp_path / "runs")
    (job,) = sweep.rows
    sweep.recorder.work(job, tmp_path / "runs")
    tables.main([str(path), "--scale=small", f"--runs={tmp_path / 'runs'}"])
    written = capsys.readouterr().out
    assert "(small scale)" in written and "BAM SSMax" in written and "—" not in written.partition("BAM SSMax")[2]


@pytest.mark.full  # it reads all records
def test_the_committed_records_hold_all_that_the_page_of_claims_was_made_from(tmp_path):
    encoders = {"cable_figure6_mlm", "cable_figure7_contrastive", "cable_table3_retrieval"}
    paths = [*EXPERIMENTS.glob("bam_*.py"), *EXPERIMENTS.glob("cable_*.py")]
    # In the order of the page's command: of two experiments that ask one run, the earlier's row tells the job's changes.
    files = [str(path) for path in sorted(paths) if path.stem not in encoders]
    asked = Sweep.load(files, runs=tmp_path, scale="small")
    assert len(asked.rows) == 504 and asked.find_unrecorded() == asked.benchmarks
