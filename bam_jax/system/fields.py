"""Types of the numbers and strings in a record's fields, for `typed_json.check`."""

from typing import Annotated

from msgspec import Meta

LARGEST = 2**53  # maximum of whole numbers, because arrays of floats store them
HUGE = 1e250  # maximum of other numbers: their sums and means, weighted by whole numbers, stay finite
STEEPEST = 500.0  # nats, maximum of a loss, so that its perplexity is at most `HUGE`

Natural = Annotated[int, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Finite = Annotated[float, Meta(ge=-HUGE, le=HUGE)]
Positive = Annotated[float, Meta(gt=0, le=HUGE)]
Seconds = Annotated[float, Meta(ge=0, le=HUGE)]
Share = Annotated[float, Meta(ge=0, le=1)]
Loss = Annotated[float, Meta(ge=0, le=STEEPEST)]
Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Name = Annotated[str, Meta(pattern=r"^(?!\.{1,2}\Z)[^\x00-\x1f\x7f/]{1,255}\Z")]  # of a folder
