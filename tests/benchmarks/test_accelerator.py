"""A chip's first day: cases that go on after a kill, kernels that are found out, and the page that says so."""

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from bam_jax.attention import BACKENDS, Tiling
from bam_jax.attention.logits import measured_tiles
from bam_jax.system import jsonl
from bam_jax.system.errors import Stopped, UserError
from bam_jax.system.machine import machine
from benchmarks import accelerator, chip_cases, chip_page, chip_parity, chip_scales, chip_times
from benchmarks.attention_shapes import BIASES, AttentionShape
from benchmarks.chip_cases import Case
from benchmarks.chip_plan import STAGES, Plan
from benchmarks.chip_problems import LAYOUTS, MASKS, draw, problems
from benchmarks.chip_run import Trial
from benchmarks.contenders import PASSES

ROOT = Path(__file__).parents[2]
ABOUT = {"machine": machine(), "short": True, "config": "configs/lm_120m.py"}
OPEN = math.inf


def case(name, done, *, status="passed", error=None, seconds=0.0):
    def run():
        done.append(name)
        if error is not None:
            raise error
        return {"status": status}

    return Case("parity", name, run, seconds)


def test_a_kill_loses_one_case(tmp_path):
    done = []
    first, killed, last = case("a", done), case("b", done, error=KeyboardInterrupt()), case("c", done)
    with pytest.raises(KeyboardInterrupt):
        chip_cases.run_all([first, killed, last], tmp_path, ABOUT, OPEN)
    with (tmp_path / chip_cases.RECORDS).open("a") as file:
        file.write('{"stage": "par')  # killed while it wrote
    chip_cases.run_all([first, case("b", done), last], tmp_path, ABOUT, OPEN)
    assert done == ["a", "b", "c", "b"], "what ended its process comes last"
    assert not chip_cases.missing([first, killed, last], chip_cases.read(tmp_path))


def test_what_ends_its_process_each_time_has_failed(tmp_path):
    killed = case("b", [], error=KeyboardInterrupt())
    for tries in range(chip_cases.TRIES):
        assert chip_cases.missing([killed], chip_cases.read(tmp_path)), tries
        with pytest.raises(KeyboardInterrupt):
            chip_cases.run_all([killed], tmp_path, ABOUT, OPEN)
    records = chip_cases.read(tmp_path)
    assert not chip_cases.missing([killed], records)
    assert "its process ended 2 times" in chip_cases.failed([killed], records)[0]["reason"]


def test_time_ends_between_cases_and_a_long_one_is_not_begun(tmp_path):
    done = []
    cases = [case("a", done), case("long", done, seconds=60), case("c", done)]
    with pytest.raises(Stopped, match="2 cases are left"):
        chip_cases.run_all(cases, tmp_path, ABOUT, time.monotonic() + 30)
    assert done == ["a"]


def test_failures_go_on_and_are_run_again_only_when_asked(tmp_path):
    done, checked = [], []
    cases = [case("a", done, error=RuntimeError("no\x1b such\nkernel")), case("b", done)]
    chip_cases.run_all(cases, tmp_path, ABOUT, OPEN, lambda: checked.append(1))
    chip_cases.run_all(cases, tmp_path, ABOUT, OPEN)
    (failure,) = chip_cases.failed(cases, chip_cases.read(tmp_path))
    assert done == ["a", "b"] and checked == [1] and failure["reason"] == "no  such"
    chip_cases.forget(tmp_path, ["parity"], only_failed=True)
    assert [x.name for x in chip_cases.missing(cases, chip_cases.read(tmp_path))] == ["a"]


def test_records_of_other_devices_sizes_and_models_are_not_mixed(tmp_path):
    chip_cases.run_all([case("a", [])], tmp_path, ABOUT, OPEN)
    records = chip_cases.read(tmp_path)
    chip_cases.check_same(records, ABOUT, tmp_path)
    for other in ({"short": False}, {"config": "x.py"}, {"machine": ABOUT["machine"] | {"device": "TPU v9"}}):
        with pytest.raises(UserError, match="give another folder"):
            chip_cases.check_same(records, ABOUT | other, tmp_path)


