"""Masked tokens: 80, 10 and 10 of a hundred chosen, and nothing else touched."""

import numpy as np
import pytest
from scipy import stats

from bam_jax.data.packing.masked import Masked
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system.errors import UserError

BYTE = tokenizer("byte")


class Text:
    """Rows of letters with end tokens; the last quarter of each is pads if `pads`."""

    def __init__(self, context=64, pads=False):
        self.context, self.pads = context, pads

    def take(self, numbers):
        tokens = (numbers[:, None] * 31 + np.arange(self.context) * 7) % 26 + 97
        tokens[:, 5::16] = BYTE.eos
        segment = np.ones(tokens.shape, np.int32)
        if self.pads:
            segment[:, -self.context // 4 :] = 0
            tokens[segment == 0] = 0
        tokens = tokens.astype(np.int32)
        batch = {"tokens": tokens, "targets": tokens, "weights": (segment > 0).astype(np.float32)}
        return batch | ({"segment": segment} if self.pads else {})


def within(count, total, probability):
    """Whether a binomial count is one that chance gives in all but one of a thousand million draws."""
    return stats.binomtest(int(count), int(total), probability).pvalue > 1e-9


@pytest.mark.parametrize("fraction", [0.15, 0.4])
@pytest.mark.parametrize("pads", [False, True])
def test_eighty_ten_ten(fraction, pads):
    rows = Text(pads=pads)
    numbers = np.arange(3000)
    batch, plain = Masked(rows, BYTE, fraction=fraction, seed=1).take(numbers), rows.take(numbers)
    tokens, targets, chosen = batch["tokens"], batch["targets"], batch["weights"] == 1
    assert {name: values.dtype.name for name, values in batch.items() if name != "segment"} == {
        "tokens": "int32",
        "targets": "int32",
        "weights": "float32",
    }
    assert set(np.unique(batch["weights"])) == {0, 1}
    np.testing.assert_array_equal(targets, plain["tokens"])
    np.testing.assert_array_equal(tokens[~chosen], targets[~chosen])
    may = targets != BYTE.eos
    if pads:
        may &= plain["segment"] > 0
        np.testing.assert_array_equal(batch["segment"], plain["segment"])
    assert not chosen[~may].any()
    count = chosen.sum()
    assert within(count, may.sum(), fraction)
    masked, kept = tokens[chosen] == BYTE.mask, tokens[chosen] == targets[chosen]
    assert within(masked.sum(), count, 0.8)
    assert within(kept.sum(), count, 0.1 + 0.1 / 255)  # a random byte is the old one at times
    others = tokens[chosen][~masked & ~kept]
    assert not np.isin(others, BYTE.special).any()
    assert np.bincount(others, minlength=257)[:255].min() > 0  # any token of text may come
    assert stats.chisquare(np.bincount(others)[:97]).pvalue > 1e-9
    # Every place is as likely as any other.
    assert stats.chisquare(chosen.sum(0)[may.all(0)]).pvalue > 1e-9


def test_a_row_depends_on_seed_and_number():
    rows = Masked(Text(), BYTE, fraction=0.15, seed=0)
    together = rows.take(np.array([7, 3, 4]))["tokens"]
    np.testing.assert_array_equal(rows.take(np.array([3]))["tokens"][0], together[1])
    assert not np.array_equal(Masked(Text(), BYTE, fraction=0.15, seed=1).take(np.array([3]))["tokens"][0], together[1])
    chosen = rows.take(np.arange(40))["weights"]
    assert len({row.tobytes() for row in chosen}) == 40


def test_a_tokenizer_without_a_mask():
    with pytest.raises(UserError, match="tokenizer 'char' has no mask token"):
        Masked(Text(), tokenizer("char"), fraction=0.15, seed=0)
