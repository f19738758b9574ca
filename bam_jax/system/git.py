"""The git checkout that this code was loaded from."""

import subprocess
from pathlib import Path

RECORDS = ("experiments/records", "docs/reliability")
"""Folders of files of the repository that runs add lines to; code does not depend on them."""


def describe() -> str | None:
    """The git commit of this code, with "-dirty" if files other than records differ from it; None outside a checkout."""
    others = [f":(top,exclude){folder}" for folder in RECORDS]
    commands = (
        ["git", "describe", "--always", "--exclude=*"],
        ["git", "status", "--porcelain", "--untracked-files=no", "--", ":(top)", *others],
    )
    try:
        name, changes = (
            subprocess.run(
                command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{name}-dirty" if changes else name
