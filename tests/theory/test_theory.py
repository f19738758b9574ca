"""The paper's statements hold on random inputs within their hypotheses, are sharp, and need those hypotheses."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases, theory
from bam_jax.attention import Mask, Scoring, Tokens, attention
from bam_jax.biases import ALiBi, GeneralisedGaussian
from bam_jax.system.errors import UserError

DRAWS = 1000
KEYS = 24

pytestmark = pytest.mark.usefixtures("x64")


def logits(rng):
    """Random content and position logits with random visible keys, at least one in each row."""
    content, position = rng.normal(0, 3, (2, DRAWS, KEYS))
    seen = rng.random((DRAWS, KEYS)) < 0.7
    seen[np.arange(DRAWS), rng.integers(KEYS, size=DRAWS)] = True
    return content, position, seen


def draw(rng, low, high):
    """A column of parameters, one for each draw."""
    return rng.uniform(low, high, (DRAWS, 1))


def ggd(shape, log_scale=0.0, loc=0.0, eps=1e-5):
    return GeneralisedGaussian(shape, log_scale, loc, eps)


def at(bias, distance):
    """The bias at a distance in tokens before the query."""
    return np.asarray(bias(0.0, -np.asarray(distance, float)))


def weights(scores):
    """Softmax over the last axis, written down again."""
    scores = np.exp(scores - np.max(scores, -1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def two_keys(bias, distance, swing, tilt):
    """Attention to a key at a distance beside the query's own token, the content of the first higher by tilt * swing."""
    return weights(np.concatenate(np.broadcast_arrays(at(bias, distance) + tilt * swing, at(bias, 0.0)), -1))[:, :1]


SUM = lambda rng: (-np.cumsum(rng.random((1, 2, 6)), -1), np.zeros((1, 2, 6)))
PRIORS = {
    "uniform": (lambda rng: biases.Uniform(), None, None),
    "alibi": (lambda rng: ALiBi(jnp.array([0.3, 1.0])), None, None),
    "bam": (lambda rng: ggd(jnp.array([-0.5, 0.7]), jnp.array([0.1, 0.2]), jnp.array([0.0, 0.4])), None, None),
    "kerple": (lambda rng: biases.KerpleLog(jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])), None, None),
    "fox": (lambda rng: biases.Difference(), SUM, SUM),
    "cable": (lambda rng: biases.CABLE(), lambda rng: (rng.random((1, 2, 6)), SUM(rng)), SUM),
}


@pytest.mark.parametrize("name", PRIORS)
def test_the_prior_of_any_bias_is_attention_to_keys_of_equal_content(rng, name):
    make, *sides = PRIORS[name]
    bias, coordinates = make(rng), [None if side is None else side(rng) for side in sides]
    segment = jnp.array([[1, 1, 1, 2, 2, 2]])
    tokens = [Tokens(jnp.arange(6)[None], segment, coordinate) for coordinate in coordinates]
    i, j = [np.arange(6.0)[None, None] if side is None else side for side in coordinates]
    value = np.broadcast_to(biases.table(bias, i, j), (1, 2, 6, 6))
    for temperature in (None, jnp.asarray(rng.uniform(0.5, 2, (1, 2, 6)))):
        found = np.broadcast_to(theory.prior(Scoring(bias, *tokens, temperature, Mask(window=2))), (1, 2, 6, 6))
        for head, query in np.ndindex(2, 6):
            seen = [k for k in range(6) if k <= query < k + 2 and segment[0, k] == segment[0, query]]
            scale = 1.0 if temperature is None else temperature[0, head, query]
            expected = np.zeros(6)
            expected[seen] = weights(scale * value[0, head, query, seen])
            np.testing.assert_allclose(found[0, head, query], expected, atol=1e-12)


def test_weights_of_a_sparse_softmax_are_no_product(rng):
    x, tokens = jnp.ones((1, 3, 2, 4)), Tokens(jnp.arange(3)[None])
    with pytest.raises(UserError, match="the weights of Entmax are no product of content and position"):
        theory.logits(x, x, Scoring(biases.Uniform(), tokens, tokens, rowwise=biases.Entmax(None)))


