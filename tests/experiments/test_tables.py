"""A paper's tables beside invented runs."""

import csv
import dataclasses
import io
import json
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from bam_jax import config
from bam_jax import tables as tables_command
from bam_jax.config import CONFIGS
from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments import experiment, jobs, tables
from bam_jax.experiments.benchmark import Benchmark
from bam_jax.experiments.experiment import DASH, Column, Row, Speed, Table, tabled
from bam_jax.experiments.statistics import Kind, accuracy_interval, positive_interval
from bam_jax.experiments.tables import Entry, Outcome, State, parse_number
from bam_jax.report import tables_page
from bam_jax.system.errors import UserError

CONFIG = str(CONFIGS / "quickstart.py")
PASSKEY, TEXT = Passkey((128,), depths=2, patience=2), Perplexity((256,))
COLUMNS = (
    Column("keys", PASSKEY),
    Column("at the end", PASSKEY, depth=1.0),
    Column("text", TEXT),
    Column("second window", TEXT, position=128),
    Column("speed", speed=Speed("inference", 64), unit=1e-3),
    Column("heads", quantity="heads"),
    Column("answers", missing="not measurable yet: no such evaluation"),
)
VALUES = {
    "BAM": ("0.80", "", "12.00", ">3.0", "1.5K", "4", "0.4"),
    "Local": ("0.50", "", DASH, "", "", "", ""),
    "Late": (),
}


def cell(evaluation, length, value, *, n=1, depth=None, step=10, **others):
    record = {"eval": evaluation, "length": length, "depth": depth, "step": step, "overrides": {}}
    record |= {"value": value, "n": n, "unit": ""}
    prompts = {"passkey": {"seed": 0, "prompt": "toy"}, "perplexity": {"window": length, "windows": [1.0]}}
    return record | (prompts[evaluation] if evaluation in prompts else {}) | others


def write(run, lines):
    run.mkdir(exist_ok=True)
    (run / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))


@pytest.fixture
def made():
    """Three rows, of which the second is the first with a window at evaluation."""
    overrides = {"encoding": "rope", "steps": 10}
    rows = [
        Row("BAM", CONFIG, overrides, seeds=(0, 1)),
        Row("Local", CONFIG, overrides, seeds=(0,), changes={"encoding_options.window": 64}),
        Row("Late", CONFIG, overrides | {"batch": 2}),
    ]
    about = {
        "notes": ("Look at `this`.",),
        "benchmarks": (Benchmark("speed", "b.speed", (), (("inference", 64),), 1.0),),
    }
    return tabled("An <invented> paper", rows, [Table("Table 1: all", COLUMNS, VALUES)], **about)


@pytest.fixture
def folder(made, tmp_path):
    """Seed 0 is complete; seed 1 lacks a prompt and the text; the last row has not begun."""
    wide = {"encoding_options.window": "64"}
    text = {"windows": [9.0, math.log(2.0), 9.0, 9.0], "window": 64}
    cells = {
        0: [
            *(cell("passkey", 128, value, depth=depth) for depth, value in ((0.0, 0.5), (1.0, 1.0))),
            *(cell("passkey", 128, 0.25, depth=depth, overrides=wide) for depth in (0.0, 1.0)),
            cell("passkey", 128, 0.0, depth=0.0, seed=7),  # other prompts
            cell("passkey", 128, 0.0, depth=0.0, step=5),  # an earlier checkpoint
            cell("passkey", 64, 0.0, depth=0.0),
            cell("perplexity", 256, 10.0, n=3, **text),
            cell("perplexity", 256, 14.0, n=1, **text | {"windows": [9.0, math.log(32.0), 9.0, 9.0]}),
        ],
        1: [cell("passkey", 128, 0.25, depth=1.0, seed=1)],
    }
    for job in jobs.row_jobs(made):
        if job.row.label == "BAM":
            write(tmp_path / job.name, cells[job.seed])
    timed = {"eval": "speed", "measure": "inference", "length": 64, "n": 100, "ratio": 1.25}
    timed |= {"unit": "s", "contender": "rope", "config": config.digest(config.load(CONFIG, made.rows[0].overrides))}
    timed["machine"] = {"device": "cpu", "processor": "An abacus", "cores": 2, "versions": {"jax": "0.1"}}
    slow, newer = ({"value": k * 1.5, "low": k * 1.0, "high": k * 2.0} for k in (1.0, 1e-3))
    others = ({"config": "another"}, {"length": 128}, {"measure": "training"})
    write(tmp_path / "speed", [timed | slow, timed | newer, *(timed | slow | other for other in others)])
    return tmp_path


