"""Train a tokenizer on a corpus: a byte-level BPE, or BERT's WordPiece.

    python -m bam_jax.data.train_tokenizer --source=FOLDER --vocab=8192 --out=bpe.json
    python -m bam_jax.data.train_tokenizer --kind=bert --source=FOLDER --vocab=8192 --out=vocab.txt

The same text gives the same file, whose tokenizer is then `bpe:bpe.json` or `bert:vocab.txt`.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence

from bam_jax.data.sources.corpus import check_outside, read_texts
from bam_jax.data.sources.source import SUFFIXES
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.training import train_bpe, train_wordpiece
from bam_jax.system import files
from bam_jax.system.errors import UserError, nearest

TRAINERS = {"bpe": train_bpe, "bert": train_wordpiece}  # by the tokenizer's name


@dataclasses.dataclass(frozen=True)
class Texts:
    """The first documents of a source, read again by every iteration."""

    source: str
    text_field: str
    characters: float  # approximate number

    def __iter__(self) -> Iterator[str]:
        left = self.characters
        for text in read_texts(self.source, self.text_field):
            if left <= 0:
                return
            yield text
            left -= len(text)


def main(argv: Sequence[str]) -> None:
    parser = errors.Parser(prog="python -m bam_jax.data.train_tokenizer", description=__doc__)
    add = parser.add_argument
    add("--kind", default="bpe", help=f"{' or '.join(TRAINERS)} (bpe)")
    add("--source", required=True, help="text, as in config.data.source")
    add("--text-field", default="text", help="the field of a record that holds the text (text)")
    add("--vocab", type=int, required=True, help="number of ids, such as 8192")
    add("--out", type=files.local_path, required=True, help="the file to write; it must not be there yet")
    add("--characters", type=float, default=math.inf, help="read about as many, such as 1e9 (default: all)")
    add("--progress", action=argparse.BooleanOptionalAction, help="default: only on a terminal")
    given = parser.parse_args(argv)
    out = given.out
    if given.kind not in TRAINERS:
        raise UserError(f"--kind={given.kind} is unknown; {nearest(given.kind, TRAINERS)}")
    if out.exists():
        raise UserError(f"--out={out} exists; remove it or give another file")
    if not given.characters > 0:
        raise UserError(f"--characters={given.characters:g} must be more than 0")
    if out.suffix in SUFFIXES:  # a .json file is not read as text
        check_outside(f"--out={out}", out, given.source)
    texts = Texts(given.source, given.text_field, given.characters)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(out, TRAINERS[given.kind](texts, given.vocab, progress=given.progress))
    made = tokenizer(f"{given.kind}:{out}")
    print(
        f"{out}: {made.size} ids, hash {made.hash}; use it as --tokenizer={made.spec}, --config.data.tokenizer={made.spec}"
    )
    if made.size < given.vocab:
        print(f"the text has no more pairs that occur twice: {made.size} ids instead of {given.vocab}")


if __name__ == "__main__":
    errors.run(main)