@pytest.mark.parametrize(("factor", "rowwise"), [(False, False), (True, False), (True, True)])
def test_content_and_position_add_up_to_what_attention_scores(rng, factor, rowwise):
    q, k, v = (jnp.asarray(rng.normal(size=(2, 6, heads, 8))) for heads in (4, 2, 2))
    bias = ggd(jnp.array([-0.5, 0.5, 1.0, 0.0]), jnp.zeros(4), jnp.zeros(4))
    temperature = jnp.asarray(rng.uniform(0.5, 2, (2, 4, 6))) if factor else None
    tokens = Tokens(jnp.arange(6)[None])
    dape = biases.DAPE(*(jnp.asarray(rng.normal(size=n)) for n in ((3, 8, 3), (3,), (4, 3, 3), (4,))))
    scoring = Scoring(bias, tokens, tokens, temperature, Mask(window=4), dape if rowwise else None)
    content, position, seen = theory.logits(q, k, scoring)
    joint = theory.factors(content, position, seen).joint
    expected = attention(q, k, v, scoring, backend="reference")
    np.testing.assert_allclose(jnp.einsum("bhts,bshd->bthd", joint, jnp.repeat(v, 2, 2)), expected, atol=1e-12)
    scores = np.einsum("bthd,bshd->bhts", q, np.repeat(k, 2, 2)) / math.sqrt(8)
    np.testing.assert_allclose(content, scores * (temperature[..., None] if factor else 1), atol=1e-12)
    if rowwise:
        with pytest.raises(ValueError, match="DAPE has a prior only beside scores"):
            theory.prior(scoring)


def test_the_prior_by_distance_is_the_last_row_read_backwards():
    bias, temperature = ggd(jnp.array([-1.0, 0.5]), jnp.zeros(2), jnp.zeros(2)), jnp.array([1.0, 3.0])
    found = theory.prior_by_distance(bias, 5, temperature)
    expected = [weights(t * at(ggd(s), np.arange(5))) for s, t in ((-1.0, 1.0), (0.5, 3.0))]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_effective_length_is_where_the_share_is_first_reached(rng):
    p = rng.dirichlet(np.full(KEYS, 0.3), 200)
    for share in (0.5, 0.9, 0.99):
        expected = [next(d for d in range(KEYS) if row[: d + 1].sum() >= share) for row in p]
        np.testing.assert_array_equal(theory.effective_length(jnp.asarray(p), share), expected)


def test_classes_follow_the_papers_figure_4():
    shapes = {-2.0: "retrieval", 0.0: "retrieval", 0.1: "long-tail", 0.6: "long-tail", 1.0: "local", 2.0: "local"}
    assert {shape: theory.head_class(shape) for shape in shapes} == shapes


def test_theorem_1_joint_is_the_product_over_z(rng):
    content, position, seen = logits(rng)
    joint, p_content, p_position, z = theory.factors(content, position, seen)
    hidden = np.where(seen, 0, -np.inf)
    np.testing.assert_allclose(joint, weights(content + position + hidden), atol=1e-12)
    np.testing.assert_allclose(p_content, weights(content + hidden), atol=1e-12)
    np.testing.assert_allclose(p_position, weights(position + hidden), atol=1e-12)
    np.testing.assert_allclose(joint, p_content * p_position / z[:, None], atol=1e-12)
    assert np.all((z > 0) & (z <= 1 + 1e-12))


def test_the_three_readings_of_z_agree(rng):
    content, position, seen = logits(rng)
    free_energy = theory.free_energy(content, position, seen)
    np.testing.assert_allclose(theory.overlap(content, position, seen), np.exp(-free_energy), rtol=1e-9)
    terms = theory.coupling(content, position, seen)
    np.testing.assert_allclose(sum(terms), free_energy, rtol=1e-9, atol=1e-12)
    assert all(np.all(term >= -1e-12) for term in terms)
    joint, p_content, p_position, _ = theory.factors(content, position, seen)
    direct = np.sum(joint * np.log(np.where(seen, joint / (p_content * p_position), 1)), -1, where=seen)
    np.testing.assert_allclose(free_energy, direct, rtol=1e-9, atol=1e-12)
    divergence = lambda q: np.sum(joint * np.log(np.where(seen, joint / q, 1)), -1, where=seen)
    np.testing.assert_allclose(terms.kl_content, divergence(p_content), atol=1e-12)
    np.testing.assert_allclose(terms.kl_prior, divergence(p_position), atol=1e-12)