def entries(made, folder):
    found = tables.compare(made.tables[0], made, folder)
    return {(entry.row, entry.column.label): entry for entry in found}


def said(entry):
    """States and remarks by seed."""
    return [(outcome.state, outcome.remark) for outcome in entry.outcomes]


def words(entry):
    """The text of a table's cell about its one seed."""
    line = tables_page.entry_line(entry, comparable=True)
    return line[-1].removeprefix("1").removeprefix("; ") if entry.ours else line[2]


def compare_one(folder, columns, cells):
    """A table's entries by column, of one run with these results."""
    table = Table("T", columns, {"NoPE": ()})
    made = tabled("t", [Row("NoPE", CONFIG, {"steps": 10})], [table])
    write(folder / jobs.row_jobs(made)[0].name, cells)
    return {entry.column.label: entry for entry in tables.compare(table, made, folder)}


def test_an_entry_has_a_value_for_each_seed_and_their_interval():
    given_up = Outcome(State.STOPPED, seed=2, n=40)
    seeds = (Outcome(State.MEASURED, 0.9, seed=0, n=40), Outcome(State.MISSING, seed=1), given_up)
    keys = Entry("a", Column("keys", PASSKEY), "", seeds)
    assert (keys.by_seed, keys.samples, keys.kind) == ({0: 0.9, 2: 0.0}, 80, Kind.ACCURACY)
    assert keys.interval == accuracy_interval([0.9, 0.0], 80)
    text = Entry("a", Column("text", TEXT), "", tuple(Outcome(State.MEASURED, x, seed=int(x)) for x in (4.0, 9.0)))
    assert text.kind is Kind.PERPLEXITY and text.interval == positive_interval([4.0, 9.0])
    assert Entry("a", Column("text", TEXT), "", text.outcomes[:1]).interval is None
    assert [Entry("a", COLUMNS[n], "", ()).kind for n in (4, 5)] == [Kind.SPEED, Kind.CONFIGURATION]


def test_every_cell_is_found_where_it_belongs(made, folder):
    found = entries(made, folder)
    assert len(found) == 3 * len(COLUMNS)
    bam = {column: entry for (row, column), entry in found.items() if row == "BAM"}
    assert bam["keys"].ours == (0.75,) and not bam["keys"].settled
    assert said(bam["keys"]) == [(State.MEASURED, ""), (State.PARTIAL, "1 of 2 samples")]
    assert bam["at the end"].ours == (1.0, 0.25) and bam["at the end"].settled
    assert bam["text"].ours == (pytest.approx((10**3 * 14) ** 0.25),) and said(bam["text"])[1] == (State.MISSING, "")
    assert bam["second window"].ours[0] == pytest.approx(4.0)  # of losses, three times ln 2 and once ln 32
    assert bam["speed"].asked and bam["speed"].ours == (1.5,) and said(found["Late", "speed"]) == [(State.MISSING, "")]
    assert bam["heads"].ours == (4,) and bam["heads"].settled and not bam["heads"].asked
    ((state, remark),) = said(bam["answers"])
    assert state is State.NOT_ASKED and "not measurable yet" in remark and not bam["answers"].asked
    assert found["Local", "keys"].ours == (0.25,)  # changes at evaluation are a row of their own
    assert said(found["Local", "text"]) == [(State.UNMEASURABLE, "")]
    assert said(found["Local", "second window"]) == [(State.MISSING, "")]
    late = [found["Late", column.label] for column in COLUMNS if column.evaluation is not None]
    assert all(entry.ours == () and said(entry) == [(State.MISSING, "")] for entry in late)


