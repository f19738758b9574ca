"""The page of reliability says what the records say; the harness counts what it should."""

import json
import sys

import pytest
from endurance import commands, figures, page
from endurance.figures import Figure, Outcome

from bam_jax.system import git, jsonl
from bam_jax.system.errors import UserError


def test_the_page_is_made_from_the_records():
    text = page.PAGE.read_text()
    assert page.generate(text) == text, "python tests/endurance/run.py --page"


def test_every_record_is_of_a_figure_that_is_there():
    for path in figures.RECORDS.glob("*.jsonl"):
        records = list(jsonl.read(path))
        assert path.stem in figures.NAMES and {record["figure"] for record in records} == {path.stem}
        assert len({record["seed"] for record in records}) == len(records)
        assert all("dirty" not in record["commit"] for record in records)


def test_records_make_no_code_dirty():
    assert figures.RECORDS.relative_to(figures.ROOT).as_posix() in git.RECORDS


def test_what_falls_short_is_bold(tmp_path, monkeypatch):
    name = figures.NAMES[0]
    monkeypatch.setattr(figures, "NAMES", (name,))
    record = {"figure": name, "seed": 0, "count": 5, "failures": 2, "examples": ["x"], "seconds": 60.0, "commit": "abc"}
    jsonl.append(tmp_path / f"{name}.jsonl", record | {"machine": "abacus"})
    said = page.generate("", tmp_path)
    assert "**5 of 10,000**" in said and "| **2** | 1 | `abc` |" in said and "abacus" in said and "failed: `x`" in said


def test_a_figure_goes_on_where_it_was_stopped(tmp_path):
    asked = []

    def measure(seed, count, folder):
        asked.append((seed, count, list(folder.iterdir())))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return Outcome(count, ["one"] * seed)

    figure = Figure("x", "cases", wanted=25, part=10, short=1, minutes=1, measure=measure)
    with pytest.raises(KeyboardInterrupt):
        figures.measure("x", figure, lambda line: None, tmp_path)
    said = []
    figures.measure("x", figure, said.append, tmp_path)
    assert asked == [(0, 10, []), (1, 10, []), (1, 10, []), (2, 5, [])]
    found = list(jsonl.read(tmp_path / "x.jsonl"))
    assert [(record["seed"], record["count"], record["failures"]) for record in found] == [
        (0, 10, 0),
        (1, 10, 1),
        (2, 5, 2),
    ]


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


@pytest.mark.full
def test_a_call_is_heard_as_a_process_is():
    command = ["bam_jax.tables", json.dumps("x"), "--format=markdown"]
    here, there = commands.call(command), commands.start(command)
    assert (here.status, here.out, here.err) == (there.status, there.out, there.err) and here.status == 2
