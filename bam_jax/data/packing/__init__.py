"""Rows of a batch, made of documents or of a synthetic task."""
