"""Attention under every transformation that users apply gives one device's output and gradients, on every backend.

The table of docs/attention.md is made of these cases: one that works is "yes", one that says why not "no".
"""

import functools
import itertools
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bam_jax import biases
from bam_jax.attention import BACKENDS, Mask, Scoring, Tiling, Tokens, Unsupported, attention
from bam_jax.models import per_device
from tests.attention.common import close, slopes, wave

B, T, H, K, D = 4, 8, 4, 2, 4
NARROW = ("pallas_tpu", "pallas_gpu")  # have no float64
PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
PRIORS = {
    "ggd": lambda draw: biases.GeneralisedGaussian(draw(H), draw(H), draw(H)),
    "cable": lambda draw: (draw(B, H, T), draw(B, H, T)),
}


def operands(prior):
    """q, k, v, the prior (or CABLE's sums and gates) and a temperature, all to be differentiated; float32 without x64."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
    q, k, v = draw(B, T, H, D), draw(B, T, K, D), draw(B, T, K, D)
    return q, k, v, PRIORS[prior](draw), jnp.exp(draw(B, H, T))


def attend(q, k, v, prior, temperature, **options):
    """Attention of rows that each hold two documents."""
    position = jnp.arange(q.shape[1])[None]
    segment = 1 + (position >= 3)
    bias, i, j = prior, None, None
    if not isinstance(prior, biases.Bias):
        total, gate = prior
        bias, j = biases.CABLE(), (total, jnp.zeros_like(total))
        i = (gate, j)
    tokens = Tokens(position, segment, i), Tokens(position, segment, j)
    return attention(q, k, v, Scoring(bias, *tokens, temperature, Mask()), **options)


@functools.cache
def one_device(prior, transform="jit"):
    with jax.enable_x64(True):
        return ALL[transform](functools.partial(attend, backend="reference"), prior)


def mesh_of(kind):
    return jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4], axis_types=(kind,) * 2)


def cuts(prior, rows="data", heads="model", text=None):
    """How the operands are cut; parameters of heads with the heads."""
    matrix, scalars = P(rows, text, heads), P(rows, heads, text)
    return matrix, matrix, matrix, P(heads) if prior == "ggd" else scalars, scalars


def tree_slopes(of, weights, *arguments):
    out, vjp = jax.vjp(of, *arguments)
    return out, *vjp(weights)


def row_by_row(of):
    """The function mapped over rows."""

    def mapped(q, k, v, prior, temperature):
        rows = jax.tree.map(lambda x: x[:, None], (q, k, v, temperature))
        own = None if isinstance(prior, biases.Bias) else 0
        prior = prior if own is None else jax.tree.map(lambda x: x[:, None], prior)
        return jax.vmap(of, (0, 0, 0, own, 0))(*rows[:3], prior, rows[3])[:, 0]

    return mapped


def plain(of, prior):
    return jax.jit(functools.partial(slopes, of))(*operands(prior))


def cut_by_hand(of, prior, *, check, kind=AxisType.Auto, jit=jax.jit):
    mesh, where = mesh_of(kind), cuts(prior)
    mapped = jax.shard_map(of, mesh=mesh, in_specs=where, out_specs=where[0], check_vma=check)
    return on_mesh(mapped, prior, mesh, where, jit)


def gradient_within(of, prior):
    """Gradients taken on each device; those of what all rows share are summed over devices by the check's rules."""
    mesh, where = mesh_of(AxisType.Auto), cuts(prior)
    here = lambda weights, *arguments: tree_slopes(of, weights, *arguments)
    mapped = jax.shard_map(here, mesh=mesh, in_specs=(where[0], *where), out_specs=(where[0], *where))
    return jax.jit(mapped)(wave(operands(prior)[0]), *operands(prior))


def on_mesh(of, prior, mesh, where, jit=jax.jit):
    put = lambda tree, spec: jax.device_put(tree, NamedSharding(mesh, spec))
    arguments = [put(x, spec) for x, spec in zip(operands(prior), where, strict=True)]
    weights = put(wave(arguments[0]), where[0])
    return jit(functools.partial(tree_slopes, of))(weights, *arguments)


def cut_by_compiler(of, prior, *, kind, **axes):
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        return on_mesh(of, prior, mesh, cuts(prior, **axes))


