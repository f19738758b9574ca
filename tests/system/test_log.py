import json
import operator
import re
import resource
import time

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.config import Config
from bam_jax.system import log
from bam_jax.system.errors import LESS, UserError, ending


def test_records_are_there_as_soon_as_they_are_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with log.Writer(path) as writer:
        writer.write({"step": 1, "loss": 2.5})
        assert list(log.read(path)) == [{"step": 1, "loss": 2.5}]
    with log.Writer(path) as writer:
        writer.write({"step": 2, "loss": 2.0})
    assert [record["step"] for record in log.read(path)] == [1, 2]


def test_a_torn_last_line_is_left_out_and_mended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3')
    assert [record["step"] for record in log.read(path)] == [1, 2]
    log.keep(path, lambda record: record["step"] <= 1)
    assert path.read_text() == '{"step": 1}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b'{"st', "is not JSON"),
        (b"", "is not JSON"),
        (b"[" * 10**5, "is nested too deep"),
        (b"9" * 5000, "cannot be read .Exceeds the limit"),
        (b'{"step": "\xff"}', "is not UTF-8"),
        (b"3", "is no record but 3"),
        (b'{"step": 2, "crc32": 5}', "was changed after it was written"),
    ],
)
def test_a_bad_line_is_named(tmp_path, bad, says):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + bad + b'\n{"step": 3}\n')
    with pytest.raises(UserError, match=f"metrics.jsonl, line 2 {says}.*; put it back from a copy"):
        list(log.read(path))


WHOLE, FLOATS = st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | WHOLE | FLOATS | st.text(max_size=8)


@given(st.dictionaries(st.text(max_size=4), PLAIN | st.lists(PLAIN, max_size=2), max_size=4), st.data())
def test_a_line_is_json_and_a_change_of_it_is_noticed(record, data):
    line = log.line(record)
    assert "\n" not in line and log.parse(line.encode(), "x") == record
    assert {name: value for name, value in json.loads(line).items() if name != log.CRC} == record
    assert log.parse(json.dumps(record, indent=1).encode(), "x") == record  # of those who do not write the sum
    changed = bytearray(line.encode())
    end = line.rindex(log.CRC) - 1
    changed[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert log.parse(bytes(changed), "x") == record  # one space for another, say
    except ValueError:
        pass


def test_a_missing_file_has_no_records_and_stays_missing(tmp_path):
    log.keep(tmp_path / "none.jsonl", lambda record: True)
    assert list(log.read(tmp_path / "none.jsonl")) == [] and list(tmp_path.iterdir()) == []


def test_a_file_in_no_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder") as raised:
        log.replace(tmp_path / "none" / "a.md", "text")
    assert ending(raised.value) == (
        2,
        f"{tmp_path / 'none' / 'a.md'}: there is no folder {tmp_path / 'none'}; give a path that can be read and written",
    )


def test_a_lack_of_memory_is_the_users_to_mend():
    with pytest.raises(RuntimeError) as raised:
        jnp.zeros(2**52, jnp.int8).block_until_ready()  # more than addresses reach
    for error in (
        MemoryError("745 GiB"),
        raised.value,
        RuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 12800000000 bytes."),
    ):
        status, line = ending(error)
        assert status == 2 and "not enough memory" in line and "\n" not in line
    assert ending(RuntimeError("INTERNAL: something else")) is None
    for name in re.findall(r"--config\.(\S+?)[=,; ]", LESS):
        operator.attrgetter(name)(Config())


def test_a_line_is_said_at_once(capsys):
    log.say("here")
    assert capsys.readouterr().err == "here\n"


def test_tensorboard_gets_the_numbers(tmp_path):
    with log.Writer(tmp_path / "metrics.jsonl", tensorboard=True) as writer:
        writer.write({"step": 1, "loss": 2.5})
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_progress_is_a_bar_if_wanted_and_a_line_each_minute_without_a_terminal(capsys, monkeypatch):
    def shown(show):
        with log.progress(3, done=1, label="here", show=show) as bar:
            time.sleep(0.02)
            bar.update(2)
        return capsys.readouterr().err

    assert shown(None) == shown(False) == ""
    assert "3/3" in shown(True)
    monkeypatch.setattr(log, "_MINUTE", 0.01)
    assert shown(False) == ""
    assert "\r" not in shown(None) and "here: 3 of 3 (step), 00:00 elapsed, 00:00 left\n" in shown(None)


def test_a_full_disk_is_the_users_to_mend_and_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "report.md"
    path.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError) as raised:
            log.replace(path, "x" * 100)
        with pytest.raises(OSError) as torn, log.Writer(tmp_path / "metrics.jsonl") as writer:
            writer.write({"step": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for error in (raised, torn):
        assert ending(error.value) == (2, "File too large; make room on the disk, and give the same command again")
    assert path.read_text() == "before" and list(log.read(tmp_path / "metrics.jsonl")) == []
    assert {file.name for file in tmp_path.iterdir()} == {"report.md", "metrics.jsonl"}
