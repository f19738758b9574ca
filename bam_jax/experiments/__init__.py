"""Experiments: from a file of rows to runs, and from their records to tables and claims."""
