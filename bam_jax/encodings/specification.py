"""The encoding that a config names, with its options checked."""

import contextlib
import dataclasses
import inspect
import math
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bam_jax.biases import Bias
from bam_jax.biases.base import compares_pairs, head_axes, trial
from bam_jax.encodings.base import TOKENS, Dims, Encoding, within
from bam_jax.encodings.registry import ENCODINGS
from bam_jax.encodings.ssmax import AdaptiveScale, EffectiveSSMax, LogTemperature, SSMax
from bam_jax.system.errors import UserError, nearest, shown
from bam_jax.system.plugins import named_where_it_fails

SSMAX = ("off", "on", "inside", "outside", "effective", "asentmax", "entmax", "adaptive")
KINDS = {"bool": bool, "float": float, "int": int, "str": str, "None": type(None)}
"""Annotations of options that are checked, alone or with | between them."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """An encoding that is chosen, but not built yet.

    Args:
        encoding: the class.
        options: keyword arguments of its constructor.
        ssmax: the prior's place under Scalable Softmax, "inside" or "outside" its factor; "effective": outside, and the factor
            counts the effective keys of the prior; or a softmax variant of `sharpened`. None: no SSMax.
        shared: whether all layers share one encoding.
        window: tokens that a query may see, itself included; None: the encoding's own window.
        log_temperature, log_temperature_start: see `LogTemperature`; 0 means no temperature, and the training context.
        file: the file of the class, if it is the user's own; such a class is tested when it is built.
    """

    encoding: type[Encoding]
    options: Mapping[str, Any]
    ssmax: str | None
    shared: bool = False
    window: int | None = None
    log_temperature: float = 0.0
    log_temperature_start: int = 0
    file: str | None = None

    def build(self, dims: Dims, rngs: nnx.Rngs) -> Encoding:
        """One layer's encoding, or that of all layers.

        Raises:
            UserError: the user's own class fails, or its bias is not a number for each query and key.
        """
        with self._named():
            made = self.encoding(dims, **self.options, rngs=rngs)
            if self.file is not None:
                _try(made, dims)
        if self.window is not None:
            made.window = self.window
        return made

    def all_options(self) -> dict[str, Any]:
        """The options as given, those that were not given at their defaults, and the window if there is one."""
        parameters = _options_of(self.encoding)
        defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
        return defaults | dict(self.options) | ({} if self.window is None else {"window": self.window})

    def _named(self) -> contextlib.AbstractContextManager:
        """Report what the user's own code raises in one line."""
        return contextlib.nullcontext() if self.file is None else named_where_it_fails(self.file, "encoding file")

    def build_log_temperature(self, dims: Dims) -> LogTemperature | None:
        """One layer's log-length temperature, if there is any."""
        if not self.log_temperature:
            return None
        return LogTemperature(self.log_temperature, self.log_temperature_start or dims.context)

    def build_ssmax(self, dims: Dims, prior: Bias, rngs: nnx.Rngs) -> SSMax | AdaptiveScale | None:
        """One layer's factor of the scores, if there is any.

        UserError: effective keys in an encoder, or for a prior that is not a function of the distance.
        """
        if self.ssmax in (None, "entmax", "adaptive"):
            return None
        if self.ssmax == "asentmax":
            return AdaptiveScale(dims.heads, dims.width, rngs=rngs)
        if self.ssmax != "effective":
            return SSMax(dims.heads, rngs=rngs)
        if not dims.causal or prior.by_offset() is None:
            raise UserError(
                "config.ssmax='effective' needs a decoder and a prior that depends on the distance alone; give config.ssmax=off, "
                "or on for Scalable Softmax over all keys"
            )
        return EffectiveSSMax(dims.heads, dims.context, rngs=rngs)

    def build_embedding(self, dims: Dims, rngs: nnx.Rngs) -> nnx.Module | None:
        """The model's position embedding, if the encoding has one."""
        make = self.encoding.embedding
        with self._named():
            return None if make is None else make(dims, **self.options, rngs=rngs)  # type: ignore[call-arg]


def spec(
    name: str,
    options: Mapping[str, Any] | None = None,
    ssmax: str = "off",
    *,
    shared: bool = False,
    log_temperature: float = 0.0,
    log_temperature_start: int = 0,
) -> Spec:
    """The encoding of that name, with its options checked.

    Args:
        name: a key of `ENCODINGS`, or an import path "package.module:Class" of a module that has been imported. Nothing is
            imported here, because names also come from saved runs, which may be untrusted.
        options: keyword arguments of the class; and `window`, in tokens, which every encoding takes.
        ssmax: "off", "on" (the authors' placement for this encoding), the prior "inside" or "outside" the factor, "effective",
            or another of `SSMAX`.
        shared: whether all layers share one encoding.
        log_temperature, log_temperature_start: see `Spec`.

    Raises:
        UserError: an unknown name, option or placement (the nearest one is suggested); a module that has not been imported; an
            option whose type differs from its annotation, or a missing option without a default.

    >>> spec("bam", {"init": "spread"}, "on").ssmax
    'inside'
    """
    encoding = _resolve(name)
    values = _values(name, encoding, options or {})
    window = None if "window" in _options_of(encoding) else values.pop("window", None)
    if window is not None:
        window = within("window", window, 1, TOKENS)
    if ssmax not in SSMAX:
        raise UserError(f"ssmax={ssmax!r} is no setting of Scalable Softmax: {nearest(ssmax, SSMAX)}")
    place = {"off": None, "on": encoding.ssmax_prior}
    placement = place[ssmax] if ssmax in place else ssmax
    module = name.partition(":")[0]
    file = (getattr(sys.modules[module], "__file__", None) or module) if ":" in name else None
    return Spec(encoding, values, placement, shared, window, log_temperature, log_temperature_start, file)


