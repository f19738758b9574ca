"""A byte-level BPE of one's own: `python -m bam_jax.data.train_bpe --source=FOLDER --vocab=8192 --out=bpe.json`.

The same text gives the same file, whose tokenizer is then `bpe:bpe.json`.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bam_jax.data.sources.texts import read_texts
from bam_jax.data.tokenizers import BPETokenizer
from bam_jax.data.tokenizers.base import encodable, need
from bam_jax.system import errors, files
from bam_jax.system.errors import UserError

END, MASK = "<eos>", "<mask>"
LEAST = 256 + 2
"""Every byte, and the end of a document and the mask: a vocabulary without a merge."""


def train(texts: Iterable[str], vocab: int, *, progress: bool | None = None) -> str:
    """The tokenizer.json of a byte-level BPE.

    Nothing is unknown to it and `decode` is the inverse of `encode`; every digit is a token of its own, as
    passkeys need. Text is cut into words as for GPT-2.

    Args:
        texts: documents.
        vocab: number of ids, at most; a short text may have fewer pairs that occur twice.
        progress: whether to show it on stderr; None means only on a terminal.

    Raises:
        UserError: a vocabulary smaller than the bytes, or `tokenizers` is not installed.
    """
    if vocab < LEAST:
        raise UserError(f"a vocabulary of {vocab} ids has no room for every byte, end and mask; give {LEAST} or more")
    need("tokenizers", "bpe")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=2,
        special_tokens=[END, MASK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=sys.stderr.isatty() if progress is None else progress,
    )
    made.train_from_iterator(map(encodable, texts), trainer)
    return made.to_str(pretty=True) + "\n"


def _head(texts: Iterable[str], size: float) -> Iterator[str]:
    """Documents, until as many characters have gone by."""
    for text in texts:
        if size <= 0:
            return
        yield text
        size -= len(text)


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: bad arguments or text, or a file that exists.
    """
    parser = errors.Parser(prog="python -m bam_jax.data.train_bpe", description=__doc__)
    parser.add_argument("--source", required=True, help="text, as in config.data.source")
    parser.add_argument("--text-field", default="text", help="the field of a record that holds the text (text)")
    parser.add_argument("--vocab", type=int, required=True, help="number of ids, such as 8192")
    parser.add_argument("--out", type=Path, required=True, help="the file to write; it must not be there yet")
    parser.add_argument(
        "--characters", type=float, default=math.inf, help="read about as many, such as 1e9 (default: all)"
    )
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, help="default: only on a terminal")
    given = parser.parse_args(argv)
    out = given.out
    if out.exists():
        raise UserError(f"--out={out} exists; remove it or give another file")
    if not given.characters > 0:
        raise UserError(f"--characters={given.characters:g} must be more than 0")
    texts = _head(read_texts(given.source, given.text_field), given.characters)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(out, train(texts, given.vocab, progress=given.progress))
    made = BPETokenizer(str(out))
    print(
        f"{out}: {made.size} ids, hash {made.hash}; use it as --tokenizer={made.spec}, --config.data.tokenizer={made.spec}"
    )
    if made.size < given.vocab:
        print(f"the text has no more pairs that occur twice: {made.size} ids instead of {given.vocab}")


if __name__ == "__main__":
    errors.run(main)
