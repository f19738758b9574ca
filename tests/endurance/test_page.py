"""The harness counts what it should, its page has what the records have, and no case of its short forms fails."""

import sys

import pytest
from endurance import commands, figures
from endurance.figures import Figure, Outcome

from bam_jax.system import git, jsonl
from bam_jax.system.errors import UserError
from tests.marks import full, longest


def test_the_page_is_made_from_the_records_which_make_no_code_dirty():
    text = figures.PAGE.read_text()
    assert figures.generate(text) == text, "python tests/endurance/run.py --page"
    assert {name for _, name, _ in figures.BLOCK.findall(text)} == {"figures", *figures.FIGURES}
    assert figures.RECORDS.relative_to(figures.ROOT).as_posix() in git.RECORDS


def test_every_record_is_of_a_figure_that_is_there():
    for path in figures.RECORDS.glob("*.jsonl"):
        records = list(jsonl.read(path))
        assert path.stem in figures.FIGURES and {record["figure"] for record in records} == {path.stem}
        assert len({record["seed"] for record in records}) == len(records)
        assert all("dirty" not in record["commit"] for record in records)


def test_what_falls_short_is_bold(tmp_path, monkeypatch):
    name = "configurations"
    monkeypatch.setattr(figures, "FIGURES", {name: figures.FIGURES[name]})
    record = {"figure": name, "seed": 0, "count": 5, "failures": 2, "examples": ["x"], "seconds": 60.0, "commit": "abc"}
    jsonl.append(tmp_path / f"{name}.jsonl", record | {"machine": "abacus"})
    text = "".join(
        f"<!-- {each}: made by tests/endurance/run.py --page -->\n\n<!-- end -->" for each in ("figures", name)
    )
    said = figures.generate(text, tmp_path)
    assert "**5 of 10,000**" in said and "| **2** | 1 | `abc` |" in said and "abacus" in said and "failed: `x`" in said


def test_a_figure_goes_on_where_it_was_stopped(tmp_path):
    asked = []

    def measure(seed, count, folder):
        asked.append((seed, count, list(folder.iterdir())))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return Outcome(count, ["one"] * seed)

    figure = Figure("x", "cases", wanted=25, part=10, short=1)
    with pytest.raises(KeyboardInterrupt):
        figures.measure("x", figure, measure, print, tmp_path)
    figures.measure("x", figure, measure, print, tmp_path)
    assert asked == [(0, 10, []), (1, 10, []), (1, 10, []), (2, 5, [])]
    found = [(record["seed"], record["count"], record["failures"]) for record in jsonl.read(tmp_path / "x.jsonl")]
    assert found == [(0, 10, 0), (1, 10, 1), (2, 5, 2)]


@pytest.mark.parametrize(
    ("raised", "said", "status", "wrong"),
    [
        (UserError("steps=0 must be 1 or more"), "", None, ""),
        (KeyError("x"), "", None, "traceback: KeyError"),
        (None, "a word", 0, ""),
        (None, "a word", 1, "status 1"),
        (None, "error: a\nerror: b", 2, "2 lines"),
        (None, "a word", 2, "not a line of an error"),
        (None, "error: \x1b[2J", 2, "not a line of an error"),
        (None, "Traceback (most recent call last):\nx", 0, "traceback"),
    ],
)
def test_an_end_that_is_not_as_it_should_be_is_told(raised, said, status, wrong):
    def main(argv):
        if raised:
            raise raised
        print(said, file=sys.stderr)
        return status

    found = commands.complaint(commands.run_main(main, []))
    assert found.startswith(wrong) and bool(found) == bool(wrong)


def test_a_refusal_must_change_nothing(tmp_path, monkeypatch):
    def main(argv):
        if argv:
            (tmp_path / argv[0]).write_text("as it was")
        raise UserError("no")

    (tmp_path / "kept").write_text("as it was")
    monkeypatch.setattr(commands, "main_of", lambda module: main)
    assert commands.judge(["x"], tmp_path)[1] == ""
    for name in ("kept", "new"):
        assert commands.judge(["x", name], tmp_path)[1] == f"status 2, and {tmp_path / name} is changed"


# By the time of their short forms. Narrower tests have some cases of those that are left to the longest suite.
FIRST, LATER = ("flipped", "bombs"), ("configurations", "malformed_files", "malformed_runs", "kills")
SUITES = [name if name in FIRST else full(name) if name in LATER else longest(name) for name in figures.FIGURES]


@pytest.mark.parametrize("name", SUITES)
def test_no_case_fails(name, tmp_path):
    try:
        seed = 1 if name == "kills" else 0  # the part of kills that kills trainings
        outcome = figures.harness(name)(seed, figures.FIGURES[name].short, tmp_path)
    except figures.Unavailable as reason:
        pytest.skip(str(reason))
    assert outcome.failures == [] and outcome.count > 0
