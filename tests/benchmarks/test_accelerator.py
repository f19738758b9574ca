"""A chip's first day: cases that resume after a kill, and the page of new and committed records."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bam_jax.system import errors, jsonl
from bam_jax.system.errors import Stopped, UserError
from bam_jax.system.machine import machine
from benchmarks import accelerator, accelerator_page
from benchmarks.accelerator import Case
from benchmarks.attention_shapes import AttentionShape
from benchmarks.contenders import PASSES

ROOT = Path(__file__).parents[2]
ABOUT = {"machine": machine(), "short": True, "config": "configs/lm_120m.py"}


def run_all(cases, folder, deadline=math.inf):
    accelerator.run_all(cases, folder, ABOUT, deadline, device=False)


def case(name, done, *, error=None, seconds=0.0):
    def run():
        done.append(name)
        if error is not None:
            raise error
        return {"status": "passed"}

    return Case("times", name, run, seconds)


def record(stage, name, **fields):
    head = {"stage": stage, "case": name, **ABOUT, "commit": "abc", "seconds": 1.0, "status": "measured"}
    return head | fields


CEILINGS = record("ceilings", "product and copy", operations_per_second=2e12, bytes_per_second=1e9, dtype="float32")


def test_a_kill_loses_one_case(tmp_path):
    done = []
    first, killed, last = case("a", done), case("b", done, error=KeyboardInterrupt()), case("c", done)
    with pytest.raises(KeyboardInterrupt):
        run_all([first, killed, last], tmp_path)
    with (tmp_path / accelerator.RECORDS).open("a") as file:
        file.write('{"stage": "tim')  # killed while it wrote
    run_all([first, case("b", done), last], tmp_path)
    assert done == ["a", "b", "b", "c"]
    assert not accelerator.missing([first, killed, last], accelerator.read(tmp_path))


def test_time_ends_between_cases_and_a_long_one_does_not_begin(tmp_path):
    done = []
    with pytest.raises(Stopped):
        run_all([case("a", done), case("long", done, seconds=60), case("c", done)], tmp_path, time.monotonic() + 30)
    assert done == ["a"]


def test_failures_do_not_stop_the_rest_and_run_again_only_when_asked(tmp_path):
    done = []
    cases = [case("a", done, error=RuntimeError("no\x1b such\nkernel")), case("b", done)]
    run_all(cases, tmp_path)
    run_all(cases, tmp_path)
    known = accelerator.newest(accelerator.read(tmp_path))
    assert done == ["a", "b"] and known["times", "a"]["reason"] == "no  such"
    accelerator.forget(tmp_path, ["times"], only_failed=True)
    assert [x.name for x in accelerator.missing(cases, accelerator.read(tmp_path))] == ["a"]


def test_a_case_that_ends_its_process_fails_and_another_process_goes_on(tmp_path, capsys, monkeypatch):
    steps = iter([(CEILINGS | {"status": "started"}, -9), (CEILINGS, 0)])

    def start(command, **options):
        found, status = next(steps)
        jsonl.append(tmp_path / accelerator.RECORDS, found)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(accelerator.subprocess, "run", start)
    assert accelerator.main(["--short", "--stages=ceilings", f"--out={tmp_path}"]) == 0
    assert [x["status"] for x in accelerator.read(tmp_path)] == ["started", "failed", "measured"]
    monkeypatch.setattr(accelerator.subprocess, "run", lambda command: subprocess.CompletedProcess(command, -9))
    assert accelerator.main(["--short", "--stages=ceilings", f"--out={tmp_path}"]) == 1
    assert capsys.readouterr().err == "a process ended with status -9 outside a case\n"


def test_too_little_time_says_what_is_left(tmp_path, monkeypatch):
    stopped = lambda command: subprocess.CompletedProcess(command, errors.AGAIN)
    monkeypatch.setattr(accelerator.subprocess, "run", stopped)
    with pytest.raises(Stopped, match="--minutes=1 are over; give more"):
        accelerator.main(["--short", f"--out={tmp_path}", "--minutes=1"])
    jsonl.append(tmp_path / accelerator.RECORDS, CEILINGS)
    ends = lambda command: subprocess.CompletedProcess(command, 0 if "--stages=ceilings" in command else errors.AGAIN)
    monkeypatch.setattr(accelerator.subprocess, "run", ends)
    with pytest.raises(Stopped, match="left: 3 times; the same command goes on"):
        accelerator.main(["--short", "--stages=times", f"--out={tmp_path}", "--minutes=1"])
    assert "3 of times" in (tmp_path / "accelerator.md").read_text()


@pytest.mark.parametrize("option", ["--workers=0", "--seconds=-1", "--cases=(", "--stages=time", "--out="])
def test_options_that_mean_nothing_are_refused(tmp_path, option):
    with pytest.raises(UserError, match=option.partition("=")[0]):
        accelerator.main([f"--out={tmp_path}", option])


def test_records_of_another_model_are_not_mixed(tmp_path):
    jsonl.append(tmp_path / accelerator.RECORDS, CEILINGS | {"config": "configs/lm_1b.py"})
    with pytest.raises(UserError, match="lm_1b.py --short; give another for .*lm_120m"):
        accelerator.main(["--short", "--stages=times", f"--out={tmp_path}", f"--worker={os.getppid()}"])


def test_outcomes_of_tests_become_records(tmp_path):
    path = tmp_path / "tests.jsonl"
    for outcome, reason in (("passed", ""), ("failed", "out: 0.01 is above 0.008"), ("skipped", "no kernel")):
        jsonl.append(path, {"test": f"a::{outcome}", "outcome": outcome, "seconds": 1.0, "reason": reason})
    assert accelerator.record_tests(path, tmp_path, ABOUT) == 3 and not path.exists()
    found = accelerator.newest(accelerator.read(tmp_path))
    assert [x["status"] for x in found.values()] == ["passed", "failed", "refused"]
    results = [CEILINGS, *found.values()]
    summary = {"command": "x", "machine": ABOUT["machine"], "commits": ["abc"], "left": {}, "results": results}
    page = accelerator_page.to_page(summary)
    assert "1 passed, 1 failed, 1 refused, of 3 cases." in page and "**failed** parity: a::failed: out: 0.01" in page


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_committed_records_are_printed_as_their_pages_are(name, capsys):
    file = ROOT / "benchmarks" / "records" / f"{name}.json"
    assert accelerator.main([f"--print={file}"]) == 0
    pages = capsys.readouterr().out, file.with_suffix(".md").read_text()
    printed, committed = (dict(part.strip().partition("\n")[::2] for part in page.split("\n## ")[1:]) for page in pages)
    del printed["Parity with the reference in float64"], committed["Parity with the reference in float64"]
    assert printed == committed  # but for parity, of which errors are no longer kept


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_plans_need_no_device_and_name_each_case_once(platform, tmp_path):
    bench = accelerator.Bench(platform, 1, accelerator.Sizes(), Path("x.py"), tmp_path, "float32")
    stages = {*accelerator.STAGES} - {"parity"}
    names = [(x.stage, x.name) for stage in stages for x in accelerator.CASES[stage](bench)]
    assert len(set(names)) == len(names) > 40


def test_operations_and_bytes():
    square, one = (AttentionShape(3, queries, batch=2, heads=1, width=4) for queries in (3, 1))
    assert square.operations(PASSES[0]) == 2 * 4 * 4 * 6 == square.operations(PASSES[1]) / 3.5
    assert one.operations(PASSES[0]) == 2 * 4 * 4 * 3
    assert one.bytes(PASSES[0]) == 2 * 4 * 4 * (2 * 1 + 2 * 3)


@pytest.mark.full
@pytest.mark.endurance  # the tiny form of the chip hours runs most of it
def test_all_of_it_runs_on_a_cpu(tmp_path):
    command = [sys.executable, "-m", "benchmarks.accelerator", "--short", f"--out={tmp_path}"]
    stopped = subprocess.run([*command, "--stages=parity,times", "--cases=chunked|128"], cwd=ROOT, capture_output=True)
    assert stopped.returncode == 0, stopped.stderr
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "behind" not in done.stdout, "what is known is not measured again"
    found = json.loads((tmp_path / "accelerator.json").read_text())
    assert {x["stage"] for x in found["results"]} == {*accelerator.STAGES} and not found["failed"]
    assert [x["status"] for x in found["results"] if x["stage"] == "parity"] == ["passed", "passed"]