def test_what_patience_left_out_is_said_to_be(made, folder):
    record = cell("stopped", 0, 0.0) | {"of": "passkey", "lengths": [128, 256], "after": [32, 64]}
    record = {name: record[name] for name in record.keys() - {"length", "value", "n", "depth"}} | {
        "seed": 0,
        "prompt": "toy",
    }
    empty = [cell("passkey", length, 0.0, depth=depth) for length in (32, 64) for depth in (0.0, 1.0)]
    changes = [{"seed": 7}, {"step": 5}, {"overrides": {"a": "b"}}, {"lengths": [256]}]
    changes += [{"after": [16, 32]}, {"after": [64]}]
    others = [*empty[:2], cell("passkey", 16, 0.0, depth=0.5), *(record | change for change in changes)]
    (job,) = [job for job in jobs.row_jobs(made) if job.row.label == "BAM" and job.seed == 0]
    measured = map(json.loads, (folder / job.name / "results.jsonl").read_text().splitlines())
    others += [line for line in measured if line["eval"] != "passkey"]
    write(folder / job.name, others)
    assert entries(made, folder)["BAM", "keys"].outcomes[0].state is State.MISSING
    write(folder / job.name, [*others, record, *empty[2:]])
    entry = entries(made, folder)["BAM", "keys"]
    stopped, partial = "no prompt answered at 32 and 64 tokens", "1 of 2 samples"
    assert said(entry) == [(State.STOPPED, stopped), (State.PARTIAL, partial)]
    assert entry.stopped and not entry.settled
    signs, grid, lines, *_ = tables_page.tables_sections(made, [tables.compare(made.tables[0], made, folder)], folder)
    assert tables_page.LEGEND in signs.items and grid.table.rows[0][1].startswith("0 (stopped)")
    assert lines.table.rows[0][2] == f"seed 0: 0 (stopped): {stopped}; seed 1: {partial}"


def test_each_table_takes_the_depths_and_samples_that_it_asks_for(tmp_path):
    few, many = (Passkey((128,), depths=depths) for depths in (2, 3))
    twice = dataclasses.replace(few, trials=2)
    short, long = (Perplexity((64,), tokens=tokens) for tokens in (128, 512))
    columns = [Column("few", few), Column("many", many), Column("twice", twice), Column("middle", many, depth=0.5)]
    columns += [Column("short", short), Column("long", long)]

    def shown(*cells):
        found = compare_one(tmp_path, tuple(columns), cells)
        return {name: entry.ours[0] if entry.ours else words(entry) for name, entry in found.items()}

    ends = [cell("passkey", 128, value, depth=depth) for depth, value in ((0.0, 1.0), (1.0, 0.0))]
    middle = cell("passkey", 128, 1.0, depth=0.5)
    text = [cell("perplexity", 64, value, n=n, first=first, of=6) for value, first, n in ((2.0, 0, 2), (8.0, 2, 4))]
    nothing = dict.fromkeys(["short", "long"], "missing")
    partly = {"few": 0.5, "many": "2 of 3 samples", "twice": "2 of 4 samples", "middle": "missing"}
    assert shown(*ends) == shown(*ends, *ends) == partly | nothing
    assert shown(middle) == {"few": "missing", "many": "1 of 3 samples", "twice": "missing", "middle": 1.0} | nothing
    whole = {"few": 0.5, "many": pytest.approx(2 / 3), "twice": "2 of 4 samples", "middle": 1.0}
    assert shown(*ends, middle) == whole | nothing
    more = [each | {"value": 0.25, "first": 1} for each in ends]
    assert shown(*ends, middle, *more) == whole | {"twice": 0.375} | nothing
    last = shown(*ends, *text)
    assert last["short"] == pytest.approx(2.0) and last["long"] == pytest.approx((2.0 * 8.0**2) ** (1 / 3))
    assert shown(text[0])["long"] == "2 of 6 samples"  # 8 are asked for, and there is text for 6
    found = compare_one(tmp_path, tuple(columns), [each | {"n": 4} for each in ends])["few"]
    assert found.ours == (0.5,) and said(found) == [(State.MEASURED, "8 samples, of which 2 are asked for")]
    others = [each | {"prompt": "paper"} for each in ends]
    assert shown(*others)["few"] == "missing"


