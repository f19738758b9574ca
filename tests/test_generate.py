"""Prompts read in pieces, and greedy writing, against passes over the whole text."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import generate, model
from bam_jax.config import Config, ModelConfig
from bam_jax.errors import UserError

VOCAB, T = 11, 13


def build(encoding, **options):
    sizes = ModelConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=16, scan=False, dtype="float32")
    config = Config(encoding=encoding, ssmax="on", encoding_options=options, context=16, model=sizes)
    made = model.build(config, vocab=VOCAB, rngs=nnx.Rngs(0))
    if encoding == "bam":
        made.layers.attention.encoding.shape[...] = jnp.array([[-1.0, 0, 0.5, 1], [0.3, -0.3, 1.5, 0]])
    return made


@pytest.fixture
def tokens(rng):
    return jnp.asarray(rng.integers(0, VOCAB, (2, T)), jnp.int32)


@pytest.mark.parametrize("encoding", ["bam", "cable"])
def test_a_prompt_in_pieces_is_the_prompt_at_once(encoding, tokens):
    made = build(encoding)
    whole = made(tokens)[0]
    logits, _ = generate.prefill(made, tokens, chunk=4, read=3)
    np.testing.assert_allclose(logits, whole[:, -3:], atol=1e-4)


def test_every_piece_gives_its_last_rows(tokens):
    made = build("bam")
    whole = made(tokens)[0]
    logits = [np.asarray(x) for x, _ in generate.pieces(made, tokens, chunk=5, read=5)]
    np.testing.assert_allclose(np.concatenate(logits, 1)[:, -T:], whole, atol=1e-4)


def test_greedy_takes_the_most_likely_token_again_and_again(tokens):
    made, steps = build("bam"), 4
    text = jnp.pad(tokens, ((0, 0), (0, steps)))  # what stands behind a row does not change it
    for n in range(T, T + steps):
        text = text.at[:, n].set(made(text)[0][:, n - 1].argmax(-1))
    written = generate.greedy(made, tokens, steps, chunk=3)
    np.testing.assert_array_equal(written, text[:, T:])


FULL = [pytest.param(name, marks=pytest.mark.full) for name in ("rope", "sinusoidal")]


@pytest.mark.parametrize("encoding", ["bam", "cable", *FULL])
def test_texts_of_different_lengths_are_written_on_as_if_alone(encoding, tokens):
    made, lengths = build(encoding), np.array([T, 4])
    together = generate.greedy(made, tokens, 5, lengths=lengths, chunk=3)
    for row, length in enumerate(lengths):
        alone = generate.greedy(made, tokens[row : row + 1, T - length :], 5, chunk=3)
        np.testing.assert_array_equal(together[row : row + 1], alone)
    logits, _ = generate.prefill(made, tokens, lengths=lengths, chunk=3)
    np.testing.assert_allclose(logits[1, -1], made(tokens[1:, -4:])[0][0, -1], atol=1e-4)


def test_a_table_must_hold_what_is_read_and_written(tokens):
    made = build("learned")
    assert generate.greedy(made, tokens, 4).shape == (2, 4)  # the last token written is not read: 16 positions
    with pytest.raises(UserError, match=r"17 tokens are more than the learned position table holds \(16\)"):
        generate.greedy(made, tokens, 5)
    with pytest.raises(UserError, match="26 tokens"):
        generate.prefill(made, jnp.tile(tokens, 2))


def test_a_read_longer_than_a_chunk_is_read_whole(tokens):
    made = build("bam")
    logits, _ = generate.prefill(made, tokens, chunk=4, read=T - 1)
    np.testing.assert_allclose(logits, made(tokens)[0][:, 1:], atol=1e-4)


@pytest.mark.parametrize("read", [-1, T + 1])
def test_there_are_as_many_rows_as_tokens(tokens, read):
    with pytest.raises(UserError, match=rf"read={read} must be from 0 to the {T} tokens"):
        generate.prefill(build("bam"), tokens, chunk=4, read=read)
    with pytest.raises(UserError, match="the 0 tokens of the text"):
        generate.greedy(build("bam"), tokens[:, :0], 1)
