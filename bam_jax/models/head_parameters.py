"""The numbers that a model has learned for each of its heads."""

import numpy as np
from flax import nnx

from bam_jax.models.transformer import Decoder


def head_parameters(decoder: Decoder) -> dict[str, np.ndarray]:
    """The encoding's parameters, trained or frozen, that are one number a head, and SSMax's `ssmax`, each [layers, heads].

    A prior that all layers share has no axis of layers; here it is one layer. Parameters of other shapes, such as the
    weights of CABLE's steps, are left out.

    Args:
        decoder: a model.
    """
    attention = decoder.layers.attention
    parameters = nnx.to_pure_dict(nnx.state(attention.encoding))
    if attention.ssmax is not None:
        parameters["ssmax"] = attention.ssmax.scale[...]
    plain = {name: np.atleast_2d(value) for name, value in parameters.items() if not isinstance(value, dict)}
    shapes = {(layers, decoder.config.heads) for layers in (1, decoder.config.layers)}
    return {name: value.astype(np.float64) for name, value in plain.items() if value.shape in shapes}
