"""What trained models do: their heads, their priors, their figures."""
