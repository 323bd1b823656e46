"""The superblock of HDF5: the first 48 bytes of a file, which say where it ends and where the root group is."""

from __future__ import annotations

import struct

from ._file import superblock_check

SIZE = 48
FORM = struct.Struct("<8sBBBBQQQQI")
SIGNATURE = b"\x89HDF\r\n\x1a\n"
NOWHERE = (1 << 64) - 1


def superblock(end: int) -> bytes:
    """Return the superblock of a run that ends at byte `end`: nobody has it open, the root group is behind it."""
    body = FORM.pack(SIGNATURE, 3, 8, 8, 0, 0, NOWHERE, end, SIZE, 0)[:-4]
    return body + struct.pack("<I", superblock_check(body))
