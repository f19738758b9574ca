"""A run's configuration: a Python file and `--config.a.b=value`, turned once into frozen dataclasses."""

from bam_jax.config.reading import (
    allow_option,
    allowed,
    digest,
    from_dict,
    from_json,
    lengths_of,
    load,
    mentioned,
    override,
    parse,
    to_dict,
    to_json,
)
from bam_jax.config.sections import Config, DataConfig, MeshConfig, ModelConfig, OptimizerConfig

__all__ = [
    "Config",
    "DataConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "allow_option",
    "allowed",
    "digest",
    "from_dict",
    "from_json",
    "lengths_of",
    "load",
    "mentioned",
    "override",
    "parse",
    "to_dict",
    "to_json",
]
