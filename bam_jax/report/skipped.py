"""Runs and pages that a report skips, since a file of theirs cannot be read: a line for each, in the report and on stderr."""

import contextlib
from collections.abc import Iterator

from bam_jax.report.page import Section
from bam_jax.system import console, errors
from bam_jax.system.errors import UserError


class Skipped:
    """The lines on what a report skips, each with the reason and its remedy."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """A block that ends where a file cannot be read; a line then names what it was for."""
        try:
            yield
        except UserError as error:
            self.lines.append(errors.one_line(f"left out: {what}: {error}"))

    def sections(self) -> list[Section]:
        """The section with the lines, if there are any."""
        return [Section("Left out, since it cannot be read", items=self.lines)] if self.lines else []

    def log(self) -> None:
        """Prints the lines on stderr."""
        for line in self.lines:
            console.say(line)
