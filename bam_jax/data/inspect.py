"""Show the batches that a model is trained on.

    python -m bam_jax.data.inspect FOLDER [--config=FILE] [--config.a.b=value ...]

FOLDER is a prepared one, or any data source of a configuration. Shows documents and tokens, a histogram of the lengths
(in the terminal and as a PNG), how well rows are filled by each packing, and rows of the first batch as text.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

from collections.abc import Sequence
from pathlib import Path

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data.overview import overview
from bam_jax.data.prepared.manifest import is_prepared, read_manifest
from bam_jax.data.tokenizers.copies import load_tokenizer
from bam_jax.render import style
from bam_jax.system import files
from bam_jax.system.errors import UserError

CONTEXT = 512
"""Tokens of a row where no configuration says it."""


def _check_plot() -> None:
    """Says that matplotlib is missing before a source is read, which may take long, and not after it."""
    try:
        style.library()
    except UserError as error:
        raise UserError(f"{error}, or give --no-plot") from error


def main(argv: Sequence[str]) -> None:
    parser = errors.Parser(prog="python -m bam_jax.data.inspect", description=__doc__)
    parser.add_argument("source", nargs="?", help="a prepared folder, or any data source; default: the configuration's")
    parser.add_argument(
        "--config", help="a Python file with get_config(); default: the tokenizer of the folder, rows of 512"
    )
    parser.add_argument("--rows", type=int, default=2, help="of the first batch, shown as text (2)")
    parser.add_argument(
        "--plot", type=files.local_path, help="the .png (default: SOURCE-lengths.png in the current folder)"
    )
    parser.add_argument("--no-plot", action="store_true", help="no .png")
    given, overrides = configs.parse(argv, parser)
    if given.source is None and given.config is None:
        raise UserError("give a prepared folder or a data source, or --config=FILE")
    if not given.no_plot:
        _check_plot()
    if given.rows < 0:
        raise UserError(f"--rows={given.rows} must be 0 or more")
    path = None if given.no_plot else given.plot or Path(f"{Path(given.source or given.config).stem}-lengths.png")
    if path is not None and path.suffix != ".png":
        raise UserError(f"--plot={path} must end with .png")
    if path is not None:
        style.keep_other(path)
    settled = {} if given.source is None else {"data.source": given.source}
    if given.source is not None and is_prepared(given.source):
        settled["data.tokenizer"] = read_manifest(given.source).tokenizer["spec"]
    base = configs.load(given.config) if given.config else Config(context=CONTEXT)
    config = configs.override(base, settled | overrides)
    tokenizer = load_tokenizer(config.data.source, config.data.tokenizer)
    for piece in overview(config, tokenizer, given.rows, path):
        print(piece)


if __name__ == "__main__":
    errors.run(main)
