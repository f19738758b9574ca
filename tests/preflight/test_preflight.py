"""Steps compiled for eight devices of one CPU; what is refused; the micro-batches that fit."""

import contextlib
import json
from pathlib import Path

import jax
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax.config import Config, MeshConfig, ModelConfig
from bam_jax.data import loader, tokenizers
from bam_jax.models import generate, transformer
from bam_jax.parallel import sharding
from bam_jax.preflight import chips, estimate, reading, report
from bam_jax.preflight.__main__ import main, search
from bam_jax.preflight.step import Compiled, Step, batch_of
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
    return configs.override(base, configs.from_arguments([f"--config.{each}" for each in overrides]))


def step_of(config, topology="cpu:8"):
    return Step.of(config, VOCAB, chips.find(topology).mesh(config.mesh))


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["", "rope:window=8/nope", "rope:window=8/rope:window=8/cable/bam:ssmax=on"])
def test_the_arguments_are_what_the_compiler_plans(pattern):
    today = [*(f"model.{name}=True" for name in ("qk_norm", "gate", "sinks")), f"encoding={pattern}", "model.layers=4"]
    axes = ["mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", "optimizer.accumulate=2"]
    step = step_of(tiny(*axes, *(today if pattern else [])))
    made = step.compile()
    assert made.arguments == sum(step.bytes().values()) and made.temporaries > 0 and not made.refused


def test_the_bytes_are_those_of_the_arrays_that_training_makes():
    config = tiny("mesh.data=1", "mesh.fsdp=4")
    step = step_of(config, "cpu:4")
    shardings = jax.tree.map(lambda x: x.sharding, step.state)
    with jax.set_mesh(step.mesh):
        state = initial_state(define_training(config, VOCAB)[1], shardings=shardings)
    here = lambda tree: sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))
    assert (step.bytes()["parameters"], step.bytes()["optimizer"]) == (here(state["model"]), here(state["optimizer"]))


def test_what_axes_leave_of_the_work():
    """Whole weights are read, one layer after another, by all devices that share tokens; a ring and gathers are sent."""
    work_on = lambda topology, *mesh: estimate.work(step_of(tiny(*mesh), topology))
    axes = (
        ["mesh.data=8", "mesh.fsdp=1"],
        ["mesh.data=1", "mesh.fsdp=8"],
        ["mesh.data=1", "mesh.fsdp=1", "mesh.context=8"],
    )
    one, cut, ring = (work_on("cpu:8", *mesh) for mesh in axes)
    assert one.operations == cut.operations == ring.operations
    assert cut.read < one.read, "the optimiser's arrays are cut"
    assert cut.sent != one.sent and ring.sent > one.sent
    alone = work_on("cpu:1", "mesh.data=1", "mesh.fsdp=1")
    assert alone.sent == 0 and alone.operations == 8 * one.operations


@pytest.mark.parametrize(
    "overrides",
    [["document_mask=False"], ["positions=restart"], ["task=passkey", "positions=restart"], ["packing=first_fit"]],
)
def test_the_batch_is_what_the_loader_gives(overrides):
    changes = configs.from_arguments([f"--config.data.{each}" for each in ("task=packed", *overrides)])
    config = configs.load(QUICKSTART, changes)
    with contextlib.closing(loader.batches(config, tokenizers.tokenizer("char"))) as data:
        given = next(data)
    wanted = batch_of(config, chips.find("cpu:1").mesh(MeshConfig()))
    kinds = [{name: (x.shape, x.dtype) for name, x in batch.items()} for batch in (given, wanted)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v9:4x4", "unknown chip; known: cpu, h100, h200, v5e, v5p, v6e"),
        ("h100:9", "must be h100: and a number of GPUs of one machine, 8 at most"),
        ("h200:4", r"the compiler for GPUs is not installed: pip install '\.\[compilers\]' in a clone"),
        ("v5p:4xfour", "v5p stand in 3 numbers, .* for example v5p:4x4x4"),
        ("v5e:100x100", "of 256 chips at most"),
        ("v5e:4x4", r"needs libtpu, .* pip install '\.\[compilers\]' in a clone"),
        ("cpu:9", "of which there are 8 here; set JAX_NUM_CPU_DEVICES"),
        ("cpu:8 --config.mesh.fsdp=16", "needs 16 devices, and this CPU is 8"),
        ("cpu:8 --utilisation=0", "utilisation=0.0 must be above 0"),
        ("cpu:8 --read=0", "--read=0 must be a number of tokens, 1 or more"),
        ("cpu:8 --read=64 --search", "--read=64 has not; leave one out"),
        ("cpu:8 --read=64 --config.mesh.tensor=8", "config.model.heads=4 must be a multiple of the mesh's tensor=8"),
    ],
)
def test_what_cannot_be_compiled_is_refused(name, says, monkeypatch):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=says):
        main([f"--config={QUICKSTART}", *f"--topology={name}".split()])


