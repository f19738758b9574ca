"""Numbers from lengths alone are those of the rows that the loader makes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.packing.concat import Concatenated
from bam_jax.data.packing.first_fit import FirstFit
from bam_jax.data.packing.rows import Shuffle
from bam_jax.data.packing.statistics import octaves, packing_statistics

LENGTHS = st.lists(st.integers(1, 40), min_size=2, max_size=30)


@given(LENGTHS, st.integers(1, 12))
def test_first_fit_is_as_the_loader_has_it(listed, lengths, context):
    lengths = [*lengths, 2]
    made = packing_statistics(np.array(lengths), context)["first_fit"]
    documents = listed([lengths])
    batch = FirstFit(documents, Shuffle(documents, 0, 1000), context).take(np.arange(made.rows))
    predicted = batch["targets"][batch["weights"] > 0]
    firsts = {text[0] for text in documents.texts}
    assert sorted(predicted) == sorted(set(range(1, sum(lengths) + 1)) - firsts)  # these rows are just an epoch
    assert made.filled == (batch["segment"] > 0).mean() and made.predicted == batch["weights"].mean()
    owners = [
        set(documents.owner[row[weights > 0]]) for row, weights in zip(batch["targets"], batch["weights"], strict=True)
    ]
    whole = [sum(number in row for row in owners) <= 1 for number in range(len(lengths))]
    assert made.whole == np.mean(whole)


@given(LENGTHS, st.integers(1, 12))
def test_concatenation_is_as_the_loader_has_it(listed, lengths, context):
    lengths = [*lengths, context]
    made = packing_statistics(np.array(lengths), context)["concat"]
    documents = listed([lengths])
    rows = Concatenated(documents, Shuffle(documents, 0, 1000), context)
    batch = rows.take(np.arange(made.rows + 1))
    targets = batch["targets"][:-1]
    assert len(np.unique(targets)) == targets.size and sum(lengths) - 1 - targets.size < context
    assert targets[0, 0] in batch["targets"][-1] or made.rows * context + context > sum(lengths) - 1
    assert made.filled == 1 and abs(made.predicted - batch["weights"][:-1].mean()) * sum(lengths) <= 2 * context + 2


def test_a_documents_chance_to_stand_in_one_row():
    """Every place in a row where a document may begin is as likely as any other."""
    context, length = 8, 6
    begins = np.arange(context)
    inside = begins + length - 1 <= context  # its targets are its tokens from the second on
    made = packing_statistics(np.full(50, length), context)
    assert (
        made["concat"].whole == 1 - (length - 1) / context and abs(inside.mean() - made["concat"].whole) <= 1 / context
    )
    assert packing_statistics(np.array([3 * context]), context)["concat"].whole == 0


def test_nothing_to_pack():
    for made in packing_statistics(np.array([], np.int32), 4).values():
        assert made.rows == 0 and 0 <= made.predicted <= made.filled <= 1


@given(LENGTHS)
def test_every_document_is_in_one_octave(lengths):
    found = octaves(np.array(lengths))
    assert all(low.stop == high.start for low, high in zip(found, list(found)[1:], strict=False))
    for span, (documents, tokens) in found.items():
        inside = [length for length in lengths if length in span]
        assert (documents, tokens) == (len(inside), sum(inside))
    assert sum(documents for documents, _ in found.values()) == len(lengths)
