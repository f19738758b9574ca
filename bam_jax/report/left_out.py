"""The runs and pages that a report leaves out, since a file of theirs cannot be read: a line for each, there and on stderr."""

import contextlib
from collections.abc import Iterator

from bam_jax.render.page import Section
from bam_jax.system import console, errors
from bam_jax.system.errors import UserError


class LeftOut:
    """The lines on what is left out of a report.

    Attributes:
        lines: one for each, with the reason and its remedy.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """A block that ends where a file cannot be read; what it was for is left out then.

        Args:
            what: it is for.
        """
        try:
            yield
        except UserError as error:
            self.lines.append(errors.one_line(f"left out: {what}: {error}"))

    def sections(self) -> list[Section]:
        """The section that names them; none where nothing is left out."""
        return [Section("Left out, since it cannot be read", items=self.lines)] if self.lines else []

    def say(self) -> None:
        """Say the lines to the person who waits."""
        for line in self.lines:
            console.say(line)
