"""Meshes, and what of a training step each of their axes cuts: on eight devices of one CPU."""

import dataclasses
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from bam_jax import checkpoint, model, sharding, train
from bam_jax import config as configs
from bam_jax.config import Config, MeshConfig, ModelConfig
from bam_jax.encodings import ENCODINGS
from bam_jax.errors import UserError

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))


@dataclasses.dataclass(frozen=True)
class Device:
    """What `make_mesh` asks of one."""

    platform: str = "gpu"
    process_index: int = 0
    slice_index: int = 0


@pytest.fixture(autouse=True)
def devices():
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")


def shapes(config, vocab):
    return checkpoint.split(nnx.eval_shape(lambda: model.build(config, vocab=vocab, rngs=nnx.Rngs(0))))[1]


def bytes_of(x):
    return math.prod(x.shape) * x.dtype.itemsize


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_one_rule_for_each_parameter_and_none_large_left_whole(encoding, family):
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    big = ModelConfig(family=family, layers=48, width=4096, heads=32, hidden=16384)
    for shared in (False, True):
        config = Config(encoding=encoding, ssmax="on", shared_encoding=shared, model=big, context=4096)
        tree = shapes(config, 65536)
        found = {name: sharding.parameters(tree[name], mesh) for name in tree}
        for (path, leaf), where in zip(jax.tree.leaves_with_path(tree), jax.tree.leaves(found), strict=True):
            share = math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            cut = bytes_of(leaf) / share
            assert cut in (1, 2, 4) and (cut > 1 or bytes_of(leaf) <= sharding.LARGE), path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_state_of_every_config_is_cut(path):
    config = configs.load(path)
    mesh = sharding.make_mesh(MeshConfig(fsdp=4, tensor=2))
    _, init, tx = train._parts(config, config.model.vocab or 32768)
    state = jax.eval_shape(init)
    cut = train.state_shardings(state, tx, mesh)
    whole = sum(map(bytes_of, jax.tree.leaves(state)))
    here = [
        math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize
        for x, s in zip(*map(jax.tree.leaves, (state, cut)), strict=True)
    ]
    moments = cut["optimizer"][1]
    assert moments.mu == moments.nu == cut["model"]["params"]
    if whole > 100 * sharding.LARGE:
        assert sum(here) < 1.05 * whole / 8


def test_every_rule_is_of_use():
    names = set()
    for encoding in ENCODINGS:
        for family in ("llama", "gpt2"):
            tree = shapes(Config(encoding=encoding, ssmax="on", model=ModelConfig(family=family)), 32)
            for part in tree.values():
                names |= {
                    jax.tree_util.keystr(path, simple=True, separator="/")
                    for path, _ in jax.tree.leaves_with_path(part)
                }
    used = {spec for name in names for spec in [sharding.rule(name)]}
    assert used == {spec for _, spec in sharding.RULES}
    with pytest.raises(UserError, match="no rule .* layers/router/kernel"):
        sharding.rule("layers/router/kernel")


def test_a_parameter_of_two_rules_is_refused(monkeypatch):
    monkeypatch.setattr(sharding, "RULES", (*sharding.RULES, ("head/.*", sharding.P())))
    with pytest.raises(UserError, match="2 rules .* head/kernel"):
        sharding.rule("head/kernel")


def test_axes_that_divide_nothing():
    mesh = sharding.make_mesh(MeshConfig(fsdp=4, tensor=2))
    tree = {"head": {"kernel": jax.ShapeDtypeStruct((8, 97), np.float32)}}
    assert sharding.parameters(tree, mesh)["head"]["kernel"].spec == sharding.P("fsdp", None)
    tree = {"head": {"kernel": jax.ShapeDtypeStruct((4096, 50257), np.float32)}}
    with pytest.raises(UserError, match="tensor=2 does not divide the 50257 of head/kernel"):
        sharding.parameters(tree, mesh)


