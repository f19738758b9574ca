"""Sums against the compiler's, on eight devices of one CPU; what is refused; what is proposed."""

import contextlib
import dataclasses
import json
import math
from pathlib import Path

import jax
import pytest

from bam_jax import config as configs
from bam_jax.config import Config, MeshConfig, ModelConfig
from bam_jax.data import loader, tokenizers
from bam_jax.preflight import chips, report, search
from bam_jax.preflight import step as steps
from bam_jax.preflight.__main__ import main
from bam_jax.preflight.compiled import Compiled, compile_step
from bam_jax.preflight.step import Model, Step
from bam_jax.system.errors import UserError
from bam_jax.training.step import define_training, initial_state

QUICKSTART = str(Path(__file__).parents[2] / "configs/quickstart.py")
VOCAB = 64


@pytest.fixture(autouse=True)
def devices():
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")


def tiny(*overrides):
    base = Config(context=32, batch=16, model=ModelConfig(width=64, heads=4, hidden=128, remat=True))
    return configs.override(base, configs.from_arguments(overrides))


def step_of(config, where=None):
    where = where or chips.find("cpu:8")
    mesh = where.mesh(config.mesh)
    return Step.of(config, mesh, Model.of(config, VOCAB, mesh))


def chip(memory):
    """Eight devices of a CPU that have so much memory, and the rates of a v5e."""

    @dataclasses.dataclass(frozen=True)
    class Small(chips.Slice):
        @property
        def chip(self):
            return chips.Chip(memory, 819e9, 200e9, (16, 16))

        @property
        def peak(self):
            return 197e12

    return Small("small:8", "cpu", jax.devices()[:8])


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["rope:window=8/nope", "rope:window=8/rope:window=8/cable/bam:ssmax=on"])
def test_the_sums_of_a_pattern_are_what_the_compiler_says(pattern):
    axes = [f"--config.mesh.{axis}=2" for axis in ("data", "fsdp", "tensor")]
    today = [f"--config.model.{name}=True" for name in ("qk_norm", "gate", "sinks")]
    step = step_of(tiny(*axes, *today, f"--config.encoding={pattern}", "--config.model.layers=4"))
    made, sums = compile_step(step.lower(), 8), step.bytes()
    assert made.arguments == {kind: sums[kind] for kind in ("parameters", "optimizer", "batch")}
    assert not made.uncounted and not made.refused


@pytest.mark.full
def test_the_sums_of_what_is_kept_are_what_the_compiler_says():
    axes = [f"--config.mesh.{axis}=2" for axis in ("data", "fsdp", "tensor")]
    config = tiny(*axes, "--config.optimizer.accumulate=2")
    step = step_of(config)
    made = compile_step(step.lower(), 8)
    sums = step.bytes()
    assert made.arguments == {kind: sums[kind] for kind in ("parameters", "optimizer", "batch")}
    assert {each.kind for each in made.collectives} >= {"all-gather"}
    assert not made.uncounted and not made.refused


def test_the_bytes_are_those_of_the_arrays_that_training_makes():
    config = tiny("--config.mesh.data=1", "--config.mesh.fsdp=4")
    step = step_of(config, chips.find("cpu:4"))
    shardings = jax.tree.map(lambda x: x.sharding, step.state)
    with jax.set_mesh(step.mesh):
        state = initial_state(config, define_training(config, VOCAB)[1], shardings)
    here = lambda tree: sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))
    sums = step.bytes()
    assert (sums["parameters"], sums["optimizer"]) == (here(state["model"]), here(state["optimizer"]))


def test_what_each_axis_cuts():
    """Of a model whose vectors are nothing beside its matrices."""
    sizes = {}
    for fsdp, context in ((1, 1), (4, 1), (1, 4)):
        config = tiny(
            f"--config.mesh.data={8 // fsdp // context}", f"--config.mesh.fsdp={fsdp}", f"--config.mesh.context={context}",
            "--config.model.width=512", "--config.model.hidden=1024", "--config.batch=8",
        )  # fmt: skip
        sizes[fsdp, context] = step_of(config).bytes()
    one, cut, ring = sizes[1, 1], sizes[4, 1], sizes[1, 4]
    for kind in ("parameters", "optimizer"):
        assert cut[kind] == pytest.approx(one[kind] / 4, rel=0.02)
        assert ring[kind] == one[kind]
    assert cut["activations"] == one["activations"] == ring["activations"]  # 8 devices share the tokens in each


