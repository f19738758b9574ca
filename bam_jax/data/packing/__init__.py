"""Rows of a batch made of documents."""