def test_z_is_1_for_one_point_mass_only_and_1_over_n_without_position():
    seen = np.ones(4, bool)
    peak = np.array([0.0, 800.0, 0.0, 0.0])
    assert theory.overlap(peak, peak, seen) == 1
    assert theory.overlap(peak, peak[::-1], seen) < 1e-300
    np.testing.assert_allclose(theory.overlap(np.array([3.0, 1.0, -2.0, 0.0]), np.zeros(4), seen), 1 / 4)
    terms = theory.coupling(np.float32([0, 400, -300]), np.float32([0, -500, 1]), np.ones(3, bool))
    np.testing.assert_allclose(terms.kl_content, 400, rtol=1e-6)  # finite where probabilities vanish
    np.testing.assert_allclose(terms.kl_prior, math.log(1 + math.e), rtol=1e-6)


def last_rows(bias, keys):
    """Priors of queries 1 ... keys, in rows, by distance."""
    tokens = Tokens(jnp.arange(keys)[None])
    rows = np.asarray(theory.prior(Scoring(bias, tokens, tokens)))
    distance = np.arange(keys)[:, None] - np.arange(keys)
    return np.broadcast_to(rows, (1, rows.shape[1], keys, keys))[0], distance, np.arange(1, keys + 1)[:, None]


def test_lemma_1_the_causal_mask_is_a_uniform_prior(rng):
    rows, distance, keys = last_rows(biases.Uniform(), 40)
    np.testing.assert_allclose(rows[0], theory.uniform(distance, keys), atol=1e-12)
    assert not np.any(rows[0][distance < 0])
    content, _, seen = logits(rng)  # and a uniform prior leaves the content's distribution as it is
    joint, p_content, _, z = theory.factors(content, np.zeros_like(content), seen)
    np.testing.assert_allclose(joint, p_content, atol=1e-12)
    np.testing.assert_allclose(z, 1 / seen.sum(-1))


def test_lemma_2_alibi_is_a_laplace_prior_cut_off_and_renormalised(rng):
    slope = np.exp(rng.uniform(-6, 1, DRAWS))
    rows, distance, keys = last_rows(ALiBi(jnp.asarray(slope)), KEYS)
    expected = theory.laplace(slope[:, None, None], distance, keys)
    np.testing.assert_allclose(rows, expected, atol=1e-12)
    density = slope[:, None, None] / 2 * np.exp(-slope[:, None, None] * np.abs(distance)) * (distance >= 0)
    np.testing.assert_allclose(rows, density / density.sum(-1, keepdims=True), atol=1e-12)
    np.testing.assert_allclose(expected.sum(-1), 1)
    assert not np.any(theory.laplace(1.0, np.array([-1, 5, 6]), 5))


def test_content_moves_the_log_odds_of_a_key_by_its_swing_at_most(rng):
    position, swing = rng.normal(0, 3, (DRAWS, KEYS)), draw(rng, 0, 5)
    content = rng.random((DRAWS, KEYS))
    content = swing * (content - content.min(-1, keepdims=True)) / np.ptp(content, axis=-1, keepdims=True)
    p = weights(position + content)
    least, most = theory.posterior_bounds(weights(position), swing)
    assert np.all((least <= p + 1e-12) & (p <= most + 1e-12))
    lone = np.zeros((DRAWS, KEYS))
    lone[:, 3] = 1
    np.testing.assert_allclose(weights(position + swing * lone)[:, 3], most[:, 3], rtol=1e-9)
    np.testing.assert_allclose(weights(position - swing * lone)[:, 3], least[:, 3], rtol=1e-9)


LOCAL = {
    "alibi": lambda rng: ALiBi(np.exp(draw(rng, -5, 1))),
    "bam": lambda rng: ggd(draw(rng, 0.2, 3), draw(rng, -2, 2), draw(rng, -2, 2)),
}


