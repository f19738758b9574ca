"""The learned parameters of each head of a model."""

import numpy as np
from flax import nnx

from bam_jax.encodings import SSMax
from bam_jax.models.transformer import Decoder


def head_parameters(decoder: Decoder) -> dict[str, np.ndarray]:
    """The encoding's parameters, trained or frozen, with one number per head, and SSMax's scale `ssmax`, each [layers, heads].

    A prior that all layers share appears as one layer. In a pattern, only the layers that have the parameter appear, in order.
    Parameters of other shapes, such as the weights of CABLE's steps, are skipped.
    """
    heads, found = decoder.config.heads, dict[str, list[np.ndarray]]()
    stacks: list[dict[str, np.ndarray]] = []
    for stack in decoder.stacks():
        attention = stack.attention
        shape = (heads,) if decoder.shared_encoding else (attention.query.kernel.shape[0], heads)
        plain = nnx.to_pure_dict(nnx.state(attention.encoding))
        plain = {name: value for name, value in plain.items() if not isinstance(value, dict) and value.shape == shape}
        if isinstance(attention.ssmax, SSMax):
            plain["ssmax"] = attention.ssmax.scale[...]
        stacks.append({name: np.atleast_2d(np.asarray(value, np.float64)) for name, value in plain.items()})
    for place, at in decoder.order():
        for name, values in stacks[decoder.stack_of[place]].items():
            found.setdefault(name, []).extend(values[at : at + 1])
    return {name: np.stack(rows) for name, rows in found.items()}
