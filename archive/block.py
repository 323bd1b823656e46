"""A block: JSON with a checksum in the byte stream of the file, found without HDF5 by its first four bytes.

The schema block says what a run holds and where its records are; a rewind block says which rows were given up.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

from .errors import DamagedError


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
        text = json.dumps(self.values, separators=(",", ":"), allow_nan=False).encode()
        body = self.HEAD.pack(self.MAGIC, self.kind, len(text)) + text
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
            return cls(kind, json.loads(body[cls.HEAD.size :]))
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"block at byte {at}: {error}") from error

    @classmethod
    def find(cls, data: bytes, kind: int) -> Block | None:
        """Return the first whole block of a kind in `data`."""
        at = data.find(cls.MAGIC)
        while at >= 0:
            block = cls.parse(data, at)
            if block is not None and block.kind == kind:
                return block
            at = data.find(cls.MAGIC, at + 1)
        return None
