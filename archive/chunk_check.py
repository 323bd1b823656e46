"""Every chunk under scrutiny: where they are, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from zlib_ng import zlib_ng

from .chunk import SIZE, Trailer, decode, most_stored
from .codec import CODECS
from .errors import DamagedError
from .finding import Findings, Progress
from .header import Header
from .record import Record
from .rows import Rows
from .workers import in_threads

Array = np.ndarray[Any, Any]
AT_ONCE = 16  # chunks that a thread takes at a time
LOST = "these rows of the field cannot be read"


class Stored(NamedTuple):
    """A chunk that must be whole: rows `first` .. `first + rows - 1` of a field, and where it is in the file."""

    field: int
    env: int
    first: int
    rows: int
    offset: int
    size: int


class ChunkCheck:
    """Check the chunks that a record counts; `stored` (n, 6) are those with a place in the file that can be.

    Stale chunks, whose rows are in the tail, do not count.
    """

    def __init__(self, rows: Rows, record: Record, chunks: Mapping[str, Any], findings: Findings) -> None:
        self.rows, self.header, self.record, self.findings = rows, rows.header, record, findings
        parts = [np.zeros((0, len(Stored._fields)), np.int64)]
        for number, name in enumerate(self.header.fields):
            if name in chunks and self.header.row_bytes(name):
                parts.append(self.check_list(number, name, *chunks[name]))
        self.stored = np.concatenate(parts)
        self.check_overlaps()

    def limits(self, chunk_rows: int) -> Array:
        """Return up to which row of each environment chunks must be there."""
        return self.rows.rows if self.record.in_fields else np.minimum(self.rows.bases(chunk_rows), self.rows.rows)

    def check_list(self, number: int, name: str, numbers: Array, offsets: Array, sizes: Array) -> Array:
        """Find chunks that are missing or cannot be where the list says; return the others as rows of `stored`."""
        envs, chunk_rows = self.header.schema.envs, self.header.rows[name]
        limits = self.limits(chunk_rows)
        counts = -(-limits // chunk_rows)
        if counts.sum() > self.record.end // SIZE:
            self.findings.add(f"{counts.sum()} chunks are more than the file has room for", f"field {name!r}", LOST)
            return np.zeros((0, len(Stored._fields)), np.int64)
        wanted = [np.arange(count) * envs + env for env, count in enumerate(counts)]
        needed = np.sort(np.concatenate(wanted))
        for e, low, high in stretches(np.setdiff1d(needed, numbers), envs):
            where = self.where(name, e, low * chunk_rows, min((high + 1) * chunk_rows, int(limits[e])))
            self.findings.add("the chunks are missing", where, LOST)
        order = np.argsort(offsets)
        kept = order[np.isin(numbers[order], needed)]
        env, first, offset, size = numbers[kept] % envs, numbers[kept] // envs * chunk_rows, offsets[kept], sizes[kept]
        rows = np.minimum(chunk_rows, limits[env] - first)
        table = np.stack([np.full(len(kept), number), env, first, rows, offset, size], axis=1)
        largest = most_stored(chunk_rows * self.header.row_bytes(name))
        good = (size > SIZE + 4) & (size <= largest) & (offset > 0) & (offset <= self.record.end - size)
        for chunk in listed(table[~good]):
            what = f"the chunk cannot be {chunk.size} bytes at byte {chunk.offset}"
            self.findings.add(what, self.where(name, chunk.env, chunk.first, chunk.first + chunk.rows), LOST)
        return np.asarray(table[good])

    def check_overlaps(self) -> None:
        """No two chunks may share bytes."""
        table = self.stored[np.argsort(self.stored[:, 4])]
        for k in np.flatnonzero(table[:-1, 4] + table[:-1, 5] > table[1:, 4]).tolist():
            one, two = listed(table[k : k + 2])
            self.findings.add(f"shares bytes with {self.name_of(two)}", self.name_of(one), LOST)

    def sweep(self, read: Callable[[int, int], bytes], progress: Progress) -> tuple[int, int]:
        """Read and decode every chunk in threads; return how many bytes they took, and how many they hold."""
        done = 0
        groups = (listed(self.stored[k : k + AT_ONCE]) for k in range(0, len(self.stored), AT_ONCE))
        for group, problems in in_threads(groups, lambda group: [self.problem(read, chunk) for chunk in group]):
            for chunk, problem in zip(group, problems, strict=True):
                if problem:
                    self.findings.add(problem, self.name_of(chunk), LOST)
            done += len(group)
            progress(done, len(self.stored))
        raw = np.array([self.header.rows[name] * self.header.row_bytes(name) for name in self.header.fields])
        return int(self.stored[:, 5].sum()), int(raw[self.stored[:, 0]].sum())

    def problem(self, read: Callable[[int, int], bytes], chunk: Stored) -> str:
        """Return what is wrong with a chunk, empty if nothing is."""
        try:
            return problem_of(read(chunk.offset, chunk.size), self.header, chunk, self.record.epoch)
        except (OSError, DamagedError) as error:
            return str(error)

    def name_of(self, chunk: Stored) -> str:
        """Return what a chunk is called in findings."""
        name = self.header.fields[chunk.field]
        return self.where(name, chunk.env, chunk.first, chunk.first + chunk.rows) + f" (byte {chunk.offset})"

    def where(self, name: str, env: int, start: int, stop: int) -> str:
        """Return what rows of a field are called in findings."""
        return f"field {name!r}, environment {env}, rows {start} to {stop - 1}"


def problem_of(data: bytes, header: Header, chunk: Stored, epoch: int) -> str:
    """Return what is wrong with the bytes of a chunk, or raise DamagedError."""
    name = header.fields[chunk.field]
    size = header.rows[name] * header.row_bytes(name)
    identity = (bytes.fromhex(header.run_id), chunk.field, chunk.env, chunk.first)
    decode(data, size, CODECS[header.codec(name)], identity)
    trailer = Trailer.parse(memoryview(data)[-SIZE - 4 : -4])
    if trailer is None or zlib_ng.crc32(memoryview(data)[:-8]) != trailer.check:
        return "the checksum in the trailer differs"
    for what, found, expected in (("bytes", trailer.raw, size), ("rows", trailer.rows, chunk.rows)):
        if found != expected:
            return f"the trailer says {found} {what}, expected {expected}"
    return f"written in epoch {trailer.epoch}, the file is in {epoch}" if trailer.epoch > epoch else ""


def listed(table: Array) -> list[Stored]:
    """Return rows of a table of chunks as values."""
    return [Stored(*row) for row in table.tolist()]


def stretches(chunks: Array, envs: int) -> Iterator[tuple[int, int, int]]:
    """Yield (environment, first, last) of neighbouring chunks, counted within their environment."""
    for env in np.unique(chunks % envs).tolist():
        places = chunks[chunks % envs == env] // envs
        cuts = np.flatnonzero(np.diff(places) != 1) + 1
        for part in np.split(places, cuts):
            yield env, int(part[0]), int(part[-1])
