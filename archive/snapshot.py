"""One committed state of a file, read without writing: the record, where the chunks are, episodes, texts.

A killed writer's journal may not have been applied, and a live writer may be applying the next one. So HDF5 reads
through a ReadView: pages in memory under the newest journal, all taken between two looks at the record that agree.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from . import disk
from ._file import ReadView
from .block import Block
from .errors import DamagedError
from .guard import quiet
from .header import Header
from .record import Record
from .rewind import Rewind

Array = np.ndarray[Any, Any]
ATTEMPTS = 2000
ENTRY = struct.Struct("<QI")  # of a journal: where its bytes belong, how many they are


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
    """Return a record's journal, None if its bytes are no longer there or would be laid outside the run."""
    size = min(record.journal_length, os.fstat(fd).st_size)  # a damaged length must not cost memory
    journal = disk.read_at(fd, size, record.journal_offset)
    if len(journal) != record.journal_length or zlib.crc32(journal) != record.journal_check:
        return None
    return None if entries(journal, record.end) is None else journal


def recover(fd: int, header: Header, path: str) -> Record:
    """Redo what a killed writer had committed but not applied; return the newest record. Needs the writer's lock."""
    record, applied = read_record(fd, header, path)
    if applied != record.sequence:
        journal = read_journal(fd, record)
        if journal is None and not record.synced:
            raise DamagedError(f"{path}: the journal of commit {record.sequence} is damaged")
        # A synced commit was applied before its journal could go.
        for offset, data in entries(journal or b"", record.end) or []:
            disk.write_at(fd, data, offset)
        os.fsync(fd)  # the mark must not reach the disk before what it vouches for
        disk.write_at(fd, header.region.mark(record.sequence), header.region.mark_offset)
    check_size(fd, record, path)
    return record


def entries(journal: bytes, end: int) -> list[tuple[int, bytes]] | None:
    """Split a journal into (offset, bytes); None unless it is made of such entries for bytes before `end`."""
    result, at = [], 0
    while at < len(journal):
        if at + ENTRY.size > len(journal):
            return None
        offset, size = ENTRY.unpack_from(journal, at)
        at += ENTRY.size + size
        if at > len(journal) or offset + size > end:
            return None
        result.append((offset, journal[at - size : at]))
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
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        record = settle(fd, header, view, path)
        try:
            with quiet:
                handle = h5py.File(view, "r")
                try:
                    snapshot = parse(handle, header, record, path)
                finally:
                    handle.close()
            failure = OSError(view.error, os.strerror(view.error)) if view.error else None
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            failure = error
        still = read_record(fd, header, path)[0].sequence == record.sequence
        if failure is None and (still or not view.fresh):
            return snapshot
        if failure is not None and still and not view.fresh:
            raise failure if isinstance(failure, DamagedError) else DamagedError(f"{path}: {failure}") from failure
    raise DamagedError(f"{path}: no consistent state found ({failure})")


def parse(handle: h5py.File, header: Header, record: Record, path: str) -> Snapshot:
    """Read everything that is needed from an open HDF5 file; the handle is not needed afterwards."""
    chunks = {name: list_chunks(handle, header, name) for name in header.fields}
    episodes = {}
    for name, dtype in header.schema.columns.items():
        dataset = handle[f"episodes/{name}"]
        if dataset.shape[0] < record.episodes:
            raise DamagedError(f"{path}: {record.episodes} episodes committed, column {name!r} has {dataset.shape[0]}")
        episodes[name] = dataset[: record.episodes].astype(dtype, copy=False)
    texts = {k.removesuffix("_json"): json.loads(handle[f"meta/{k}"][0]) for k in handle["meta"] if k.endswith("_json")}
    return Snapshot(record, chunks, episodes, texts, read_rewinds(handle, path))


def read_rewinds(handle: h5py.File, path: str) -> list[Rewind]:
    """Return what the run has given up, oldest first."""
    result = []
    for number in range(sum(name.startswith("rewind_block_") for name in handle["meta"])):
        block = Block.parse(handle[f"meta/rewind_block_{number}"][()].tobytes())
        if block is None or block.kind != Block.REWIND:
            raise DamagedError(f"{path}: rewind block {number} is damaged")
        result.append(Rewind.from_json(block.values))
    return result


def list_chunks(handle: h5py.File, header: Header, name: str) -> tuple[Array, Array, Array]:
    """Return number, offset and size of every chunk of a field. Cost: about 1 us a chunk."""
    dataset, envs, rows = handle[f"steps/{name}"], header.schema.envs, header.rows[name]
    multi = header.schema.num_envs is not None
    found: list[tuple[int, int, int]] = []

    def visit(info: Any) -> None:
        at = info.chunk_offset
        found.append((at[0] // rows * envs + (at[1] if multi else 0), info.byte_offset, info.size))

    if dataset.shape[0]:
        dataset.id.chunk_iter(visit)
    table = np.array(found, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]
