"""Training: the step, the loop, checkpoints and the folder of a run."""