def exported(of, prior):
    """Exported with a symbolic batch, and called."""

    scope = jax.export.SymbolicScope()
    symbolic = lambda x, batch: jax.ShapeDtypeStruct(
        jax.export.symbolic_shape(f"b, {str(x.shape[1:])[1:-1]}", scope=scope) if batch else x.shape, x.dtype
    )
    q, k, v, parameters, temperature = operands(prior)
    rows = not isinstance(parameters, biases.Bias)
    shapes = [symbolic(x, True) for x in (q, q, k, v)]
    shapes += [jax.tree.map(lambda x: symbolic(x, rows), parameters), symbolic(temperature, True)]
    leaves, tree = jax.tree.flatten((wave(q), q, k, v, parameters, temperature))
    program = jax.export.export(jax.jit(lambda *x: jax.tree.leaves(tree_slopes(of, *jax.tree.unflatten(tree, x)))))
    return program(*jax.tree.leaves(shapes)).call(*leaves)


def forwards(of, prior):
    """Forward mode: each derivative along the direction that the gradient's weights are, by one basis vector of q."""
    arguments = operands(prior)
    direction = jax.tree.map(lambda x: jnp.sin(1 + jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), arguments)
    out, slope = jax.jvp(of, arguments, direction)
    found = out, *gradients = slopes(of, *arguments)
    pairs = zip(gradients, jax.tree.leaves(direction), strict=True)
    np.testing.assert_allclose((slope * wave(out)).sum(), sum((g * d).sum() for g, d in pairs), rtol=1e-4)
    return found


def hessian(of, prior):
    """A Hessian times a vector, forward over reverse and reverse over reverse, of both results."""
    arguments = operands(prior)
    direction = jax.tree.map(wave, arguments)
    loss = lambda *x: sum(jnp.sin(y).sum() for y in of(*x, return_lse=True))
    gradient = jax.grad(loss, range(5))
    along = lambda *x: sum(map(jnp.vdot, *map(jax.tree.leaves, (gradient(*x), direction))))
    forward = jax.jit(lambda *x: jax.jvp(gradient, x, direction)[1])
    return forward(*arguments), jax.jit(jax.grad(along, range(5)))(*arguments)


TEXT = {"heads": None, "text": "model"}
TRANSFORMS = {
    "jit": plain,
    "vmap": lambda of, prior: plain(row_by_row(of), prior),
    "remat": lambda of, prior: plain(jax.checkpoint(of), prior),
    "shard_map": functools.partial(cut_by_hand, check=True),
    "shard_map, unchecked": functools.partial(cut_by_hand, check=False),
    "shard_map outside of jit": functools.partial(cut_by_hand, check=True, jit=lambda of: of),
    "shard_map of explicit axes": functools.partial(cut_by_hand, check=True, kind=AxisType.Explicit),
    "vmap in shard_map": lambda of, prior: cut_by_hand(row_by_row(of), prior, check=True),
    "gradient in shard_map": gradient_within,
    "auto axes": functools.partial(cut_by_compiler, kind=AxisType.Auto),
    "explicit axes": functools.partial(cut_by_compiler, kind=AxisType.Explicit),
    "explicit axes along the text": functools.partial(cut_by_compiler, kind=AxisType.Explicit, **TEXT),
    "vmap and remat of explicit axes": lambda of, prior: cut_by_compiler(
        jax.checkpoint(row_by_row(of)), prior, kind=AxisType.Explicit
    ),
}


DERIVATIVES = {"jvp": forwards, "Hessian times a vector": hessian, "export of a symbolic batch": exported}
ALL = TRANSFORMS | DERIVATIVES

# The default run takes half of them on one backend, and of the others those that their loops and tables are in the way of;
# `full` takes all cases of `pallas_tpu` and a third of the others, `endurance` the rest.
OURS = [name for name in BACKENDS if name != "cudnn"]  # of which only the calls around it can be transformed here
CASES = [*((name, "ggd") for name in OURS), ("chunked", "cable")]
SHORT = {
    ("chunked", "ggd"): ["shard_map", "shard_map outside of jit", "auto axes", "vmap and remat of explicit axes"],
    ("chunked", "cable"): ["gradient in shard_map", "Hessian times a vector"],
    ("rows", "ggd"): ["shard_map", "explicit axes along the text"],
}

REFUSED = {
    **{(name, "jvp"): "forward-mode" for name in OURS if name != "reference"},
    ("pallas_gpu", "export of a symbolic batch"): "a symbolic batch",
}
"""The cases that do not work, and the words that say so."""

