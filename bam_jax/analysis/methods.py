"""The table of methods in Markdown, made from the code's docstrings and modules."""

import inspect
import re

import jax
import jax.numpy as jnp
from flax import nnx

from bam_jax import config as configs
from bam_jax.attention import BACKENDS, Mask, Scoring, Tokens
from bam_jax.biases import Uniform
from bam_jax.config import published
from bam_jax.config.published import METHODS
from bam_jax.encodings import ENCODINGS, Dims, Encoding, spec
from bam_jax.system.errors import UserError

DIMS = Dims(heads=16, width=768, context=512)
"""The dimensions of the paper's 120M model, whose parameters are counted."""

COLUMNS = ("`--config.encoding=`", "formula", "source", "options", "per head", "extrapolates", "backends")


def table() -> str:
    """All `ENCODINGS` as a Markdown table; each encoding is followed by the `METHODS` that are based on it."""
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(row(name) for name in names())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def names() -> list[str]:
    """The names that `--config.encoding` takes, in the order of the table."""
    return [name for encoding in ENCODINGS for name in (encoding, *(x for x in METHODS if _encoding(x) == encoding))]


def about(name: str) -> str:
    """The text about one of `names`: its formula, options and Scalable Softmax.

    >>> about("nope").splitlines()[-1]
    'Where the config file has another encoding it comes with --config.ssmax=off.'
    """
    text = inspect.getdoc(ENCODINGS[_encoding(name)]) or ""
    if name in METHODS:
        return f"{METHODS[name].about}\n\nIt stands for {' '.join(configs.arguments(METHODS[name].changes))}\n\n{text}"
    return f"{text}\n\nWhere the config file has another encoding it comes with --config.ssmax={published.ssmax(name)}."


def _encoding(name: str) -> str:
    return METHODS[name].changes["encoding"] if name in METHODS else name


def row(name: str) -> list[str]:
    """The line of an encoding: its name, formula, source, options, parameters, reach and backends.

    >>> row("kerple_log")[1:]
    ['`b(i, j) = -r1 * log(1 + r2 * abs(i - j))`', 'Chi et al. 2022', '', '2', 'yes', 'all']
    """
    choice = spec(_encoding(name))
    made = choice.build(DIMS, nnx.Rngs(0))
    whole = choice.build_embedding(DIMS, nnx.Rngs(0))
    options = [x for x in inspect.signature(type(made).__init__).parameters if x not in ("self", "dims", "rngs")]
    parameters = f"{round(_trained(made) / DIMS.heads, 1):g}"
    if whole is not None and _trained(whole):
        parameters = f"{_trained(whole):,} a model"
    text = METHODS[name].about if name in METHODS else inspect.getdoc(type(made)) or ""
    source = re.search(r"Source: +([^,;]+)", text)
    if source is None:
        raise UserError(f"the docstring of {type(made).__name__} names no source: end it with 'Source: ...'")
    return [
        f"`{name}`",
        f"`{_formula(made)}`",
        " ".join(source[1].split()).removesuffix("."),
        ", ".join(options),
        parameters,
        made.extrapolates,
        _backends(made),
    ]


def _trained(module: nnx.Module) -> int:
    return sum(x.size for x in jax.tree.leaves(nnx.state(module, nnx.Param)))


def _formula(encoding: Encoding) -> str:
    """The equation of the encoding's docstring, or else those of its parts."""
    rowwise, bias = encoding.rowwise(), encoding.bias()
    parts = [rowwise] if isinstance(bias, Uniform) and rowwise is not None else [rowwise, bias]
    for group in ([type(encoding)], [encoding.embedding], [type(x) for x in parts if x is not None]):
        equations = [_equation(inspect.getdoc(x) or "") for x in group if x is not None]
        if any(equations):
            return ", ".join(filter(None, equations))
    raise UserError(
        f"no docstring of {type(encoding).__name__} has an equation, a paragraph of its own indented by four"
    )


def _equation(text: str) -> str:
    """The first indented paragraph of a docstring, in one line."""
    found = re.search(r"\n\n((?: {4}.*(?:\n|$))+)", text)
    lines = [] if found is None else found[1].splitlines()
    return ", ".join(" ".join(line.split()) for line in lines)


def _backends(encoding: Encoding) -> str:
    x = jnp.zeros((1, 8, DIMS.width))
    position = jnp.arange(8)[None]
    i, j = encoding.coordinate(x, position >= 0, None)
    q = jnp.zeros((1, 8, DIMS.heads, DIMS.head_width), jnp.bfloat16)
    mask = Mask(window=encoding.window)
    scoring = Scoring(
        encoding.bias(), Tokens(position, None, i), Tokens(position, None, j), None, mask, encoding.rowwise()
    )
    able = [name for name, backend in BACKENDS.items() if backend.reason(q, q, q, scoring) is None]
    missing = [name for name in BACKENDS if name not in able]
    if not missing:
        return "all"
    return f"all but {', '.join(missing)}" if len(missing) < len(able) else ", ".join(able)
