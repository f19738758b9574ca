import itertools
import time

import pytest
from tqdm import std

from bam_jax.system import console


def test_progress_is_a_bar_if_wanted_and_a_line_each_minute_without_a_terminal(capsys, monkeypatch):
    def shown(show):
        with console.progress(3, done=1, label="here", show=show) as bar:
            time.sleep(0.02)
            bar.update(2)
        return capsys.readouterr().err

    assert shown(None) == shown(False) == ""
    assert "3/3" in shown(True)
    monkeypatch.setattr(console, "_MINUTE", 0.01)
    assert shown(False) == ""
    assert "\r" not in shown(None) and "here: 3 of 3 (step), 00:00 elapsed\n" in shown(None)


@pytest.mark.parametrize("show", [None, True])
def test_the_time_left_leaves_out_the_first_step_which_compiles(capsys, monkeypatch, show):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console, "_MINUTE", 0.0)
    said = []
    with console.progress(103, done=1, show=show) as bar:
        for second in (100.0, 101.0, 102.0):
            now[0] = second
            bar.update()
            bar.refresh()
            said.append(capsys.readouterr().err)
    assert "left" not in said[0] and ("<?" in said[0] or not show)
    assert all(left in text for left, text in zip(("01:40", "01:39"), said[1:], strict=True))


@pytest.mark.parametrize("jump", [86400.0, -86400.0])
def test_a_clock_that_is_set_changes_no_duration(capsys, monkeypatch, jump):
    wall = itertools.count(1e9, jump)
    monkeypatch.setattr(std, "time", lambda: next(wall))
    monkeypatch.setattr(console, "_MINUTE", 0.01)
    with console.progress(5, label="here") as bar:
        for _ in range(4):
            time.sleep(0.02)
            bar.update()
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) >= 4 and all("00:00 elapsed" in line for line in lines) and "00:00 left" in lines[2]
