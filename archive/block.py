"""A block: JSON with a checksum in the byte stream of the file, found without HDF5 by its first four bytes.

The schema block says what a run holds and where its records are; a rewind block says which rows were given up.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

from . import text
from .errors import DamagedError

MOST_TRIES = 64  # what only looks like a block costs a checksum each


@dataclass(frozen=True)
class Block:
    """JSON values of one kind that can be found in a file's bytes."""

    kind: int
    values: dict[str, Any]

    MAGIC: ClassVar[bytes] = b"RLAB"
    HEAD: ClassVar[struct.Struct] = struct.Struct("<4sII")
    SCHEMA: ClassVar[int] = 1
    REWIND: ClassVar[int] = 2
    LOST: ClassVar[int] = 3

    def pack(self) -> bytes:
        """Return magic, kind, length, JSON and the crc32 of all of them."""
        values = json.dumps(self.values, separators=(",", ":"), allow_nan=False).encode()
        body = self.HEAD.pack(self.MAGIC, self.kind, len(values)) + values
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def parse(cls, data: bytes, at: int = 0) -> Block | None:
        """Return the block that starts at byte `at`, or None if there is no whole one."""
        if len(data) - at < cls.HEAD.size + 4:
            return None
        magic, kind, length = cls.HEAD.unpack_from(data, at)
        stop = at + cls.HEAD.size + length
        if magic != cls.MAGIC or stop + 4 > len(data):
            return None
        body = data[at:stop]
        if zlib.crc32(body) != struct.unpack_from("<I", data, stop)[0]:
            return None
        try:
            values = text.parse(body[cls.HEAD.size :])
        except ValueError as error:
            raise DamagedError(f"block at byte {at}: {error}") from error
        if not isinstance(values, dict):
            raise DamagedError(f"block at byte {at}: expected an object, found {type(values).__name__}")
        return cls(kind, values)

    @classmethod
    def find(cls, data: bytes, kind: int) -> Block | None:
        """Return the first whole block of a kind in `data`."""
        at, tries = -1, 0
        while tries < MOST_TRIES:
            at = data.find(cls.MAGIC, at + 1)
            if at < 0:
                break
            if data[at + 4 : at + 8] == struct.pack("<I", kind):
                block, tries = cls.parse(data, at), tries + 1
                if block is not None:
                    return block
        return None
