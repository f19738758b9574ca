"""The words and the files of a paper's tables."""

import hypothesis
import pytest
from hypothesis import strategies as st

from bam_jax import tables as tables_command
from bam_jax.config import CONFIGS
from bam_jax.experiments.experiment import Column
from bam_jax.experiments.tables import Entry, Outcome, State, parse_number
from bam_jax.report import tables_page
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
