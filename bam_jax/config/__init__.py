"""A run's configuration: a Python file and changes to its fields, converted once to frozen dataclasses."""

from bam_jax.config.changes import arguments, from_arguments, mentioned, parse, typed
from bam_jax.config.reading import (
    CONFIGS,
    allow_option,
    allowed,
    digest,
    from_dict,
    from_fields,
    from_json,
    lengths_of,
    load,
    located,
    override,
    to_dict,
    to_fields,
    to_json,
)
from bam_jax.config.sections import Config, DataConfig, MeshConfig, ModelConfig, OptimizerConfig

__all__ = [
    "CONFIGS",
    "Config",
    "DataConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "allow_option",
    "allowed",
    "arguments",
    "digest",
    "from_arguments",
    "from_dict",
    "from_fields",
    "from_json",
    "lengths_of",
    "load",
    "located",
    "mentioned",
    "override",
    "parse",
    "to_dict",
    "to_fields",
    "to_json",
    "typed",
]
