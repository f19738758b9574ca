"""The transformer of both papers, its layers, and reading and generating text with it."""
