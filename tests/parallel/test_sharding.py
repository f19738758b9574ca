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
from bam_jax.training.step import define_training, make_step, state_shardings, with_shardings
from tests.marks import longest

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


def bytes_of(x):
    return math.prod(x.shape) * x.dtype.itemsize


@pytest.mark.parametrize("vocab", [8, 7])
def test_embeddings_and_their_gradient_are_those_of_one_device(vocab, rng):
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


def parameters(config, vocab):
    """The shapes of a model's parameters by their names."""
    tree = transformer.split(nnx.eval_shape(lambda: transformer.build(config, vocab=vocab, rngs=nnx.Rngs(0))))[1]
    leaves = [pair for part in tree.values() for pair in jax.tree.leaves_with_path(part)]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@pytest.mark.parametrize("number", range(len(ENCODINGS)), ids=ENCODINGS)
def test_one_rule_for_each_parameter_and_none_large_left_whole(number):
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    family, shared = ("llama", "gpt2", "bert")[number % 3], number % 4 > 1
    big = ModelConfig(family=family, layers=48, width=4096, heads=32, hidden=16384)
    config = Config(encoding=list(ENCODINGS)[number], ssmax="on", shared_encoding=shared, model=big, context=4096)
    for name, leaf in parameters(config, 65536).items():
        (where,) = sharding.parameter_shardings({name: leaf}, mesh).values()
        cut = leaf.size / math.prod(where.shard_shape(leaf.shape))
        assert cut in (1, 2, 4) and (cut > 1 or bytes_of(leaf) <= sharding.LARGE), name


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_state_of_every_config_is_cut(path):
    config = configs.load(path)
    _, init, tx = define_training(config, config.model.vocab or 32768)
    state = jax.eval_shape(init)
    cut = state_shardings(state, tx, sharding.make_mesh(MeshConfig(fsdp=4, tensor=2)))
    here = jax.tree.map(lambda x, s: math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize, state, cut)
    whole, moments = sum(map(bytes_of, jax.tree.leaves(state))), cut["optimizer"][1]
    assert moments.mu == moments.nu == cut["model"]["params"]
    assert whole <= 100 * sharding.LARGE or sum(jax.tree.leaves(here)) < 1.05 * whole / 8


def test_every_rule_is_of_use(monkeypatch):
    used = set()
    for encoding, family in (("cable", "llama"), ("learned", "gpt2"), ("t5", "llama"), ("bam", "bert"), ("nape", "")):
        ssmax, model = ("on", ModelConfig(family=family)) if family else ("asentmax", ModelConfig())
        for name in parameters(Config(encoding=encoding, ssmax=ssmax, model=model), 32):
            used |= {pattern for pattern, _ in sharding.RULES if re.fullmatch(pattern, name)}
    assert used == {pattern for pattern, _ in sharding.RULES}
    today = ModelConfig(family="gpt2", qk_norm=True, gate=True, sinks=True)
    found = parameters(Config(encoding="cable/bam:ssmax=on", model=today), 32)
    assert all(sharding.rule(name) == sharding.rule(re.sub(r"layers/\d+/", "layers/", name)) for name in found)
    assert sharding.rule("layers/1/attention/gate/kernel") == sharding.P("fsdp", "tensor")
    with pytest.raises(UserError, match="no rule .* layers/router/kernel"):
        sharding.rule("layers/router/kernel")
    monkeypatch.setattr(sharding, "RULES", (*sharding.RULES, ("head/.*", sharding.P())))
    with pytest.raises(UserError, match="2 rules .* head/kernel"):
        sharding.rule("head/kernel")


def test_axes_that_divide_nothing():
    mesh = sharding.make_mesh(MeshConfig(fsdp=4, tensor=2))
    cut = lambda *shape: sharding.parameter_shardings(
        {"head": {"kernel": jax.ShapeDtypeStruct(shape, np.float32)}}, mesh
    )
    assert cut(8, 97)["head"]["kernel"].spec == sharding.P("fsdp", None)
    with pytest.raises(UserError, match="tensor=2 does not divide the 50257 of head/kernel"):
        cut(4096, 50257)


