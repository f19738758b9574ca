"""Measures the figures of reliability, and generates their page.

python tests/endurance/run.py                       # all of them, some hours; the same command resumes after an interruption
python tests/endurance/run.py configurations bombs  # only these
python tests/endurance/run.py --short               # a few cases of each, without a record
python tests/endurance/run.py --page                # generates the tables of docs/reliability.md from the records
"""

import argparse
import functools
import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path[0] = str(Path(__file__).parents[1])

import jax  # noqa: E402
from endurance import figures  # noqa: E402
from endurance.figures import FIGURES  # noqa: E402

from bam_jax.system import git  # noqa: E402

log = functools.partial(print, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--short", action="store_true", help="few cases, no record")
    parser.add_argument("--parts", help="such as 0,1: only these, so that several processes share a figure's work")
    parser.add_argument("--cases", type=int, help="with --short: this many cases")
    parser.add_argument("--page", action="store_true", help="only generate the tables of docs/reliability.md")
    given = parser.parse_args()
    if given.page:
        figures.PAGE.write_text(figures.generate(figures.PAGE.read_text()))
        return 0
    if unknown := set(given.names) - FIGURES.keys():
        parser.error(f"unknown figure {min(unknown)!r}; there are {', '.join(FIGURES)}")
    if not given.short and str(git.describe()).endswith("-dirty"):
        parser.error("this code has changes that no commit holds; commit them, or measure a clone")
    parts = None if given.parts is None else [int(part) for part in given.parts.split(",")]
    failed = 0
    for name in given.names or FIGURES:
        figure, measured = FIGURES[name], figures.harness(name)
        count = (given.cases or figure.short) if given.short else figure.wanted
        log(f"{name}: {figures.summary(name)}: {count:,} {figure.unit}")
        try:
            if not given.short:
                failed += figures.measure(name, figure, measured, log, parts=parts)
                continue
            with tempfile.TemporaryDirectory() as folder:
                outcome = measured(0, count, Path(folder))
            log(f"{name}: {outcome.count} {figure.unit}, {len(outcome.failures)} failed {outcome.more}")
            for failure in outcome.failures:
                log(f"{name}:   {failure}")
            failed += len(outcome.failures)
        except figures.Unavailable as reason:
            log(f"{name}: not measured: {reason}")
            failed += bool(given.names)
        except Exception:  # an error of the harness: the other figures are measured all the same
            traceback.print_exc()
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as programs:
        jax.config.update("jax_compilation_cache_dir", programs)  # many cases compile the same
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_num_cpu_devices", 4)  # of a ring
        sys.exit(main())
