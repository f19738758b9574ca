"""The git checkout that this code was loaded from."""

import subprocess
from pathlib import Path


def describe() -> str | None:
    """The git commit of this code, with "-dirty" if files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.stdout.strip()
