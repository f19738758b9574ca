"""Kinds of numbers and texts that a record's fields hold, for `strict_json.check`."""

import re
from typing import Annotated

from bam_jax.system.strict_json import Must

LARGEST = 2**53
"""Whole numbers are at most that, as arrays of floats hold them."""
HUGE = 1e250
"""Other numbers are at most that: sums and means of them, weighted by whole numbers, stay finite."""
STEEPEST = 500.0
"""Nats: a loss is at most that, so that its perplexity is no larger."""

_LINE = Must(lambda text: not re.search(r"[\x00-\x1f\x7f]", text), "one line of text")
_FOLDER = Must(
    lambda text: 0 < len(text.encode()) < 256 and "/" not in text and text not in (".", ".."), "the name of a folder"
)

Natural = Annotated[int, Must(lambda n: 0 <= n <= LARGEST, f"from 0 to {LARGEST}")]
Count = Annotated[int, Must(lambda n: 1 <= n <= LARGEST, f"from 1 to {LARGEST}")]
Finite = Annotated[float, Must(lambda x: abs(x) <= HUGE, f"from -{HUGE:g} to {HUGE:g}")]
Positive = Annotated[float, Must(lambda x: 0 < x <= HUGE, f"more than 0 and at most {HUGE:g}")]
Seconds = Annotated[float, Must(lambda x: 0 <= x <= HUGE, f"from 0 to {HUGE:g}")]
Share = Annotated[float, Must(lambda x: 0 <= x <= 1, "from 0 to 1")]
Loss = Annotated[float, Must(lambda x: 0 <= x <= STEEPEST, f"from 0 to {STEEPEST:g} nats")]
Line = Annotated[str, _LINE]
Name = Annotated[str, _LINE, _FOLDER]
