"""Tasks whose samples are made or read: passkeys, RULER, benchmarks, synthetic tasks."""