def test_the_mesh_of_what_is_there(monkeypatch):
    monkeypatch.setattr(sharding, "arrange", lambda shape, devices: (shape, len(devices)))
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
        ((2, 4, 1, 3), [[[[0] * 3]] * 2 + [[[1] * 3]] * 2, [[[2] * 3]] * 2 + [[[3] * 3]] * 2]),
    ],
    ids=str,
)
def test_outer_axes_cross_from_slice_to_slice(shape, slices):
    """Each axis may do so, since a mesh that is asked for has to start."""
    count = math.prod(shape)
    devices = [Device(slice_index=n // (count // (np.max(slices) + 1)), id=n) for n in range(count)]
    mesh = sharding.arrange(shape, devices[::-1])
    assert np.vectorize(lambda device: device.slice_index)(mesh.devices).tolist() == slices
    assert set(mesh.devices.flat) == set(devices) and mesh.axis_names == sharding.AXES


@pytest.mark.parametrize(
    ("platform", "second", "stated", "says"),
    [
        ("gpu", [], {"tensor": 3}, "tensor=3, context=1 does not fit the 8 .*; choose axes whose product divides it"),
        ("gpu", [], {"data": 2, "fsdp": 2}, "data=2, fsdp=2, .* does not fit the 8 .*data=0"),
        ("cpu", [], {"data": 16}, "needs 16 devices, and this CPU is 8; set JAX_NUM_CPU_DEVICES=16"),
        ("gpu", range(3), {}, "some of the 2 hosts or slices have 3 devices and some 5; start as many on"),
    ],
)
def test_meshes_that_do_not_fit(platform, second, stated, says):
    with pytest.raises(UserError, match=says):
        present = [Device(platform, slice_index=int(n in second), id=n) for n in range(8)]
        sharding.make_mesh(MeshConfig(**stated), present)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("mesh.tensor=8", "heads=4 must be a multiple of the mesh's tensor=8"),
        ("mesh.tensor=4 model.kv_heads=2", "kv_heads=2 .* tensor=4"),
        ("mesh.context=8 context=60", "context=60 .* context=8"),
        ("mesh.data=8 optimizer.accumulate=8", "the 4 rows .* = 8; set .*accumulate=4"),
        ("mesh.data=8 batch=12", "the 12 rows .* config.batch to a multiple"),
        ("mesh.context=2 encoding=cope", "CoPE needs whole rows of logits, .*mesh.context=1"),
        ("mesh.context=2 encoding=nape ssmax=entmax", "Entmax needs whole rows of logits, .*mesh.context=1"),
        ("mesh.tensor=2 encoding=dape_kerple", "DAPE needs the logits of all .*mesh.tensor=1"),
    ],
)
def test_meshes_that_do_not_fit_the_configuration(change, says):
    config = changed(Config(), change)
    with pytest.raises(UserError, match=says):
        sharding.check(config, sharding.make_mesh(config.mesh))


def rows(config, dtype=np.float32):
    """A batch of packed documents, some of one token, with pads at the end and positions of their own."""
    rng, shape = np.random.default_rng(0), (config.batch, config.context)
    starts = rng.random(shape) < 0.06
    starts[:, 0] = True
    index = np.arange(config.context)
    segment = np.cumsum(starts, 1).astype(np.int32)
    segment[:, -3:] = 0
    return {
        "tokens": rng.integers(0, 32, shape, np.int32),
        "targets": rng.integers(0, 32, shape, np.int32),
        "weights": rng.choice([0, 1, 1.5], shape).astype(dtype) * (segment > 0),
        "segment": segment,
        "position": (index - np.maximum.accumulate(np.where(starts, index, 0), 1)).astype(np.int32),
    }


def changed(config, text):
    """A configuration with changes such as mesh.data=2, between spaces."""
    return configs.override(config, configs.from_arguments([f"--config.{each}" for each in text.split()]))


def tiny(text, mesh=(1, 1, 1, 1)):
    model = ModelConfig(width=32, heads=4, hidden=64, kv_heads=2)
    base = Config(encoding="bam", ssmax="on", context=32, batch=8, model=model, mesh=MeshConfig(*mesh))
    return changed(configs.override(base, {"optimizer.warmup": 2, "optimizer.clip": 1e9}), text)


def gradients(state):
    """Those of the first step, from what Adam keeps of them."""
    return jax.tree.map(lambda x: x / (1 - Config().optimizer.b1), state["optimizer"][1].mu)


