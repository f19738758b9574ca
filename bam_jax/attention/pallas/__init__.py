"""The Pallas kernels for TPUs and Hopper GPUs."""
