"""What is left of a run: whole chunks, and what its newest record still names, if there is one."""

from __future__ import annotations

import contextlib
import os
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import chunk
from ._file import ReadView
from .contents import Contents, examine
from .errors import ArchiveError, DamagedError
from .finding import Progress
from .header import Header
from .lost import Lost
from .record import OPEN, Record, Slot
from .rewind import Rewind
from .rows import tail_position
from .scan import Found, Read, newest, positions, scan, whole_chunks
from .schema import EPISODE_COLUMNS, is_observation
from .slots import read_payload
from .snapshot import consistent, entries, read_journal, read_record

Array = np.ndarray[Any, Any]
Key = tuple[int, int, int]  # field, environment, first row of a chunk


@dataclass
class Remains:
    """Everything that can be had of a file. `read` returns its bytes, under the journal if that is whole.

    `tails` holds the rows of chunks that were not full, by field and environment: the first row, and the rows' bytes.
    `heads`: the first row of the episode, for each environment whose last row waits for its action.
    """

    header: Header
    read: Read
    record: Record | None
    contents: Contents | None
    chunks: dict[Key, Found]
    rewinds: list[Rewind]
    lost: list[Lost]
    tails: dict[tuple[int, int], tuple[int, bytes]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def table(self) -> dict[str, Array] | None:
        """The table of episodes if HDF5 could read all of its own columns; None otherwise."""
        known = self.contents is not None and set(EPISODE_COLUMNS) <= set(self.contents.episodes)
        return self.contents.episodes if known and self.contents is not None else None


def remains_of(fd: int, path: str, progress: Progress) -> Remains:
    """Find everything that can be had of a file, reading it twice at most."""
    found, view, size = scan(fd, path, progress), ReadView(fd), os.fstat(fd).st_size
    record = contents = None
    journal, end = b"", size
    with contextlib.suppress(DamagedError):
        record, applied = read_record(fd, found.header, path)
        end = min(size, record.end)
        journal = (read_journal(fd, record) if applied != record.sequence else b"") or b""
        if size >= record.end:
            with contextlib.suppress(ArchiveError):
                contents = consistent(fd, found.header, view, path, examine)
    view.load(end, journal)
    moved = [offset + at for offset, data in entries(journal, end) or [] for at in positions(data, chunk.MAGIC)]
    places = [at for at in found.trailers if at < end] + moved
    chunks = newest(whole_chunks(found.header, places, view.read_at, progress))
    result = Remains(found.header, view.read_at, record, contents, chunks, found.rewinds, found.lost)
    if record is None:
        result.notes.append("no commit record is left: rows that were in no chunk, and checkpoints, are gone")
    else:
        result.chunks = {key: one for key, one in chunks.items() if one.stop <= record.rows[one.env]}
        if not record.in_fields:
            find_heads(result, record)
            read_tails(result, record)
        find_checkpoints(result, record, size)
    return result


def find_heads(found: Remains, record: Record) -> None:
    """Find where the episodes of heads start; only the table of episodes says so."""
    for env in np.flatnonzero(record.states == OPEN).tolist():
        starts = found.table["start"][found.table["env"] == env] if found.table is not None else []
        if len(starts):
            found.heads[env] = int(starts[-1])
        else:
            found.notes.append(f"environment {env}: the last observation is left out: no action had followed it")


def read_tails(found: Remains, record: Record) -> None:
    """Read the rows that are not in full chunks from the tails that pass their check."""
    for number, name in enumerate(found.header.fields):
        for env in range(found.header.schema.envs):
            count, waits = int(record.rows[env]), bool(record.states[env] == OPEN)
            kept = count - (waits and (env not in found.heads or not is_observation(name)))
            known = count - (waits and not is_observation(name))
            tail = tail_of(found, record, number, env, known)
            if tail is not None:
                base, data = tail
                found.tails[number, env] = base, data[: (kept - base) * found.header.row_bytes(name)]
            elif known and record.tail_check[number, env]:
                found.notes.append(f"field {name!r}, environment {env}: the tail is damaged")


def tail_of(found: Remains, record: Record, number: int, env: int, known: int) -> tuple[int, bytes] | None:
    """Return first row and bytes of a tail that passes its check; where it starts is tried, as the format says."""
    header = found.header
    name = header.fields[number]
    rows, rowsize = header.rows[name], header.row_bytes(name)
    if not rowsize or not record.tail_offset[number]:
        return None
    at = tail_position(header, record.tail_offset, record.tail_slot, number, env)
    for behind in (2, 1, 0):
        base = max(int(record.rows[env]) - behind, 0) // rows * rows
        data = found.read(at, (known - base) * rowsize) if known > base else b""
        if data and zlib.crc32(data) == record.tail_check[number, env]:
            return base, data
    return None


def find_checkpoints(found: Remains, record: Record, size: int) -> None:
    """Find the checkpoints that are whole."""
    for slot in record.slots:
        if slot.id:
            try:
                read_payload(found.read, size, slot)
                found.slots.append(slot)
            except (DamagedError, OSError):
                found.notes.append(f"checkpoint {slot.id} is damaged")
