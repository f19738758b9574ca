"""From a name and options to encodings: what a config says, checked."""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from flax import nnx

from bam_jax.encodings.base import Dims, Encoding
from bam_jax.encodings.table import ENCODINGS
from bam_jax.errors import UserError, nearest

SSMAX = ("off", "on", "inside", "outside")


@dataclasses.dataclass(frozen=True)
class Spec:
    """An encoding chosen and not yet built.

    Args:
      encoding: the class.
      options: keyword arguments of its constructor.
      ssmax: where the prior stands under Scalable Softmax, "inside" or "outside" its factor; None: no SSMax.
      shared: whether all layers have one encoding together.
    """

    encoding: type[Encoding]
    options: Mapping[str, Any]
    ssmax: str | None
    shared: bool = False

    def build(self, dims: Dims, rngs: nnx.Rngs) -> Encoding:
        """One layer's encoding, or that of all layers."""
        return self.encoding(dims, **self.options, rngs=rngs)

    def build_embedding(self, dims: Dims, rngs: nnx.Rngs) -> nnx.Module | None:
        """The model's position embedding, if the encoding has one."""
        make = self.encoding.embedding
        return None if make is None else make(dims, **self.options, rngs=rngs)  # type: ignore[call-arg]


def spec(name: str, options: Mapping[str, Any] | None = None, ssmax: str = "off", *, shared: bool = False) -> Spec:
    """The encoding of that name, with its options checked.

    Args:
      name: a key of `ENCODINGS`, or an import path "package.module:Class".
      options: keyword arguments of the class.
      ssmax: "off", "on" (the authors' placement for this encoding), or the prior "inside" or "outside" the factor.
      shared: whether all layers have one encoding together.

    Raises:
      UserError: no such name, import path, option or placement; the nearest one is offered.

    >>> spec("bam", {"init": "spread"}, "on").ssmax
    'inside'
    """
    encoding = _resolve(name)
    known = [n for n in inspect.signature(encoding.__init__).parameters if n not in ("self", "dims", "rngs")]
    for option in options or {}:
        if option not in known:
            hint = nearest(option, known) if known else "it takes none"
            raise UserError(f"encoding {name!r} has no option {option!r}: {hint}")
    if ssmax not in SSMAX:
        raise UserError(f"ssmax={ssmax!r} is none of its settings: {nearest(ssmax, SSMAX)}")
    place = {"off": None, "on": encoding.ssmax_prior}
    return Spec(encoding, dict(options or {}), place[ssmax] if ssmax in place else ssmax, shared)


def _resolve(name: str) -> type[Encoding]:
    if ":" not in name:
        if name not in ENCODINGS:
            raise UserError(
                f"no encoding {name!r}: {nearest(name, ENCODINGS)}, or name a class as package.module:Class"
            )
        return ENCODINGS[name]
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"cannot import the encoding {name!r}: {error}; is its folder on PYTHONPATH?") from error
    encoding = getattr(module, attribute, None)
    if not (isinstance(encoding, type) and issubclass(encoding, Encoding)):
        raise UserError(f"{module_name!r} has no Encoding class {attribute!r}, which the encoding {name!r} names")
    return encoding
