"""Perplexity of masked tokens, which an encoder's training minimises, on held-out text and at any length.

Source: Devlin et al. 2019, section 3.1; CABLE, figure 6, which shows its logarithm in training.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

import numpy as np

from bam_jax.data import loader
from bam_jax.evals import schema
from bam_jax.evals.perplexity import HeldOutText, fit_rows, sequences, to_perplexity, token_losses
from bam_jax.evals.plan import Results, SampleRange, Trained
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Line, Positive


class MaskedPerplexityRecord(schema.CellRecord):
    """Sequences of held-out text, of which there are `of`, with `masked` tokens to predict; `data_hash` identifies the text."""

    value: Positive
    depth: NotRequired[None]
    masked: Count
    data_hash: Line


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedPerplexity(HeldOutText):
    """Perplexity of the tokens that are masked as in training, `config.data.mask_fraction` of held-out text.

    As in training, some of them are replaced or kept. The same tokens of a text are masked for all runs, whatever their seed.
    """

    name = "masked_perplexity"
    encoder = True
    record = MaskedPerplexityRecord
    identity = ("data_hash",)

    @staticmethod
    def weight(record: Mapping[str, Any]) -> float:
        return record["masked"]

    @staticmethod
    def measure(trained: Trained, todo: Sequence[SampleRange], stream: np.ndarray) -> Results:
        row, rows = fit_rows(trained, todo)
        for samples in sorted(todo, key=lambda samples: samples.length):
            texts = sequences(stream, samples)
            hidden = loader.mask_texts(texts, samples.first, trained.config.data, trained.tokenizer)
            masked = int(hidden["weights"].sum())
            if not masked:
                raise UserError(
                    f"none of the {texts.size} tokens in {samples.n} sequences of length {samples.length} is masked; "
                    "give more --tokens, or longer --lengths"
                )
            nll = token_losses(trained.decoder, hidden["tokens"], texts, row=row, rows=rows)
            mean = float(np.average(nll.astype(np.float64), weights=hidden["weights"]))
            result = {"value": to_perplexity(mean), "unit": "perplexity per masked token"}
            yield samples, result | {"of": (len(stream) - 1) // samples.length, "masked": masked}
