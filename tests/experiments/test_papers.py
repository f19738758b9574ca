"""The experiments of the papers' tables and figures: their values, and the setups at both scales."""

import dataclasses
import functools
from decimal import Decimal
from pathlib import Path

import paper_columns
import paper_rows
import pytest

from bam_jax import config as configs
from bam_jax.data.tasks import benchmarks
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments import experiment, jobs, tables
from bam_jax.experiments.experiment import DASH, SCALES, Column, Preparation, Row, Table, tabled
from bam_jax.experiments.tables import parse_number
from bam_jax.system.errors import UserError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

# Of each file the number of the paper's values and their sum, found apart from the files: a wrong digit shows.
VALUES = {
    "bam_figure10_context1024": (0, "0"),
    "bam_figure11_context1024": (14, "13.00"),
    "bam_figure12_contexts": (2, "1.30"),
    "bam_figure13_plain": (0, "0"),
    "bam_figure15_extension": (0, "0"),
    "bam_figure16_1b": (0, "0"),
    "bam_figure2_passkey": (9, "9.00"),
    "bam_figure3_depths": (1, "0.80"),
    "bam_figure6_perplexity": (0, "0"),
    "bam_figure7_wikipedia": (0, "0"),
    "bam_figure8_passkey": (0, "0"),
    "bam_figure9_passkey": (3, "1152"),
    "bam_table1_sizes": (25, "1617020289.00212"),
    "bam_table2_perplexity": (20, "419.4371"),
    "bam_table3_questions": (6, "2.7029"),
    "bam_table4_ruler": (162, "33.10"),
    "bam_table5_ruler_1b": (176, "64.27"),
    "bam_table6_longbench": (12, "353.3"),
    "bam_table7_extension": (66, "44.5"),
    "bam_table8_inference": (60, "2303.774"),
    "cable_figure1_perplexity": (50, "12816.15"),
    "cable_figure3_speed": (0, "0"),
    "cable_figure5_kernel": (6, "129.42"),
    "cable_figure6_mlm": (0, "0"),
    "cable_figure7_contrastive": (0, "0"),
    "cable_table1_perplexity": (100, "19405.63"),
    "cable_table2_dape": (22, "2500428.77"),
    "cable_table3_retrieval": (25, "303.20"),
    "cable_table4_sizes": (100, "22702.96"),
    "cable_table5_wikitext": (100, "11709.55"),
}

ENCODERS = ("cable_figure6_mlm", "cable_figure7_contrastive", "cable_table3_retrieval")  # with tests of their own
DECODERS = [name for name in VALUES if name not in ENCODERS]

# Single cells, so that no value stands under another label: part of the table's title, row, column, value.


@functools.cache
def load(name, scale):
    return experiment.load(EXPERIMENTS / f"{name}.py", scale=scale)


@pytest.mark.parametrize("name", VALUES)
def test_the_values_are_complete(name):
    count, total = VALUES[name]
    texts = [text for table in load(name, "paper").tables for row in table.values for _, text in table.cells(row)]
    found = [value for text in texts if (value := parse_number(text)) is not None]
    assert (len(found), sum(found)) == (count, Decimal(total))


@pytest.mark.parametrize("name", DECODERS)
def test_the_paper_scale_is_the_paper(name):
    made = load(name, "paper")
    assert made.comparable and made.platform == ""
    assert bool(made.preparations) == bool(jobs.jobs(made)), "nothing is prepared for nothing"
    prepared = {argument for each in made.preparations if isinstance(each, Preparation) for argument in each.arguments}
    ended = 0.0
    for job in jobs.with_later(jobs.jobs(made)):
        config = job.config
        assert config.batch * config.context == (589_824 if name.startswith("bam") else 524_288)
        assert config.model.vocab == (32_768 if name.startswith("bam") else 50_304)
        assert config.optimizer.name == ("radam" if name.startswith("bam") else "adamw")
        assert f"--out={config.data.source}" in prepared
        if job.row.start:
            assert config.steps == 256 and config.context == 1024 and config.optimizer.final == 1.0
            assert config.optimizer.rate == pytest.approx(ended), "it goes on at the rate that training ended with"
        elif name.startswith("bam"):
            ended = config.optimizer.rate * config.optimizer.final
            assert config.steps == 19_251 and config.optimizer.warmup == 0
        else:
            assert config.steps in ((19_000,) if "edu" in config.data.source else (9000, 5000, 3000))
        for evaluation in job.row.evaluations:
            if "data.held_out_source" in evaluation.overrides:
                assert f"--out={evaluation.overrides['data.held_out_source']}" in prepared


