"""Slots for processes on invented machines, and the display of a running sweep."""

import os
import time
from types import SimpleNamespace

import pytest

from bam_jax.experiments import runner
from bam_jax.experiments.runner import Slot, find_slots, share_slots


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def machine(tmp_path, *names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_cores_are_those_that_this_process_may_use(tmp_path):
    machine(tmp_path, "nvidia0")
    assert [place.core for place in find_slots("cpu", tmp_path)] == sorted(os.sched_getaffinity(0))
    assert all(not place.environment for place in find_slots("cpu", tmp_path))


def test_every_gpu_is_a_place(tmp_path):
    machine(tmp_path, *(f"nvidia{k}" for k in range(11)), "nvidiactl", "nvidia-uvm")
    found = find_slots("", tmp_path)
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in found] == [str(k) for k in range(11)]
    assert {place.core for place in found} == {None}


def test_gpus_that_the_user_hides_stay_hidden(tmp_path, monkeypatch):
    machine(tmp_path, "nvidia0", "nvidia1", "nvidia2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in find_slots("", tmp_path)] == ["0", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_slots("", tmp_path) == [Slot()]


@pytest.mark.parametrize("form", ["accel{}", "vfio/{}"])
def test_every_tpu_chip_is_a_place(tmp_path, form):
    machine(tmp_path, *(form.format(k) for k in range(4)), "vfio/vfio")
    found = find_slots("", tmp_path)
    assert [place.environment["TPU_VISIBLE_CHIPS"] for place in found] == ["0", "1", "2", "3"]
    assert {place.environment["TPU_PROCESS_BOUNDS"] for place in found} == {"1,1,1"}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_no_two_processes_are_pinned_to_one_core(count):
    cores = [place.core for place in share_slots([Slot(3), Slot(7)], count)]
    assert len(cores) == count
    assert cores == [3, 7][:count] if count <= 2 else set(cores) == {None}


def test_more_processes_than_accelerators_share_them_in_turn():
    gpus = [Slot(environment={"CUDA_VISIBLE_DEVICES": name}) for name in "01"]
    assert share_slots(gpus, 3) == [gpus[0], gpus[1], gpus[0]]


def test_the_time_left_leaves_out_what_comes_before_the_first_progress(monkeypatch, capsys, tmp_path):
    now, spent = [0.0], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    job = SimpleNamespace(name="a", cost=lambda: 100.0, spent=lambda folder: spent[0], status=lambda folder: "step")
    shown = runner.Board([job], tmp_path)
    capsys.readouterr()
    said = []
    for second, done in ((70.0, 0.0), (140.0, 1.0), (210.0, 1.0), (280.0, 15.0)):
        now[0], spent[0] = second, done
        shown.show([job])
        said.append(capsys.readouterr().err)
    assert not any("left" in text for text in said[:3])
    assert "0 of 1 rows after 4:40, about 14:10 left" in said[3]  # 85 at 14 in 140 seconds
