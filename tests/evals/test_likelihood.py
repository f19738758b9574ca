"""Likelihoods of continuations, against the model called directly: unpadded, one by one."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from bam_jax import config as configs
from bam_jax.evals import likelihood
from bam_jax.evals.likelihood import Request, score
from bam_jax.models import transformer
from bam_jax.retrieval.embedding import padded_length
from bam_jax.system.errors import UserError

VOCAB, BUDGET = 11, 48


@pytest.fixture(scope="module")
def decoder():
    """A model whose every next token depends on all before it, with a clear favourite."""
    sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "scan": True}
    config = configs.from_dict({"encoding": "alibi", "context": 24, "model": sizes})
    made = transformer.build(config, vocab=VOCAB, rngs=nnx.Rngs(0))
    made.head.kernel[...] *= 20
    return made


def slowly(decoder, context, continuation):
    """The sum of the log-softmax of each token, each after a text of its own, and whether each is the greatest."""
    found, greedy = 0.0, True
    for n, token in enumerate(continuation):
        row = logits(decoder, np.append(context, continuation[:n]))
        found += float(row[token] - np.log(np.sum(np.exp(row))))
        greedy &= bool(token == np.argmax(row))
    return found, greedy


def logits(decoder, text):
    """Of the token after a text; in one shape, as what stands behind is not seen."""
    padded = np.pad(text, (0, BUDGET - len(text)))[None]
    return np.asarray(DIRECT(decoder, jnp.asarray(padded, jnp.int32)), np.float64)[0, len(text) - 1]


DIRECT = nnx.jit(lambda decoder, text: decoder(text)[0])


def drawn(rng, contexts, continuations):
    ids = lambda n: rng.integers(0, VOCAB, n)
    return [Request(ids(n), ids(m)) for n, m in zip(contexts, continuations, strict=True)]


def agree(found, expected):
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    np.testing.assert_allclose([nats for nats, _ in found], [nats for nats, _ in expected], atol=2e-4, rtol=2e-5)


def test_it_is_the_sum_of_log_softmax(decoder, rng):
    """Continuations longer than their contexts, contexts of a token, the same context with several answers, greedy ones."""
    requests = drawn(rng, [1, 1, 35, 37, 3, 40], [1, 40, 7, 2, 38, 1])
    requests += [Request(requests[3].context, np.array([token, 2])) for token in (0, 0, 4)]
    requests += [Request(requests[5].context, np.array([token])) for token in range(VOCAB)]
    prompt, written = requests[2].context, []
    for _ in range(6):
        written.append(int(np.argmax(logits(decoder, np.append(prompt, written)))))
    other = np.append(written[:-1], (written[-1] + 1) % VOCAB)
    requests += [Request(prompt, np.array(written)), Request(prompt, other)]
    found = score(decoder, requests, budget=BUDGET, memory=2.0**30)
    agree(found, [slowly(decoder, each.context, each.continuation) for each in requests])
    assert [greedy for _, greedy in found[-2:]] == [True, False]
    assert sum(np.exp(nats) for nats, _ in found[-2 - VOCAB : -2]) == pytest.approx(1, abs=1e-4)


def test_order_and_batches_do_not_matter(decoder, rng):
    requests = drawn(rng, rng.integers(33, 41, 8), rng.integers(1, 9, 8))
    together = score(decoder, requests, budget=BUDGET, memory=2.0**30)
    order = rng.permutation(len(requests))
    row = 4 * BUDGET * (8 * 16 + 3 * 16)
    shuffled = score(decoder, [requests[n] for n in order], budget=BUDGET, memory=2 * row)
    agree(shuffled, [together[n] for n in order])


def test_answers_to_one_question_are_read_once(decoder, rng, monkeypatch):
    shapes = []
    inner = likelihood._logprobs
    monkeypatch.setattr(likelihood, "_logprobs", lambda *a: shapes.append((a[2].shape, a[3].shape)) or inner(*a))
    context = rng.integers(0, VOCAB, 40)
    score(decoder, [Request(context, np.array([token])) for token in range(4)], budget=BUDGET, memory=2.0**30)
    assert shapes == [((1, BUDGET), (1, 4))]


def test_a_long_context_is_cut_in_the_middle(decoder, rng):
    (long, short) = drawn(rng, [90, 34], [4, 4])
    found = score(decoder, [long, short], budget=BUDGET, memory=2.0**30)
    room = BUDGET - 3  # the last of the four tokens is not read
    cut = np.concatenate([long.context[: room // 2], long.context[-(room - room // 2) :]])
    assert len(cut) == room
    agree(found, [slowly(decoder, cut, long.continuation), slowly(decoder, short.context, short.continuation)])


def test_a_continuation_must_fit_with_a_token_before_it(decoder, rng):
    (fits, too_long) = drawn(rng, [9, 9], [BUDGET, BUDGET + 1])
    ((nats, _),) = score(decoder, [fits], budget=BUDGET, memory=2.0**30)
    assert nats == pytest.approx(slowly(decoder, fits.context[-1:], fits.continuation)[0], rel=1e-4)
    with pytest.raises(UserError, match=f"{BUDGET + 1} tokens does not fit into {BUDGET}"):
        score(decoder, [too_long], budget=BUDGET, memory=2.0**30)


@given(st.lists(st.integers(1, 700), max_size=30), st.integers(1, 20))
def test_batches_hold_every_text_once_in_few_shapes(lengths, most):
    seen = []
    for length, group in likelihood.batches(lengths, 700, lambda length: most):
        for batch, rows in group:
            seen += batch
            assert len(batch) <= rows <= max(most, 1) and rows.bit_count() == 1 and rows < 2 * len(batch)
            assert all(lengths[n] <= length for n in batch)
            assert all(length <= max(1.5 * lengths[n] + 1, likelihood.LEAST) for n in batch)
    assert sorted(seen) == list(range(len(lengths)))
    assert len({padded_length(max(n, likelihood.LEAST), 700) for n in range(1, 701)}) < 12
