"""An overview of what a model is trained on: documents, their lengths, how rows fill, and rows as text."""

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bam_jax.config import Config
from bam_jax.config.sections import PACKED, SYNTHETIC, TRIPLET
from bam_jax.data import loader
from bam_jax.data.packing.rows import Batch
from bam_jax.data.packing.statistics import octaves, packing_statistics
from bam_jax.data.prepared.documents import Documents, open_documents
from bam_jax.data.prepared.manifest import SPLITS
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.render import curves, style

WIDTH = 110
"""Characters of a line."""
BAR = 30
"""Characters of the longest bar."""
QUANTILES = {"1%": 0.01, "10%": 0.1, "median": 0.5, "90%": 0.9, "99%": 0.99, "longest": 1.0}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows below their head: the first column to the left, the others to the right.

    >>> print(table(["split", "tokens"], [["train", "12,345"]]))
    split  tokens
    train  12,345
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in (head, *rows)]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def count_documents(splits: Mapping[str, Documents]) -> str:
    """Documents, tokens and quantiles of the lengths of each split, as a table."""
    rows = []
    for name, documents in splits.items():
        lengths = np.asarray(documents.lengths)
        numbers = [len(lengths), int(lengths.sum(dtype=np.int64)), len(documents.shards) - 1]
        if len(lengths):
            numbers.append(round(float(lengths.mean(dtype=np.float64))))
            numbers += np.quantile(lengths, list(QUANTILES.values()), method="inverted_cdf").tolist()
        rows.append([name, *(f"{number:,}" for number in numbers), *["–"] * (4 + len(QUANTILES) - len(numbers))])
    return table(["", "documents", "tokens", "shards", "mean length", *QUANTILES], rows)


def histogram(lengths: np.ndarray) -> str:
    """A sketch of how many documents have which length in tokens, and how many of the tokens are in them."""
    counted = octaves(lengths)
    totals = np.array(list(counted.values()), np.float64)
    shares = totals / np.maximum(totals.sum(0), 1)
    lines = [("length", " documents", " tokens")]
    for octave, (documents, tokens) in zip(counted, shares.tolist(), strict=True):
        name = f"{octave.start:,}–{octave.stop - 1:,}" if len(octave) > 1 else f"{octave.start:,}"
        lines.append((name, _bar(documents, shares.max()), _bar(tokens, shares.max())))
    width = max(len(name) for name, _, _ in lines[1:])
    return "\n".join(f"{name:>{width}} {left:<{BAR + 9}}{right}".rstrip() for name, left, right in lines)


def _bar(share: float, largest: float) -> str:
    return f"{share:6.1%} {'█' * round(BAR * share / largest)}"


def render_ids(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """The text of ids, in which special ones are visible and a line break is ⏎."""
    names = {tokenizer.eos: "⟨end⟩", tokenizer.mask: "⟨mask⟩"}
    special = np.isin(ids, tokenizer.special)
    cuts = np.flatnonzero(special[1:] | special[:-1]) + 1  # a special id stands by itself
    texts = []
    for run in np.split(ids, cuts) if len(ids) else []:
        if run[0] in tokenizer.special:
            known = names[run[0]] if run[0] in names else tokenizer.decode(run)
            texts.append(known or f"⟨{run[0]}⟩")
        else:
            texts.append(tokenizer.decode(run))
    return "".join(texts).replace("\n", "⏎")


def show_row(batch: Batch, row: int, tokenizer: Tokenizer) -> str:
    """A row of a batch as text: a paragraph for each document in it, or for each text of a triplet."""
    parts: dict[str, np.ndarray] = {}
    if "tokens" in batch:
        tokens = batch["tokens"][row]
        segment = batch["segment"][row] if "segment" in batch else np.ones_like(tokens)
        bounds = [0, *(np.flatnonzero(np.diff(segment)) + 1).tolist(), len(tokens)]
        for first, stop in itertools.pairwise(bounds):
            name = f"document {segment[first]}" if segment[first] else "padding"
            parts[f"{name}, places {first} to {stop - 1}"] = tokens[first:stop] if segment[first] else tokens[:0]
    else:
        for name in TRIPLET:
            size = int(batch[f"{name}_length"][row])
            parts[f"{name}, {size} tokens"] = batch[name][row][:size]
    indent = "    "
    filled = [
        textwrap.fill(render_ids(ids, tokenizer), WIDTH, initial_indent=indent, subsequent_indent=indent)
        for ids in parts.values()
    ]
    return "\n".join(f"  {name}\n{text}".rstrip() for name, text in zip(parts, filled, strict=True))


def overview(config: Config, tokenizer: Tokenizer, rows: int, path: Path | None) -> Iterator[str]:
    """Yields the overview piece by piece, with some rows of the first batch, and writes the plot if it has a path."""
    yield f"tokenizer {tokenizer.spec}: {tokenizer.size:,} ids, hash {tokenizer.hash}"
    drawn = {}
    for label, (weight, part) in config.data.parts().items():
        made = part.task in SYNTHETIC
        name = f"rows of the task {part.task}, made without text" if made else part.source
        yield f"\n{f'{label}, weight {weight:g}: ' if label else ''}{name}"
        if made:
            continue
        splits = {name: open_documents(part, tokenizer, name) for name in SPLITS}
        yield count_documents(splits)
        lengths = np.asarray(splits["train"].lengths)
        if len(lengths):
            drawn[label or part.source] = lengths
            yield f"\n{histogram(lengths)}"
            if part.task in PACKED:
                yield f"\n{compare_packings(lengths, config.context)}"
    if path is not None and drawn:
        style.save(curves.lengths(drawn, config.context), path)
        yield f"\nplot of the lengths: {path}"
    batch = loader.make_rows(config, tokenizer).take(np.arange(rows))
    shapes = ", ".join(f"{name} {list(each.shape[1:])} {each.dtype}" for name, each in batch.items())
    yield f"\nthe first rows to train on, task {config.data.task}: {shapes}"
    for row in range(rows):
        yield f"row {row}\n{show_row(batch, row, tokenizer)}"


def compare_packings(lengths: np.ndarray, context: int) -> str:
    """A table of what each packing makes of documents, given their lengths and the tokens of a row."""
    rows = [
        [name, f"{made.rows:,}", f"{made.filled:.1%}", f"{made.predicted:.1%}", f"{made.whole:.1%}"]
        for name, made in packing_statistics(lengths, context).items()
    ]
    return table([f"packed at {context}", "rows", "filled", "predicted", "documents in one row"], rows)
