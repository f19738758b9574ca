"""Models that are read, written with and evaluated on eight devices, against one."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax import evaluate, load
from bam_jax.analysis import language_model
from bam_jax.attention import Cache
from bam_jax.config import Config, MeshConfig, ModelConfig
from bam_jax.models import generate, transformer
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError
from tests.marks import longest

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, hidden=32, dtype="float32", sinks=True)
LENGTH = 42


def build(encoding):
    config = configs.override(Config(context=32, model=SIZES), {"encoding": encoding, "ssmax": "on"})
    model = transformer.build(config, vocab=40, rngs=nnx.Rngs(0))
    graph, state = nnx.split(model)
    draw = np.random.default_rng(1).normal
    return nnx.merge(graph, jax.tree.map(lambda x: x + jnp.asarray(draw(0, 0.1, x.shape), x.dtype), state))


def read(model, tokens):
    """Logits of whole rows, of chunks through the cache, of texts that share a beginning, and what is written on."""
    text = np.asarray(tokens[0])
    reader = generate.TextReader(model, LENGTH, chunk=8, read=3)
    other = text.copy()
    other[20] = (other[20] + 1) % 40
    rows = np.asarray(tokens[:, :30]), np.asarray(tokens[:, :32])
    whole = [
        jax.jit(lambda rows: model(rows)[0])(each) for each in rows
    ]  # of 30 tokens, which four parts do not divide
    chunks = generate.prefill(model, tokens, chunk=9, read=3, lengths=jnp.asarray([LENGTH, LENGTH - 5]))[0]
    return (
        *whole,
        chunks,
        *(reader(each) for each in (text, other, text[:31])),
        generate.greedy(model, tokens[:, :9], 6),
    )


@pytest.mark.parametrize(
    ("encoding", "mesh"),
    [
        ("bam", (1, 1, 2, 4)),
        longest("bam", (2, 1, 1, 3)),
        longest("pope", (3, 1, 2, 1)),
        longest("path", (1, 1, 2, 1)),
        longest("grape_a", (1, 1, 2, 4)),
        longest("bam", (1, 2, 2, 2)),
        longest("cable", (1, 1, 2, 4)),
        longest("selective_rope", (1, 1, 1, 8)),
        longest("inkling:window=9/rope", (1, 1, 2, 4)),
    ],
)
def test_a_mesh_reads_and_writes_what_one_device_does(encoding, mesh, rng):
    model, mesh = build(encoding), sharding.make_mesh(MeshConfig(*mesh))
    tokens = jnp.asarray(rng.integers(0, 40, (2, LENGTH)), jnp.int32)
    expected = read(model, tokens)
    with sharding.active(mesh):
        found = read(transformer.placed(model, mesh), tokens)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def pruned(encoding, sharp=1.0, alibi_heads=4):
    """A model whose heads keep what their prior reaches, of one layer with four key heads."""
    all_options = {"nape": {"alibi_heads": alibi_heads, "slopes": "exponential"}, "rope": {"window": 100}}
    options = all_options.get(encoding, {})
    sizes = dataclasses.replace(SIZES, layers=1, kv_heads=4)
    config = Config(encoding=encoding, encoding_options=options, ssmax="on", context=32, model=sizes)
    model = transformer.build(config, vocab=40, rngs=nnx.Rngs(0))
    model.layers.attention.query.kernel[...] *= sharp
    model.prune_cache = "exact"
    return model


@pytest.mark.parametrize(
    ("encoding", "sharp", "mesh"),
    [
        longest("alibi", 1.0, (2, 2, 2, 1)),  # two near and two far heads
        longest("nape", 30.0, (2, 1, 2, 2)),  # queries for which buffers must grow, in one of two rows
        longest("nape", 30.0, (1, 2, 2, 2)),
        longest("rope", 1.0, (1, 1, 2, 4)),
    ],
)
def test_a_pruned_cache_on_a_mesh_is_that_of_one_device(encoding, sharp, mesh, rng):
    model, mesh = pruned(encoding, sharp), sharding.make_mesh(MeshConfig(*mesh))
    tokens = jnp.asarray(rng.integers(0, 40, (2, 1400)), jnp.int32)
    other = np.asarray(tokens[0]).copy()
    other[700] = (other[700] + 1) % 40

    def read(model):
        kept = generate.Kept(model, 1536)
        first = kept.share()
        logits, _ = generate.prefill(
            model, tokens, chunk=256, read=3, lengths=jnp.asarray([100, 1400]), kept=kept, slots=1536
        )
        reader = generate.TextReader(model, 1400, chunk=256, read=3)
        assert first < 1 and (kept.share() > first) == (sharp > 1)
        return logits, reader(tokens[0]), reader(other), generate.greedy(model, tokens, 3, chunk=256)

    expected = read(model)
    with sharding.active(mesh):
        found = read(transformer.placed(model, mesh))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_rolling_buffers_are_cut_by_rows_and_heads_and_go_back(rng):
    """One program reads all chunks: those of a buffer that went back lie where it did."""
    mesh = sharding.make_mesh(MeshConfig(2, 1, 2, 2))
    tokens = jnp.asarray(rng.integers(0, 40, (2, 600)), jnp.int32)
    early = np.asarray(tokens[0]).copy()
    early[200] = (early[200] + 1) % 40

    def read(model):
        logits, caches = generate.prefill(model, tokens, chunk=64, read=2)
        before = generate._read._cache_size()
        reader = generate.TextReader(model, 600, chunk=64, read=2)
        found = logits, reader(tokens[0]), reader(early)
        assert generate._read._cache_size() == before + 1
        return found, caches[0].parts

    expected, _ = read(pruned("rope"))
    with sharding.active(mesh):
        found, (buffer,) = read(transformer.placed(pruned("rope"), mesh))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    part = lambda x: math.prod(x.sharding.shard_shape(x.shape)) / x.size
    assert {part(x) for x in (buffer.k, buffer.v, buffer.dropped.norm)} == {1 / 4} and buffer.k.shape[1] == 128


@pytest.mark.full
def test_a_text_that_is_read_again_on_a_mesh_has_room_for_what_is_written(rng, monkeypatch):
    """There a token takes a slot on every device."""
    model, mesh = pruned("nape", sharp=3.0, alibi_heads=2), sharding.make_mesh(MeshConfig(1, 1, 1, 8))
    model.layers.attention.value.kernel[...] *= 10  # what attention finds decides what is written
    tokens, steps, chunk = jnp.asarray(rng.integers(0, 40, (1, 800)), jnp.int32), 40, 128
    grow, asked = generate.Kept.grow, []

    def once(kept, caches):  # after the first token that is written
        asked.append(caches)
        again = len(asked) == -(-tokens.shape[1] // chunk) + 1
        return grow(
            kept, [dataclasses.replace(caches[0], missed=jnp.array([True, False, False, False]))] if again else caches
        )

    monkeypatch.setattr(generate.Kept, "grow", once)
    with sharding.active(mesh):
        found = generate.greedy(transformer.placed(model, mesh), tokens, steps, chunk=chunk)
    whole = [part for part in getattr(asked[-1][0], "parts", asked[-1]) if isinstance(part, Cache)]
    assert whole and all(part.length <= part.k.shape[1] / 8 for part in whole)
    model.prune_cache = "off"
    np.testing.assert_array_equal(found, generate.greedy(model, tokens, steps, chunk=chunk))


def test_no_buffer_is_longer_than_a_devices_part_of_a_whole_cache():
    """Of 512 tokens four devices have 128 each, and two heads reach further."""
    with sharding.active(sharding.make_mesh(MeshConfig(1, 1, 1, 4))):
        shares = [generate.Kept(pruned("nape"), slots).share() for slots in (512, 1024, 8192)]
    assert 1 >= shares[0] >= shares[1] > shares[2]


def test_each_device_has_its_part_of_model_and_cache():
    mesh = sharding.make_mesh(MeshConfig(1, 1, 2, 4))
    with sharding.active(mesh):
        model = transformer.placed(build("cable"), mesh)
        _, caches = generate.prefill(model, jnp.zeros((1, 1024), jnp.int32), chunk=256)
    part = lambda x: math.prod(x.sharding.shard_shape(x.shape)) / x.size
    for cache in caches:
        assert {part(x) for x in (cache.k, cache.v, *cache.tokens.coordinate, cache.tokens.summary.norm)} == {1 / 8}
        assert part(cache.tokens.position) == 1 / 4 and cache.length == 256
    assert part(model.layers.mlp.up.kernel[...]) == 1 / 2


@pytest.fixture(scope="module")
def run(tmp_path_factory, write_initial):
    folder = tmp_path_factory.mktemp("mesh")
    (folder / "text.txt").write_text("a tale of some length, told again and again. " * 200)
    data = {"source": str(folder / "text.txt"), "tokenizer": "char"}
    return write_initial(folder / "run", encoding="bam", model={"heads": 4}, data=data)


@pytest.mark.full
def test_an_evaluation_on_a_mesh_has_the_records_of_one_device(run, command, monkeypatch):
    of_meshes = []
    for more in ((), ("--config.mesh.tensor=2", "--config.mesh.context=4")):
        asked = "--eval=passkey,perplexity", "--lengths=16,64", "--depths=2", "--tokens=256", *more
        assert command(evaluate.main, f"--run={run}", *asked)[0] == 0
        of_meshes.append([json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()])
        (run / "results.jsonl").unlink()
    assert len(of_meshes[0]) == len(of_meshes[1]) == 6
    for one, many in zip(*of_meshes, strict=True):
        np.testing.assert_allclose(many["value"], one["value"], rtol=1e-5)
        assert many["overrides"] == {} and one.keys() == many.keys()
    monkeypatch.setattr(language_model, "CHUNK", 8)
    one, text = load(run), "a tale of some length"
    for mesh in ({"mesh.tensor": 4}, {"mesh.context": 3}):  # of which 3 does not divide a chunk
        many = load(run, overrides=mesh)
        assert many.generate(text, 9, temperature=0) == one.generate(text, 9, temperature=0)
        np.testing.assert_allclose(many.logits(text), one.logits(text), atol=1e-5)
    whole, cut = (x.attention(text)[0].joint for x in (one, many))
    np.testing.assert_allclose(cut, whole, atol=1e-5)


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        ({"mesh.tensor": 3}, "config.model.heads=4 must be a multiple of the mesh's tensor=3"),
        (
            {"mesh.tensor": 2, "mesh.context": 16},
            "config.mesh with .*tensor=2, context=16 needs 32 devices, and this CPU is 8",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_one_line(run, mesh, says):
    with pytest.raises(UserError, match=says):
        load(run, overrides=mesh)
