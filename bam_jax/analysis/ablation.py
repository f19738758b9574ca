"""The worth of each head: the increase of a decoder's loss when the head's output is zero.

    worth[l, h] = loss of the model without head h of layer l - loss of the model,   nats a token

At several lengths it shows which heads become useless, or do more harm than good, beyond the training length. Nothing is
retrained, so heads that can replace each other are each worth little. All heads with the same number are also ablated at once:
the first heads of a ladder are long-range in every layer.
"""

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bam_jax.analysis.opened import open_run
from bam_jax.evals import perplexity
from bam_jax.evals.plan import SampleRange, rows_within
from bam_jax.models.transformer import Decoder
from bam_jax.system import console
from bam_jax.system.errors import UserError

FILE = "ablation.jsonl"
TOKENS = 2**15
"""Tokens of held-out text, as many as for perplexity."""
MEMORY = 2.0**31
"""Bytes for activations."""


@contextlib.contextmanager
def without(decoder: Decoder, heads: Iterable[tuple[int, int]]) -> Iterator[None]:
    """The decoder with the outputs of some heads at zero, until the block ends."""
    stacks, order = decoder.stacks(), [*decoder.order()]
    kernels = [stack.attention.out.kernel for stack in stacks]
    kept = [kernel[...] for kernel in kernels]
    count = decoder.config.heads
    for layer, head in heads:
        place, at = order[layer]
        kernel = kernels[decoder.stack_of[place]]
        width = kernel.shape[1] // count
        kernel[...] = kernel[...].at[at, head * width : (head + 1) * width].set(0)
    try:
        yield
    finally:
        for kernel, value in zip(kernels, kept, strict=True):
            kernel[...] = value


def measure(
    run: str | os.PathLike,
    lengths: Sequence[int],
    *,
    tokens: int = 0,
    overrides: Mapping[str, Any] = {},
    allow: Collection[str] = (),
    progress: bool | None = None,
) -> list[dict[str, Any]]:
    """Measure the worth of each head of a run's newest checkpoint.

    A record has `layer`, `head`, `length`, `tokens` of sequences of that length, `loss` of the whole model, and `worth`, both in
    nats a token. If `layer` is None, all heads of that number are ablated at once.
    """
    lengths, tokens = sorted({*lengths}), tokens or TOKENS
    if lengths[0] < 1:
        raise UserError(f"--ablate={','.join(map(str, lengths))} counts tokens: give 1 or more")
    if tokens < lengths[-1]:
        raise UserError(f"--tokens={tokens} must be as many as the longest length has, {lengths[-1]}, or more")
    opened = open_run(run, overrides=overrides, allow=allow)
    opened.require_decoder("which foretells no token")
    config, decoder = opened.config, opened.model
    decoder.check_length(lengths[-1])
    decoder.config = dataclasses.replace(config.model, scan=True)  # compiles one layer instead of each
    text = opened.first_tokens(tokens + 1)
    layers, heads = range(config.model.layers), range(config.model.heads)
    left_out = {(layer, head): [(layer, head)] for layer in layers for head in heads}
    groups = {(None, head): [(layer, head) for layer in layers] for head in heads}
    with console.progress(
        len(left_out) + len(groups) + 1, unit="model", label=f"{opened.path.name} ablation", show=progress
    ) as bar:
        whole = _losses(decoder, text, lengths)
        bar.update()
        records = []
        for (layer, head), group in (left_out | groups).items():
            with without(decoder, group):
                losses = _losses(decoder, text, lengths)
            for length, loss in losses.items():
                asked = {"length": length, "tokens": tokens // length * length, "loss": round(whole[length], 6)}
                worth = {"worth": round(loss - whole[length], 6)}
                records.append({"layer": layer, "head": head, **asked, **worth, **opened.origin})
            bar.update()
    return records


def _losses(decoder: Decoder, text: np.ndarray, lengths: Sequence[int]) -> dict[int, float]:
    """The mean loss of the text in sequences of each length, nats a token."""
    row, losses = max(lengths), {}
    for length in lengths:
        samples = SampleRange(length, None, 0, (len(text) - 1) // length)
        inputs, targets = (perplexity.sequences(text, samples, shift=shift) for shift in (0, 1))
        rows = min(len(text) // row, rows_within(MEMORY, row, decoder.config))
        nll = perplexity.token_losses(decoder, inputs, targets, row=row, rows=rows)
        losses[length] = float(nll.mean(dtype=np.float64))
    return losses


def to_text(records: Sequence[Mapping[str, Any]]) -> str:
    by_head: dict[tuple[int | None, int], dict[int, Mapping[str, Any]]] = {}
    for record in records:
        by_head.setdefault((record["layer"], record["head"]), {})[record["length"]] = record
    lengths = list(next(iter(by_head.values())))
    rows = [["layer, head", *(f"{length:,} tokens" for length in lengths)]]
    for (layer, head), found in by_head.items():
        name = f"{'every' if layer is None else layer}, {head}"
        rows.append([name, *(f"{found[length]['worth']:+.4f}" for length in lengths)])
    whole = next(iter(by_head.values()))  # all records of a length have the loss of the model
    rows.append(["whole model", *(f"{whole[length]['loss']:.4f}" for length in lengths)])
    lines = console.columns(rows)
    lines.append(
        "nats a token that the loss of held-out text rises by without the head; every, 0: without head 0 of every layer;"
    )
    lines.append(f"whole model: its loss, over {whole[lengths[0]]['tokens']:,} tokens")
    return "\n".join(lines)
