"""Make a retrieval data set from any text: queries are sentences taken out of documents.

    python -m bam_jax.data.make_retrieval --source=stdlib --vocab=2048 --out=corpora/inverse-cloze

The files for training are texts.jsonl and triplets.jsonl; triplets of a fifth of the training text go to held_out_triplets.jsonl
instead. The files for testing are corpus.jsonl, queries.jsonl and test_triplets.jsonl, from other documents. With --vocab, the
command also trains a tokenizer on the texts, bpe.json, and prepares each file of triplets with it, in a folder of the same name.
The same text and options give the same files.
"""

from bam_jax.system import errors, regular

if __name__ == "__main__":
    errors.before_imports()

from collections.abc import Sequence

from bam_jax.config.sections import TRIPLET
from bam_jax.data.prepared.preparing import PreparationRequest, prepare
from bam_jax.data.sources.corpus import check_outside, read_texts
from bam_jax.data.sources.source import Source
from bam_jax.data.tasks.inverse_cloze import Sizes, make
from bam_jax.data.tokenizers import BPETokenizer
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.system import files, lock
from bam_jax.system.errors import UserError

LAST = "queries.jsonl"
TOKENIZER = "bpe.json"
SHARD_TOKENS = 2**26
TRIPLETS = ("triplets", "held_out_triplets", "test_triplets")  # the files that are prepared


def main(argv: Sequence[str]) -> None:
    parser = errors.Parser(prog="python -m bam_jax.data.make_retrieval", description=__doc__)
    add = parser.add_argument
    add("--source", default="stdlib", help="text, as in config.data.source (stdlib)")
    add("--text-field", default="text", help="the field of a record that holds the text (text)")
    add("--out", type=files.local_path, required=True, help="the folder to make")
    add("--vocab", type=int, help="ids of a tokenizer to train and to prepare the triplets with (default: neither)")
    size = lambda name, text: add(f"--{name}", type=int, default=getattr(Sizes, name), help=f"{text} (%(default)s)")
    size("passage", "characters of a text in a triplet, at least")
    size("document", "characters of a document to be found, at least")
    size("questions", "sentences taken out of each, beside a title")
    add("--test", type=float, default=Sizes.test, help="share of the text to test with (%(default)s)")
    add("--seed", type=int, default=0, help="of the choice of documents and sentences (0)")
    given = parser.parse_args(argv)
    out = given.out
    if (out / LAST).exists():
        raise UserError(f"--out={out} has a {LAST}; remove it or give another folder")
    if given.seed < 0:
        raise UserError(f"--seed={given.seed} must be 0 or more")
    sizes = Sizes(given.passage, given.document, given.questions, given.test)
    check_outside(f"--out={out}", out, given.source)
    made = make(read_texts(given.source, given.text_field), sizes, seed=given.seed)
    contents = dict(made.files())
    queries = contents.pop(LAST)
    if given.vocab is not None:
        contents[TOKENIZER] = train_bpe((record["text"] for record in made.texts), given.vocab, progress=False)
    with lock.hold_folder(out, f"another process makes {out}; wait for it, or give another --out"):
        for name, text in contents.items():
            path = out / name  # missing, or written by this command before it was stopped
            if path.exists() and regular.read(path, regular.RECORDS) != text.encode():
                raise UserError(f"{path} holds something else than this command writes; move it, or give another --out")
        for name, text in contents.items():
            files.write_atomically(out / name, text)
        if given.vocab is not None:
            bpe = BPETokenizer(str(out / TOKENIZER))
            for name in TRIPLETS:
                source = Source(str(out / f"{name}.jsonl"), fields=TRIPLET)
                (out / name).mkdir(exist_ok=True)
                prepare(out / name, PreparationRequest(source, bpe, SHARD_TOKENS, workers=0), source.fragments())
        files.write_atomically(out / LAST, queries)  # last: it marks the folder as complete
    print(
        f"{out}: {len(made.triplets)} triplets of {len(made.texts)} documents to train on, "
        f"{len(made.queries)} queries of {len(made.corpus)} other documents to test with"
    )


if __name__ == "__main__":
    errors.run(main)