@pytest.mark.parametrize(
    "overrides",
    [["document_mask=False"], ["positions=restart"], ["task=passkey", "positions=restart"], ["packing=first_fit"]],
)
def test_the_batch_is_what_the_loader_gives(overrides):
    config = configs.load(
        QUICKSTART, configs.from_arguments([f"--config.data.{each}" for each in ("task=packed", *overrides)])
    )
    with contextlib.closing(loader.batches(config, tokenizers.tokenizer("char"))) as data:
        given = next(data)
    mesh = chips.find("cpu:1").mesh(MeshConfig())
    wanted = steps._batch(config, mesh)
    assert {name: (x.shape, x.dtype) for name, x in given.items()} == {
        name: (x.shape, x.dtype) for name, x in wanted.items()
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v9:4x4", "unknown chip; known: cpu, v5e, v5p, v6e"),
        ("v5f:4x4", "did you mean 'v5"),
        ("v5e", "give for example v5e:4x4"),
        ("v5e:4x4x4", "v5e stand in 2 numbers, .* for example v5e:4x4"),
        ("v5p:4x4", "v5p stand in 3 numbers, .* for example v5p:4x4x4"),
        ("v5e:100x100", "of 256 chips at most"),
        ("v6e:0x4", "of 256 chips at most"),
        ("cpu:0", "of which there are 8 here"),
        ("cpu:many", "of which there are 8 here"),
        ("cpu:9", "set JAX_NUM_CPU_DEVICES"),
    ],
)
def test_topologies_that_there_are_not(name, says):
    with pytest.raises(UserError, match=says):
        chips.find(name)


def test_without_libtpu_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs libtpu, .* pip install '\.\[compilers\]' in a clone"):
        chips.find("v5e:4x4")


def test_a_mesh_of_other_devices_than_there_are():
    with pytest.raises(UserError, match="needs 16 devices, and this CPU is 8"):
        main([f"--config={QUICKSTART}", "--topology=cpu:8", "--config.mesh.fsdp=16"])
    with pytest.raises(UserError, match="utilisation=0.0 must be above 0"):
        main([f"--config={QUICKSTART}", "--topology=cpu:8", "--utilisation=0"])


def test_the_least_change_that_fits_and_the_quickest():
    config = tiny("--config.mesh.data=8", "--config.mesh.fsdp=1", "--config.model.remat=False")
    step = step_of(config)
    mesh, total = dict(step.mesh.shape), sum(step.bytes().values())
    room = chip(2 * total)
    (first, *_) = search.proposals(config, step.model, room, 0.4, mesh=mesh)
    assert first.changes == {} and first.bytes == total and first.config.mesh.data == 8

    small = chip(total)  # of which a tenth is left
    found = search.proposals(config, step.model, small, 0.4, mesh=mesh)
    assert [len(each.changes) for each in found] == sorted(len(each.changes) for each in found)
    assert found[0].changes == {"model.remat": True}
    assert all(each.bytes <= search.MARGIN * total for each in found)
    again = step_of(configs.override(config, found[0].changes))
    assert sum(again.bytes().values()) == found[0].bytes

    quick = search.proposals(config, step.model, small, 0.4)
    assert [each.seconds for each in quick] == sorted(each.seconds for each in quick)
    assert quick[0].seconds <= found[0].seconds
    assert all(math.prod(dataclasses.astuple(each.config.mesh)) == 8 for each in quick)
    assert search.proposals(config, step.model, chip(1000), 0.4) == []


def test_a_record_that_does_not_fit_says_so():
    step = step_of(tiny())
    small = chip(1e6)
    made = Compiled(
        arguments={"parameters": 500_000, "optimizer": 200_000, "batch": 100_000}, temporaries=0.1e6, program=0.2e6
    )
    found = report.record(step, made, small, 0.4)
    assert not found["fits"] and "it does not fit: 1.1 MB of 1.0 MB, 110%" in report.to_text(found)
    refused = report.record(step, Compiled(temporaries=1.3e6, refused="too large"), small, 0.4)
    assert not refused["fits"] and "it does not fit: too large" in report.to_text(refused)
    fits = report.record(step, dataclasses.replace(made, program=0), small, 0.4)
    assert fits["fits"]
    rates = fits["seconds"]
    assert rates["step"] == rates[rates["bound"]] == max(rates["compute"], rates["memory"], rates["links"])
    assert fits["tokens_per_second"] == 16 * 32 / rates["step"]


@pytest.mark.full
def test_the_command(capsys):
    arguments = [f"--config={QUICKSTART}", "--topology=cpu:4", "--config.mesh.fsdp=4", "--config.batch=4"]
    assert main([*arguments, "--json", "--config.model.layers=1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"data": 1, "fsdp": 4, "tensor": 1, "context": 1} and found["fits"]
    assert found["compiled"]["arguments"] == {
        kind: found["bytes"][kind] for kind in ("parameters", "optimizer", "batch")
    }
    assert found["sent"] == sum(each["bytes"] for each in found["compiled"]["collectives"].values()) > 0
