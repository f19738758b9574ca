"""Meshes, and what of a training step each of their axes cuts: on eight devices of one CPU."""

import dataclasses
import doctest
import functools
import itertools
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax.config import Config, MeshConfig, ModelConfig
from bam_jax.encodings import ENCODINGS, context_aware
from bam_jax.models import per_device, transformer
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError
from bam_jax.training.step import define_training, initial_state, make_step, state_shardings, with_shardings

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))


@dataclasses.dataclass(frozen=True)
class Device:
    """A device with the attributes that `make_mesh` and jax read."""

    platform: str = "gpu"
    process_index: int = 0
    slice_index: int = 0
    id: int = 0
    device_kind: str = "made up"


@pytest.fixture(autouse=True)
def devices():
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")


def shapes(config, vocab):
    return transformer.split(nnx.eval_shape(lambda: transformer.build(config, vocab=vocab, rngs=nnx.Rngs(0))))[1]


def bytes_of(x):
    return math.prod(x.shape) * x.dtype.itemsize


@pytest.mark.parametrize("vocab", [8, 7])
def test_embeddings_and_their_gradient_are_those_of_one_device(vocab, rng):
    """Also where tensor does not divide the vocabulary."""
    table = nnx.Embed(vocab, 4, rngs=nnx.Rngs(0))
    tokens = rng.integers(0, vocab, (4, 6)).astype("int32")
    weights = rng.normal(size=(4, 6, 4)).astype("float32")

    def both(table, tokens):
        loss = lambda table: (per_device.embed(table, tokens) * weights).sum()
        return per_device.embed(table, tokens), nnx.grad(loss)(table)

    whole = both(table, tokens)
    mesh = sharding.make_mesh(MeshConfig(fsdp=2, tensor=2, context=2))
    with jax.set_mesh(mesh):
        cut = nnx.jit(both)(table, jax.device_put(tokens, jax.NamedSharding(mesh, sharding.TEXT)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), cut, whole)


@pytest.mark.parametrize("number", range(len(ENCODINGS)), ids=ENCODINGS)
def test_one_rule_for_each_parameter_and_none_large_left_whole(number):
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    family, shared = ("llama", "gpt2", "bert")[number % 3], number % 4 > 1
    big = ModelConfig(family=family, layers=48, width=4096, heads=32, hidden=16384)
    config = Config(encoding=list(ENCODINGS)[number], ssmax="on", shared_encoding=shared, model=big, context=4096)
    tree = shapes(config, 65536)
    found = {name: sharding.parameter_shardings(tree[name], mesh) for name in tree}
    for (path, leaf), where in zip(jax.tree.leaves_with_path(tree), jax.tree.leaves(found), strict=True):
        cut = bytes_of(leaf) / (math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize)
        assert cut in (1, 2, 4) and (cut > 1 or bytes_of(leaf) <= sharding.LARGE), path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_state_of_every_config_is_cut(path):
    config = configs.load(path)
    mesh = sharding.make_mesh(MeshConfig(fsdp=4, tensor=2))
    _, init, tx = define_training(config, config.model.vocab or 32768)
    state = jax.eval_shape(init)
    cut = state_shardings(state, tx, mesh)
    whole = sum(map(bytes_of, jax.tree.leaves(state)))
    here = jax.tree.leaves(jax.tree.map(lambda x, s: math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize, state, cut))
    moments = cut["optimizer"][1]
    assert moments.mu == moments.nu == cut["model"]["params"]
    if whole > 100 * sharding.LARGE:
        assert sum(here) < 1.05 * whole / 8


def test_every_rule_is_of_use():
    used = set()
    for encoding, family in (("cable", "llama"), ("learned", "gpt2"), ("t5", "llama"), ("bam", "bert")):
        for part in shapes(Config(encoding=encoding, ssmax="on", model=ModelConfig(family=family)), 32).values():
            for path, _ in jax.tree.leaves_with_path(part):
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                used |= {pattern for pattern, _ in sharding.RULES if re.fullmatch(pattern, name)}
    assert used == {pattern for pattern, _ in sharding.RULES}
    today = ModelConfig(family="gpt2", qk_norm=True, gate=True, sinks=True)
    tree = shapes(Config(encoding="cable/bam:ssmax=on", model=today), 32)["params"]
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        single = re.sub(r"layers/\d+/", "layers/", name)
        assert sharding.rule(name) == sharding.rule(single) and len(sharding.rule(name)) <= leaf.ndim
        if "gate/kernel" in name:
            assert sharding.rule(name) == sharding.P("fsdp", "tensor")
    with pytest.raises(UserError, match="no rule .* layers/router/kernel"):
        sharding.rule("layers/router/kernel")


