"""Evaluations of trained models: passkeys, perplexity, RULER, synthetic tasks, benchmarks of questions."""
