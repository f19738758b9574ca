import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.models.sampling import GREEDY, Sampling
from bam_jax.system.errors import UserError


def defined(logits, temperature, k, share):
    """The probabilities, token by token in the order of their likelihood."""
    p = np.exp((logits - logits.max()) / temperature)
    order = sorted(range(len(p)), key=lambda token: -p[token])
    kept, total, pool = [], 0.0, order[:k] if k else order
    for token in pool:
        if total / p[pool].sum() < share:
            kept.append(token)
            total += p[token]
    found = np.zeros(len(p))
    found[kept] = p[kept] / p[kept].sum()
    return found


@given(st.permutations(range(7)), st.floats(0.2, 5), st.integers(0, 9), st.sampled_from([0.05, 0.3, 0.6, 0.95, 1.0]))
def test_the_distribution_is_that_of_the_definition(order, temperature, k, share):
    logits = np.array(order) * 0.7  # all different: the definition has no ties
    made = Sampling(temperature, k, share).restrict(jnp.asarray(logits, jnp.float32)[None])
    np.testing.assert_allclose(jax.nn.softmax(made)[0], defined(logits, temperature, k, share), atol=1e-5)


def test_draws_have_their_distribution():
    logits = jnp.array([[0.0, 1.0, 2.0, -1.0]])
    sampling = Sampling(temperature=0.7, top_k=3)
    drawn = jax.vmap(lambda key: sampling(logits, key)[0])(jax.random.split(jax.random.key(0), 20_000))
    shares = np.bincount(drawn, minlength=4) / 20_000
    np.testing.assert_allclose(shares, defined(np.asarray(logits[0]), 0.7, 3, 1.0), atol=0.015)


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(temperature=1e-300), Sampling(top_k=1), *(Sampling(top_p=p) for p in (1e-9, 1e-40, 1e-46))],
)
def test_the_most_likely_token_is_a_limit_of_all_three(sampling):
    logits = jnp.array([[0.0, 3.0, 2.9], [5.0, -1e30, 4.0]])
    np.testing.assert_array_equal(sampling(logits, jax.random.key(1)), [1, 0])
    if sampling.top_k:  # tokens as likely as the last stay
        np.testing.assert_array_equal(jnp.isfinite(sampling.restrict(jnp.array([[1, 1, 0.0]]))), [[True, True, False]])


@pytest.mark.parametrize(
    "values, says",
    [
        ({"temperature": -0.5}, "temperature=-0.5 must be 0"),
        ({"temperature": float("nan")}, "temperature=nan must be 0"),
        ({"top_k": -1}, "top_k=-1 must be a whole number from 0"),
        ({"top_p": 0.0}, "top_p=0.0 must be a share"),
    ],
)
def test_what_is_no_distribution_is_refused(values, says):
    with pytest.raises(UserError, match=says):
        Sampling(**values)
