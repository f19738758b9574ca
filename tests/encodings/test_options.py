"""The options of every encoding: any value makes an encoding, or ends in one line that names the option."""

import inspect
import itertools

import jax
import pytest
from flax import nnx

from bam_jax.attention import Tokens
from bam_jax.encodings import ENCODINGS, Dims, Encoding, spec
from bam_jax.system.errors import UserError

OPTIONS = [
    (name, option)
    for name, encoding in ENCODINGS.items()
    for option in inspect.signature(encoding.__init__).parameters
    if option not in ("self", "dims", "rngs")
]
VALUES = [
    *(None, True, "", "a", "1", "relu", "spread", [], [1], {}, {"a": 1}),
    *(0, 1, 2, 3, 4, 5, -1, -3, 7, 10**4, 10**12, -(10**12), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 2.5, -1.0, 5e-324, 1e-30, 1e18, 1e38, 1.7e308, -1e308, float("nan"), float("inf"), -float("inf")),
]


def make(name, options, causal):
    """All that a model makes of an encoding, without memory for its parameters."""
    dims = Dims(heads=2, width=16, context=16, causal=causal)
    choice = spec(name, options)

    def made():
        encoding, embedding = choice.build(dims, nnx.Rngs(0)), choice.build_embedding(dims, nnx.Rngs(0))
        x, position = jax.numpy.zeros((1, 4, 16)), jax.numpy.arange(4)[None]
        side = x.reshape(1, 4, 2, 8)
        turned = encoding.turn(side, side, x, Tokens(position), encoding.initial_state(1))
        return (encoding.bias(), encoding.rowwise(), turned), None if embedding is None else embedding(x, position)

    return jax.eval_shape(made)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_any_value_of_an_option_fits_or_is_one_line(name, option):
    for value in VALUES:
        try:
            make(name, {option: value}, causal=True)
        except UserError as error:
            assert str(error).isprintable() and f"encoding_options.{option}=" in str(error)
    with pytest.raises(UserError, match=f"encoding_options.{option}=.* must be of type"):
        spec(name, {option: [1]})  # options are annotated


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("bam", {"init": 5}, "encoding_options.init=5 must be of type str, not int"),
        ("t5", {"buckets": 1}, "encoding_options.buckets=1 must be between 2 and"),
        (
            "t5",
            {"max_distance": 16},
            "encoding_options.max_distance=16 must be above 16, for encoding_options.buckets=32",
        ),
        ("alibi", {"factor": 10**400}, "encoding_options.factor=inf must be finite"),
        ("cable", {"gate": True}, "must be of type str, not bool"),
        ("rope", {"window": "a"}, "must be of type int or None, not str"),
        ("learned", {"length": 10**12}, "encoding_options.length=1000000000000 must be between 1 and"),
        ("sinusoidal", {"base": -1}, "encoding_options.base=-1.0 must be above 0"),
        ("bam", {"init": "spred"}, "encoding_options.init='spred' is unknown; did you mean 'spread'?"),
        ("sandwich", {"width": 7}, "encoding_options.width=7 must be even"),
        ("dape_kerple", {"kernel": 4}, "encoding_options.kernel=4 must be odd"),
        ("rope_yarn", {"slow": 40}, "encoding_options.slow=40.0 must be below encoding_options.fast=32"),
    ],
)
def test_wrong_values_are_said_with_what_would_do(name, options, says):
    with pytest.raises(UserError) as error:
        make(name, options, causal=True)
    assert says in str(error.value)


def test_encoders_of_t5_have_two_sides_of_buckets():
    for buckets, distance in itertools.product((2, 3, 4, 5, 32), (1, 2, 8, 9, 128)):
        try:
            make("t5", {"buckets": buckets, "max_distance": distance}, causal=False)
        except UserError:
            assert buckets < 4 or distance <= buckets // 4


def test_classes_without_annotations_take_what_they_are_given(monkeypatch):
    class Plain(Encoding):
        def __init__(self, dims, *, needed, anything=1, listed: list[int] = (), rngs):
            self.options = nnx.static((needed, anything, listed))

    monkeypatch.setitem(ENCODINGS, "plain", Plain)
    options = {"needed": "x", "anything": None, "listed": [1]}
    assert spec("plain", options).options == options
    with pytest.raises(UserError, match="needs its option: give --config.encoding_options.needed=value"):
        spec("plain", {"anything": 2})
