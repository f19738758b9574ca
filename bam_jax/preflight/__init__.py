"""A training step compiled for TPUs that need not be there: its memory, its time and what would fit."""
