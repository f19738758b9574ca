"""The words and the files of a paper's tables, and the sentence of a table."""

import hypothesis
import pytest
from hypothesis import strategies as st

from bam_jax import tables as tables_command
from bam_jax.config import CONFIGS
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Table
from bam_jax.experiments.tables import Entry, Outcome, State, parse_number
from bam_jax.report import tables_page
from bam_jax.report.paper_page import describe_finding
from bam_jax.system.errors import UserError


@pytest.mark.parametrize(
    ("states", "line"),
    [
        ([State.UNMEASURABLE], "not measurable"),
        ([State.NOT_ASKED], "why"),
        ([State.MISSING, State.STOPPED], "seed 0: missing; seed 1: 0 (stopped): why"),
        ([State.MISSING, State.MISSING, State.PARTIAL], "seed 0, 1: missing; seed 2: why"),
    ],
)
def test_each_state_has_its_words(states, line):
    silent = (State.MISSING, State.UNMEASURABLE)
    made = [Outcome(state, remark="" if state in silent else "why", seed=seed) for seed, state in enumerate(states)]
    entry = Entry("r", Column("c"), "1.0", tuple(made))
    assert tables_page.entry_line(entry, comparable=True) == ["r", "c", line, "", "1.0", "", ""]


@hypothesis.given(st.floats(1e-3, 1e6), st.sampled_from(["", "1", "1.74", "~0.5", "1.0 ± 0.1", "2 × 768", "17.00"]))
def test_a_value_is_printed_so_that_it_can_be_read_again(value, printed):
    decimals = len(printed.partition(" ")[0].partition(".")[2])
    text = tables_page.format_value(value, printed)
    rounding = max(0.51 * 10.0**-decimals if printed else 0.0, 0.051 * value if value < 1000 else 0.51)
    assert abs(float(parse_number(text.replace(",", ""))) - value) <= rounding


def test_a_small_value_keeps_two_digits():
    entry = lambda value: Entry("r", Column("c"), "1.74", (Outcome(State.MEASURED, value),))
    line = lambda value: tables_page.entry_line(entry(value), comparable=True)[2:6]
    assert line(0.00413)[0] == "0.0041" and line(0.0)[0] == "0.00"
    assert line(1.7391) == ["1.74", "", "1.74", "-0.0009"]


def test_a_folder_that_there_is_not_and_an_experiment_without_tables_are_one_line(tmp_path, refused):
    file = CONFIGS.parent / "experiments" / "bam_table2_perplexity.py"
    assert "typo; make runs" in refused(tables_command.main, file, f"--runs={tmp_path / 'typo'}")
    assert not list(tmp_path.iterdir())
    assert "bam_jax.report" in refused(tables_command.main, file.with_name("quickstart.py"))


def test_files_of_others_stay(tmp_path):
    """The first write of an experiment's files replaces none; a later one replaces its own, whatever their titles were."""
    given = ["experiments/cable_table1_perplexity.py"], tmp_path / "none", tmp_path / "out", "toy"
    given[1].mkdir()
    given[2].mkdir()
    for suffix in ("csv", "md", "html"):
        theirs = tmp_path / "out" / f"cable_table1_perplexity-toy.{suffix}"
        theirs.write_text("mine")
        with pytest.raises(UserError, match=rf"perplexity-toy\.{suffix} is there, and this command did not write it"):
            list(tables_page.write(*given))
        assert theirs.read_text() == "mine" and [*theirs.parent.iterdir()] == [theirs]
        theirs.unlink()
    two = [*given[0], "experiments/bam_table1_sizes.py"], *given[1:]
    assert len(list(tables_page.write(*two))) == 2 == len(list(tables_page.write(*two)))
    assert len([*given[2].iterdir()]) == 2 * 3


@pytest.mark.full
def test_figures_of_several_tables_have_their_titles(tmp_path):
    files = tables_page.draw(["experiments/bam_figure2_passkey.py"], tmp_path, tmp_path, "small")
    first, second = (path.read_text() for path in files)
    assert "<!-- Figure 2: passkey accuracy, n=8 -->" in first
    assert "<!-- Section 5: passkey accuracy beyond, n=8 -->" in second


KEYS, TEXT = Passkey((4096,), depths=20), Perplexity((4096,))


def sentence(evaluation, values, *, comparable=True):
    """The finding of a table of one column, from the value of each row in each seed."""
    column = Column("32K", evaluation)
    outcomes = lambda row: tuple(Outcome(State.MEASURED, x, seed=n, n=20) for n, x in enumerate(values[row]))
    entries = [Entry(row, column, "", outcomes(row)) for row in values]
    return describe_finding(Table("", (column,), dict.fromkeys(values, ())), entries, comparable=comparable)


def test_a_sentence_names_the_best_all_that_come_next_and_the_keys_that_everybody_sees():
    beside = "One of 20 keys stands beside its question, which gives 0.05 to all."
    said = sentence(KEYS, {"a": [0.05], "b": [0.9], "c": [0.05], "d": [0.0]})
    assert said.startswith("At 32K b finds most: 0.90 (1 seed); next are a and c, 0.05 each.") and said.endswith(beside)
    said = sentence(KEYS, {"a": [0.5], "b": [0.9]}, comparable=False)
    assert said.startswith("At 4,096 tokens (the paper's 32K) b")
    assert sentence(KEYS, {"a": [0.5]}) == f"At 32K a has 0.50 (1 seed). {beside}"
    assert sentence(TEXT, {"a": []}) == ""
    alone = Entry("a", Column("32K", KEYS, depth=0.5), "", (Outcome(State.MEASURED, 0.5, seed=0, n=20),))
    assert describe_finding(Table("", (alone.column,), {"a": ()}), [alone]) == ""


@pytest.mark.parametrize(
    ("second", "told"),
    [([3.9, 4.0, 4.2], False), ([4.1, 4.2, 4.3], True), ([4.0], None)],
)
def test_a_difference_that_seeds_do_not_show_is_inconclusive(second, told):
    said = sentence(TEXT, {"a": second, "b": [3.9, 4.0, 4.1]})
    assert ("is inconclusive" in said) == (told is False) and ("one seed shows" in said) == (told is None)
