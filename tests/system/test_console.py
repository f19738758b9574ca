import time

from bam_jax.system import console


def test_a_line_is_said_at_once(capsys):
    console.say("here")
    assert capsys.readouterr().err == "here\n"


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
    assert "\r" not in shown(None) and "here: 3 of 3 (step), 00:00 elapsed, 00:00 left\n" in shown(None)
