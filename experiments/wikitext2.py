"""Perplexity by position on WikiText-2, to 16 times the training context, with two tokenizers.

Command:  python -m bam_jax.sweep experiments/wikitext2.py --source=FOLDER && python -m bam_jax.report runs/wikitext2
Corpus:   FOLDER holds WikiText-2's validation and test parts: wiki.valid.raw and wiki.test.raw,
          their .tokens forms, valid.txt and test.txt, or the files that this command fetches:
          hf download Salesforce/wikitext --repo-type dataset --include 'wikitext-2-raw-v1/*' --local-dir FOLDER
Hardware: a CPU; 8 models of three layers.

The models train on the validation part and are evaluated on the test part. Both parts are small: they show whether the
sources' statements hold for real text and real vocabularies, not how good the models can get.
"""

from pathlib import Path

from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment, Preparation, Row
from bam_jax.system.errors import UserError

CONFIG = str(Path(__file__).parent.parent / "configs" / "wikitext2.py")
CONTEXT = 128
VOCAB = 4096
NAMES = {
    "valid": ("wiki.valid.raw", "wiki.valid.tokens", "valid.txt", "validation-*.parquet"),
    "test": ("wiki.test.raw", "wiki.test.tokens", "test.txt", "test-*.parquet"),
}
STEPS = {"Mistral": 300, "BPE": 900}
ENCODINGS = {
    "BAM SSMax": {"encoding": "bam", "encoding_options.init": "spread", "ssmax": "on"},
    "ALiBi": {"encoding": "alibi", "ssmax": "off"},
    "CABLE": {"encoding": "cable", "ssmax": "off"},
    "RoPE": {"encoding": "rope", "ssmax": "off"},
}

NOTES = (
    """Perplexities are per token, and the two vocabularies cut the text into different tokens: compare within one of them.""",
    """One seed and a single rate for all; a difference of a few percent between encodings within the training context says
    nothing. What the table is about is what becomes of each beyond it.""",
    """Documents follow one another in the test stream, and an average article has nearly 5,000 tokens: most sequences of 2048
    tokens hold one or two.""",
)


def get_experiment(source: str, runs: Path) -> Experiment:
    """A row for each of four encodings with each of two tokenizers; the text is prepared first."""
    valid, test = (_find(Path(source), name) for name in NAMES)
    data = runs / "data"
    bpe = data / "bpe.json"
    train_bpe = (f"--source={valid}", f"--vocab={VOCAB}", f"--out={bpe}")
    preparations = [Preparation("bam_jax.data.train_tokenizer", train_bpe, makes=str(bpe))]
    rows = []
    perplexity = Perplexity((CONTEXT, 16 * CONTEXT), tokens=2**20)
    for name, tokenizer in (("BPE", f"bpe:{bpe}"), ("Mistral", "mistral")):
        made = {}
        for part, path in (("valid", valid), ("test", test)):
            made[part] = data / f"{name.lower()}-{part}"
            what = (f"--source={path}", "--format=wikitext", f"--tokenizer={tokenizer}", f"--out={made[part]}")
            preparations.append(Preparation("bam_jax.data.prepare", what))
        common = {
            "data.tokenizer": tokenizer,
            "data.source": str(made["valid"]),
            "data.held_out_source": str(made["test"]),
            "context": CONTEXT,
            "steps": STEPS[name],
        }
        rows += [
            Row(f"{encoding}, {name}", CONFIG, overrides | common, evaluations=(perplexity,))
            for encoding, overrides in ENCODINGS.items()
        ]
    return Experiment("WikiText-2: perplexity by position", tuple(rows), notes=NOTES, preparations=tuple(preparations))


def _find(source: Path, name: str) -> Path:
    for pattern in NAMES[name]:
        for path in sorted(source.rglob(pattern)):
            return path
    raise UserError(
        f"--source={source} has no {' or '.join(NAMES[name])}; get WikiText-2: hf download Salesforce/wikitext "
        f"--repo-type dataset --include 'wikitext-2-raw-v1/*' --local-dir {source}"
    )