def apart(a, b):
    """The largest difference of two trees of arrays."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: np.abs(x - y).max(), a, b)))


def drawn(config):
    """A first state that need not be compiled."""
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(define_training(config, 32)[1]))
    state["model"] = jax.tree.map(lambda x: rng.normal(0, 0.2, x.shape).astype(x.dtype), state["model"])
    return state


MESHES = [(8, 1, 1, 1), (2, 2, 2, 1), (1, 1, 2, 4), (1, 1, 1, 8)]
METHODS = {"bam": "", "cable": "encoding=cable ssmax=off", "rope": "encoding=rope ssmax=off"}


EACH = list(zip(MESHES, [*METHODS, "cable"], strict=True))
PRODUCT = [pair if pair in EACH else longest(*pair) for pair in itertools.product(MESHES, METHODS)]


@pytest.fixture(scope="module")
def twenty_steps(take_steps):
    """Takes twenty steps in float64, once for each method and mesh."""

    @functools.cache
    def steps(method, mesh=(1, 1, 1, 1)):
        config, wide = tiny(METHODS[method], mesh), {"dtype": np.float64}
        first = None if mesh == (1, 1, 1, 1) else steps(method)[1][0]
        return take_steps(config, rows(config, **wide), vocab=32, steps=20, first=first, **wide)

    return steps


@pytest.mark.full
@pytest.mark.parametrize(("mesh", "method"), PRODUCT, ids=str)
def test_twenty_steps_on_every_mesh_in_float64(mesh, method, x64, monkeypatch, twenty_steps):
    monkeypatch.setattr(transformer, "product_dtype", lambda name: np.dtype(np.float64))
    (expected, one), (found, many) = twenty_steps(method), twenty_steps(method, mesh)
    one, many = one[-1]["model"], many[-1]["model"]
    assert {x.dtype for x in (expected, *jax.tree.leaves(many["params"]))} == {np.dtype(np.float64)}
    assert expected[-1, 0] < expected[0, 0] - 0.1
    assert max(np.abs(found - expected).max(), apart(one, many)) < 1e-9


@pytest.mark.full
def test_no_activations_are_gathered_where_texts_are_cut():
    """At most the documents' numbers of whole texts: running sums, counts and the ring do with less."""
    config = tiny("encoding=cable", (1, 1, 2, 4))
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        graph, init, tx = define_training(config, 32)
        cut = state_shardings(jax.eval_shape(init), tx, mesh)
        state = with_shardings(jax.eval_shape(init), cut)
        update = make_step(config, graph, tx, cut)
        text = update.lower(state, sharding.shard_batch(rows(config), mesh)).compile().as_text()
    made = re.findall(r"= (\(?[a-z]\S*.*?) (?:all-gather|all-to-all)(?:-start)?\(", text)
    gathered = [math.prod(map(int, sizes.split(","))) for each in made for sizes in re.findall(r"\[([\d,]+)\]", each)]
    assert gathered and max(gathered) <= config.batch * config.context
    assert "collective-permute" in text


TODAY = "model.qk_norm=True model.gate=True model.sinks=True model.soft_cap=2 model.attention_dropout=0.3"


@pytest.mark.full
@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        ((1, 2, 2, 2), "encoding=cable"),
        longest((1, 2, 2, 2), "model.scan=False optimizer.accumulate=2"),
        ((2, 2, 1, 2), "model.family=gpt2 encoding=learned shared_encoding=True"),
        longest((1, 2, 4, 1), "encoding=cope model.kv_heads=0"),
        ((1, 2, 2, 2), "encoding=fire model.causal=False optimizer.accumulate=4"),
        ((2, 2, 2, 1), "model.family=bert model.causal=False ssmax=off"),
        longest((1, 1, 2, 4), "encoding=fox model.remat=True optimizer.accumulate=2"),
        longest((1, 4, 1, 2), "encoding=t5 ssmax=outside"),
        ((1, 2, 2, 2), f"encoding=rope:window=9/nope:log_temperature=0.5,log_temperature_start=8 {TODAY}"),
        longest((2, 1, 2, 2), f"encoding=bam:window=9/cable:ssmax=off {TODAY}"),
        longest((1, 1, 2, 4), f"encoding=fox/nope model.family=gpt2 ssmax=off {TODAY}"),
    ],
)
def test_the_other_ways_to_train(mesh, changes, take_steps):
    """In float32 a first step gives the loss and the gradients of one device."""
    configs = tiny(changes), tiny(changes, mesh)
    (a, one), (b, many) = (take_steps(each, rows(each), vocab=32, first=drawn(each)) for each in configs)
    assert a[0, 1] > 0.1 and np.abs(a[0] / b[0] - 1).max() < 1e-5
    assert apart(gradients(one[-1]), gradients(many[-1])) < 1e-5


def test_a_coordinate_that_takes_no_axis_is_refused_where_texts_are_cut():
    own = type("Own", (), {"coordinate": lambda self, x, filled, before: (None, None)})()
    with (
        jax.set_mesh(sharding.make_mesh(MeshConfig(context=2))),
        pytest.raises(UserError, match="Own.coordinate takes no"),
    ):
        per_device.coordinate(own, np.zeros((1, 4, 8)), np.ones((1, 4), bool), None)


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
    other = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    for mesh in (other, sharding.make_mesh(MeshConfig())):
        with jax.set_mesh(mesh):
            assert sharding.ambient_mesh() is None


@pytest.mark.full
def test_the_examples_of_the_page_run():
    found = doctest.testfile(str(ROOT / "docs" / "parallelism.md"), module_relative=False)
    assert found.attempted > 10 and not found.failed