def test_a_record_that_does_not_fit_says_so(monkeypatch):
    monkeypatch.setitem(chips.CHIPS, "v5e", chips.Chip(1e6, 819e9, 200e9, (16, 16)))
    step, small = step_of(tiny()), chips.Slice("v5e:2x4", "v5e", jax.devices()[:8])
    made = Compiled(arguments=0.8e6, temporaries=0.1e6, program=0.2e6)
    found = report.record(step, made, small, 0.4)
    assert not found["fits"] and "it does not fit: 1.1 MB of 1.0 MB, 110%" in report.to_text(found)
    refused = report.record(step, Compiled(refused="too large"), small, 0.4)
    assert not refused["fits"] and "it does not fit: too large" in report.to_text(refused)
    fits = report.record(step, Compiled(arguments=0.8e6), small, 0.4)
    assert fits["fits"] and fits["tokens_per_second"] == 16 * 32 / max(fits["seconds"].values())
    assert fits["seconds"]["compute"] == fits["work"]["operations"] / (0.4 * 197e12)


@pytest.mark.parametrize(
    ("room", "accumulate", "kept"), [(16, 1, None), (5, 4, None), (1.6, 8, "products"), (1, 8, "nothing")]
)
def test_the_fewest_micro_batches_that_fit(room, accumulate, kept):
    """A row takes a GB; 0.8 of one where a layer keeps its products, and half of one where it keeps nothing."""
    asked = []

    def compiled(config):
        asked.append((config.optimizer.accumulate, config.model.remat_keep if config.model.remat else None))
        rows = config.batch // config.optimizer.accumulate
        return {"fits": rows * {None: 1, "products": 0.8, "nothing": 0.5}[asked[-1][1]] <= room, "asked": asked[-1]}

    config = tiny("model.remat=False")
    found = search(config, {"data": 2, "fsdp": 1}, compiled)
    assert found["fits"] and found["asked"] == (accumulate, kept)
    assert len(asked) == len(set(asked)) <= 6
    assert not search(config, {"data": 2, "fsdp": 1}, lambda config: {"fits": False})["fits"]
    with pytest.raises(UserError, match="batch=16 must be a multiple of the 3 devices"):
        search(config, {"data": 3, "fsdp": 1}, compiled)


@pytest.mark.full
def test_the_command(capsys):
    arguments = [f"--config={QUICKSTART}", "--topology=cpu:4", "--config.mesh.fsdp=4", "--config.batch=4"]
    assert main([*arguments, "--json", "--search", "--config.model.layers=1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"data": 1, "fsdp": 4, "tensor": 1, "context": 1} and found["fits"]
    assert found["compiled"]["arguments"] == sum(found["bytes"].values())
    assert "--config.optimizer.accumulate=1" in found["options"] and found["work"]["sent"] > 0


@pytest.mark.parametrize("encoding", ["bam", pytest.param("cable", marks=pytest.mark.full)])
def test_the_bytes_of_a_reading_are_those_of_the_caches_that_it_fills(encoding):
    config = tiny("mesh.tensor=2", "mesh.context=4", f"encoding={encoding}")
    mesh = chips.find("cpu:8").mesh(config.mesh)
    found = reading.Reading.of(config, VOCAB, mesh, 2000, chunk=256).record(chips.find("cpu:8"))
    assert (found["tokens"], found["chunk"]) == (2048, 256) and found["fits"]
    model = transformer.placed(transformer.build(config, vocab=VOCAB, rngs=nnx.Rngs(0)), mesh)
    with sharding.active(mesh):
        _, caches = generate.prefill(model, jax.numpy.zeros((1, 2000), int), chunk=256)
    here = lambda tree: sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))
    assert found["bytes"] == {"parameters": here(nnx.state(model)), "cache": here(caches)}
    assert found["compiled"]["arguments"] >= sum(found["bytes"].values())


@pytest.mark.full
def test_the_command_of_a_reading(capsys):
    arguments = [f"--config={QUICKSTART}", "--topology=cpu:8", "--config.mesh.context=8", "--config.model.layers=1"]
    assert main([*arguments, "--read=4096"]) == 0
    assert "a cache for 4,096 tokens, read in chunks of 4,096" in capsys.readouterr().out
