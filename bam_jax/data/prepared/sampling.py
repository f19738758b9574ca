"""Records drawn at random from the whole of a source: a first reading decides which, by their hashes."""

import array

import numpy as np

from bam_jax.data.prepared.pool import ALL, Encoder
from bam_jax.data.sources.records import Part
from bam_jax.system import console
from bam_jax.system.errors import UserError


def draw(parts: list[Part], encoder: Encoder, held_out: int, train: int | None) -> tuple[int, int]:
    """The hashes that decide which records are held out, trained on and left out.

    The records of the smallest hashes are held out, those that follow are trained on: a sample without replacement in
    which each record is as likely as any other. Equal records have equal hashes, and are on the same side. Memory is
    eight bytes for each record of the source, and the largest record.

    Args:
        parts: of the source.
        encoder: its hashes, whose seed decides on the draw.
        held_out: records to hold out.
        train: records to train on, or all that there are if these are fewer; None: all.

    Returns:
        The hash below which a record is held out, and that from which on it is left out.

    Raises:
        UserError: the source cannot be read, or more than a third of it would be held out.
    """
    found = array.array("Q")
    with console.progress(sum(part.size for part in parts), unit="B", label="drawing") as bar:
        bar.unit_scale = True
        before = 0
        for part in parts:
            for record, read in part.read():
                if all(text.strip() for text in record):
                    found.append(encoder.hash(record))
                bar.update(before + read - bar.n)
            before += part.size
    hashes = np.frombuffer(found, np.uint64) if found else np.empty(0, np.uint64)
    hashes.sort()
    if 3 * held_out > len(hashes):
        raise UserError(
            f"--holdout-records={held_out} is more than a third of the source's {len(hashes)} records; "
            "give a smaller one, or more text"
        )
    threshold = int(hashes[held_out - 1]) + 1 if held_out else 0
    rest = hashes[np.searchsorted(hashes, hashes[held_out - 1], side="right") if held_out else 0 :]
    return threshold, ALL if train is None or train >= len(rest) else int(rest[train - 1]) + 1
