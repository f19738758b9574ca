import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.system import jsonl
from bam_jax.system.errors import UserError


def test_records_are_there_as_soon_as_they_are_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with jsonl.Writer(path) as writer:
        writer.write({"step": 1, "loss": 2.5})
        assert list(jsonl.read(path)) == [{"step": 1, "loss": 2.5}]
    with jsonl.Writer(path) as writer:
        writer.write({"step": 2, "loss": 2.0})
    assert [record["step"] for record in jsonl.read(path)] == [1, 2]


def test_a_torn_last_line_is_left_out_and_mended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3')
    assert [record["step"] for record in jsonl.read(path)] == [1, 2]
    jsonl.keep(path, lambda record: record["step"] <= 1)
    assert path.read_text() == '{"step": 1}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_last_line_that_only_lacks_its_newline_is_a_record(tmp_path):
    """A stranger's file may end so; one line cut off would be all of it."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}')
    assert list(jsonl.read(path)) == [{"step": 1}]
    jsonl.append(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n' + jsonl.line({"step": 2}) + "\n"
    whole = path.read_bytes()
    for end in range(len(whole)):  # a writer killed anywhere
        path.write_bytes(whole[:end])
        assert [record["step"] for record in jsonl.read(path)] == [1, 2][: (end >= 11) + (end >= len(whole) - 1)]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b'{"st', "is not JSON"),
        (b"", "is not JSON"),
        (b'{"step": "\xff"}', "is not UTF-8"),
        (b"3", "is no record but 3"),
        (b'{"step": 2, "crc32": 5}', "was changed after it was written"),
    ],
)
def test_a_bad_line_is_named(tmp_path, bad, says):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + bad + b'\n{"step": 3}\n')
    with pytest.raises(UserError, match=f"metrics.jsonl, line 2 {says}.*; put it back from a copy"):
        list(jsonl.read(path))


WHOLE, FLOATS = st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | WHOLE | FLOATS | st.text(max_size=8)


@given(st.dictionaries(st.text(max_size=4), PLAIN | st.lists(PLAIN, max_size=2), max_size=4))
def test_a_line_is_plain_json(record):
    line = jsonl.line(record)
    assert "\n" not in line and json.loads(line) == record == jsonl.parse(line.encode(), "x")


def test_a_file_that_is_taken_away_while_it_is_read_has_no_records(tmp_path, monkeypatch):
    """A training that begins anew does so beside whoever follows it."""
    monkeypatch.setattr(Path, "exists", lambda path: True)  # it was there when it was asked for
    assert list(jsonl.read(tmp_path / "metrics.jsonl")) == []


def test_a_missing_file_has_no_records_and_stays_missing(tmp_path):
    jsonl.keep(tmp_path / "none.jsonl", lambda record: True)
    assert list(jsonl.read(tmp_path / "none.jsonl")) == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [None, "", '{"step": 1}\n', '{"step": 1}\n{"st'])
def test_a_record_is_appended_after_the_last_whole_line(tmp_path, before):
    path = tmp_path / "results.jsonl"
    if before is not None:
        path.write_text(before)
    jsonl.append(path, {"step": 2})
    assert [record["step"] for record in jsonl.read(path)] == ([1, 2] if before else [2])


def test_appending_to_a_whole_file_does_not_read_it(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    jsonl.append(path, {"step": 1})
    with monkeypatch.context() as patched:
        patched.setattr(type(path), "read_bytes", None)
        jsonl.append(path, {"step": 2})
    assert [record["step"] for record in jsonl.read(path)] == [1, 2]


def test_no_changed_byte_changes_a_document(tmp_path):
    record = {"b": {"d": 1, "c": [2.5, None]}, "a": "x"}
    whole = jsonl.document(record, 1, sort=True).encode()
    assert list(jsonl.parse(whole, "x")) == ["a", "b"] and jsonl.parse(whole, "x") == record
    for place in range(len(whole)):
        for change in (1, 2, 16, 32, 255):
            try:
                found = jsonl.parse(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :], "x")
                assert found == record, (place, change)
            except UserError as error:
                assert str(error).startswith("x ")
