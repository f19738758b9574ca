"""What a model is trained on: `python -m bam_jax.data.inspect FOLDER [--config=FILE] [--config.a.b=value ...]`.

FOLDER is a prepared one, or any data source of a configuration. Shows documents and tokens, a histogram of the lengths
(in the terminal and as a PNG), how well rows are filled by each packing, and rows of the first batch as text.
"""

import importlib
import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data import loader
from bam_jax.data.packing.base import Batch
from bam_jax.data.packing.statistics import octaves, packings
from bam_jax.data.packing.triplets import FIELDS
from bam_jax.data.prepared.documents import Documents, open_documents
from bam_jax.data.prepared.manifest import SPLITS, is_prepared, read_manifest
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.data.tokenizers.copies import load_tokenizer
from bam_jax.system import errors
from bam_jax.system.errors import UserError

CONTEXT = 512
"""Tokens of a row where no configuration says it."""
WIDTH = 110
"""Characters of a line."""
PACKED = ("packed", "masked")
"""Tasks whose rows are packed from documents."""
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


def counts(splits: Mapping[str, Documents]) -> str:
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
    """A sketch of how many documents have which length, and how many of the tokens stand in them.

    Args:
        lengths: [documents] integers, tokens; at least one document.
    """
    found = octaves(lengths)
    totals = np.array(list(found.values()), np.float64)
    shares = totals / np.maximum(totals.sum(0), 1)
    bars = [[f"{share:6.1%} {'█' * round(BAR * share / shares.max())}" for share in row] for row in shares.tolist()]
    names = [f"{each.start:,}–{each.stop - 1:,}" if len(each) > 1 else f"{each.start:,}" for each in found]
    lines = [("length", " documents", " tokens"), *((name, *bar) for name, bar in zip(names, bars, strict=True))]
    width = max(map(len, names))
    return "\n".join(f"{name:>{width}} {bar:<{BAR + 9}}{other}".rstrip() for name, bar, other in lines)


