import dataclasses
import doctest
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax.attention import BACKENDS
from bam_jax.config import Config, ModelConfig
from bam_jax.models import transformer as models
from bam_jax.system.errors import UserError
from tests.marks import full, longest

VOCAB, T = 24, 12
TINY = ModelConfig(layers=6, width=16, heads=4, kv_heads=2, hidden=16, dtype="float32")
ALL = {"qk_norm": True, "gate": True, "sinks": True}
SEGMENT = np.array([[1] * 7 + [2] * 5, [1] * 4 + [2] * 6 + [0] * 2])

# Places that differ in numbers alone, and places with formulas and parameters of their own, in two runs.
TURNING = "rope:window=3/p_rope:share=0.5,base=100/nope:log_temperature=0.5,log_temperature_start=3"
FORMULAS = "rope:window=4,ssmax=on/bam:init=spread,window=5/bam:init=spread,window=5"


def build(encoding, move=True, **changes):
    sizes = {name: changes.pop(name) for name in list(changes) if name in configs.sections.kinds(ModelConfig)}
    config = Config(encoding=encoding, context=T, model=dataclasses.replace(TINY, **sizes), **changes)
    graph, state = nnx.split(models.build(config, vocab=VOCAB, rngs=nnx.Rngs(0)))
    # Every parameter away from its initial value, so that nothing hides behind a zero.
    noise = np.random.default_rng(1)
    shifted = lambda x: x + 0.3 * noise.normal(size=x.shape).astype(x.dtype) if x.dtype == jnp.float32 else x
    return nnx.merge(graph, jax.tree.map(shifted, state) if move else state)


def close(made, expected, tolerance=2e-4):
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=tolerance * largest), made, expected)


def turned(x, rates):
    """Pairs of complex numbers times exp(i t rate)."""
    half = x.shape[-1] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.arange(len(x))[:, None, None] * rates)
    return np.concatenate([z.real, z.imag], -1)


