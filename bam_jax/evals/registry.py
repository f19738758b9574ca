"""The evaluations that a command, an experiment or a record can name, and their options as arguments."""

import argparse
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from bam_jax import config as configs
from bam_jax.evals.base import Evaluation
from bam_jax.evals.contrastive import Contrastive
from bam_jax.evals.copying import Copying
from bam_jax.evals.harness import Harness
from bam_jax.evals.masked_perplexity import MaskedPerplexity
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.retrieval import Retrieval
from bam_jax.evals.ruler import Ruler
from bam_jax.evals.synthetic import Synthetic
from bam_jax.system.errors import UserError, nearest

KINDS: tuple[type[Evaluation], ...] = (
    Contrastive,
    Copying,
    Harness,
    MaskedPerplexity,
    Passkey,
    Perplexity,
    Retrieval,
    Ruler,
    Synthetic,
)

EVALUATIONS: dict[str, type[Evaluation]] = {kind.name: kind for kind in KINDS}


def kind_of(name: str) -> type[Evaluation]:
    """The class of an evaluation's records; `Evaluation` itself for one that this version does not know."""
    return EVALUATIONS[name] if name in EVALUATIONS else Evaluation


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--eval", required=True, help=f"one or more, with commas: {', '.join(EVALUATIONS)}")
    parser.add_argument("--lengths", required=True, help="tokens of a prompt, sequence or question, as in 64,4096")
    helps: dict[str, list[str]] = defaultdict(list)
    readers: dict[str, Callable[[str], Any]] = {}
    for name, kind in EVALUATIONS.items():
        hints = typing.get_type_hints(kind)
        for field in kind.options():
            default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
            suffix = "" if default is None else f" ({default})"
            helps[field.name].append(f"{name}: {field.metadata['help']}{suffix}")
            readers[field.name] = _reader(hints[field.name])
    for option, texts in helps.items():
        parser.add_argument(f"--{option}", type=readers[option], help="; ".join(texts))


def _reader(kind: Any) -> Callable[[str], Any]:
    """The function that parses an option's text, by the type of its field; an option that is not given is None."""
    if typing.get_origin(kind) is tuple:
        return lambda text: tuple(text.split(","))
    (plain,) = {*(typing.get_args(kind) or [kind])} - {types.NoneType}
    return plain


def from_options(given: argparse.Namespace, overrides: Mapping[str, Any]) -> list[Evaluation]:
    """The evaluations that a command line asks for; each gets the options that it defines."""
    names, lengths = given.eval.split(","), tuple(configs.lengths_of(given.lengths))
    for name in names:
        if name not in EVALUATIONS:
            raise UserError(f"unknown evaluation {name!r}; {nearest(name, EVALUATIONS)}")
    every = {field.name for each in EVALUATIONS.values() for field in each.options()}
    options = {name: value for name, value in vars(given).items() if name in every and value is not None}
    known = {name: [field.name for field in EVALUATIONS[name].options()] for name in names}
    for option in options:
        if not any(option in each for each in known.values()):
            others = [each for own in known.values() for each in own]
            raise UserError(f"--{option} is no option of --eval={given.eval}; {nearest(option, others, '--help')}")
    own = lambda name: {option: value for option, value in options.items() if option in known[name]}
    return [EVALUATIONS[name](lengths, overrides=overrides, **own(name)) for name in dict.fromkeys(names)]
