import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.system import jsonl
from bam_jax.system.errors import UserError


def steps(path):
    return [record["step"] for record in jsonl.read(path)]


def test_records_are_there_as_soon_as_they_are_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        with jsonl.Writer(path) as writer:
            writer.write({"step": step})
            assert steps(path) == [1, 2][:step]


def test_what_a_killed_writer_leaves_is_read_kept_and_appended_to(tmp_path):
    """A last line that only lacks its newline is a record: a stranger's file may end so."""
    path, whole = tmp_path / "metrics.jsonl", b'{"step": 1}\n{"step": 2}\n'
    for end in range(len(whole) + 1):
        found = [1, 2][: (end >= 11) + (end >= 23)]
        path.write_bytes(whole[:end])
        assert steps(path) == found
        jsonl.append(path, {"step": 3})
        assert steps(path) == [*found, 3] and path.read_bytes().count(b"\n") == len(found) + 1
        path.write_bytes(whole[:end])
        jsonl.keep(path, lambda record: record["step"] <= 1)
        assert path.read_text() == '{"step": 1}\n' * bool(found)
    path.unlink()
    jsonl.append(path, {"step": 1})
    assert steps(path) == [1] and {file.name for file in tmp_path.iterdir()} == {path.name, f".{path.name}.lock"}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b'{"st', "is not JSON"),
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


def test_a_missing_file_has_no_records_and_stays_missing(tmp_path, monkeypatch):
    jsonl.keep(tmp_path / "none.jsonl", lambda record: True)
    assert steps(tmp_path / "none.jsonl") == [] and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Path, "exists", lambda path: True)  # a training that begins anew takes it away meanwhile
    assert steps(tmp_path / "none.jsonl") == []


def test_appending_to_a_whole_file_does_not_read_it(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    jsonl.append(path, {"step": 1})
    with monkeypatch.context() as patched:
        patched.setattr(type(path), "read_bytes", None)
        patched.setattr(jsonl, "keep", None)
        jsonl.append(path, {"step": 2})
    assert steps(path) == [1, 2]


def test_no_changed_byte_changes_a_document():
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
