"""One committed state of a file, read without writing: the record, where the chunks are, episodes, texts.

A killed writer's journal may not have been applied, and a live writer may be applying the next one. So HDF5 reads
through a ReadView: pages in memory under the newest journal, all taken between two looks at the record that agree.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import h5py
import numpy as np
from zlib_ng.zlib_ng import crc32

from . import disk, text
from ._file import ReadView
from .block import Block
from .bounds import check_chunks, check_episodes, check_record
from .codec import CODECS
from .errors import DamagedError
from .guard import quiet
from .header import Header
from .layout import FORMAT_VERSION
from .objects import FLETCHER32, FOREIGN, SHUFFLE, Form, Objects
from .record import MAX_SLOTS, Record
from .rewind import Rewind

Array = np.ndarray[Any, Any]
State = TypeVar("State")
ATTEMPTS = 2000
ENTRY = struct.Struct("<QI")  # of a journal: where its bytes belong, how many they are
HELD = 512  # bytes of all entries but the last
AT_ONCE = 2000  # entries that are read together
TEXTS = ("schema_json", "environment_json", "metadata_json", "options_json", "provenance_json")
MORE = 1 << 12  # bytes by which a chunk may be larger than what it decodes to, beside an eighth of that


@dataclass(frozen=True)
class Snapshot:
    """What one commit says. `chunks`: per field the numbers, offsets and sizes of its chunks."""

    record: Record
    chunks: dict[str, tuple[Array, Array, Array]]
    episodes: dict[str, Array]
    texts: dict[str, Any]
    rewinds: list[Rewind]


def read_record(fd: int, header: Header, path: str) -> tuple[Record, int]:
    """Return the newest valid record and the sequence number of the applied mark."""
    data = disk.read_at(fd, header.region.nbytes, header.region.offset)
    record, applied = header.region.parse(data)
    if record is None:
        raise DamagedError(f"{path}: no valid commit record")
    if len(record.rows) != header.schema.envs or len(record.tail_offset) != len(header.fields):
        raise DamagedError(f"{path}: the commit record does not fit the schema")
    return record, applied


def read_journal(fd: int, record: Record) -> bytes | None:
    """Return a record's journal, None if its bytes are no longer there or would be laid outside the run.

    Piece by piece: what turns out to be no journal must not cost memory.
    """
    left, at, last, pieces = record.journal_length, record.journal_offset, -1, []
    while left:
        piece = disk.read_at(fd, min(left, AT_ONCE * (ENTRY.size + HELD)), at)
        found = entries(piece, record.end)
        if not found or found[0][0] <= last:
            return None
        pieces.append(piece)
        left, at, last = left - len(piece), at + len(piece), found[-1][0]
    journal = b"".join(pieces)
    return journal if crc32(journal) == record.journal_check else None


def recover(fd: int, header: Header, path: str) -> Record:
    """Redo what a killed writer had committed but not applied; return the newest record. Needs the writer's lock."""
    record, applied = read_record(fd, header, path)
    check_record(record, header, path)
    if applied != record.sequence:
        journal = read_journal(fd, record)
        if journal is None and not record.synced:
            raise DamagedError(f"{path}: the journal of commit {record.sequence} is damaged")
        # A synced commit was applied before its journal could go.
        for offset, data in entries(journal or b"", record.end) or []:
            disk.write_at(fd, data, offset)
        for place in header.region.copies(record.sequence):  # the kill may have come between the two
            disk.write_at(fd, record.pack(), place)
        os.fsync(fd)  # the mark must not reach the disk before what it vouches for
        disk.write_at(fd, header.region.mark(record.sequence), header.region.mark_offset)
    check_size(fd, record, path)
    return record


def entries(journal: bytes, end: int) -> list[tuple[int, bytes]] | None:
    """Split a journal into (offset, bytes); None unless it is made of such entries, rising, for bytes before `end`."""
    result, at, last = [], 0, -1
    while at < len(journal):
        if at + ENTRY.size > len(journal):
            return None
        offset, size = ENTRY.unpack_from(journal, at)
        at += ENTRY.size + size
        if at > len(journal) or not last < offset <= end - size or (size != HELD and at != len(journal)):
            return None
        result.append((offset, journal[at - size : at]))
        last = offset
    return result


def check_size(fd: int, record: Record, path: str) -> None:
    """Refuse a file that is shorter than its record says."""
    size = os.fstat(fd).st_size
    if size < record.end:
        raise DamagedError(f"{path}: truncated; commit {record.sequence} needs {record.end} bytes, found {size}")


def settle(fd: int, header: Header, view: ReadView, path: str) -> Record:
    """Load the view with a state that no writer touched meanwhile; return its record."""
    for _ in range(ATTEMPTS):
        record, applied = read_record(fd, header, path)
        check_record(record, header, path)
        journal = b"" if applied == record.sequence else read_journal(fd, record)
        if journal is None and not record.synced:
            again, mark = read_record(fd, header, path)
            if (again.sequence, mark) == (record.sequence, applied):
                raise DamagedError(f"{path}: the journal of commit {record.sequence} is damaged")
            continue
        check_size(fd, record, path)
        view.load(record.end, journal or b"")
        if read_record(fd, header, path)[0].sequence == record.sequence:
            return record
    raise DamagedError(f"{path}: the writer commits faster than this reader can follow")


def take(fd: int, header: Header, view: ReadView, path: str) -> Snapshot:
    """Return a consistent snapshot of what HDF5 holds."""
    return consistent(fd, header, view, path, parse)


