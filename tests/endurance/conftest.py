"""Makes the harness importable by the name that `run.py` gives it."""

import sys
import types
from pathlib import Path

if "endurance" not in sys.modules:
    sys.modules["endurance"] = types.ModuleType("endurance")
    sys.modules["endurance"].__path__ = [str(Path(__file__).parent)]
