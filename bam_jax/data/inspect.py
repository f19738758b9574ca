"""Show the batches that a model is trained on.

    python -m bam_jax.data.inspect FOLDER [--config=FILE] [--config.a.b=value ...]

FOLDER is a prepared folder, or any data source of a configuration. Shows the numbers of documents and tokens, a histogram of the
lengths (in the terminal and as a PNG), how well each packing fills rows, and rows of the first batch as text.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.config.sections import PACKED, SYNTHETIC, TRIPLET
from bam_jax.data import loader
from bam_jax.data.packing.first_fit import first_fit_decreasing
from bam_jax.data.packing.rows import Batch
from bam_jax.data.prepared.documents import Documents, open_documents
from bam_jax.data.prepared.manifest import SPLITS, is_prepared, read_manifest
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.data.tokenizers.copies import load_tokenizer
from bam_jax.render import curves, style
from bam_jax.system import console, files
from bam_jax.system.errors import UserError

CONTEXT = 512  # tokens per row without a configuration
WIDTH = 110  # characters of a line
BAR = 30  # characters of the longest bar
QUANTILES = {"1%": 0.01, "10%": 0.1, "median": 0.5, "90%": 0.9, "99%": 0.99, "longest": 1.0}


def main(argv: Sequence[str]) -> None:
    parser = errors.Parser(prog="python -m bam_jax.data.inspect", description=__doc__)
    add = parser.add_argument
    add("source", nargs="?", help="a prepared folder, or any data source; default: the configuration's")
    add("--config", help="a Python file with get_config(); default: the tokenizer of the folder, rows of 512")
    add("--rows", type=int, default=2, help="of the first batch, shown as text (2)")
    add("--plot", type=files.local_path, help="the .png (default: SOURCE-lengths.png in the current folder)")
    add("--no-plot", action="store_true", help="no .png")
    given, overrides = configs.parse(argv, parser)
    if given.source is None and given.config is None:
        raise UserError("give a prepared folder or a data source, or --config=FILE")
    if not given.no_plot:
        try:
            style.library()  # before a source is read, which may take long
        except UserError as error:
            raise UserError(f"{error}, or give --no-plot") from error
    if given.rows < 0:
        raise UserError(f"--rows={given.rows} must be 0 or more")
    path = None if given.no_plot else given.plot or Path(f"{Path(given.source or given.config).stem}-lengths.png")
    if path is not None:
        if path.suffix != ".png":
            raise UserError(f"--plot={path} must end with .png")
        style.keep_other(path)
    settled = {} if given.source is None else {"data.source": given.source}
    if given.source is not None and is_prepared(given.source):
        settled["data.tokenizer"] = read_manifest(given.source).tokenizer["spec"]
    base = configs.load(given.config) if given.config else Config(context=CONTEXT)
    config = configs.override(base, settled | overrides)
    tokenizer = load_tokenizer(config.data.source, config.data.tokenizer)
    for piece in overview(config, tokenizer, given.rows, path):
        print(piece)


def count_documents(splits: Mapping[str, Documents]) -> str:
    rows = []
    for name, documents in splits.items():
        lengths = np.asarray(documents.lengths)
        numbers = [len(lengths), int(lengths.sum(dtype=np.int64)), len(documents.shards) - 1]
        if len(lengths):
            numbers.append(round(float(lengths.mean(dtype=np.float64))))
            numbers += np.quantile(lengths, list(QUANTILES.values()), method="inverted_cdf").tolist()
        rows.append([name, *(f"{number:,}" for number in numbers), *["–"] * (4 + len(QUANTILES) - len(numbers))])
    head = ["", "documents", "tokens", "shards", "mean length", *QUANTILES]
    return "\n".join(console.columns([head, *rows]))


def histogram(lengths: np.ndarray) -> str:
    """A text histogram of document lengths in tokens: the share of documents, and of tokens, in each range."""
    counted = octaves(lengths)
    totals = np.array(list(counted.values()), np.float64)
    shares = totals / np.maximum(totals.sum(0), 1)
    lines = [("length", " documents", " tokens")]
    for octave, pair in zip(counted, shares.tolist(), strict=True):
        name = f"{octave.start:,}–{octave.stop - 1:,}" if len(octave) > 1 else f"{octave.start:,}"
        left, right = (f"{share:6.1%} {'█' * round(BAR * share / shares.max())}" for share in pair)
        lines.append((name, left, right))
    width = max(len(name) for name, _, _ in lines[1:])
    return "\n".join(f"{name:>{width}} {left:<{BAR + 9}}{right}".rstrip() for name, left, right in lines)


def render_ids(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """The text of ids, with special tokens made visible and line breaks shown as ⏎."""
    names = {tokenizer.eos: "⟨end⟩", tokenizer.mask: "⟨mask⟩"}
    special = np.isin(ids, tokenizer.special)
    cuts = np.flatnonzero(special[1:] | special[:-1]) + 1  # each special id is a run of its own
    texts = []
    for run in np.split(ids, cuts) if len(ids) else []:
        text = names[run[0]] if run[0] in names else tokenizer.decode(run)
        texts.append(text or (f"⟨{run[0]}⟩" if run[0] in tokenizer.special else ""))
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
    wrap = textwrap.TextWrapper(WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(f"  {name}\n{wrap.fill(render_ids(ids, tokenizer))}".rstrip() for name, ids in parts.items())


def overview(config: Config, tokenizer: Tokenizer, rows: int, path: Path | None) -> Iterator[str]:
    """Yield the overview piece by piece, with `rows` rows of the first batch, and write the plot if it has a path."""
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
                rows_of = [
                    [name, f"{made.rows:,}", f"{made.filled:.1%}", f"{made.predicted:.1%}", f"{made.whole:.1%}"]
                    for name, made in packing_statistics(lengths, config.context).items()
                ]
                head = [f"packed at {config.context}", "rows", "filled", "predicted", "documents in one row"]
                yield "\n".join(["", *console.columns([head, *rows_of])])
    if path is not None and drawn:
        style.save(curves.lengths(drawn, config.context), path)
        yield f"\nplot of the lengths: {path}"
    batch = loader.make_rows(config, tokenizer).take(np.arange(rows))
    shapes = ", ".join(f"{name} {list(each.shape[1:])} {each.dtype}" for name, each in batch.items())
    yield f"\nthe first rows to train on, task {config.data.task}: {shapes}"
    for row in range(rows):
        yield f"row {row}\n{show_row(batch, row, tokenizer)}"


class PackingStatistics(NamedTuple):
    """The rows that a packing makes of a corpus in an epoch."""

    rows: int
    filled: float  # fraction of their positions that hold a token
    predicted: float  # fraction of their positions whose target counts, if no document predicts the next
    whole: float  # fraction of the documents that are in a single row


def packing_statistics(lengths: np.ndarray, context: int) -> dict[str, PackingStatistics]:
    """The statistics of both packings, computed only from the lengths of documents, end tokens included.

    Concatenation cuts a document of n tokens with probability (n - 1) / context. For first-fit, all documents are packed
    together; the loader packs a large corpus group by group, which takes a row or two more per group.

    >>> packing_statistics(np.array([5, 3, 3]), 4)["first_fit"]
    PackingStatistics(rows=2, filled=1.0, predicted=1.0, whole=1.0)
    """
    tokens, documents = int(lengths.sum(dtype=np.int64)), len(lengths)
    slots = np.maximum(lengths - 1, 0)  # pairs of a token and the next one
    concat = PackingStatistics(
        rows=max(tokens - 1, 0) // context,
        filled=1.0,
        predicted=float(slots.sum(dtype=np.int64) / max(tokens, 1)),
        whole=float(np.maximum(1 - slots / context, 0).mean()) if documents else 1.0,
    )
    rests = first_fit_decreasing(np.bincount(slots % context, minlength=context + 1)).count
    rows = int((slots // context).sum(dtype=np.int64)) + rests
    filled = float(slots.sum(dtype=np.int64) / max(rows * context, 1))
    whole = float((slots <= context).mean()) if documents else 1.0
    return {"concat": concat, "first_fit": PackingStatistics(rows, filled, filled, whole)}


def octaves(lengths: np.ndarray) -> dict[range, tuple[int, int]]:
    """Numbers of documents and tokens by length, in ranges from a power of two to the next; length 0 is in the first range.

    >>> octaves(np.array([1, 2, 3, 9]))
    {range(1, 2): (1, 1), range(2, 4): (2, 5), range(4, 8): (0, 0), range(8, 16): (1, 9)}
    """
    place = np.frexp(np.maximum(lengths, 1))[1] - 1
    documents, tokens = np.bincount(place), np.bincount(place, weights=lengths)
    first = int(place.min()) if len(place) else 0
    return {range(2**k, 2 ** (k + 1)): (int(documents[k]), int(tokens[k])) for k in range(first, len(documents))}


if __name__ == "__main__":
    errors.run(main)