def test_a_cell_is_printed_as_the_paper_prints_it(made, folder):
    found = entries(made, folder)
    line = lambda row, column: tables_page.entry_line(found[row, column], comparable=True)[2:]
    assert line("BAM", "text") == ["10.88", "", "12.00", "-1.12", "1; seed 1: missing"]
    assert line("BAM", "at the end") == ["0.62", "0.00 to 1.00", "", "", "2 (0: 1.00, 1: 0.25)"]
    assert line("BAM", "second window") == ["4.0", "", ">3.0", "+1.0", "1; seed 1: missing"]
    assert line("BAM", "speed")[:3] == ["1.5", "", "1.5K"] and line("Late", "speed")[0] == "missing"
    about = "median of 100, quartiles 1 to 2; 1.25 times NoPE's; cpu (An abacus, 2 cores), jax 0.1"
    assert line("BAM", "speed")[4] == f"1; {about}"
    assert line("Local", "text")[0] == "not measurable"
    assert line("BAM", "answers") == ["not measurable yet: no such evaluation", "", "0.4", "", ""]
    assert tables_page.entry_line(found["BAM", "text"], comparable=False)[5] == ""


def test_the_files_hold_every_cell(made, folder, tmp_path, monkeypatch, capsys):
    path = tmp_path / "invented.py"
    path.write_text("def get_experiment(scale):\n    raise NotImplementedError\n")
    monkeypatch.setattr(experiment, "load", lambda *arguments, **options: made)
    tables_command.main([str(path), f"--runs={folder}", f"--out={tmp_path / 'out'}", "--scale=paper"])
    said = capsys.readouterr()
    markdown, page, text = ((tmp_path / "out" / f"invented-paper.{end}").read_text() for end in ("md", "html", "csv"))
    assert said.out == markdown and "invented-paper" in said.err
    assert "| BAM | text | 10.88 |  | 12.00 | -1.12 | 1; seed 1: missing |" in markdown
    assert "10 of 17 cells measured; of 4 others nothing is asked at this scale." in markdown
    row = "| BAM | 0.75 (0.80) 1 seed | 0.62 [0.00, 1.00] n=2 | 10.88 (12.00) 1 seed |"
    assert row in markdown and tables_page.MEANS.replace("\n", " ") in markdown and "| Late | … | … |" in markdown
    assert page.count("<table") == 2 and "An &lt;invented&gt; paper" in page
    rows = {(row["row"], row["column"]): row for row in csv.DictReader(io.StringIO(text))}
    assert len(rows) == 21
    found = [rows["BAM", "at the end"][name] for name in ("ours", "low", "high", "seeds", "values")]
    assert found == ["0.625", "0.0", "1.0", "2", "0:1.0 1:0.25"]
    row = rows["BAM", "keys"]
    assert float(row["difference"]) == pytest.approx(-0.05) and row["note"] == "seed 1: 1 of 2 samples"
    asked = [str(path), f"--runs={folder}"]
    for options, said in {
        ("--format=markdown", f"--out={tmp_path / 'none'}"): "prints and writes no files",
        ("--format=figures", f"--out={tmp_path / 'none'}"): "no curve to draw",
        (f"--runs={path}",): "is a file; give the folder",
        ("--records=nowhere",): "--records=nowhere has no records",
    }.items():
        with pytest.raises(UserError, match=said):
            tables_command.main([*asked, *options])
    tables_command.main([*asked, "--format=markdown"])
    title, _, grid = capsys.readouterr().out.partition("\n\n")
    assert title == "Table 1: all" and grid.startswith("|  | keys |") and grid.count("\n") == 5 and grid in markdown
    assert not (tmp_path / "none").exists()


