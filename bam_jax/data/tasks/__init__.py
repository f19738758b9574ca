"""Tasks whose samples are generated or read from files: passkeys, RULER, benchmarks, synthetic tasks."""
