"""The harness counts what it should, its page has what the records have, and no case of its short forms fails."""

import json
import sys

import pytest
from endurance import commands, figures
from endurance.figures import Figure, Outcome

from bam_jax.system import git, jsonl
from bam_jax.system.errors import UserError


def test_the_page_is_made_from_the_records():
    text = figures.PAGE.read_text()
    assert figures.generate(text) == text, "python tests/endurance/run.py --page"


def test_every_record_is_of_a_figure_that_is_there():
    for path in figures.RECORDS.glob("*.jsonl"):
        records = list(jsonl.read(path))
        assert path.stem in figures.FIGURES and {record["figure"] for record in records} == {path.stem}
        assert len({record["seed"] for record in records}) == len(records)
        assert all("dirty" not in record["commit"] for record in records)


def test_records_make_no_code_dirty():
    assert figures.RECORDS.relative_to(figures.ROOT).as_posix() in git.RECORDS


def test_what_falls_short_is_bold(tmp_path, monkeypatch):
    name = "configurations"
    monkeypatch.setattr(figures, "FIGURES", {name: figures.FIGURES[name]})
    record = {"figure": name, "seed": 0, "count": 5, "failures": 2, "examples": ["x"], "seconds": 60.0, "commit": "abc"}
    jsonl.append(tmp_path / f"{name}.jsonl", record | {"machine": "abacus"})
    said = figures.generate("", tmp_path)
    assert "**5 of 10,000**" in said and "| **2** | 1 | `abc` |" in said and "abacus" in said and "failed: `x`" in said


def test_a_figure_goes_on_where_it_was_stopped(tmp_path):
    asked = []

    def measure(seed, count, folder):
        asked.append((seed, count, list(folder.iterdir())))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return Outcome(count, ["one"] * seed)

    figure = Figure("cases", wanted=25, part=10, short=1)
    with pytest.raises(KeyboardInterrupt):
        figures.measure("x", figure, measure, print, tmp_path)
    figures.measure("x", figure, measure, print, tmp_path)
    assert asked == [(0, 10, []), (1, 10, []), (1, 10, []), (2, 5, [])]
    found = [(record["seed"], record["count"], record["failures"]) for record in jsonl.read(tmp_path / "x.jsonl")]
    assert found == [(0, 10, 0), (1, 10, 1), (2, 5, 2)]


def _raises(error):
    def main(argv):
        raise error

    return main


def _says(text, status=None):
    def main(argv):
        print(text, file=sys.stderr)
        return status

    return main


@pytest.mark.parametrize(
    ("main", "wrong"),
    [
        (_raises(UserError("steps=0 must be 1 or more")), ""),
        (_raises(KeyError("x")), "traceback: KeyError"),
        (_raises(ValueError("x")), "traceback: ValueError"),
        (_says("a word"), ""),
        (_says("a word", 1), "status 1"),
        (_says("error: a\nerror: b", 2), "2 lines"),
        (_says("a word", 2), "not a line of an error"),
        (_says("error: \x1b[2J", 2), "not a line of an error"),
        (_says("Traceback (most recent call last):\nx", 0), "traceback"),
    ],
)
def test_an_end_that_is_not_as_it_should_be_is_told(main, wrong):
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


@pytest.mark.full
def test_a_call_is_heard_as_a_process_is():
    command = ["bam_jax.tables", json.dumps("x"), "--format=markdown"]
    here, there = commands.call(command), commands.start(command)
    assert (here.status, here.out, here.err) == (there.status, there.out, there.err) and here.status == 2


# The short forms of two are short; narrower tests have some cases of the others.
MARKS = {"flipped": [], "bombs": [], "interruptions": [pytest.mark.endurance]}
TRAIN = 1  # the part of kills that kills trainings


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, [pytest.mark.full])) for name in figures.FIGURES]
)
def test_no_case_fails(name, tmp_path):
    try:
        seed = TRAIN if name == "kills" else 0
        outcome = figures.module(name).measure(seed, figures.FIGURES[name].short, tmp_path)
    except figures.Unavailable as reason:
        pytest.skip(str(reason))
    assert outcome.failures == []
    assert outcome.count > 0