@pytest.mark.parametrize("name", DECODERS)
def test_the_toy_scale_is_small_and_says_so(name):
    made = load(name, "toy")
    assert "(toy scale)" in made.heading and made.notes[0] == paper_rows.SCALE_NOTES["toy"]
    assert not made.comparable and made.platform == "cpu" and not made.preparations
    planned = jobs.jobs(made)
    assert sum(job.cost() for job in planned) / 2 < 400, "seconds of two cores"
    assert len(planned) == len(jobs.jobs(load(name, "paper"))), "the same runs"
    tokenizer = "byte" if any(kind in name for kind in ("ruler", "questions", "longbench")) else "char"
    for data in (job.config.data for job in jobs.with_later(planned)):
        assert (data.source, data.tokenizer) == ("stdlib", tokenizer)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("scale", SCALES)
def test_columns_can_be_measured(name, scale):
    """Windows end where columns say, depths exist, and no model is asked for what its row has a dash for."""
    made = load(name, scale)
    made = dataclasses.replace(made, rows=tuple(dataclasses.replace(row, seeds=(0,)) for row in made.rows))
    planned = {job.row.label: job for job in jobs.row_jobs(made)}
    for table in made.tables:
        for label in table.values:
            job = planned[table.row(label)]
            asked = {n for each in job.row.evaluations for n in each.lengths}
            for column, value in table.cells(label):
                if column.missing or column.speed:
                    continue
                if value == DASH:
                    assert column.evaluation.lengths[0] > job.config.context
                    assert not any(asks(each, column.evaluation) for each in job.row.evaluations)
                elif column.evaluation is not None:
                    assert all(job.row.changes.items() <= each.overrides.items() for each in job.row.evaluations)
                    assert column.evaluation.lengths[0] in asked and job.row.train
                    assert column.position <= column.evaluation.lengths[0]
                    changes = {"context": job.config.context, **job.row.changes}
                    assert column.position % changes["context"] == 0
                    assert column.depth is None or column.depth * (column.evaluation.depths - 1) % 1 == 0


def asks(evaluation, wanted):
    """True where an evaluation of several lengths has that of one, whatever is changed in the row."""
    like = {"lengths": wanted.lengths, "overrides": wanted.overrides, "label": wanted.label}
    return wanted.lengths[0] in evaluation.lengths and dataclasses.replace(evaluation, **like) == wanted


def test_rows_none_of_whose_columns_can_be_measured_are_not_trained():
    columns = Column("a", Passkey((64,))), Column("b", missing="not yet")
    config = str(configs.CONFIGS / "quickstart.py")
    rows = Row("base", config), Row("yes", config, {"steps": 1}, start="base"), Row("no", config)
    made = tabled("t", rows, [Table("A", columns[:1], {"yes": ()}), Table("B", columns[1:], {"no": ()})])
    assert [row.train for row in made.rows] == [True, True, False]
    with pytest.raises(UserError, match="A has a row 'maybe' and the experiment none"):
        tabled("t", rows, [Table("A", columns, {"maybe": ()})])


def test_a_row_with_a_value_too_few_is_named():
    with pytest.raises(UserError, match="T: 'BAM' has 1 values for 2 columns"):
        Table("T", (Column("a"), Column("b")), {"BAM": ("1",)}).cells("BAM")
    with pytest.raises(UserError, match="row 'BAM' has 2 cells and the heads 3"):
        paper_rows.printed("| | a | b |\n| BAM | 1 |")
    with pytest.raises(UserError, match="two rows are called 'BAM'"):
        paper_rows.printed("| | a |\n| BAM | 1 |\n| BAM | 2 |")


def test_the_sizes_are_those_of_table_1():
    made = load("bam_table1_sizes", "paper")
    for entry in tables.compare(made.tables[0], made, Path("nowhere")):
        (ours,), printed = entry.ours, float(parse_number(entry.paper))
        tolerance = 0.08 if entry.paper.startswith("~") else 1e-12  # "~1B" are 1.07
        assert ours == pytest.approx(printed, rel=tolerance), f"{entry.row}, {entry.column}"