def test_the_mesh_of_what_is_there(monkeypatch):
    monkeypatch.setattr(jax, "make_mesh", lambda shape, *_, devices, **__: (shape, len(devices)))
    gpus = [Device(process_index=n // 8) for n in range(32)]
    tpus = [Device("tpu", process_index=n // 4, slice_index=n // 16) for n in range(32)]
    for devices, stated, shape in (
        (gpus, {}, (4, 8, 1, 1)),
        (tpus, {}, (2, 16, 1, 1)),
        (gpus, {"tensor": 3 + 1, "context": 2}, (1, 4, 4, 2)),
        (gpus[:24], {}, (3, 8, 1, 1)),
        (gpus, {"fsdp": 2, "context": 4}, (4, 2, 1, 4)),
        (gpus, {"data": 2}, (2, 16, 1, 1)),
    ):
        assert sharding.make_mesh(MeshConfig(**stated), devices) == (shape, len(devices))
    assert sharding.make_mesh(MeshConfig()) == ((1, 1, 1, 1), 1)
    assert sharding.make_mesh(MeshConfig(context=4)) == ((1, 1, 1, 4), 4)
    many = [Device("cpu", process_index=n) for n in range(4)]
    assert sharding.make_mesh(MeshConfig(), many) == ((4, 1, 1, 1), 4)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"tensor": 3}, "tensor=3, context=1 does not fit the 8 devices present; choose axes whose product divides it"),
        ({"data": 2, "fsdp": 2}, "data=2, fsdp=2, .* does not fit the 8 .*data=0"),
        ({"data": 2, "fsdp": 8}, "choose axes"),
    ],
)
def test_meshes_that_do_not_fit(stated, says):
    with pytest.raises(UserError, match=says):
        sharding.make_mesh(MeshConfig(**stated), [Device() for _ in range(8)])


def test_a_mesh_larger_than_the_processor():
    with pytest.raises(UserError, match="needs 16 devices, and this CPU is 8; set JAX_NUM_CPU_DEVICES=16"):
        sharding.make_mesh(MeshConfig(data=16))
    with pytest.raises(UserError, match="config.mesh.tensor=0 must be 1 or more"):
        MeshConfig(tensor=0)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["--config.mesh.tensor=8"], "heads=4 must be a multiple of the mesh's tensor=8"),
        (["--config.mesh.tensor=4", "--config.model.kv_heads=2"], "kv_heads=2 .* tensor=4"),
        (["--config.mesh.context=8", "--config.context=60"], "context=60 .* context=8"),
        (["--config.mesh.data=8", "--config.optimizer.accumulate=8"], "the 4 rows .* = 8; set .*accumulate=4"),
        (["--config.mesh.data=8", "--config.batch=12"], "the 12 rows .* config.batch to a multiple"),
    ],
)
def test_meshes_that_do_not_fit_the_configuration(overrides, says):
    config = configs.override(Config(), overrides)
    with pytest.raises(UserError, match=says):
        sharding.check(config, sharding.make_mesh(config.mesh))


def stepped(config, steps, arrays, vocab=32):
    """The metrics of some steps, and the state after them."""
    mesh = sharding.make_mesh(config.mesh)
    sharding.check(config, mesh)
    with jax.set_mesh(mesh):
        graph, init, tx = train._parts(config, vocab)
        cut = train.state_shardings(jax.eval_shape(init), tx, mesh)
        state = train._first(config, init, cut)
        update = train.make_step(config, graph, tx, cut)
        metrics = []
        for _ in range(steps):
            state, found = update(state, sharding.batch(arrays, mesh))
            metrics.append(np.asarray(found))
        assert jax.tree.map(lambda x: x.sharding, state) == cut
    return metrics, state


def rows(config, vocab=32, seed=0):
    """A batch of packed documents, with pads at the end of each row and positions of their own."""
    rng = np.random.default_rng(seed)
    shape = config.batch, config.context
    starts = rng.random(shape) < 0.06
    starts[:, 0] = True
    segment = np.cumsum(starts, 1).astype(np.int32)
    index = np.arange(config.context)
    position = index - np.maximum.accumulate(np.where(starts, index, 0), 1)
    segment[:, -3:] = 0
    return {
        "tokens": rng.integers(0, vocab, shape, np.int32),
        "targets": rng.integers(0, vocab, shape, np.int32),
        "weights": rng.choice([0, 1, 1.5], shape).astype(np.float32) * (segment > 0),
        "segment": segment,
        "position": position.astype(np.int32),
    }


def tiny(*overrides):
    base = Config(
        encoding="bam", ssmax="on", context=32, batch=8, model=ModelConfig(width=32, heads=4, hidden=64, kv_heads=2)
    )
    return configs.override(base, ["--config.optimizer.warmup=2", *overrides])


def on(mesh):
    return [f"--config.mesh.{name}={size}" for name, size in zip(sharding.AXES, mesh, strict=True)]


def first_moments(state):
    """In proportion to the first step's gradients."""
    return jax.tree.map(np.asarray, state["optimizer"][1].mu)


@pytest.mark.parametrize(
    ("mesh", "overrides"),
    [((2, 2, 2, 1), []), ((1, 1, 2, 4), ["--config.encoding=cable", "--config.optimizer.accumulate=2"])],
)
def test_a_mesh_trains_as_one_device_does(mesh, overrides):
    alone, meshed = [tiny(*overrides, *on(m)) for m in ((1, 1, 1, 1), mesh)]
    arrays = rows(alone)
    (a, one), (b, many) = stepped(alone, 1, arrays), stepped(meshed, 1, arrays)
    np.testing.assert_allclose(a, b, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), first_moments(one), first_moments(many))