@pytest.fixture
def tiny(monkeypatch):
    """The command with one bias in one type, and its worker in this process."""
    scale = dataclasses.replace(
        chip_scales.SHORT, biases=("nope",), tokens=12, widths=(4,), product=(8, 2**10), tiling=Tiling()
    )
    monkeypatch.setattr(chip_scales, "SHORT", scale)
    monkeypatch.setattr(Plan, "dtypes", ("float32",))
    monkeypatch.setattr(
        accelerator, "_start_worker", lambda given, argv: accelerator.main([*argv, f"--worker={os.getppid()}"])
    )


def test_a_broken_kernel_fails(tmp_path, capsys, monkeypatch, tiny):
    sound = BACKENDS["chunked"]

    def forward(*arguments):
        out, lse = sound.forward(*arguments)
        return 1.01 * out, lse

    monkeypatch.setitem(BACKENDS, "chunked", dataclasses.replace(sound, forward=forward))
    argv = ["--short", "--stages=parity", f"--out={tmp_path}"]
    assert accelerator.main(argv) == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("failed: parity: chunked float32 nope, causal, packed, ") and "\n" not in said
    assert "out" in said and "of chunked beyond the tolerance" in said
    found = json.loads((tmp_path / "accelerator.json").read_text())
    (failure,) = (x for x in found["results"] if x["stage"] == "parity")
    assert failure["status"] == "failed" and "out" in failure["wrong"] and "lse" not in failure["wrong"]
    assert failure["errors"]["out"] == pytest.approx(0.01, rel=1e-3) and found["failed"]
    assert "**failed** parity: chunked float32 nope" in (tmp_path / "accelerator.md").read_text()


def test_too_few_minutes_say_what_is_left(tmp_path, tiny):
    argv = ["--short", "--stages=parity,determinism", f"--out={tmp_path}", "--minutes=1e-9"]
    with pytest.raises(Stopped, match="nothing was measured in --minutes=1e-09; give more"):
        accelerator.main(argv)
    outcome = {"status": "measured", "operations_per_second": 1e9, "bytes_per_second": 1e9, "dtype": "float32"}
    jsonl.append(tmp_path / chip_cases.RECORDS, record("ceilings", "product and copy", **outcome))
    with pytest.raises(
        Stopped, match="0 of 1 cases failed; .* left: 1 parity, 1 determinism; the same command goes on"
    ):
        accelerator.main(argv)
    assert "1 of parity, 1 of determinism" in (tmp_path / "accelerator.md").read_text()