@pytest.mark.parametrize("name", LOCAL)
def test_lemmas_3_and_4_attention_is_local_beyond_a_distance(rng, name):
    bias, swing, tolerance = LOCAL[name](rng), draw(rng, 0, 5), 10 ** draw(rng, -8, -0.5)
    distance = np.asarray(theory.local_beyond(bias, swing, tolerance))
    assert np.all(np.isfinite(distance)) and np.any(distance > 1)
    # With the query and one key, whose content is higher by the swing, the distance is sharp where it is not 0 ...
    sharp = distance > 1e-6
    found = two_keys(bias, distance, swing, 1.0)
    np.testing.assert_allclose(found[sharp], tolerance[sharp], rtol=1e-6)
    # ... and farther keys among more keys of any content get less.
    spread = np.concatenate([np.zeros((DRAWS, 1)), distance * np.arange(0.1, 1, 0.1), distance + np.arange(1, 9)], -1)
    content = swing * rng.random(spread.shape)
    assert np.all(weights(at(bias, spread) + content)[:, 10:] <= tolerance)


def test_lemma_3_needs_content_of_bounded_swing():
    distance = np.arange(1000.0)
    growing = weights(at(ALiBi(0.1), distance) + 0.1 * distance)
    np.testing.assert_allclose(growing[-1], 1 / 1000)
    assert two_keys(ALiBi(0.1), np.array([[1e6]]), 0.2e6, 1.0) > 0.99


def test_theorem_2_bam_penalises_less_than_alibi_beyond_the_crossover(rng):
    shape, log_scale, slope = draw(rng, -3, 0.9), draw(rng, -3, 3), np.exp(draw(rng, -5, 1))
    cross = np.asarray(theory.crossover(shape, log_scale, slope))
    ratio = lambda distance: at(ggd(shape, log_scale, eps=0.0), distance) / at(ALiBi(slope), distance)
    assert np.all(ratio(cross * np.array([1 + 1e-6, 1.1, 2, 10, 1e4])) < 1)
    uncapped = (-at(ALiBi(slope), cross) < 1000).ravel()  # the cap makes BAM's bias smaller still
    assert uncapped.mean() > 0.9
    np.testing.assert_allclose(ratio(cross)[uncapped], 1, rtol=1e-6)
    assert np.all(ratio(cross * np.array([0.5, 0.9, 1 - 1e-6]))[uncapped] > 1)
    np.testing.assert_allclose(theory.crossover(shape, np.log(slope), slope), 1)  # at the paper's scale


def test_theorem_2_its_prior_reaches_at_least_as_far_at_any_share(rng):
    shape, slope = draw(rng, -2, 0.99), np.exp(draw(rng, -5, 1))
    distance = np.arange(200)
    bam, alibi = (weights(at(bias, distance)) for bias in (ggd(shape, np.log(slope)), ALiBi(slope)))
    assert np.all(np.cumsum(bam, -1) <= np.cumsum(alibi, -1) + 1e-12)
    for share in (0.5, 0.9, 0.99):
        assert np.all(theory.effective_length(bam, share) >= theory.effective_length(alibi, share))


def test_theorem_3_the_querys_own_token_is_ignored_below_an_eps(rng):
    shape, log_scale = draw(rng, -3, -0.2), draw(rng, -2, 2)
    swing, tolerance = draw(rng, 0, 4), 10 ** draw(rng, -6, -0.5)
    eps = np.asarray(theory.blind_eps(shape, log_scale, swing, tolerance))
    own = lambda eps: 1 - two_keys(ggd(shape, log_scale, eps=eps), 1.0, swing, -1.0)
    found = np.isfinite(eps)
    assert found.mean() > 0.9 and np.all(own(np.where(found, eps, 1.0)) <= tolerance * (1 + 1e-9))
    small = found & (eps < 1e-4)  # where the other key's own eps does not matter it is sharp
    assert small.any() and np.all(own(np.where(small, 1.01 * eps, 1.0))[small] > tolerance[small])
    everything = at(ggd(shape, log_scale, eps=np.minimum(eps, 1.0)), np.arange(12.0)) + swing * rng.random((DRAWS, 12))
    assert np.all(weights(everything)[:, :1] <= tolerance * (1 + 1e-9))


