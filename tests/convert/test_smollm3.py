"""A SmolLM3: a Llama whose config.json says which layers have positions."""

import json

import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax.convert import LAYOUTS
from bam_jax.convert.base import Arrays
from bam_jax.system.errors import UserError

SMOLLM3 = LAYOUTS["smollm3"]
SIZES = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 90}
DESCRIBED = SIZES | {"model_type": "smollm3", "max_position_embeddings": 64, "rms_norm_eps": 1e-6}
NONE: Arrays = {"model.norm.weight": np.ones(32)}


def read(**changes):
    return configs.from_dict(SMOLLM3.config(NONE, DESCRIBED | changes))


@pytest.mark.parametrize(
    ("said", "encoding", "options"),
    [
        ({"no_rope_layers": [0, 0, 0, 0]}, "nope", {}),
        ({"no_rope_layers": [1, 1, 1, 1], "rope_theta": 500.0}, "rope", {"base": 500.0}),
        ({"no_rope_layers": [1, 0, 1, 0], "rope_theta": 500.0}, "rope:base=500.0/nope", {}),
        ({}, "rope:base=2000000.0/rope:base=2000000.0/rope:base=2000000.0/nope", {}),  # its defaults
        ({"no_rope_layer_interval": 2, "rope_parameters": {"rope_theta": 9.0}}, "rope:base=9.0/nope", {}),
    ],
)
def test_layers_without_positions_are_a_pattern_and_come_back(said, encoding, options):
    config = read(**said)
    assert (config.encoding, config.encoding_options, config.model.tied) == (encoding, options, True)
    described = SMOLLM3.args(config, 90)
    again = configs.from_dict(SMOLLM3.config(NONE, json.loads(json.dumps(described))))
    assert again == config and described["architectures"] == ["SmolLM3ForCausalLM"]
    assert described["no_rope_layers"] == said.get("no_rope_layers", described["no_rope_layers"])


def test_what_it_cannot_say_is_refused():
    with pytest.raises(UserError, match="no_rope_layers of 2 layers"):
        read(no_rope_layers=[1, 0])
    with pytest.raises(UserError, match=r"several bases of a rotation: \[5.0, 6.0\]"):
        SMOLLM3.args(configs.from_dict({"encoding": "rope:base=5.0/rope:base=6.0"}), 90)
