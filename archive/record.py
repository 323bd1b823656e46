"""The commit record: the few hundred bytes that say what of a file exists. What it does not count does not exist.

Two records alternate, each written twice, followed by the applied mark. Opening takes the newest valid one.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

ENDED, OPEN, BETWEEN = 0, 1, 2  # an environment must be reset; waits for an action; ended on a whole row (extend)
STATES = ("ended", "open", "between")
MAX_SLOTS = 32

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Slot:
    """One checkpoint slot: whose payload it holds and where. id 0: nothing."""

    id: int = 0
    offset: int = 0  # of its first chunk, which starts with the list of all
    chunks: int = 0  # how many it has
    length: int = 0  # bytes of payload
    check: int = 0  # crc32 of the payload

    FORM: ClassVar[struct.Struct] = struct.Struct("<QQIQI")


@dataclass(frozen=True, eq=False)  # arrays have no single truth; compare the packed bytes
class Record:
    """What exists after a commit.

    `rows` and `states` per environment; `tail_slot` and `tail_check` per field and environment say where the rows
    of chunks not yet full are, `tail_offset` per field where its tail starts (0: none yet). `in_fields`: a clean
    close has moved those rows into the fields. The journal holds what had yet to be applied.
    """

    sequence: int
    epoch: int
    rows: Ints
    states: np.ndarray[Any, np.dtype[np.uint8]]
    episodes: int
    tail_offset: Ints
    tail_slot: np.ndarray[Any, np.dtype[np.uint8]]
    tail_check: np.ndarray[Any, np.dtype[np.uint32]]
    in_fields: bool = False
    synced: bool = False
    end: int = 0
    journal_offset: int = 0
    journal_length: int = 0
    journal_check: int = 0
    slots: tuple[Slot, ...] = field(default_factory=tuple)

    MAGIC: ClassVar[bytes] = b"RLAR"
    HEAD: ClassVar[struct.Struct] = struct.Struct("<4sIQIIIIQIQQQI")

    def pack(self) -> bytes:
        """Return the record's bytes, its crc32 last."""
        flags = self.in_fields | self.synced << 1
        arrays = b"".join(
            np.ascontiguousarray(values, dtype).tobytes()
            for values, dtype in (
                (self.rows, "<i8"),
                (self.states, "u1"),
                (self.tail_offset, "<i8"),
                (self.tail_slot, "u1"),
                (self.tail_check, "<u4"),
            )
        )
        slots = b"".join(Slot.FORM.pack(s.id, s.offset, s.chunks, s.length, s.check) for s in self.slots)
        size = self.size(len(self.rows), len(self.tail_offset), len(self.slots))
        counts = (len(self.rows), len(self.tail_offset), len(self.slots))
        head = (self.sequence, self.epoch, *counts, self.episodes, flags, self.end, self.journal_offset)
        body = self.HEAD.pack(self.MAGIC, size, *head, self.journal_length, self.journal_check) + arrays + slots
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def size(cls, envs: int, fields: int, slots: int = MAX_SLOTS) -> int:
        """Return the bytes of a record."""
        return cls.HEAD.size + 9 * envs + 8 * fields + 5 * fields * envs + Slot.FORM.size * slots + 4

    @classmethod
    def parse(cls, data: bytes) -> Record | None:
        """Return the record that `data` starts with, or None if it is not whole."""
        if len(data) < cls.HEAD.size or data[:4] != cls.MAGIC:
            return None
        head = cls.HEAD.unpack_from(data)
        size, sequence, epoch, envs, fields, slots, episodes, flags, end, *journal = head[1:]
        if size > len(data) or size != cls.size(envs, fields, slots):
            return None
        if zlib.crc32(data[: size - 4]) != struct.unpack_from("<I", data, size - 4)[0]:
            return None
        at = cls.HEAD.size
        arrays = []
        for dtype, shape in (
            ("<i8", (envs,)),
            ("u1", (envs,)),
            ("<i8", (fields,)),
            ("u1", (fields, envs)),
            ("<u4", (fields, envs)),
        ):
            count = int(np.prod(shape))
            arrays.append(np.frombuffer(data, dtype, count, at).reshape(shape).copy())
            at += count * np.dtype(dtype).itemsize
        kept = tuple(Slot(*Slot.FORM.unpack_from(data, at + k * Slot.FORM.size)) for k in range(slots))
        rows, states, offset, slot, check = arrays
        flag = (bool(flags & 1), bool(flags & 2))
        known = (sequence, epoch, rows, states, episodes, offset, slot, check, *flag, end)
        return cls(*known, journal[0], journal[1], journal[2], kept)


MARK = struct.Struct("<4sQI")


@dataclass(frozen=True)
class Region:
    """Where the two copies of the two records and the applied mark stand in the file."""

    offset: int
    room: int  # bytes for one copy

    MAGIC: ClassVar[bytes] = b"RLAM"

    @classmethod
    def bytes_for(cls, envs: int, fields: int) -> tuple[int, int]:
        """Return (room of one copy, bytes of the whole region)."""
        room = -(-Record.size(envs, fields) // 512) * 512
        return room, 4 * room + 512

    def copies(self, sequence: int) -> tuple[int, int]:
        """Return the offsets of both copies of the record with this sequence number."""
        first = self.offset + (sequence & 1) * 2 * self.room
        return first, first + self.room

    @property
    def mark_offset(self) -> int:
        """Offset of the applied mark."""
        return self.offset + 4 * self.room

    def mark(self, sequence: int) -> bytes:
        """Return the bytes that say that the journal of this commit has been applied."""
        body = MARK.pack(self.MAGIC, sequence, 0)[:-4]
        return body + struct.pack("<I", zlib.crc32(body))

    def parse(self, data: bytes) -> tuple[Record | None, int]:
        """Return the newest valid record in the region's bytes and the sequence number of the mark (0: none)."""
        found = [Record.parse(data[k * self.room : (k + 1) * self.room]) for k in range(4)]
        record = max((r for r in found if r is not None), key=lambda r: (r.epoch, r.sequence), default=None)
        mark = data[4 * self.room : 4 * self.room + MARK.size]
        applied = MARK.unpack(mark)[1] if len(mark) == MARK.size and mark == self.mark(MARK.unpack(mark)[1]) else 0
        return record, applied

    @property
    def nbytes(self) -> int:
        """Bytes of the whole region."""
        return 4 * self.room + 512
