"""Perplexity against the definition."""

import math

import numpy as np
import pytest
from flax import nnx

from bam_jax.config import Config, ModelConfig
from bam_jax.data.tokenizers import tokenizer
from bam_jax.evals import perplexity
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.plan import SampleRange, Trained
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

VOCAB = 11
STREAM = np.random.default_rng(0).integers(0, VOCAB, 200, np.int32)


def decoder(encoding):
    sizes = ModelConfig(layers=1, width=32, heads=2, hidden=32)
    config = Config(encoding=encoding, ssmax="on", context=24, model=sizes)
    return nnx.jit(lambda: transformer.build(config, vocab=VOCAB, rngs=nnx.Rngs(0)))()


def trained(decoder, context):
    return Trained(decoder, tokenizer("byte"), Config(context=context), lambda: STREAM, memory=2**20)


def direct(decoder, length, sequences):
    """-log softmax(logits)[target], in NumPy, of sequences that are a row each."""
    text = np.stack([STREAM[n * length : (n + 1) * length + 1] for n in sequences])
    logits = np.asarray(nnx.jit(lambda decoder, tokens: decoder(tokens)[0])(decoder, text[:, :-1]), np.float64)
    chosen = np.take_along_axis(logits, text[:, 1:, None], axis=2)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - chosen


@pytest.mark.parametrize("encoding", ["cable", "sinusoidal"])
def test_losses_are_those_of_each_sequence_alone(encoding):
    # Rows of 23 hold three sequences of 7 and two empty places; the second batch is not full.
    made = decoder(encoding)
    inputs, targets = (perplexity.sequences(STREAM, SampleRange(7, None, 1, 14), shift=shift) for shift in (0, 1))
    nll = perplexity.token_losses(made, inputs, targets, row=23, rows=3)
    assert nll.shape == (13, 7)
    np.testing.assert_allclose(nll, direct(made, 7, range(1, 14)), rtol=1e-4)


def test_value_is_exp_of_the_mean_and_windows_average_to_the_whole():
    made = decoder("nope")
    cells = [SampleRange(20, None, 0, 4), SampleRange(6, None, 0, 9)]
    found = dict(Perplexity.measure(trained(made, context=8), cells, STREAM))
    assert [cell.length for cell in found] == [6, 20]
    expected = direct(made, 20, range(4))
    value, windows = found[cells[0]]["value"], found[cells[0]]["windows"]
    assert value == pytest.approx(math.exp(expected.mean()), rel=1e-5)
    assert len(windows) == 3 and windows[2] == pytest.approx(expected[:, 16:].mean(), rel=1e-4)
    assert np.average(windows, weights=[8, 8, 4]) == pytest.approx(math.log(value), rel=1e-5)
    (window,) = found[cells[1]]["windows"]
    assert window == pytest.approx(math.log(found[cells[1]]["value"]), rel=1e-5)


def test_sequences_within_the_budget_and_the_text():
    assert perplexity.available(STREAM, 10, 55) == 5
    assert perplexity.available(STREAM, 10, 10**6) == 19
    assert perplexity.available(STREAM, 199, 55) == 1
    with pytest.raises(UserError, match="200 tokens, too few for a sequence of length 200"):
        perplexity.available(STREAM, 200, 55)


def test_a_length_beyond_a_learned_table_is_refused():
    with pytest.raises(UserError, match="learned position table"):
        made = trained(nnx.eval_shape(lambda: decoder("learned")), context=8)
        next(Perplexity.measure(made, [SampleRange(25, None, 0, 1)], STREAM))