def test_the_methods_of_bam_are_the_papers():
    made = load("bam_figure6_perplexity", "paper")
    configs = {job.row.label: job.config for job in jobs.row_jobs(made)}
    assert all((config.ssmax == "on") == ("SSMax" in label) for label, config in configs.items())
    options = {label: config.encoding_options for label, config in configs.items()}
    for label in ("RoPE", "RoPE Local", "RoPE SSMax", "RoPE SSMax x50"):
        assert options[label] == {"base": 500_000.0}
    assert {row.label: row.changes for row in made.rows if row.changes} == {
        "RoPE Local": {"encoding_options.window": 512},
        "RoPE SSMax": {"encoding_options.base_scale": 100.0},
        "RoPE SSMax x50": {"encoding_options.base_scale": 50.0},
    }
    assert options["Sinusoidal"]["odd_cosines"] is options["Sinusoidal SSMax"]["odd_cosines"] is True
    assert {config.data.packing for config in configs.values()} == {"framed"}
    assert options["BAM SSMax"] == {"init": "uniform"}
    assert not configs["BAM SSMax"].shared_encoding and configs["BAM SSMax"].optimizer.prior_rate == 1.0


@pytest.mark.parametrize("scale", SCALES)
def test_passkeys_are_asked_as_the_authors_ask(scale):
    for name, prompt in (("bam_figure2_passkey", None), ("bam_table7_extension", "first_digit")):
        asked = [column.evaluation for column in load(name, scale).tables[0].columns if column.evaluation]
        assert {each.patience for each in asked} == {2 if scale == "toy" else 0}
        assert {(each.prompt, each.seed) for each in asked} == {(prompt if scale == "paper" else None, None)}


@pytest.mark.parametrize("name", ["bam_table4_ruler", "bam_table5_ruler_1b"])
def test_tasks_of_ruler_are_those_of_the_titles(name):
    for table in load(name, "paper").tables:
        task = table.title.split(", ")[1].removesuffix(": accuracy").lower().replace(" ", "_")
        assert {column.evaluation.tasks for column in table.columns} == {(f"niah_{task}",)}
        assert {column.evaluation.samples for column in table.columns} == {50}
        for column in table.columns:
            (length,) = column.evaluation.lengths
            assert column.label in (str(length), f"{length / 1024:g}K")


def test_questions_are_those_of_the_papers_columns():
    questions, parts = (
        load(name, "paper").tables[0].columns for name in ("bam_table3_questions", "bam_table6_longbench")
    )
    assert [each.evaluation.tasks for each in questions] == [("mmlu",), ("arc_easy",), ("arc_challenge",)]
    assert {column.evaluation.data for column in (*questions, *parts)} == {paper_columns.BENCHMARKS}
    tasks = {column.label: column.evaluation.tasks[0] for column in parts}
    assert tasks.pop("Overall") == "longbench2" and {column.unit for column in parts} == {0.01}
    assert len(tasks) == 5 and all(benchmarks._DOMAINS[task] == label for label, task in tasks.items())
    for column in parts:  # the paper leaves out what is longer
        assert column.evaluation.lengths == (131_072,) and column.evaluation.longer == "skip"
    (row,) = [row for row in load("bam_table6_longbench", "paper").rows if row.label == "BAM SSMax"]
    (together,) = row.evaluations
    assert together.tasks == (*tasks.values(), "longbench2")


def test_the_methods_of_cable_are_the_papers():
    made = load("cable_table1_perplexity", "paper")
    found = {job.row.label.partition(",")[0]: job.config.encoding for job in jobs.row_jobs(made)}
    assert found.pop("T5-bias") == "t5_distance"  # a value for each distance, no buckets
    assert found.pop("Kerple") == "kerple_log" and found.pop("Learnable") == "learned"
    assert found == {label: label.lower() for label in found} and len(found) == 6
    dape = {job.row.label: job.config for job in jobs.row_jobs(load("cable_table2_dape", "paper"))}
    assert [each.encoding for each in dape.values()] == ["cable", "kerple_log", "dape_cable", "dape_kerple"]
    assert {each.context for each in dape.values()} == {512}