def rms(x, scale, epsilon):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def by_formula(model, row):
    """The logits of a text in NumPy, token by token, of a model of `TURNING` with norms, gates, sinks and a cap."""
    _, state = nnx.split(model)
    tree = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(state))
    half = np.arange(2) / 2
    rates = [10_000.0**-half, np.array([1.0, 0.0]), np.zeros(2)]
    x = tree["embed"]["embedding"][np.asarray(row)]
    for n in range(TINY.layers):
        p = jax.tree.map(lambda y, n=n: y[n], tree["layers"])
        a, place = p["attention"], n % 3
        y = rms(x, p["attention_norm"]["scale"], 1e-5)
        q, k, v = ((y @ a[name]["kernel"]).reshape(T, -1, 4) for name in ("query", "key", "value"))
        q, k = rms(q, a["query_norm"]["scale"], 1e-6), rms(k, a["key_norm"]["scale"], 1e-6)
        q, k = turned(q, rates[place]), turned(k, rates[place])
        out = np.zeros((T, 4, 4))
        for t, h in np.ndindex(T, 4):
            seen = range(max(0, t - 2) if place == 0 else 0, t + 1)
            factor = 1 + 0.5 * math.log(max(len(seen) / 3, 1)) if place == 2 else 1
            scores = np.array([2 * np.tanh(factor * q[t, h] @ k[j, h // 2] / 2 / 2) for j in seen])
            shares = np.exp(scores) / (np.exp(scores).sum() + np.exp(a["sink_logits"][h]))
            out[t, h] = sum(share * v[j, h // 2] for share, j in zip(shares, seen, strict=True))
        gate = 1 / (1 + np.exp(-(y @ a["gate"]["kernel"])))
        x = x + (out.reshape(T, 16) * gate) @ a["out"]["kernel"]
        y, m = rms(x, p["mlp_norm"]["scale"], 1e-5), p["mlp"]
        gated = y @ m["gate"]["kernel"]
        x = x + (gated / (1 + np.exp(-gated)) * (y @ m["up"]["kernel"])) @ m["down"]["kernel"]
    return rms(x, tree["norm"]["scale"], 1e-5) @ tree["head"]["kernel"]


@pytest.mark.parametrize("scan", [True, full(False)])
def test_a_pattern_is_its_formula(scan, tokens):
    model = build(TURNING, scan=scan, soft_cap=2.0, **ALL)
    expected = np.stack([by_formula(model, row) for row in tokens])
    np.testing.assert_allclose(model(tokens)[0], expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.full
@pytest.mark.parametrize("pattern", [TURNING, FORMULAS])
@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"reference", "pallas_gpu"}))
def test_every_backend_has_the_references_gradients(backend, pattern, tokens, slopes):
    """GPU kernels, of two-byte types alone, have their cases in tests/attention/pallas."""

    def run(name):
        model = build(pattern, **ALL)
        for stack in model.stacks():
            stack.attention.backend = name
        return slopes(model, tokens, SEGMENT)

    close(run(backend), run("reference"))


@pytest.mark.parametrize(
    ("pattern", "changes"),
    [
        longest(TURNING, {"layers": 3}),
        ("nope:window=3/nope", {"layers": 2}),
        full(FORMULAS, {}),
        longest(TURNING, {"causal": False}),
        longest(TURNING, {"remat": True}),
        full(FORMULAS, {"remat": True, "family": "bert", "causal": False, "ssmax": "off"}),
        longest(FORMULAS, {"shared_encoding": True}),
        longest("cable/nope:ssmax=on", {"ssmax": "off"}),
        longest("cope/alibi", {"family": "gpt2"}),
        full("rope/rope_ntk:factor=4/nope", {"ssmax": "on"}),
        longest("bam", {"layers": 2, "ssmax": "on", "remat": True}),
    ],
)
def test_scanned_layers_are_layers_one_by_one(pattern, changes, tokens, slopes):
    """One layer that reads a table, or runs within periods, is each layer by itself; gradients too."""
    scanned, each = (build(pattern, scan=scan, **ALL | changes) for scan in (True, False))
    close(slopes(scanned, tokens, SEGMENT), slopes(each, tokens, SEGMENT))


@pytest.mark.parametrize(("pattern", "single"), [(TURNING, "nope"), (FORMULAS, "bam")])
def test_layers_of_a_pattern_start_as_those_of_a_single_encoding(pattern, single):
    """Parameters that both have are drawn alike, layer by layer."""
    pattern_, single_ = (build(name, move=False) for name in (pattern, single))
    for layer, other in zip(pattern_.blocks(), single_.blocks(), strict=True):
        common = lambda block: nnx.to_pure_dict(nnx.state(block, lambda path, _: not {"encoding", "ssmax"} & {*path}))
        jax.tree.map(np.testing.assert_array_equal, common(layer), common(other))


def test_places_that_differ_in_numbers_have_the_tree_of_one_encoding():
    paths = lambda encoding: nnx.to_flat_state(nnx.state(build(encoding), nnx.Variable)).paths
    assert paths(TURNING) == paths("rope")
    runs = {"/".join(map(str, path[:3])) for path in paths(FORMULAS)}
    assert {"layers/0/attention", "layers/1/mlp"} < runs
    stacks = build(FORMULAS).stacks()
    assert [stack.attention.query.kernel.shape[0] for stack in stacks] == [2, 4]
    assert [stack.attention.ssmax is None for stack in stacks] == [False, True]
    assert nnx.split(build("bam"))[0] == nnx.split(build("bam/bam/bam"))[0]


@pytest.mark.parametrize(
    "pattern",
    [full(FORMULAS), full("cable/rope:window=3"), *map(longest, (TURNING, "nope/rope:window=3", "nope/fox/alibi"))],
)
def test_the_cache_continues_where_the_row_stopped(pattern, tokens, by_pieces):
    """A first piece with empty slots in front, a second piece, then one token at a time: the logits of one pass."""
    model = build(pattern, layers=2 if pattern.count("/") == 1 else 6, **ALL)
    whole = model(tokens)[0]
    np.testing.assert_allclose(by_pieces(model, tokens), whole, atol=2e-4 * np.abs(whole).max())
    np.testing.assert_allclose(model(tokens, read=3)[0], whole[:, -3:], atol=2e-4 * np.abs(whole).max())


@pytest.mark.full
def test_windows_are_those_of_their_layers(tokens):
    """Layers with windows of 2 and 3 hand a token on by 1 and 2; the layers in between see all."""
    other = tokens.at[:, 4].set((tokens[:, 4] + 1) % VOCAB)
    for pattern, last in (
        ("rope:window=2/nope:window=3", 7),
        ("bam:window=2/rope:window=3", 7),
        ("rope:window=2/nope", T),
    ):
        model = build(pattern, layers=2)
        moved = np.abs(model(other)[0] - model(tokens)[0]).sum((0, 2)) > 0
        np.testing.assert_array_equal(moved, (np.arange(T) >= 4) & (np.arange(T) <= last))


def test_a_pattern_is_compiled_once_for_any_depth():
    """Equations of a gradient: layers that differ in numbers are one program, others one for each run of equal places."""

    def count(pattern, layers):
        config = Config(encoding=pattern, context=512, model=dataclasses.replace(TINY, layers=layers, kv_heads=0))
        graph, state = nnx.split(nnx.eval_shape(lambda: models.build(config, vocab=VOCAB, rngs=nnx.Rngs(0))))
        loss = lambda state, tokens: nnx.merge(graph, state)(tokens)[0].sum()
        tokens = jax.ShapeDtypeStruct((1, 512), jnp.int32)
        return str(jax.make_jaxpr(jax.grad(loss))(state, tokens)).count(" = ")

    local = "rope:window=128/rope:window=128/rope:window=128/nope"
    assert count(local, 8) == count(local, 48) < 1.6 * count("rope", 48)
    several = "bam/bam/bam/rope"
    assert count(several, 8) == count(several, 48) < 2 * count("bam", 48)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"encoding": "rope:window=4/nope"}, "has 2 places, which must divide config.model.layers=3; give a multiple"),
        ({"encoding": "rope:window"}, "cannot import the encoding 'rope:window': No module named 'rope'"),
        ({"encoding": "rope:window=/nope/nope"}, "'window=' is not of the form name=value; write for example"),
        ({"encoding": "rope:window=4,window=5"}, "rope has window twice; leave one of them out"),
        ({"encoding": "rope/nope:window=0/nope"}, "place 2 of config.encoding: .*window=0 must be between 1"),
        ({"encoding": "rope/nope/nope", "encoding_options": {"base": 5e5}}, "place 2 of .*'nope' has no option 'base'"),
        ({"encoding": "rope//nope"}, "slashes stand between the places of a pattern"),
        ({"encoding": "nope:window=0"}, "encoding_options.window=0 must be between 1"),
        ({"encoding": "nope:ssmax=3"}, "config.encoding: ssmax=3 must be of type str, not int"),
        ({"encoding": "nope:log_temperature=-1"}, "log_temperature=-1.0 must be 0 or more"),
        ({"encoding": "nope/sinusoidal/nope"}, "they stand alone, not in a pattern with others"),
        ({"encoding": "p_rope:share=1.5"}, "share=1.5 must be between 0.0 and 1.0"),
        ({"log_temperature": -0.1}, "config.log_temperature=-0.1 must be 0 or more"),
        ({"model.soft_cap": -1.0}, "config.model.soft_cap=-1.0 must be 0 or more"),
    ],
)
def test_mistakes_are_one_line(changes, says):
    small = {"model.layers": 3, "model.width": 16, "model.hidden": 16}
    with pytest.raises(UserError, match=says) as error:
        made = configs.override(Config(), small | changes)
        models.build(made, vocab=VOCAB, rngs=nnx.Rngs(0))
    assert "\n" not in str(error.value)


def test_options_of_a_config_are_those_of_every_place_that_states_none():
    made = Config(encoding="rope:window=4/rope", encoding_options={"base": 100, "window": 8}, ssmax="on")
    found = [(place["options"], place["ssmax"]) for place in made.layer_pattern()]
    assert found == [({"base": 100, "window": 4}, "on"), ({"base": 100, "window": 8}, "on")]


def test_the_examples_of_the_page_run_and_its_patterns_are_built():
    page = Path(__file__).parents[2] / "docs" / "layers.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted > 10 and not found.failed
    cells = re.findall(r"^\| [^|]+ \| `([a-z][^` ]*:[^` ]*/[^` ]*)", page.read_text(), re.MULTILINE)
    assert cells
    for pattern in cells:
        made = nnx.eval_shape(lambda pattern=pattern: build(pattern, layers=12, move=False))
        assert len(made.stacks()) == 1 and len(made.stack_of) in (2, 4)
