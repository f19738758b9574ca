"""Errors in one line, logs, files, strict JSON, and the machine underneath."""
