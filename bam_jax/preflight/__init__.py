"""Compiles a training step for TPUs that need not be present: its memory, its time and what would fit."""
