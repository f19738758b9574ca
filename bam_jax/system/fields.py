"""Kinds of numbers and texts that a record's fields hold, for `typed_json.check`."""

from typing import Annotated

from msgspec import Meta

LARGEST = 2**53  # whole numbers are at most that, as arrays of floats hold them
HUGE = 1e250  # other numbers are at most that: sums and means of them, weighted by whole numbers, stay finite
STEEPEST = 500.0  # nats: a loss is at most that, so that its perplexity is no larger

Natural = Annotated[int, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Finite = Annotated[float, Meta(ge=-HUGE, le=HUGE)]
Positive = Annotated[float, Meta(gt=0, le=HUGE)]
Seconds = Annotated[float, Meta(ge=0, le=HUGE)]
Share = Annotated[float, Meta(ge=0, le=1)]
Loss = Annotated[float, Meta(ge=0, le=STEEPEST)]
Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Name = Annotated[str, Meta(pattern=r"^(?!\.{1,2}\Z)[^\x00-\x1f\x7f/]{1,255}\Z")]  # of a folder