def _try(encoding: Encoding, dims: Dims) -> None:
    """Test the formula of a user's own encoding, which may raise anything; only shapes are computed."""
    coordinates = encoding.coordinate(jnp.zeros((1, 3, dims.width)), jnp.ones((1, 3), bool), None)
    bias = encoding.bias()
    found = trial(bias, *coordinates)
    heads = (dims.heads,) if jax.tree.leaves(head_axes(bias)) else (1, dims.heads)
    dtypes = [*map(jnp.result_type, jax.tree.leaves(bias)), found.dtype]
    strange = [dtype.name for dtype in dtypes if not jnp.issubdtype(dtype, jnp.floating)]
    if strange or not compares_pairs(found.shape) or found.shape[1] not in heads:
        code = inspect.unwrap(type(bias).__call__).__code__
        raise UserError(
            f"the formula of {type(bias).__name__} at {code.co_filename}:{code.co_firstlineno} must make a number for each of "
            f"{dims.heads} heads, 2 queries and 3 keys of floating-point parameters, and makes "
            f"{strange[0] if strange else found.dtype.name} {list(found.shape[1:])}; mend that file"
        )
    _try_turn(encoding, dims)


def _try_turn(encoding: Encoding, dims: Dims) -> None:
    """Test the `turn` of a user's own encoding; only shapes are computed."""
    side = jax.ShapeDtypeStruct((1, 3, dims.heads, dims.head_width), jnp.float32)
    x, position = jnp.zeros((1, 3, dims.width)), jnp.arange(3, dtype=jnp.int32)[None]
    tokens: Any = types.SimpleNamespace(position=position, segment=None)
    before = encoding.initial_state(1)
    of = lambda tree: jax.tree.map(lambda y: f"{y.dtype.name} {list(y.shape)}", tree)
    made = jax.eval_shape(lambda q, k: encoding.turn(q, k, x, tokens, before), side, side)
    name = type(encoding).__name__
    if not (isinstance(made, tuple) and len(made) == 3):
        raise UserError(f"{name}.turn must return queries, keys and the state, and returns {of(made)}; mend that file")
    q, k, after = made
    if of(after) != of(before):
        raise UserError(
            f"{name}.turn must return a state shaped like before, {of(before)}, and returns {of(after)}; mend that file"
        )
    if not (q.shape == k.shape and q.shape[:3] == side.shape[:3] and len(q.shape) == 4):
        raise UserError(
            f"{name}.turn must make queries and keys of one width of {list(side.shape)}, and makes {list(q.shape)} and "
            f"{list(k.shape)}; mend that file"
        )


def _options_of(encoding: type[Encoding]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(encoding.__init__).parameters
    return {option: each for option, each in parameters.items() if option not in ("self", "dims", "rngs")}


def _values(name: str, encoding: type[Encoding], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, checked against the constructor's annotations; ints become floats where it wants floats."""
    known = _options_of(encoding)
    known.setdefault(
        "window", inspect.Parameter("window", inspect.Parameter.KEYWORD_ONLY, annotation=int | None, default=None)
    )
    for option in options:
        if option not in known:
            hint = nearest(option, known)
            raise UserError(f"encoding {shown(name)} has no option {shown(option)}: {hint}")
    for option, parameter in known.items():
        if parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY and option not in options:
            raise UserError(f"encoding {shown(name)} needs its option: give --config.encoding_options.{option}=value")
    return {option: _value(option, value, known[option].annotation) for option, value in options.items()}


def _value(option: str, value: Any, annotation: Any) -> Any:
    wanted = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    names = wanted.split(" | ")
    if any(name not in KINDS for name in names):  # no annotation, or a type of the user's own
        return value
    kinds = [KINDS[name] for name in names]
    if float in kinds and type(value) is int:
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
    if type(value) not in kinds:
        raise UserError(
            f"encoding_options.{option}={shown(value)} must be of type {' or '.join(names)}, not {type(value).__name__}"
        )
    if type(value) is float and not math.isfinite(value):
        raise UserError(f"encoding_options.{option}={value} must be finite")
    return value


def _resolve(name: str) -> type[Encoding]:
    if ":" not in name:
        if name not in ENCODINGS:
            raise UserError(
                f"no encoding {shown(name)}: {nearest(name, ENCODINGS, 'python -m bam_jax.methods')}, or name a class as "
                "package.module:Class"
            )
        return ENCODINGS[name]
    module_name, _, attribute = name.partition(":")
    module = sys.modules.get(module_name)
    if not isinstance(module, types.ModuleType):
        raise UserError(
            f"the encoding {shown(name)} is code, which is imported only on your word: if you trust it, add "
            f"--allow={module_name} to the command, with the module's folder on PYTHONPATH (or import it first)"
        )
    encoding = vars(module).get(attribute)  # getattr may run code
    if isinstance(encoding, type) and issubclass(encoding, Bias):
        raise UserError(
            f"the encoding {shown(name)} names a Bias; name the Encoding that learned({attribute}, ...) makes of it, as the "
            "README shows under A bias of your own"
        )
    if not (isinstance(encoding, type) and issubclass(encoding, Encoding)):
        raise UserError(f"{module_name!r} has no Encoding class {attribute!r}, which the encoding {shown(name)} names")
    return encoding
