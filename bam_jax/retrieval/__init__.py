"""Retrieval: documents and queries as vectors, the nearest documents to each query, and how good such a ranking is."""