def test_a_parameter_of_two_rules_is_refused(monkeypatch):
    monkeypatch.setattr(sharding, "RULES", (*sharding.RULES, ("head/.*", sharding.P())))
    with pytest.raises(UserError, match="2 rules .* head/kernel"):
        sharding.rule("head/kernel")


def test_axes_that_divide_nothing():
    mesh = sharding.make_mesh(MeshConfig(fsdp=4, tensor=2))
    tree = {"head": {"kernel": jax.ShapeDtypeStruct((8, 97), np.float32)}}
    assert sharding.parameter_shardings(tree, mesh)["head"]["kernel"].spec == sharding.P("fsdp", None)
    tree = {"head": {"kernel": jax.ShapeDtypeStruct((4096, 50257), np.float32)}}
    with pytest.raises(UserError, match="tensor=2 does not divide the 50257 of head/kernel"):
        sharding.parameter_shardings(tree, mesh)


def test_the_mesh_of_what_is_there(monkeypatch):
    monkeypatch.setattr(sharding, "arrange", lambda shape, _, devices: (shape, len(devices)))
    gpus = [Device(process_index=n // 8) for n in range(32)]
    tpus = [Device("tpu", process_index=n // 4, slice_index=n // 16) for n in range(32)]
    for devices, stated, shape in (
        (gpus, {}, (4, 8, 1, 1)),
        (tpus, {}, (2, 16, 1, 1)),
        (gpus, {"tensor": 4, "context": 2}, (4, 1, 4, 2)),
        (gpus, {"tensor": 2}, (4, 4, 2, 1)),
        (tpus, {"context": 32}, (1, 1, 1, 32)),
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
    ("shape", "slices"),
    [
        ((2, 4, 1, 1), [[[[0]]] * 4, [[[1]]] * 4]),
        ((4, 1, 2, 1), [[[[0], [0]]]] * 2 + [[[[1], [1]]]] * 2),
        ((1, 2, 4, 1), [[[[0]] * 4, [[1]] * 4]]),
        ((1, 1, 2, 4), [[[[0] * 4, [1] * 4]]]),
        ((1, 1, 1, 8), [[[[0, 0, 0, 0, 1, 1, 1, 1]]]]),
    ],
    ids=str,
)
def test_outer_axes_cross_from_slice_to_slice(shape, slices):
    """Each axis may do so, since a mesh that is asked for has to start."""
    devices = [Device(slice_index=n // 4, id=n) for n in range(8)]
    mesh = sharding.arrange(shape, sharding.AXES, devices[::-1])
    assert np.vectorize(lambda device: device.slice_index)(mesh.devices).tolist() == slices
    assert set(mesh.devices.flat) == set(devices) and mesh.axis_names == sharding.AXES


def test_two_axes_share_the_crossing():
    mesh = sharding.arrange((2, 4, 1, 3), sharding.AXES, [Device(slice_index=n // 6, id=n) for n in range(24)])
    found = np.vectorize(lambda device: device.slice_index)(mesh.devices)[:, :, 0, 0]
    assert found.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]


def test_slices_of_different_sizes_are_refused():
    uneven = [Device(slice_index=int(n > 2), id=n) for n in range(8)]
    with pytest.raises(UserError, match="some of the 2 hosts or slices have 3 devices and some 5; start as many on"):
        sharding.arrange((8, 1, 1, 1), sharding.AXES, uneven)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"tensor": 3}, "tensor=3, context=1 does not fit the 8 devices present; choose axes whose product divides it"),
        ({"data": 2, "fsdp": 2}, "data=2, fsdp=2, .* does not fit the 8 .*data=0"),
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
        (["--config.mesh.context=2", "--config.encoding=cope"], "CoPE needs whole rows of logits, .*mesh.context=1"),
        (["--config.mesh.tensor=2", "--config.encoding=dape_kerple"], "DAPE needs the logits of all .*mesh.tensor=1"),
    ],
)
def test_meshes_that_do_not_fit_the_configuration(overrides, says):
    config = configs.override(Config(), configs.from_arguments(overrides))
    with pytest.raises(UserError, match=says):
        sharding.check(config, sharding.make_mesh(config.mesh))


def stepped(config, steps, arrays, vocab=32, dtype=np.float32, first=None):
    """The metrics of some steps, the state before them, that after the first, and that after the last, as numpy's arrays."""
    mesh = sharding.make_mesh(config.mesh)
    sharding.check(config, mesh)
    whole = lambda state: jax.tree.map(np.array, state)
    with jax.set_mesh(mesh):
        graph, init, tx = define_training(config, vocab)
        wide = lambda: jax.tree.map(lambda x: x.astype(dtype) if x.dtype == np.float32 else x, init())
        cut = state_shardings(jax.eval_shape(wide), tx, mesh)
        state = initial_state(wide, shardings=cut) if first is None else jax.device_put(first, cut)
        update = make_step(config, graph, tx, cut)
        metrics, states = [], [whole(state)]
        for _ in range(steps):
            state, found = update(state, sharding.shard_batch(arrays, mesh))
            metrics.append(np.asarray(found))
            states.append(whole(state))
        assert jax.tree.map(lambda x: x.sharding, state) == cut
    return np.stack(metrics), states[0], states[1], states[-1]


def rows(config, vocab=32, seed=0, dtype=np.float32):
    """A batch of packed documents, some of one token, with pads at the end and positions of their own."""
    rng = np.random.default_rng(seed)
    shape = config.batch, config.context
    starts = rng.random(shape) < 0.06
    starts[:, 0] = True
    index = np.arange(config.context)
    segment = np.cumsum(starts, 1).astype(np.int32)
    segment[:, -3:] = 0
    return {
        "tokens": rng.integers(0, vocab, shape, np.int32),
        "targets": rng.integers(0, vocab, shape, np.int32),
        "weights": rng.choice([0, 1, 1.5], shape).astype(dtype) * (segment > 0),
        "segment": segment,
        "position": (index - np.maximum.accumulate(np.where(starts, index, 0), 1)).astype(np.int32),
    }


def tiny(*overrides):
    model = ModelConfig(width=32, heads=4, hidden=64, kv_heads=2)
    base = Config(encoding="bam", ssmax="on", context=32, batch=8, model=model)
    return configs.override(base, {"optimizer.warmup": 2, "optimizer.clip": 1e9, **configs.from_arguments(overrides)})


def on(mesh):
    return [f"--config.mesh.{name}={size}" for name, size in zip(sharding.AXES, mesh, strict=True)]


def gradients(state):
    """Those of the first step, from what Adam keeps of them."""
    return jax.tree.map(lambda x: x / (1 - Config().optimizer.b1), state["optimizer"][1].mu)


def apart(a, b):
    """The largest difference of two trees of arrays."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: np.abs(x - y).max(), a, b)))


def drawn(config, vocab=32, seed=0):
    """A first state that need not be compiled."""
    rng = np.random.default_rng(seed)
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(define_training(config, vocab)[1]))
    state["model"] = jax.tree.map(lambda x: rng.normal(0, 0.2, x.shape).astype(x.dtype), state["model"])
    return state


def see_training_on(mesh, *overrides):
    """In float32 a first step gives the loss and the gradients of one device."""
    configs = [tiny(*overrides, *on(each)) for each in ((1, 1, 1, 1), mesh)]
    (a, _, one, _), (b, _, many, _) = [stepped(config, 1, rows(config), first=drawn(config)) for config in configs]
    assert a[0, 1] > 0.1 and np.abs(a[0] / b[0] - 1).max() < 1e-5
    assert apart(gradients(one), gradients(many)) < 1e-5


MESHES = [(8, 1, 1, 1), (2, 2, 2, 1), (1, 1, 2, 4), (1, 1, 1, 8)]
METHODS = {"bam_ssmax": []} | {name: [f"--config.encoding={name}", "--config.ssmax=off"] for name in ("cable", "rope")}


def longest(*values):
    """A case that only the longest suite takes."""
    return pytest.param(*values, marks=pytest.mark.endurance)


EACH = list(zip(MESHES, [*METHODS, "cable"], strict=True))
PRODUCT = [pair if pair in EACH else longest(*pair) for pair in itertools.product(MESHES, METHODS)]


@functools.cache
def of_one_device(method):
    config = tiny(*METHODS[method], *on((1, 1, 1, 1)))
    return stepped(config, 20, rows(config, dtype=np.float64), dtype=np.float64)


@pytest.mark.full
@pytest.mark.parametrize(("mesh", "method"), PRODUCT, ids=str)
def test_twenty_steps_on_every_mesh_in_float64(mesh, method, x64, monkeypatch):
    monkeypatch.setattr(transformer, "product_dtype", lambda name: np.dtype(np.float64))
    expected, first, _, one = of_one_device(method)
    config = tiny(*METHODS[method], *on(mesh))
    found, _, _, many = stepped(config, 20, rows(config, dtype=np.float64), dtype=np.float64, first=first)
    assert {x.dtype for x in (expected, *jax.tree.leaves(many["model"]["params"]))} == {np.dtype(np.float64)}
    assert expected[-1, 0] < expected[0, 0] - 0.1
    assert max(np.abs(found - expected).max(), apart(one["model"], many["model"])) < 1e-9


@pytest.mark.full
def test_no_activations_are_gathered_where_texts_are_cut():
    """At most the documents' numbers of whole texts: running sums, counts and the ring do with less."""
    config = tiny("--config.encoding=cable", *on((1, 1, 2, 4)))
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        graph, init, tx = define_training(config, 32)
        cut = state_shardings(jax.eval_shape(init), tx, mesh)
        state = with_shardings(jax.eval_shape(init), cut)
        update = make_step(config, graph, tx, cut)
        compiled = update.lower(state, sharding.shard_batch(rows(config), mesh)).compile()
    text = compiled.as_text()
    made = re.findall(r"= (\(?[a-z]\S*.*?) (?:all-gather|all-to-all)(?:-start)?\(", text)
    gathered = [math.prod(map(int, sizes.split(","))) for each in made for sizes in re.findall(r"\[([\d,]+)\]", each)]
    assert gathered and max(gathered) <= config.batch * config.context
    assert "collective-permute" in text


TODAY = [f"--config.model.{name}=True" for name in ("qk_norm", "gate", "sinks")] + ["--config.model.soft_cap=2"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("mesh", "overrides"),
    [
        ((1, 2, 2, 2), ["--config.encoding=cable"]),
        longest((1, 2, 2, 2), ["--config.model.scan=False", "--config.optimizer.accumulate=2"]),
        ((2, 2, 1, 2), ["--config.model.family=gpt2", "--config.encoding=learned", "--config.shared_encoding=True"]),
        ((1, 2, 4, 1), ["--config.encoding=cope", "--config.model.kv_heads=0"]),
        ((1, 2, 2, 2), ["--config.encoding=fire", "--config.model.causal=False", "--config.optimizer.accumulate=4"]),
        ((2, 2, 2, 1), ["--config.model.family=bert", "--config.model.causal=False", "--config.ssmax=off"]),
        ((1, 1, 2, 4), ["--config.encoding=fox", "--config.model.remat=True", "--config.optimizer.accumulate=2"]),
        longest((1, 4, 1, 2), ["--config.encoding=t5", "--config.ssmax=outside"]),
        ((1, 2, 2, 2), ["--config.encoding=rope:window=9/nope:log_temperature=0.5,log_temperature_start=8", *TODAY]),
        longest((2, 1, 2, 2), ["--config.encoding=bam:window=9/cable:ssmax=off", *TODAY]),
        ((1, 1, 2, 4), ["--config.encoding=fox/nope", "--config.model.family=gpt2", "--config.ssmax=off", *TODAY]),
    ],
)
def test_the_other_ways_to_train(mesh, overrides):
    see_training_on(mesh, *overrides)


class _Own(nnx.Module):
    """An encoding's coordinate hook as it was before meshes."""

    def coordinate(self, x, filled, before):
        return None, None


def test_a_coordinate_that_takes_no_axis_is_refused_where_texts_are_cut():
    with (
        jax.set_mesh(sharding.make_mesh(MeshConfig(context=2))),
        pytest.raises(UserError, match="_Own.coordinate takes no"),
    ):
        per_device.coordinate(_Own(), np.zeros((1, 4, 8)), np.ones((1, 4), bool), None)


def test_a_running_sum_over_devices_is_that_of_one(x64):
    mesh = sharding.make_mesh(MeshConfig(context=8))
    x = np.random.default_rng(0).normal(size=(2, 3, 64)).astype(np.float32) * 1e4
    cut = jax.shard_map(
        lambda x: context_aware.running_sum(x, sharding.CONTEXT),
        mesh=mesh,
        in_specs=sharding.P(None, None, sharding.CONTEXT),
        out_specs=sharding.P(None, None, sharding.CONTEXT),
        check_vma=False,
    )
    high, low = map(np.asarray, jax.jit(cut)(x))
    np.testing.assert_allclose(high.astype(float) + low, np.cumsum(x.astype(float), -1), atol=1e-6)
    weigh = lambda sums: jax.grad(lambda x: (sums(x)[0] * np.cos(np.arange(64))).sum())
    np.testing.assert_allclose(jax.jit(weigh(cut))(x), weigh(context_aware.running_sum)(x), atol=1e-4)


def test_a_model_under_another_mesh_is_not_cut():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        assert sharding.ambient_mesh() is None
    with jax.set_mesh(sharding.make_mesh(MeshConfig())):
        assert sharding.ambient_mesh() is None


@pytest.mark.full
def test_the_examples_of_the_page_run():
    found = doctest.testfile(str(ROOT / "docs" / "parallelism.md"), module_relative=False)
    assert found.attempted > 10 and not found.failed
