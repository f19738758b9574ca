"""Slots for processes on invented machines, and the display of a running sweep."""

import os
import time
from types import SimpleNamespace

import pytest

from bam_jax.experiments import runner
from bam_jax.experiments.runner import Slot, find_slots, share_slots

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)


@pytest.fixture
def gpus(tmp_path):
    for name in (*(f"nvidia{k}" for k in range(11)), "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


def test_cores_are_those_that_this_process_may_use(gpus):
    assert find_slots("cpu", gpus) == [Slot(core) for core in sorted(os.sched_getaffinity(0))]


def test_every_gpu_is_a_slot_and_those_that_the_user_hides_stay_hidden(gpus, monkeypatch):
    assert find_slots("", gpus) == [Slot(environment={VISIBLE: str(k)}) for k in range(11)]
    monkeypatch.setenv(VISIBLE, "2,0")
    assert [slot.environment[VISIBLE] for slot in find_slots("", gpus)] == ["0", "2"]
    monkeypatch.setenv(VISIBLE, "")
    assert find_slots("", gpus) == [Slot()]


@pytest.mark.parametrize("form", ["accel{}", "vfio/{}"])
def test_every_tpu_chip_is_a_slot(tmp_path, form):
    (tmp_path / "vfio").mkdir()
    for name in (*map(form.format, range(4)), "vfio/vfio"):
        (tmp_path / name).touch()
    found = find_slots("", tmp_path)
    assert [slot.environment["TPU_VISIBLE_CHIPS"] for slot in found] == ["0", "1", "2", "3"]
    assert {slot.environment["TPU_PROCESS_BOUNDS"] for slot in found} == {"1,1,1"}


def test_more_processes_than_slots_are_not_pinned_and_share_accelerators_in_turn():
    cores, gpus = [Slot(3), Slot(7)], [Slot(environment={VISIBLE: name}) for name in "01"]
    assert share_slots(cores, 1) == cores[:1] and share_slots(cores, 2) == cores
    assert share_slots(cores, 3) == [Slot()] * 3
    assert share_slots(gpus, 3) == [gpus[0], gpus[1], gpus[0]]


def test_the_time_left_leaves_out_what_comes_before_the_first_progress(monkeypatch, capsys, tmp_path):
    now, spent = [0.0], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    job = SimpleNamespace(name="a", cost=lambda: 100.0, spent=lambda folder: spent[0], status=lambda folder: "step")
    shown = runner.Board([job], tmp_path)
    said = []
    for now[0], spent[0] in ((70.0, 0.0), (140.0, 1.0), (210.0, 1.0), (280.0, 15.0)):
        capsys.readouterr()
        shown.show([job])
        said.append(capsys.readouterr().err)
    assert not any("left" in text for text in said[:3])
    assert "0 of 1 rows after 4:40, about 14:10 left" in said[3]  # 85 at 14 in 140 seconds
