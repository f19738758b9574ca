"""The git checkout that this code was loaded from."""

import subprocess
from pathlib import Path

from bam_jax import __version__

RECORDS = ("experiments/records", "docs/reliability")
"""Folders of the repository to whose files runs append lines; code does not depend on them."""


def describe() -> str:
    """The git commit of this code, with "-dirty" if files other than records differ; the version if no commit contains it.

    An installed package may be inside a checkout of another project.
    """
    others = [f":(top,exclude){folder}" for folder in RECORDS]
    commands = (
        ["git", "ls-files", "--error-unmatch", "--", Path(__file__).name],
        ["git", "describe", "--always", "--exclude=*"],
        ["git", "status", "--porcelain", "--untracked-files=no", "--", ":(top)", *others],
    )
    try:
        _, name, changes = (
            subprocess.run(
                command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return f"bam_jax {__version__}"
    return f"{name}-dirty" if changes else name
