"""Encodings: what they hold, what trains, which formula they make, and how a config names them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import biases, encodings
from bam_jax.encodings import ENCODINGS, Dims, Encoding, Frozen, learned, spec
from bam_jax.system.errors import UserError

DIMS = Dims(heads=4, width=8, context=16)


def build(name, **options):
    return spec(name, options).build(DIMS, nnx.Rngs(0))


def variables(module, kind):
    return {"/".join(path) for path, _ in nnx.to_flat_state(nnx.state(module, kind))}


SLOPES = [2**-2, 2**-4, 2**-6, 2**-8]


@pytest.mark.parametrize(
    ("options", "shape", "log_scale"),
    [
        ({}, 0, 0),  # the paper's
        ({"init": "alibi"}, 1, np.log(SLOPES)),
        ({"init": "linspace"}, [0, 1 / 3, 2 / 3, 1], 0),
        ({"init": "spread", "spread": 3.0}, [-3, -1, 1, 3], 0),
    ],
)
def test_inits_of_bam(options, shape, log_scale):
    made = build("bam", **options).bias()
    np.testing.assert_allclose(made.shape, np.broadcast_to(shape, 4), atol=1e-6)
    np.testing.assert_allclose(made.log_scale, np.broadcast_to(log_scale, 4), atol=1e-6)
    np.testing.assert_array_equal(made.loc, 0)


def test_sampled_init_of_bam_is_normal_and_differs_between_layers():
    dims = Dims(heads=4000, width=8, context=16)
    sample = lambda seed: spec("bam", {"init": "sampled"}).build(dims, nnx.Rngs(seed)).bias()
    a, b = sample(0), sample(1)
    assert abs(a.shape.mean()) < 0.06 and abs(a.shape.std() - 1) < 0.04
    assert (a.shape != b.shape).all()
    assert not a.log_scale.any()


def test_what_trains_is_chosen():
    for option, name in {"train_shape": "shape", "train_scale": "log_scale", "train_loc": "loc"}.items():
        made = build("bam", **dict.fromkeys(("train_shape", "train_scale", "train_loc"), False) | {option: True})
        assert variables(made, nnx.Param) == {name}
        assert variables(made, Frozen) == {"shape", "log_scale", "loc"} - {name}


CONVOLUTIONS = " ".join(f"convolutions/{name}" for name in ("w1", "b1", "w2", "b2"))
PARAMETERS = {
    **dict.fromkeys(("nope", "alibi", "nape", "sandwich", "sinusoidal", "learned"), ""),
    **dict.fromkeys(("rope", "p_rope", "rope_pi", "rope_ntk", "rope_yarn", "rope_llama3"), ""),
    "alibi_learned": "log_slope",
    "bam": "shape log_scale",
    "bam_contextual": "shape log_scale step_size/kernel step_size/bias",
    "gaussian": "log_width",
    "student_t": "log_width log_freedom",
    "additive_decay": "linear logarithmic root",
    "kerple_log": "log_r1 log_r2",
    "kerple_power": "log_r1 logit_r2",
    "fire": "w1 w2 b1 b2 c length_scale",
    "t5": "table",
    "t5_distance": "table",
    "cable": "step_size/kernel weight/kernel",
    "cable_nw": "step_size/kernel",
    "k_cable": "step_size/kernel weight/kernel",
    "fox": "gate/kernel gate/bias",
    "inkling": "weights/kernel profiles",
    "bam_mixture": "weights/kernel weights/bias profiles/shape profiles/log_scale profiles/loc",
    "dape_kerple": f"log_r1 log_r2 {CONVOLUTIONS}",
    "dape_cable": f"step_size/kernel weight/kernel {CONVOLUTIONS}",
    "cope": "vectors",
    "shaw": "vectors",
    "grape_a": "of_query/kernel of_key/kernel omega",
    "grape_ap": "positional/kernel",
    "path": "down/kernel up/kernel beta/kernel beta/bias taps",
    "xpos": "",
    "pope": "delta",
    "selective_rope": "down/kernel up/kernel gate/kernel gate/bias taps",
}


def test_every_encoding_is_listed_here():
    assert set(PARAMETERS) == set(ENCODINGS)
    public = {x for x in map(encodings.__dict__.get, encodings.__all__) if isinstance(x, type)}
    bases = {Encoding, encodings.RunningSum}
    assert set(ENCODINGS.values()) == {x for x in public if issubclass(x, Encoding)} - bases


@pytest.mark.parametrize("name", PARAMETERS)
def test_trained_parameters(name):
    made = build(name)
    assert variables(made, nnx.Param) == {*PARAMETERS[name].split()}
    assert variables(made, Frozen) == ({"loc"} if name == "bam" else set())
    assert isinstance(made.bias(), biases.Bias)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(made.bias()))


@pytest.mark.parametrize(
    ("options", "slopes"),
    [
        ({}, [1, 1 / 2, 0, 0]),
        ({"alibi_heads": 3, "slopes": "exponential"}, [1, 1 / 2, 1 / 4, 0]),
        ({"alibi_heads": 0}, [0] * 4),
    ],
)
def test_nape_has_alibi_in_some_heads_and_no_positions_in_the_others(options, slopes):
    made = build("nape", **options)
    np.testing.assert_allclose(made.bias().slope, slopes)
    keys = jnp.exp(biases.log_effective_keys(made.bias(), jnp.array([[4096]])))
    weights = np.exp(-np.outer(slopes, np.arange(4096)))
    np.testing.assert_allclose(keys[0, :, 0], weights.sum(1), rtol=1e-3)


def test_options_reach_the_bias():
    for name in ("alibi", "alibi_learned"):
        np.testing.assert_allclose(build(name).bias().slope, SLOPES, rtol=1e-6)
        np.testing.assert_allclose(build(name, factor=3.0).bias().slope, np.divide(SLOPES, 3), rtol=1e-6)
    made = build("additive_decay", linear=0.5, root=2.0)
    for parameter, value in (("linear", 0.5), ("logarithmic", 0.1), ("root", 2.0)):
        np.testing.assert_allclose(getattr(made.bias(), parameter), [value] * 4, rtol=1e-5)
    sandwich = build("sandwich", width=10, base=100.0).bias()
    np.testing.assert_allclose(sandwich.compression, [2, 4, 6, 8])
    assert (sandwich.width, sandwich.base, build("sandwich").bias().width) == (10, 100.0, 128)
    t5 = build("t5", buckets=8, max_distance=20).bias()
    assert (t5.table.shape, t5.starts) == ((4, 8), biases.t5_starts(8, 20))
    assert build("t5_distance").bias().table.shape == (4, DIMS.context + 1)
    assert build("t5_distance", clip=5).bias().table.shape == (4, 6)


def test_parameters_stay_in_their_ranges_wherever_training_moves_them():
    decay, log, power, fire = map(build, ("additive_decay", "kerple_log", "kerple_power", "fire"))
    decay.linear[...] = log.log_r1[...] = jnp.full(4, -30.0)
    assert (decay.bias().linear >= 0).all() and (log.bias().r1 > 0).all()
    log.log_r2[...], power.logit_r2[...] = jnp.full(4, 3.0), jnp.array([-9.0, 0, 1, 9])
    np.testing.assert_allclose(log.bias().r2, np.exp(3), rtol=1e-6)
    np.testing.assert_allclose(power.bias().r2, 2 / (1 + np.exp([9.0, 0, -1, -9])), rtol=1e-5)
    fire.c[...], fire.length_scale[...] = jnp.array(-0.5), jnp.array(-2.0)
    assert (fire.bias().c, fire.bias().length) == (0.5, 2 * DIMS.context)
    assert build("fire", hidden=3).bias().w2.shape == (4, 3)


@pytest.mark.parametrize(("name", "below"), [("dape_kerple", biases.KerpleLog), ("dape_cable", biases.CABLE)])
def test_dape_is_two_convolutions_over_another_bias(name, below):
    made = build(name, features=7, kernel=5)
    dape = made.rowwise()
    assert type(made.bias()) is below and type(dape) is biases.DAPE
    assert [x.shape for x in (dape.w1, dape.b1, dape.w2, dape.b2)] == [(7, 8, 5), (7,), (4, 7, 5), (4,)]
    for x, terms in ((dape.w1, 40), (dape.w2, 35)):
        assert 0.9 * terms**-0.5 < jnp.abs(x).max() <= terms**-0.5
    assert build(name).rowwise().w1.shape == (32, 8, 3)


def test_cope_starts_as_no_encoding():
    dims = dataclasses.replace(DIMS, width=20)
    made = spec("cope", {"positions": 9}).build(dims, nnx.Rngs(0))
    assert made.rowwise().embedding.shape == (9, 5) and not made.rowwise().embedding.any()
    assert not made.rowwise().symmetric
    assert spec("cope").build(dataclasses.replace(dims, causal=False), nnx.Rngs(0)).rowwise().symmetric
    assert build("bam").rowwise() is None


def test_encoders_have_biases_without_a_direction():
    encoder = dataclasses.replace(DIMS, causal=False)
    at = lambda name: spec(name).build(encoder, nnx.Rngs(0))
    assert at("fox").bias() == at("cable_nw").bias() == biases.Difference(symmetric=True)
    assert build("fox").bias() == build("cable_nw").bias() == biases.Difference(symmetric=False)
    t5 = at("t5").bias()
    assert t5.bidirectional and not build("t5").bias().bidirectional
    assert t5.table.shape == (4, 32) and len(t5.starts) == 16


def test_learned_trains_every_parameter_of_a_formula():
    @biases.bias
    class Mixture(biases.Bias):
        slope: jax.Array
        knots: jax.Array
        common: jax.Array = biases.shared()
        unit: float = biases.static(1.0)

        def __call__(self, i, j):
            return -self.slope * jnp.abs(i - j) / self.unit + self.knots[0] - self.knots[1] + self.common[2]

    encoding = learned(Mixture, slope=0.5, knots=[1.0, 2.0], common=[0.0, 0.0, 0.0])
    made = encoding(DIMS, rngs=nnx.Rngs(0))
    assert encoding.__name__ == "Mixture"
    assert variables(made, nnx.Param) == {"slope", "knots", "common"}
    assert made.bias().common.shape == (3,)
    np.testing.assert_array_equal(made.bias().slope, [0.5] * 4)
    np.testing.assert_array_equal(made.bias().knots, [[1, 2]] * 4)
    at = jnp.arange(3.0)[None, None]
    np.testing.assert_allclose(biases.table(made.bias(), at, at)[0, 1, 2], [-2, -1.5, -1])
    with pytest.raises(TypeError, match=r"learned\(Mixture\) .* each parameter, slope, knots, common: got slope, unit"):
        learned(Mixture, slope=0.5, unit=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bamm",), r"no encoding 'bamm': did you mean 'bam'\?.*package.module:Class"),
        (("bam", {"inits": "spread"}), r"'bam' has no option 'inits': did you mean 'init'\?"),
        (("nope", {"init": 1}), "'nope' has no option 'init': known: window"),
        (("bam", {}, "insid"), r"ssmax='insid' is no setting of Scalable Softmax: did you mean 'inside'\?"),
        (("no_such_module:Mine",), "'no_such_module:Mine' is code.*--allow=no_such_module.*PYTHONPATH"),
        (("bam_jax.encodings:Nothing",), "'bam_jax.encodings' has no Encoding class 'Nothing'"),
        (("bam_jax.biases:ALiBi",), r"'bam_jax.biases:ALiBi' names a Bias; name the .* learned\(ALiBi, ...\)"),
    ],
)
def test_mistakes_are_said_with_the_remedy(arguments, message):
    with pytest.raises(UserError, match=message):
        spec(*arguments)


def test_placement_under_ssmax():
    assert spec("bam").ssmax is None
    assert spec("bam", ssmax="on").ssmax == "inside"
    assert spec("alibi", ssmax="on").ssmax == spec("rope", ssmax="on").ssmax == "outside"
    assert spec("bam", ssmax="outside").ssmax == "outside"
    assert spec("alibi", ssmax="inside").ssmax == "inside"