def test_theorem_3_the_limit_is_0_and_needs_eps_and_a_second_key():
    own = [1 - two_keys(ggd(np.array([[-0.5]]), eps=eps), 1.0, 3.0, -1.0).item() for eps in 10.0 ** -np.arange(1, 8)]
    assert own[0] > 0.5 and own[-1] < 1e-300 and np.all(np.diff(own) <= 0)
    assert weights(at(ggd(-3.0), np.zeros(1))) == 1
    np.testing.assert_allclose(at(ggd(-0.05), 0.0), -1.78, atol=0.005)
    eps = theory.blind_eps(-1.0, 0.0, 0.0, np.array([0.4, 0.5, 0.6, 0.9]))  # of two keys each gets a half
    np.testing.assert_array_equal(np.isinf(eps), [False, True, True, True])
    elsewhere = weights(at(ggd(-1.0, loc=-1.0), np.arange(6)))  # mu = -2.35 is no distance of a key
    assert elsewhere.argmin() == 2 and elsewhere[0] > 0.1


def test_theorem_4_far_keys_get_what_nope_gives_them_whatever_the_content(rng):
    shape, log_scale, tolerance = draw(rng, -3, -0.3), draw(rng, -2, 2), 10 ** draw(rng, -3, -0.3)
    bias = ggd(shape, log_scale, draw(rng, -2, 2), eps=0.0)
    mu = bias.centre()
    beyond = np.asarray(theory.seen_beyond(shape, log_scale, tolerance))
    np.testing.assert_allclose(np.exp(at(bias, beyond - mu)), 1 - tolerance, rtol=1e-6)
    ahead = np.concatenate(
        [np.arange(1 - KEYS, KEYS) + np.zeros_like(beyond), mu - beyond, mu + 2 * beyond], -1
    )  # j - i
    content = rng.normal(0, 5, ahead.shape)
    joint, nope = weights(content + at(bias, -ahead)), weights(content)
    assert np.all((joint >= (1 - tolerance) * nope * (1 - 1e-9))[np.abs(ahead - mu) >= beyond])
    lone = np.array([0.0, 60.0])  # sharp: a key with all of the content beside one with all of the prior
    sharp = weights(lone + np.concatenate([np.zeros((DRAWS, 1)), at(bias, beyond - mu)], -1))[:, 1:]
    assert np.all(sharp >= 1 - tolerance)


def test_theorem_4_the_ratio_to_nope_lies_within_its_bounds(rng):
    bias, swing = ggd(draw(rng, -3, 2), draw(rng, -2, 2)), draw(rng, 0, 4)
    position = at(bias, np.arange(64.0))
    content = swing * rng.choice([0.0, 0.3, 1.0], (DRAWS, 64))
    ratio = weights(content + position) / weights(content)
    least, most = theory.nope_ratio(position, swing.ravel())
    tiny = 1e-300  # where exp underflows
    assert np.all((least <= ratio * (1 + 1e-9) + tiny) & (ratio <= most * (1 + 1e-9) + tiny))
    least, most = theory.nope_ratio(position, np.zeros(DRAWS))
    np.testing.assert_allclose(most, np.exp(position) / np.exp(position).mean(-1, keepdims=True), atol=1e-12)


def test_theorem_4_the_limit_is_nopes_p_which_itself_goes_to_0(rng):
    shape, log_scale, swing = draw(rng, -2, -0.5), draw(rng, -2, 0), draw(rng, 0, 1)
    gaps = []
    for keys in (2**5, 2**9, 2**13):
        position = at(ggd(shape, log_scale), np.arange(keys))
        least, most = theory.nope_ratio(position, swing.ravel())
        gaps.append(np.maximum(1 - least[:, -1], most[:, -1] - 1))
        _, p = theory.posterior_bounds(weights(position)[:, -1:], swing)
        assert np.all(p < 5 / keys)
    assert np.all(gaps[0] > gaps[1]) and np.all(gaps[1] > gaps[2]) and np.all(gaps[2] < 0.08)
    least, _ = theory.nope_ratio(at(ggd(0.5), np.arange(2**14)), 0.0)  # with shape > 0 it is local
    assert least[-1] < 1e-50