def test_tasks_of_ruler_are_told_apart_and_their_essays(tmp_path):
    columns = [Column(name, Ruler((1024,), tasks=(f"niah_{name}",), samples=4)) for name in ("single_1", "single_2")]
    lines = [
        cell("ruler", 1024, 0.5, n=4, seed=0, task="niah_single_1"),
        cell("ruler", 1024, 0.25, n=4, seed=0, task="niah_single_2", essays="stdlib"),
        cell("ruler", 1024, 1.0, n=4, seed=0, task="niah_single_2", essays="elsewhere"),
        cell("ruler", 1024, 1.0, n=4, seed=0, task="niah_multivalue", essays="stdlib"),
    ]
    assert [each.ours for each in compare_one(tmp_path, tuple(columns), lines).values()] == [(0.5,), (0.25,)]


def questions(task, value, n, of, **others):
    base = {"shots": 0, "data": "invented", "longer": "cut", "task": task, "of": of}
    return cell("harness", 64, value, n=n, **base | others)


AGENT, DIALOGUE = (f"longbench2_{name}_history" for name in ("agent", "dialogue"))


@pytest.mark.parametrize(
    ("cells", "longer", "ours", "note"),
    [
        ([questions(AGENT, 0.5, 4, 9), questions(DIALOGUE, 1.0, 2, 2)], "cut", (400 / 6,), ""),
        ([questions(AGENT, 0.5, 2, 9), questions(AGENT, 1.0, 2, 9), questions(DIALOGUE, 0, 2, 2)], "cut", (50,), ""),
        ([questions(AGENT, 0.5, 4, 9)], "cut", (), "1 of 2 tasks"),
        ([questions(AGENT, 0.5, 3, 9), questions(DIALOGUE, 1.0, 2, 2)], "cut", (), "5 of 6 questions of 2 of 2 tasks"),
        ([questions(AGENT, 0.5, 4, 9, longer="skip")], "skip", (50,), "4 questions of 1 of 2 tasks"),
        ([questions(AGENT, 0.5, 4, 9, data="elsewhere")], "cut", (), "missing"),
        ([questions("arc_easy", 0.5, 4, 9)], "cut", (), "missing"),
    ],
)
def test_a_benchmark_is_the_mean_over_the_questions_of_all_its_tasks(tmp_path, cells, longer, ours, note):
    evaluation = Harness((64,), tasks=("longbench2_history",), questions=4, data="invented", longer=longer)
    (entry,) = compare_one(tmp_path, (Column("one", evaluation, unit=0.01),), cells).values()
    assert entry.ours == pytest.approx(ours) and words(entry) == note
    assert entry.settled == bool(entry.ours)


@hypothesis.given(st.decimals(min_value=0, max_value=10**5, places=3), st.sampled_from(["", "~", "<", ">"]))
def test_numbers_are_read_as_printed(value, sign):
    assert parse_number(f"{sign}{value}") == value
    assert parse_number(f"{sign}{value}K") == 1000 * value
    assert parse_number(f"{value} ± 0.1") == value
    assert parse_number(f"3 × {value}") == 3 * value


@pytest.mark.parametrize("text", ["n/a", "1,5", "1.", "1e5"])
def test_other_texts_are_no_numbers(text):
    with pytest.raises(UserError, match="is not a number as tables print them"):
        parse_number(text)
