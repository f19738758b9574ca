"""Experiments: from a file of rows to runs, and from the runs' records to tables and claims."""
