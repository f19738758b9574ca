"""Measurements and figures of trained models: their heads, their priors, the table of methods."""