def test_a_process_that_ends_is_followed_by_another(tmp_path, capsys, monkeypatch):
    statuses = iter([-9, -6, 0])
    outcome = {"operations_per_second": 1e9, "bytes_per_second": 1e9, "dtype": "float32"}

    def start(given, argv):
        new = record("ceilings", "product and copy", **outcome)
        jsonl.append(tmp_path / chip_cases.RECORDS, new)
        return next(statuses)

    monkeypatch.setattr(accelerator, "_start_worker", start)
    assert accelerator.main(["--short", "--stages=ceilings", f"--out={tmp_path}"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and said[0] == "a process ended with status -9 in 'product and copy'; another one goes on"
    monkeypatch.setattr(accelerator, "_start_worker", lambda given, argv: -9)  # and does nothing
    assert accelerator.main(["--short", "--stages=ceilings", f"--out={tmp_path}"]) == 1
    assert capsys.readouterr().err == "a process ended with status -9 before it began a case\n"


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_share_the_cases_and_keep_the_types_of_a_problem_together(tmp_path, workers):
    plan = Plan("gpu", 1, chip_scales.CHIP, Path("x.py"), tmp_path, lambda: pytest.fail("nothing is measured"))
    cases = plan.cases(["parity", "determinism"])
    parts = [accelerator._part(cases, part, workers) for part in range(workers)]
    assert sorted(x.name for part in parts for x in part) == sorted(x.name for x in cases)
    assert max(map(len, parts)) - min(map(len, parts)) <= 2
    owner = {x.name: number for number, part in enumerate(parts) for x in part}
    for name in owner:
        if name.startswith("pallas_gpu bfloat16"):
            assert owner[name] == owner[name.replace("bfloat16", "float32")]


def test_several_workers_run_what_times_nothing_and_one_the_rest(tmp_path, monkeypatch):
    started = []

    def start(given, argv):
        started.append([x.split("=") for x in argv[-3:]])
        new = record("ceilings", "product and copy", operations_per_second=1e9, bytes_per_second=1e9, dtype="float32")
        jsonl.append(tmp_path / chip_cases.RECORDS, new)
        jsonl.append(tmp_path / chip_cases.RECORDS, record("determinism", "ggd, 64 tokens", status="passed"))
        return 0

    monkeypatch.setattr(accelerator, "_start_worker", start)
    options = ["--short", "--workers=2", f"--out={tmp_path}"]
    assert accelerator.main([*options, "--stages=parity,determinism,times", "--cases=^ggd, 64 tokens$"]) == 0
    (first, *together, last) = [tuple(value for _, value in x) for x in started]
    assert first == ("ceilings", "1", "0") and last == ("times", "1", "0")
    assert sorted(together) == [("parity,determinism", "2", "0"), ("parity,determinism", "2", "1")]
    started.clear()
    with pytest.raises(UserError, match="--cases=no such finds no case of determinism"):
        accelerator.main([*options, "--stages=determinism", "--cases=no such"])
    assert [stages for (_, stages), *_ in started] == ["ceilings", "determinism", "determinism"]


@pytest.mark.parametrize("option", ["--workers=0", "--seconds=-1", "--cases=(", "--out="])
def test_options_that_mean_nothing_are_refused(tmp_path, option):
    with pytest.raises(UserError, match=option.partition("=")[0]):
        accelerator.main([f"--out={tmp_path}", option])


def test_wrong_arrays_name_their_kernels():
    gpu = (
        '  %a = f32[1] custom-call(%x), custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(f)/jvp(g)/forward/mpmd_map"}\n'
        '  %b = f32[1] custom-call(%x), custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(f)/h/key_gradients/mpmd_map"}'
    )
    tpu = '%forward_kernel.1 = custom-call(%x), custom_call_target="tpu_custom_call", op_name="jit(f)/forward_kernel/pallas_call"'
    assert chip_parity.kernels_in(gpu) == ["forward", "key_gradients"]
    assert chip_parity.kernels_in(tpu) == ["forward_kernel"]
    assert chip_parity.kernels_in('custom_call_target="__onednn$matmul" op_name="jit(f)/dot/general"') == []
    names = ["forward", "key_gradients", "query_gradients"]
    makers = {"lse": names[:1], "dk": names[1:2], "d.key_coordinate[0]": names[1:2], "d.bias.slope": names[2:]}
    for wrong, found in makers.items():
        assert chip_parity.suspects([wrong], names) == found
    assert chip_parity.suspects(["out", "dq", "dk"], names) == names[:1]


def test_the_error_of_an_array():
    ones = np.ones(4)
    assert chip_parity.error_of(1.01 * ones, ones) == pytest.approx(0.01)
    assert chip_parity.error_of(0 * ones, 0 * ones) == 0.0
    for made in (np.array([1, 1, 1, np.nan]), np.array([1, np.inf, 1, 1])):
        assert chip_parity.error_of(made, ones) == math.inf == chip_parity.error_of(made, 0 * ones)
    assert chip_parity.error_of(ones, 0 * ones) == math.inf


def test_problems_have_every_bias_mask_and_layout_and_fresh_inputs():
    every = list(problems(20, (4, 8)))
    assert {(x.bias, x.mask) for x in every} == {(bias, mask) for bias in BIASES for mask in MASKS}
    assert {(x.bias, x.layout) for x in every} == {(bias, layout) for bias in BIASES for layout in LAYOUTS}
    assert {(x.mask, x.layout) for x in every} == {(mask, layout) for mask in MASKS for layout in LAYOUTS}
    first, again, other = (draw(x) for x in (every[0], every[0], every[1]))
    assert np.array_equal(first.q, again.q) and not np.array_equal(first.q, other.q)
    assert 0.5 < np.float32(first.q).std() < 1.5
    assert {x.layout for x in every if draw(x).scoring.soft_cap} == {"plain"}
    assert {x.layout for x in every if draw(x).scoring.sink_logits is not None} == {"padded"}


def test_gradients_of_sinks_are_compared_too():
    (problem,) = (x for x in problems(20, (8,)) if (x.bias, x.layout) == ("ggd", "padded"))
    outcome = chip_parity.parity(problem, "chunked", "float32", Tiling(block_q=8, block_k=8))
    assert outcome["status"] == "passed", outcome
    assert outcome["errors"]["d.sink_logits"] < 1e-5


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_plans_need_no_device_and_name_each_case_once(platform, tmp_path):
    scale = chip_scales.scale_of(platform, short=False)
    cases = Plan(platform, 1, scale, Path("x.py"), tmp_path, lambda: pytest.fail("nothing is measured")).cases(STAGES)
    names = [(x.stage, x.name) for x in cases]
    assert len(set(names)) == len(names)
    assert list(dict.fromkeys(x.stage for x in cases)) == list(STAGES)


def test_operations_and_bytes():
    shape = AttentionShape(3, 3, batch=2, heads=1, width=4)
    assert chip_times.attention_operations(shape, PASSES[0]) == 2 * 4 * 4 * 6
    assert chip_times.attention_operations(shape, PASSES[1]) == 3.5 * chip_times.attention_operations(shape, PASSES[0])
    one = dataclasses.replace(shape, queries=1)
    assert chip_times.attention_operations(one, PASSES[0]) == 2 * 4 * 4 * 3
    assert chip_times.attention_bytes(one, PASSES[0]) == 2 * 4 * 4 * (2 * 1 + 2 * 3)


def record(stage, name, **fields):
    head = {"stage": stage, "case": name, **ABOUT, "commit": "abc", "seconds": 1.0, "status": "measured"}
    return head | fields


def timed(contender, seconds):
    return {"contender": contender, "seconds": seconds, "peak_share": 0.5, "bandwidth_share": 0.25, "reason": None}


def test_the_page_and_the_tiles_that_are_worth_it(tmp_path):
    tiles = lambda a, b: [timed("ours default", 1.0), timed("ours 64 x 32", a), timed("ours 32 x 32", b)]
    shape = {"dtype": "float32", "width": 64, "best": [64, 32]}
    refused = {"status": "refused", "reason": "a head width of 300, above 256"}
    records = [
        record("ceilings", "product and copy", operations_per_second=2e12, bytes_per_second=1e9, dtype="float32"),
        record("parity", "one", status="failed", backend="pallas_tpu", dtype="float32", errors={"out": None}, kernels=["k"],
               reason="out of k beyond the tolerance"),
        record("parity", "two", **refused),
        record("times", "ggd, 8 tokens", contenders=[timed("ours", 0.0123), {"contender": "dense", "reason": "too large"}]),
        record("tiles", "first", contenders=tiles(0.9, 0.5), **shape),
        record("tiles", "second", contenders=tiles(0.8, 1.5), **shape),
        record("tiles", "third", contenders=tiles(0.99, 0.98), **(shape | {"width": 128})),
    ]  # fmt: skip
    device = ABOUT["machine"]["device"]
    assert chip_page.best_tiles(records) == {(device, "float32", 64): (64, 32)}, "the worst bias decides"
    chip_page.write(records, {"steps": 3}, "python -m x", tmp_path)
    page, found = (tmp_path / "accelerator.md").read_text(), json.loads((tmp_path / "accelerator.json").read_text())
    assert "- **failed** parity: one: out of k beyond the tolerance" in page
    assert "- 1 refused: a head width of 300" in page and "inf of 2e-05" in page and "Kernels: k." in page
    assert "| ggd, 8 tokens | 50.0% | 25.0% | 12.3 |" in page and "3 of steps" in page
    assert f'    ("{device}", "float32", 64): (64, 32),' in page
    assert found["tiles"][0]["block_q"] == 64 and found["kernels"] == ["k"] and found["left"] == {"steps": 3}


def test_measured_tiles_are_used_where_rows_are_long_enough(monkeypatch):
    row = lambda length: jax.ShapeDtypeStruct((1, length, 2, 64), np.float32)
    assert measured_tiles.fill(Tiling(), row(64), row(64)) == Tiling()
    key = (jax.devices()[0].device_kind, "float32", 64)
    monkeypatch.setattr(measured_tiles, "TILES", {key: (32, 64)})
    assert measured_tiles.fill(Tiling(), row(32), row(64)) == Tiling(block_q=32, block_k=64)
    assert measured_tiles.fill(Tiling(skip=0.5), row(64), row(64)).skip == 0.5
    own = Tiling(block_k=16)
    assert measured_tiles.fill(own, row(64), row(64)) == own
    for q, k in ((1, 64), (64, 32)):
        assert measured_tiles.fill(Tiling(), row(q), row(k)) == Tiling()


class Process:
    """A training that has done all it does."""

    returncode = 0
    kill = poll = wait = lambda self: self.returncode


@pytest.mark.parametrize(("difference", "status"), [(1e-4, "passed"), (0.1, "failed")])
def test_first_losses_are_those_of_a_cpu(tmp_path, monkeypatch, difference, status):
    @contextlib.contextmanager
    def training(self, run, changes, environment):
        run.mkdir(parents=True)
        for step in (1, 2):
            loss = 10.0 + (0 if environment else difference * 10)
            jsonl.append(run / "metrics.jsonl", {"step": step, "loss": loss, "seconds": 1.0})
        yield Process()

    monkeypatch.setattr(Trial, "_training", training)
    trial = Trial(Path("x.py"), {}, tmp_path, "gpu", 1, first_steps=2, first_batch=1, seconds=0, more_steps=1)
    outcome = trial.compare_first_steps()
    assert outcome["status"] == status and outcome["largest_difference"] == pytest.approx(difference)
    assert dataclasses.replace(trial, platform="cpu").compare_first_steps()["status"] == "refused"


def test_a_training_that_ends_by_itself_has_failed_with_its_last_line(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def training(self, run, changes, environment):
        (run.parent / "killed.log").write_text("loading\nerror: no such tokenizer\n")
        yield Process()

    monkeypatch.setattr(Trial, "_training", training)
    trial = Trial(Path("x.py"), {}, tmp_path, "gpu", 1, first_steps=2, first_batch=1, seconds=0, more_steps=1)
    outcome = trial.kill_and_resume(None)
    assert outcome["status"] == "failed" and outcome["reason"].endswith("error: no such tokenizer")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--out"),
        (["--stages=parity,time"], "there is no stage 'time'"),
        (["--minutes=0"], "--minutes=0 must be above 0"),
        (["--minutes=nan"], "--minutes=nan must be above 0"),
        (["--again=some"], "invalid choice: 'some'"),
        (["--config=nowhere.py"], "--config=nowhere.py is no file"),
    ],
)
def test_bad_options_are_said_in_one_line(options, message, tmp_path):
    out = [f"--out={tmp_path}"] if options else []
    with pytest.raises(UserError) as error:
        accelerator.main([*options, *out])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / chip_cases.RECORDS).write_text('{"stage": "parity"}\n')
    with pytest.raises(UserError, match=r"records.jsonl, line 1 has no 'machine'"):
        accelerator.main([f"--out={tmp_path}", "--stages=parity", "--again=all"])


@pytest.mark.full
def test_the_short_command_from_end_to_end(tmp_path):
    command = [sys.executable, "-m", "benchmarks.accelerator", "--short", f"--out={tmp_path}"]
    ended = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "accelerator.json").read_text())
    assert {x["stage"] for x in found["results"]} == set(STAGES) and not found["failed"] and not found["left"]
    resumed = next(x for x in found["results"] if x["case"] == "a kill and a resume")
    assert resumed["same_bits"] and resumed["ended_at"] > resumed["killed_at"] >= resumed["resumed_from"] > 0
