"""Copies of the schema block at later places: a file that has lost its beginning still says what it holds."""

from __future__ import annotations

FIRST = 1 << 20  # the block itself stands before this
APART = 64 << 20
LEAST = 2048  # HDF5 puts what is smaller into gaps it has kept, near the beginning of the file


def copies_due(size: int) -> int:
    """Return the number of the newest copy that a file of `size` bytes should have, 0: none.

    One each time the size has doubled, later every 64 MiB: whichever half of a file is left, it holds a copy.

    >>> [copies_due(mib << 20) for mib in (0, 1, 2, 3, 4, 63, 64, 127, 128)]
    [0, 1, 2, 2, 3, 6, 7, 7, 8]
    """
    return (size // FIRST).bit_length() if size < APART else 6 + size // APART
