"""The display of a running sweep."""

import time
from types import SimpleNamespace

from bam_jax.experiments import board


def test_the_time_left_leaves_out_what_comes_before_the_first_progress(monkeypatch, capsys, tmp_path):
    now, spent = [0.0], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    job = SimpleNamespace(name="a", cost=lambda: 100.0, spent=lambda folder: spent[0], status=lambda folder: "step")
    shown = board.Board([job], tmp_path)
    capsys.readouterr()
    said = []
    for second, done in ((70.0, 0.0), (140.0, 1.0), (210.0, 1.0), (280.0, 15.0)):
        now[0], spent[0] = second, done
        shown.show([job])
        said.append(capsys.readouterr().err)
    assert not any("left" in text for text in said[:3])
    assert "0 of 1 rows after 4:40, about 14:10 left" in said[3]  # 85 at 14 in 140 seconds
