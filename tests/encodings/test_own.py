"""Encodings of the user's own: their mistakes are one line that names the place."""

import dataclasses
import importlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax.attention import EMPTY
from bam_jax.encodings import Dims, Encoding, spec
from bam_jax.models import transformer
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError

OWN = """import jax
import jax.numpy as jnp
from flax import nnx
from bam_jax.biases import Bias, bias
from bam_jax.encodings import Encoding, learned

@bias
class Mine(Bias):
    width: jax.Array

    def __call__(self, i, j):
        return -jnp.abs(i - j) / self.width

Learned = learned(Mine, width=16.0)

class Written(Encoding):
    def __init__(self, dims, *, factor: float = 1.0, rngs):
        self.width = nnx.Param(factor * jnp.ones(dims.heads))

    def bias(self):
        return Mine(self.width[...])
"""
FORMULA, WIDTH, CLASS = "-jnp.abs(i - j) / self.width", "factor * jnp.ones(dims.heads)", "Written"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes the module's text a module, and gives its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text):
        name = f"own_{abs(hash(text))}"
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return make


def build(name):
    importlib.import_module(name.partition(":")[0])
    return nnx.eval_shape(lambda: spec(name).build(Dims(4, 32, 64), nnx.Rngs(0)))


def test_what_is_right_is_built_once_its_module_is_imported(module):
    name = module(OWN)
    with pytest.raises(UserError, match=f"--allow={name}"):
        spec(f"{name}:Written")
    assert all(isinstance(build(f"{name}:{each}"), Encoding) for each in ("Learned", "Written"))
    made = spec(f"{name}:Written", {"factor": 2.0}).build(Dims(4, 32, 64), nnx.Rngs(0))
    assert made.bias().width.tolist() == [2.0] * 4
    with pytest.raises(UserError, match="did you mean 'factor'"):
        spec(f"{name}:Written", {"facto": 1})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (FORMULA, "-self.widht", r"encoding file \S*\.py fails at line 12: AttributeError: .*'widht'; mend that file"),
        (FORMULA, "1.0 if i > j else 0.0", r"fails at line 12: ValueError: The truth value"),
        (FORMULA, "-self.width", r"fails: ValueError: the formula of Mine makes an array \[\], not a number for each"),
        (
            FORMULA,
            "jnp.where(i > j, 1, 0)",
            r"Mine at \S*\.py:11 must make a number .* and makes int32 \[4, 2, 3\]; mend",
        ),
        (WIDTH, "jnp.ones(3)", r"a number for each of 4 heads, .* and makes float32 \[3, 2, 3\]; mend"),
        (WIDTH, "jnp.arange(dims.heads)", "of floating-point parameters, and makes int32"),
        (WIDTH, "dims.head_count", r"fails at line 18: AttributeError: .*'head_count'"),
    ],
)
def test_a_mistake_is_said_with_its_place(module, old, new, message):
    assert OWN.count(old) == 1
    with pytest.raises(UserError, match=message):
        build(f"{module(OWN.replace(old, new))}:{CLASS}")


TURN = """from bam_jax.encodings import Encoding

class Turned(Encoding):
    def turn(self, q, k, x, tokens, before):
        return q, k, before
"""


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            "q, k",
            r"Turned.turn must return queries, keys and the state, and returns \('float32 \[1, 3, 4, 8\]', .*; mend",
        ),
        (
            "q, k, x",
            r"Turned.turn must return a state shaped like before, None, and returns float32 \[1, 3, 32\]; mend",
        ),
        (
            "q, k[..., 2:], before",
            r"queries and keys of one width of \[1, 3, 4, 8\], and makes .* and \[1, 3, 4, 6\]; mend",
        ),
        ("q, k, befor", r"fails at line 5: NameError: name 'befor' is not defined"),
    ],
)
def test_a_mistake_in_turn_is_said(module, returned, message):
    with pytest.raises(UserError, match=message):
        build(f"{module(TURN.replace('q, k, before', returned))}:Turned")
    build(f"{module(TURN)}:Turned")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OWN.replace("width=16.0", "widht=16.0"), r"module \S*\.py fails at line 14: TypeError: learned\(Mine\)"),
        ("import no_such_package\n", r"fails at line 1: ModuleNotFoundError: No module named 'no_such_package'; mend"),
        ("def f(:\n", r"module \S*\.py is not Python: invalid syntax"),
    ],
)
def test_a_module_that_fails_is_said_with_its_place(module, text, message):
    with pytest.raises(UserError, match=message):
        configs.override(configs.Config(), {"encoding": f"{module(text)}:Learned"})


@pytest.mark.parametrize("encoding", ["Decay", "Phases", "selective_rope"])
def test_the_pages_encodings_train_decode_and_run_on_a_ring(encoding, module):
    """Those of the page, and one of the package whose queries and keys depend on the text before."""
    page = (Path(__file__).parents[2] / "docs" / "encodings.md").read_text()
    blocks = dict(re.findall(r"```python\n(.*?class (\w+)\(.*?)```", page, re.DOTALL)[n][::-1] for n in range(2))
    assert [*blocks] == ["Decay", "Phases"]
    name = f"{module(blocks[encoding])}:{encoding}" if encoding in blocks else encoding
    sizes = configs.ModelConfig(layers=2, width=16, heads=4, hidden=16, dtype="float32")
    config = configs.override(configs.Config(context=16, model=sizes), {"encoding": name})
    model = transformer.build(config, vocab=24, rngs=nnx.Rngs(0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 24, (2, 16)), jnp.int32)
    graph, state = nnx.split(model)

    def score(state):
        return (nnx.merge(graph, state)(tokens)[0] * jnp.cos(jnp.arange(24))).sum()

    value, gradient = jax.jit(jax.value_and_grad(score))(state)
    assert all(x.any() for x in jax.tree.leaves(gradient["layers"]["attention"].get("encoding", {})))
    padded = jnp.pad(tokens, ((0, 0), (2, 0)))  # the cache begins with two empty slots
    position, caches, pieces = jnp.pad(jnp.arange(16), (2, 0), constant_values=EMPTY)[None], model.caches(2, 18), []
    for piece in (slice(0, 9), slice(9, 17), slice(17, 18)):
        logits, caches = model(padded[:, piece], position=position[:, piece], caches=caches)
        pieces.append(logits)
    np.testing.assert_allclose(jnp.concatenate(pieces, 1)[:, 2:], model(tokens)[0], atol=1e-4)
    mesh = sharding.make_mesh(dataclasses.replace(config.mesh, context=4))
    with jax.set_mesh(mesh):
        cut = jax.jit(jax.value_and_grad(score))(state)
    np.testing.assert_allclose(cut[0], value, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), cut[1], gradient)
