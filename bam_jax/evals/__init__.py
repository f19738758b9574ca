"""Evaluations of trained models: passkeys, perplexity, RULER, benchmarks of questions."""