def rendered(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """The text of ids, in which special ones are visible and a line break is ⏎.

    Args:
        ids: [tokens] integers.
        tokenizer: decodes them.
    """
    names = {tokenizer.eos: "⟨end⟩", tokenizer.mask: "⟨mask⟩"}
    special = np.isin(ids, tokenizer.special)
    cuts = np.flatnonzero(special[1:] | special[:-1]) + 1  # a special id is a part of its own
    parts = []
    for part in np.split(ids, cuts) if len(ids) else []:
        if part[0] in tokenizer.special:
            known = names[part[0]] if part[0] in names else tokenizer.decode(part)
            parts.append(known or f"⟨{part[0]}⟩")
        else:
            parts.append(tokenizer.decode(part))
    return "".join(parts).replace("\n", "⏎")


def sample(batch: Batch, row: int, tokenizer: Tokenizer) -> str:
    """A row of a batch as text: a paragraph for each document in it, or for each text of a triplet.

    Args:
        batch: what the loader gives.
        row: which of its rows.
        tokenizer: decodes it.
    """
    parts: dict[str, np.ndarray] = {}
    if "tokens" in batch:
        tokens = batch["tokens"][row]
        segment = batch["segment"][row] if "segment" in batch else np.ones_like(tokens)
        bounds = [0, *(np.flatnonzero(np.diff(segment)) + 1).tolist(), len(tokens)]
        for first, stop in itertools.pairwise(bounds):
            name = f"document {segment[first]}" if segment[first] else "padding"
            parts[f"{name}, places {first} to {stop - 1}"] = tokens[first:stop] if segment[first] else tokens[:0]
    else:
        for name in FIELDS:
            size = int(batch[f"{name}_length"][row])
            parts[f"{name}, {size} tokens"] = batch[name][row][:size]
    indent = "    "
    filled = [
        textwrap.fill(rendered(ids, tokenizer), WIDTH, initial_indent=indent, subsequent_indent=indent)
        for ids in parts.values()
    ]
    return "\n".join(f"  {name}\n{text}".rstrip() for name, text in zip(parts, filled, strict=True))


def report(config: Config, tokenizer: Tokenizer, rows: int, path: Path | None) -> Iterator[str]:
    """Everything that the command shows, piece by piece, and the plot.

    Args:
        config: its data, context, batch and seed matter.
        tokenizer: the one that `config.data.tokenizer` names.
        rows: of the first batch, to show as text.
        path: of the plot, a .png; None: no plot.

    Raises:
        UserError: see `loader.batches`.
    """
    yield f"tokenizer {tokenizer.spec}: {tokenizer.size:,} ids, hash {tokenizer.hash}"
    drawn = {}
    for label, (weight, part) in config.data.parts().items():
        yield f"\n{f'{label}, weight {weight:g}: ' if label else ''}{part.source}"
        splits = {name: open_documents(part, tokenizer, name) for name in SPLITS}
        yield counts(splits)
        lengths = np.asarray(splits["train"].lengths)
        if len(lengths):
            drawn[label or part.source] = lengths
            yield f"\n{histogram(lengths)}"
            if part.task in PACKED:
                yield f"\n{packed(lengths, config.context)}"
    if path is not None and drawn:
        _figures().lengths(drawn, config.context).savefig(path, dpi=200)
        yield f"\nplot of the lengths: {path}"
    batch = loader.make_rows(config, tokenizer).take(np.arange(rows))
    shapes = ", ".join(f"{name} {list(each.shape[1:])} {each.dtype}" for name, each in batch.items())
    yield f"\nthe first rows to train on, task {config.data.task}: {shapes}"
    for row in range(rows):
        yield f"row {row}\n{sample(batch, row, tokenizer)}"


def packed(lengths: np.ndarray, context: int) -> str:
    """What each packing makes of documents, as a table.

    Args:
        lengths: [documents] integers, tokens.
        context: tokens of a row.
    """
    rows = [
        [name, f"{made.rows:,}", f"{made.filled:.1%}", f"{made.predicted:.1%}", f"{made.whole:.1%}"]
        for name, made in packings(lengths, context).items()
    ]
    return table([f"packed at {context}", "rows", "filled", "predicted", "documents in one row"], rows)


def _figures() -> ModuleType:
    try:
        return importlib.import_module("bam_jax.render")
    except ModuleNotFoundError as error:
        raise UserError(f"the plot needs {error.name}: pip install 'bam_jax[figures]', or give --no-plot") from error


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: bad arguments, or a source that cannot be read or is not what it was made to be.
    """
    parser = errors.Parser(prog="python -m bam_jax.data.inspect", description=__doc__)
    parser.add_argument("source", nargs="?", help="a prepared folder, or any data source; default: the configuration's")
    parser.add_argument(
        "--config", help="a Python file with get_config(); default: the tokenizer of the folder, rows of 512"
    )
    parser.add_argument("--rows", type=int, default=2, help="of the first batch, shown as text (2)")
    parser.add_argument("--plot", type=Path, help="the .png (default: SOURCE-lengths.png in the current folder)")
    parser.add_argument("--no-plot", action="store_true", help="no .png")
    given, overrides = configs.parse(argv, parser)
    if given.source is None and given.config is None:
        raise UserError("give a prepared folder or a data source, or --config=FILE")
    if given.rows < 0:
        raise UserError(f"--rows={given.rows} must be 0 or more")
    path = None if given.no_plot else given.plot or Path(f"{Path(given.source or given.config).stem}-lengths.png")
    if path is not None and path.suffix != ".png":
        raise UserError(f"--plot={path} must end with .png")
    settled = {} if given.source is None else {"data.source": given.source}
    if given.source is not None and is_prepared(given.source):
        settled["data.tokenizer"] = read_manifest(given.source).tokenizer["spec"]
    base = configs.load(given.config) if given.config else Config(context=CONTEXT)
    config = configs.override(base, settled | overrides)
    tokenizer = load_tokenizer(config.data.source, config.data.tokenizer)
    for piece in report(config, tokenizer, given.rows, path):
        print(piece)


if __name__ == "__main__":
    errors.run(main)
