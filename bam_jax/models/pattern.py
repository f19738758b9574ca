"""The pattern of encodings that layers repeat, and patterns whose places differ only in numbers.

Some encodings have no parameters and only rotate queries and keys: RoPE, its rescalings, p-RoPE, and NoPE, which rotates by
nothing. In a pattern of these, places may also differ in windows and log-length temperatures. All layers are then one stack, and
one layer is compiled for all of them. It reads its rates, its window and its temperature from a table, by its place.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from bam_jax.attention import EMPTY, Mask, Tokens
from bam_jax.config import Config, ModelConfig
from bam_jax.encodings import Dims, Encoding, LogTemperature, RoPE, Spec, spec
from bam_jax.encodings.angles import turns
from bam_jax.encodings.rotary import Turning
from bam_jax.models.blocks import Attention, TokenInfo
from bam_jax.system.errors import UserError


def specs(config: Config) -> list[Spec]:
    """The encoding of each place of a configuration's pattern."""
    pattern = []
    for number, place in enumerate(places := config.layer_pattern(), start=1):
        try:
            pattern.append(spec(**place))
        except UserError as error:
            if len(places) == 1:
                raise
            raise UserError(f"place {number} of config.encoding: {error}") from error
    return pattern


def describe(config: Config) -> str:
    """A line with the encoding of each place of the pattern, all of its options, and Scalable Softmax.

    >>> describe(Config(encoding="rope:window=8/nope"))
    'rope (base=10000.0, base_scale=1.0, window=8), SSMax off / nope, SSMax off'
    """
    lines = []
    for place, chosen in zip(config.layer_pattern(), specs(config), strict=True):
        options = ", ".join(f"{name}={value}" for name, value in chosen.all_options().items())
        text = f"{place['name']}{f' ({options})' if options else ''}, SSMax {place['ssmax']}"
        if chosen.log_temperature:
            text += f", log-length temperature {chosen.log_temperature:g}"
        lines.append(text + (", one for all layers" if chosen.shared else ""))
    counts = [(text, len([*equal])) for text, equal in itertools.groupby(lines)]
    return " / ".join(text if count == 1 else f"{count} x {text}" for text, count in counts)


def scan_periods(
    x: Array, steps: Sequence[Callable], states: Sequence[nnx.State], stack_of: Sequence[int]
) -> Float[Array, "B T E"]:
    """The rows after all layers of all periods; within a period, each run of equal places is one scan.

    For each place, `steps` has (rows, state of a layer) -> (rows, None), `states` the stacked states of its run's layers in all
    periods, and `stack_of` the number of its run.
    """
    lengths = [(stack_of.index(run), stack_of.count(run)) for run in sorted({*stack_of})]
    by_period = [
        jax.tree.map(lambda s, size=size: s.reshape(-1, size, *s.shape[1:]), states[first]) for first, size in lengths
    ]

    def period(x: Array, states: list[nnx.State]) -> tuple[Array, None]:
        for (first, _), state in zip(lengths, states, strict=True):
            x, _ = jax.lax.scan(steps[first], x, state)
        return x, None

    return jax.lax.scan(period, x, by_period)[0]


class Alternative(nnx.Module):
    """A place's encoding and log-length temperature, neither of which has parameters."""

    def __init__(self, encoding: Encoding, log_temperature: LogTemperature | None):
        self.encoding, self.log_temperature = encoding, log_temperature

    def put_into(self, attention: Attention) -> None:
        """Give a layer the encoding and the temperature of this place."""
        attention.encoding, attention.log_temperature = self.encoding, nnx.data(self.log_temperature)


def alternatives(pattern: Sequence[Spec], dims: Dims) -> list[Alternative] | None:
    """The places of a pattern that differ only in numbers; None if they differ in more, or if there is only one."""
    if len(pattern) == 1 or len({place.ssmax for place in pattern}) > 1:
        return None
    made = [nnx.eval_shape(lambda place=place: place.build(dims, nnx.Rngs(0))) for place in pattern]
    if not all(_only_turns(encoding) for encoding in made):
        return None
    return [Alternative(each, place.build_log_temperature(dims)) for each, place in zip(made, pattern, strict=True)]


def _only_turns(encoding: Encoding) -> bool:
    kind, base = type(encoding), Encoding
    same = (kind.bias, kind.coordinate, kind.rowwise) == (base.bias, base.coordinate, base.rowwise)
    return same and kind.turn in (base.turn, RoPE.turn) and not jax.tree.leaves(nnx.state(encoding))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Table:
    """The numbers that layers read by place, each with a first axis of P places; for one layer, without that axis."""

    # For `Turning`; None if no place rotates anything.
    turns: UInt32[Array, "P N 2"] | None
    magnitude: Float[Array, " P"] | None
    # For `LogTemperature`, with 0 and 1 for a place without one; None if no place has one.
    alpha: Float[Array, " P"] | None
    start: Float[Array, " P"] | None
    # Positions that a query sees; None if no place has a window, because the mask then determines them.
    lowest: Int[Array, " P #B T"] | None
    highest: Int[Array, " P #B T"] | None
    # The number of keys that each token sees.
    visible: Int[Array, " P #B T"]

    def row(self, place: Int[Array, ""]) -> "Table":
        """The row that the layers of one place read."""
        return jax.tree.map(lambda x: x[place], self)

    def put_into(self, attention: Attention, tokens: Tokens) -> TokenInfo:
        """Give a layer the encoding and the temperature of this row, and return its `TokenInfo`."""
        if self.turns is not None and self.magnitude is not None:
            attention.encoding = Turning(self.turns, self.magnitude)
        else:  # a copy in this trace, which may be modified
            attention.encoding = nnx.clone(attention.encoding)
        attention.encoding.window = None  # it is in the limits
        attention.log_temperature = nnx.data(None)
        if self.alpha is not None and self.start is not None:
            attention.log_temperature = nnx.data(LogTemperature(self.alpha, self.start))
        if self.lowest is not None:
            tokens = dataclasses.replace(tokens, sees_from=self.lowest, sees_to=self.highest)
        return TokenInfo(tokens, self.visible)


def table(places: Sequence[Alternative], infos: Sequence[TokenInfo], config: ModelConfig) -> Table:
    """The table of a pattern and a text."""
    causal, half = config.causal, config.head_width // 2
    fractions, magnitude, alpha, start, lowest, highest = (None,) * 6
    encodings, temperatures = [place.encoding for place in places], [place.log_temperature for place in places]
    numbers = lambda values: jnp.asarray(np.array(values), jnp.float32)
    if any(isinstance(each, RoPE) for each in encodings):
        still = np.zeros(half)
        rates = np.array([each.rates(half) if isinstance(each, RoPE) else still for each in encodings])
        fractions = jnp.asarray(turns(rates))
        magnitude = numbers([each.magnitude if isinstance(each, RoPE) else 1.0 for each in encodings])
    if any(each is not None for each in temperatures):
        alpha = numbers([0.0 if each is None else each.alpha for each in temperatures])
        start = numbers([1.0 if each is None else each.start for each in temperatures])
    if any(each.window is not None for each in encodings):
        limits = [Mask(causal=causal, window=each.window or EMPTY).limits(infos[0].tokens) for each in encodings]
        lowest = jnp.stack([each.lowest for each in limits])
        highest = None if causal else jnp.stack([each.highest for each in limits])
    visible = jnp.stack([info.visible for info in infos])
    return Table(fractions, magnitude, alpha, start, lowest, highest, visible)
