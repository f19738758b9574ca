"""The transformer of both papers, its layers, and what reads and writes text with it."""
