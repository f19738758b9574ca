"""The settings that an encoding is published with. Naming the encoding selects them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bam_jax.config import layer_pattern

SSMAX: Mapping[str, str] = {"bam": "on", "bam_contextual": "effective"}
"""The Scalable Softmax of an encoding's paper or study. All other encodings, including a user's own, have "off"."""


class Method(NamedTuple):
    """An encoding with all the settings that its paper trains it with."""

    changes: Mapping[str, Any]
    about: str


METHODS: Mapping[str, Method] = {
    "bam_paper": Method(
        {
            "encoding": "bam",
            "encoding_options": {"init": "uniform"},  # `bam` fixes the location at 0 unless train_loc is set
            "ssmax": "on",
            "shared_encoding": False,
            "optimizer.prior_rate": 1.0,
        },
        """The BAM SSMax of the paper: priors start uniform, the location is fixed at 0, Scalable Softmax has the prior inside.

Each layer has a prior of its own, as the paper counts parameters. It trains at the common rate, as in the authors' code; models
that train for a few thousand steps find more keys with --config.optimizer.prior_rate=20 (docs/prior_study.md).

Source: BAM appendix C.""",
    ),
}
"""Names that stand for more than an encoding."""


def method(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The changes of the method that a tree, or changes, name as their encoding; none for any other name."""
    named = tree.get("encoding")
    return METHODS[named].changes if isinstance(named, str) and named in METHODS else {}


def ssmax(encoding: str) -> str:
    """The Scalable Softmax that an encoding is published with; for a pattern, that of its places, or "off" if they differ.

    >>> ssmax("bam"), ssmax("alibi"), ssmax("rope:window=512/bam")
    ('on', 'off', 'off')
    """
    found = {SSMAX.get(place.name, "off") for place in layer_pattern.parse(encoding) if "ssmax" not in place.options}
    return found.pop() if len(found) == 1 else "off"
