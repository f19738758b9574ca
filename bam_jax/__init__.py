"""Positional priors in attention: BAM, CABLE and what they compare with, in JAX and Flax."""