ON_A_CHIP = {
    **{("pallas_tpu", name): "compiled" for name in ALL if "shard_map" in name and "unchecked" not in name},
    **{("pallas_tpu", name): "no" for name in ALL if "axes" in name and "shard_map" not in name},
    **{("pallas_gpu", name): "-" for name in ALL if "axes" in name or "shard_map" in name or "remat" in name},
}
"""The cases of kernels that no interpreter says: it has no types of axes, and no compiler that cuts programs.

Those that are compiled, or cannot be, are tested in tests/attention/pallas/test_tpu.py. The interpreter of GPU kernels has one
device, and effects that `jax.checkpoint` does not take.
"""


def mapped(backend, prior, name):
    """The prior of a case. GPU kernels choose between strips and a formula of GGD, and the interpreter cannot map that choice."""
    return "cable" if (backend, name) == ("pallas_gpu", "vmap") else prior


def mark(backend, prior, name):
    if backend == "pallas_gpu":
        return pytest.mark.hopper
    if name in SHORT.get((backend, prior), ()):
        return ()
    third = (list(ALL).index(name) + CASES.index((backend, prior))) % 3 == 0
    return pytest.mark.full if backend == "pallas_tpu" or (third and backend != "reference") else pytest.mark.endurance


@pytest.mark.parametrize(
    ("backend", "prior", "transform"),
    [
        pytest.param(backend, mapped(backend, prior, name), name, marks=mark(backend, prior, name))
        for (backend, prior), name in itertools.product(CASES, ALL)
        if (backend, name) not in ON_A_CHIP
    ],
)
def test_every_transformation_keeps_output_and_gradients(backend, prior, transform, small_tiles):
    tiling = Tiling() if backend == "pallas_gpu" else Tiling(block_q=4, block_k=4)
    of = functools.partial(attend, backend=backend, tiling=tiling)
    with jax.enable_x64(backend not in NARROW):
        if (backend, transform) in REFUSED:
            with pytest.raises((TypeError, Unsupported), match=REFUSED[backend, transform]):
                ALL[transform](of, prior)
        else:
            expected = one_device(prior, transform if transform == "Hessian times a vector" else "jit")
            close(ALL[transform](of, prior), expected, 1e-9 if backend not in NARROW else 1e-4)


def test_the_page_has_the_table_of_these_cases():
    cell = lambda *case: "no" if case in REFUSED else ON_A_CHIP[case] if case in ON_A_CHIP else "yes"
    head = [f"| | {' | '.join(f'`{name}`' for name in OURS)} |", f"|---|{'---|' * len(OURS)}"]
    lines = [f"| {name} | {' | '.join(cell(backend, name) for backend in OURS)} |" for name in ALL]
    assert "\n".join([*head, *lines]) in PAGE.read_text(), "docs/attention.md lacks:\n" + "\n".join([*head, *lines])


@pytest.mark.full
def test_arrays_of_a_mesh_that_is_not_set(x64):
    """Types of explicit axes come with the arrays."""
    of = functools.partial(attend, backend="chunked", tiling=Tiling(block_q=4, block_k=4))
    close(on_mesh(of, "ggd", mesh_of(AxisType.Explicit), cuts("ggd")), one_device("ggd"), 1e-9)


@pytest.mark.parametrize("kind", [pytest.param(AxisType.Auto, marks=pytest.mark.full), AxisType.Explicit])
def test_what_is_cut_on_any_mesh_keeps_its_type(kind, x64):
    """`per_device.mesh_attention` cuts what it is given, and gives back what is cut like the queries."""
    mesh = jax.make_mesh((2, 1, 2, 2), ("data", "fsdp", "tensor", "context"), axis_types=(kind,) * 4)

    def of(q, k, v, prior, temperature):
        tokens = Tokens(jnp.arange(T)[None], 1 + (jnp.arange(T)[None] >= 3))
        tiling = Tiling(block_q=4, block_k=4)
        return per_device.mesh_attention(q, k, v, Scoring(prior, tokens, tokens, temperature, Mask()), tiling=tiling)

    with jax.set_mesh(mesh):
        made = on_mesh(of, "ggd", mesh, cuts("ggd", heads=None))
    close(made, one_device("ggd"), 1e-9)
    if kind is AxisType.Explicit:
        assert made[0].sharding.spec == P("data", None, None, None)
