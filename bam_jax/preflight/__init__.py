"""Whether a training step fits a slice of TPUs that need not be there, and how long it takes: `python -m bam_jax.preflight`."""