def consistent(
    fd: int, header: Header, view: ReadView, path: str, parse: Callable[[h5py.File, Header, Record, str], State]
) -> State:
    """Return what `parse` makes of the HDF5 file and a record that belong together."""
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        record = settle(fd, header, view, path)
        try:
            with quiet:
                handle = h5py.File(view, "r")
                try:
                    state = parse(handle, header, record, path)
                finally:
                    handle.close()
            failure = OSError(view.error, os.strerror(view.error)) if view.error else None
        except FOREIGN as error:
            failure = error
        still = read_record(fd, header, path)[0].sequence == record.sequence
        if failure is None and (still or not view.fresh):
            return state
        if failure is not None and still and not view.fresh:
            raise failure if isinstance(failure, DamagedError) else DamagedError(f"{path}: {failure}") from failure
    raise DamagedError(f"{path}: no consistent state found ({failure})")


def parse(handle: h5py.File, header: Header, record: Record, path: str) -> Snapshot:
    """Read everything that is needed from an open HDF5 file; the handle is not needed afterwards."""
    objects = Objects(handle, record.end, path)
    check_root(objects, header)
    chunks = {name: list_chunks(objects, header, name) for name in header.fields}
    for name, (numbers, _, _) in chunks.items():
        check_chunks(name, numbers, record, header, path)
    episodes = {name: read_column(objects, name, dtype, record) for name, dtype in header.schema.columns.items()}
    check_episodes(episodes, record, path)
    texts = {name.removesuffix("_json"): read_text(objects, f"meta/{name}") for name in TEXTS}
    return Snapshot(record, chunks, episodes, texts, read_rewinds(objects, header))


def check_root(objects: Objects, header: Header) -> None:
    """Look at what reading does not need and a writer will use."""
    for name, value in (("run_id", np.bytes_(header.run_id)), ("format_version", np.int32(FORMAT_VERSION))):
        if objects.attribute(name, value.dtype) != value:
            raise objects.refuse("", f"attribute {name!r} is not that of the schema block")
    for name, dtype in (("total_steps", "i8"), ("total_episodes", "i8"), ("complete", "u1")):
        objects.attribute(name, np.dtype(dtype))
    for name in ("views", "preview", "tail", "checkpoints", *(f"tail/{field}" for field in header.fields)):
        objects.find(name)
    for name in (f"checkpoints/slot{number}" for number in range(MAX_SLOTS)):
        if objects.find(name) is not None:
            dataset = objects.dataset(name, Form(np.dtype("u1"), (None,), (None,), (None,)))
            each = dataset.chunks[0]
            if len(objects.chunks(name, dataset, each)) * each != dataset.shape[0]:
                raise objects.refuse(name, "chunks that are not there")


def read_text(objects: Objects, name: str) -> dict[str, Any]:
    """Return the values of a text."""
    values = text.parse(objects.text(name, text.MOST_TEXT))
    if not isinstance(values, dict):
        raise objects.refuse(name, f"expected an object, found {type(values).__name__}")
    return values


def read_column(objects: Objects, name: str, dtype: str, record: Record) -> Array:
    """Return a column of the table of episodes."""
    form = Form(np.dtype(dtype), (None,), (None,), (None,), (FLETCHER32,))
    dataset = objects.dataset(f"episodes/{name}", form)
    each = dataset.chunks[0]
    found = objects.chunks(f"episodes/{name}", dataset, each * dataset.dtype.itemsize + 4)
    there = min(dataset.shape[0], int((found[:, 0] < record.episodes).sum()) * each)
    if there < record.episodes:
        raise objects.refuse(f"episodes/{name}", f"{record.episodes} episodes committed, found {there}")
    return np.asarray(dataset[: record.episodes])


def read_rewinds(objects: Objects, header: Header) -> list[Rewind]:
    """Return what the run has given up, oldest first."""
    result: list[Rewind] = []
    while objects.find(f"meta/rewind_block_{len(result)}") is not None:
        name = f"meta/rewind_block_{len(result)}"
        block = Block.parse(objects.piece(name, text.MOST_TEXT))
        rewind = block and block.kind == Block.REWIND and Rewind.from_json(block.values)
        if not rewind or not rewind.fits(header.schema.envs):
            raise objects.refuse(name, "no rewind block of this run")
        result.append(rewind)
    return result


def list_chunks(objects: Objects, header: Header, name: str) -> tuple[Array, Array, Array]:
    """Return number, offset and size of every chunk of a field. Cost: about 1 us a chunk."""
    field, envs, rows = header.schema.steps[name], header.schema.envs, header.rows[name]
    multi = header.schema.num_envs is not None
    lead, chunk = ((envs,), (rows, 1)) if multi else ((), (rows,))
    dtype = np.dtype(field.dtype)
    shuffle = (SHUFFLE,) if dtype.itemsize > 1 else ()
    form = Form(
        dtype,
        (None, *lead, *field.shape),
        (None, *lead, *(n or None for n in field.shape)),
        (*chunk, *(max(n, 1) for n in field.shape)),
        (*shuffle, CODECS[header.codec(name)].number, FLETCHER32),
    )
    size = rows * field.nbytes
    table = objects.chunks(f"steps/{name}", objects.dataset(f"steps/{name}", form), size + size // 8 + MORE)
    env = table[:, 1] if multi else 0
    return table[:, 0] // rows * envs + env, table[:, -2], table[:, -1]
