"""Verifying a file: every checksum and every invariant of the newest commit, without writing."""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from . import disk
from ._file import ReadView, superblock_check
from .bounds import MOST_ROWS
from .budget import modest_memory
from .checkpoint import every
from .chunk_check import ChunkCheck
from .contents import BROKEN, Contents, check_contents, examine, examined, ranges_of
from .episode_check import EpisodeCheck
from .errors import DamagedError, MissingRunError, NotARunError
from .finding import Findings, Progress, Verification, damaged
from .header import SEARCHED, Header
from .record import Record
from .region_check import OPENS, REPAIR, SALVAGE, RegionCheck
from .rows import Rows, Tail
from .schema import EPISODE_COLUMNS
from .snapshot import Snapshot, consistent, settle

Array = np.ndarray[Any, Any]
SWEEPS, ATTEMPTS = 3, 20


def verify(
    path: str | os.PathLike[str], *, quick: bool = False, progress: Progress = lambda done, total: None
) -> Verification:
    """Check the newest commit of a run; never writes, and works on closed, killed and live files.

    Every chunk is read and decoded, unless `quick`. MissingRunError without a file, NotARunError if it is none of
    ours; all else that is wrong is in the result. `progress(done, total)` is called as chunks are done. Memory: 64
    MiB, or what the chunks being written need, the table of episodes and some 100 bytes a chunk.

    >>> import archive, tempfile
    >>> schema = archive.Schema(steps={"observation": archive.Field("float32"), "action": archive.Field("int64")})
    >>> path = tempfile.mkdtemp() + "/run.h5"
    >>> with archive.create(path, schema) as run:
    ...     run.reset(0.0)
    >>> archive.verify(path).clean
    True
    """
    target, begun = Path(path).resolve(), time.monotonic()
    if not target.is_file():
        raise MissingRunError(f"{target}: no such file")
    fd = os.open(target, os.O_RDONLY | disk.FLAGS)
    try:
        with damaged(str(target)):
            return sweeps(fd, str(target), quick, progress, begun)
    finally:
        os.close(fd)


def sweeps(fd: int, path: str, quick: bool, progress: Progress, begun: float) -> Verification:
    """Check a file until no writer has changed it meanwhile."""
    header = header_at(fd, path)
    for _ in range(SWEEPS):
        state = look(fd, header, path)
        for _ in range(ATTEMPTS):
            if state.findings.damage and state.moved():  # a writer went on while we looked
                state = look(fd, header, path)
        stored, decoded = (0, 0) if quick else state.check_rows(progress)
        if not (state.findings.damage and state.moved()):  # it may have opened a file that was closed
            break
    return state.report(stored, decoded, time.monotonic() - begun, quick)


def header_at(fd: int, path: str) -> Header:
    """Find the schema block also where the signature of HDF5 is damaged."""
    try:
        return Header.read(fd, path)
    except NotARunError as error:
        with suppress(NotARunError):
            return Header.find(disk.read_at(fd, SEARCHED, 0), path)
        raise NotARunError(f"{error}; if it was one, rl-archive salvage looks for what is left of it") from error


def look(fd: int, header: Header, path: str) -> State:
    """Check everything of the newest commit but full chunks."""
    state = State(fd, header, path)
    region = RegionCheck(fd, header, state.findings)
    state.record, state.seen = region.record, region.seen
    if state.record is None or any(one.costs == SALVAGE for one in state.findings.damage):
        return state
    try:
        contents = consistent(fd, header, state.view, path, examine)
    except DamagedError as error:
        state.view.load(state.record.end, b"")
        state.check_superblock(state.record)
        if not state.findings.damage:
            state.findings.add(str(error).removeprefix(f"{path}: "), "HDF5 structure", BROKEN)
        return state
    state.check(contents)
    state.check_checkpoints(settle(fd, header, ReadView(fd), path))  # their slots are written over: the newest ones
    return state


def trial(fd: int, header: Header, path: str, record: Record, journal: bytes) -> State:
    """Check, without full chunks, what a file would be with another record and with a journal laid over it."""
    state = State(fd, header, path)
    state.view.load(record.end, journal)
    state.check(examined(state.view, header, record, path))
    return state


class State:
    """One committed state of a file under scrutiny: all of it but the full chunks, which never change."""

    def __init__(self, fd: int, header: Header, path: str) -> None:
        self.fd, self.header, self.path, self.findings = fd, header, path, Findings()
        self.view = ReadView(fd)
        self.record: Record | None = None
        self.seen: tuple[int, int] | None = None  # number of the newest record, and of the one applied
        self.rows: Rows | None = None
        self.chunks: ChunkCheck | None = None
        self.episodes: list[EpisodeCheck] = []
        self.tails: list[Tail] = []

    def check(self, contents: Contents) -> None:
        """Check what is not in full chunks."""
        self.record = record = contents.record
        check_contents(contents, self.header)
        self.findings.damage += contents.findings.damage
        self.check_superblock(record)
        if not set(EPISODE_COLUMNS) <= set(contents.episodes):
            return
        self.rows = Rows(self.header, self.path, self.view.read_at, modest_memory(self.header))
        if not self.fits(contents):
            return
        self.rows.restore(Snapshot(record, contents.chunks, self.table(contents), {}, contents.rewinds))
        if not record.in_fields:
            self.tails = self.rows.restore_open(record)
            for tail in self.tails:
                costs = "the run cannot be opened; repair gives these rows up"
                self.findings.add("the tail fails its checksum", str(tail).rstrip(","), costs)
        self.chunks = ChunkCheck(self.rows, record, contents.chunks, self.findings)
        for env in range(self.header.schema.envs):
            self.episodes.append(EpisodeCheck(self.rows, env, *ranges_of(contents, env), self.findings))

    def fits(self, contents: Contents) -> bool:
        """Tell whether every episode is one of an environment that there is, and its numbers are those of rows."""
        env, start, length = (contents.episodes[name] for name in ("env", "start", "length"))
        bad = (env < 0) | (env >= self.header.schema.envs)
        bad |= (start < 0) | (start > MOST_ROWS) | (length < 0) | (length > MOST_ROWS)
        for number in bad.nonzero()[0].tolist():
            what = f"environment {env[number]}, rows from {start[number]}, length {length[number]} cannot be"
            self.findings.add(what, f"episode {number}", BROKEN)
        return not bad.any()

    def table(self, contents: Contents) -> dict[str, Array]:
        """Return the episode table, zeros for columns of the user that cannot be read."""
        count = contents.record.episodes
        return {k: contents.episodes.get(k, np.zeros(count, d)) for k, d in self.header.schema.columns.items()}

    def check_superblock(self, record: Record) -> None:
        """The superblock must be whole, say where the file ends, and that nobody has it open."""
        data = self.view.read_at(0, 48)
        end, check = struct.unpack_from("<QQI", data, 28)[::2]
        if superblock_check(data) != check:
            self.findings.add("the checksum of the superblock differs", "byte 0", REPAIR)
        elif end != record.end:
            what = f"the superblock says that the file ends at byte {end}, the record {record.end}"
            self.findings.add(what, "byte 28", REPAIR)
        elif data[11]:
            self.findings.add("the superblock says that somebody has the file open", "byte 11", OPENS)

    def check_checkpoints(self, record: Record) -> None:
        """Each checkpoint must be whole, but for the oldest if a killed writer was writing over it."""
        size, slots = os.fstat(self.fd).st_size, record.slots
        oldest = min((slot.id for slot in slots), default=0)
        for number, slot in enumerate(slots):
            if not slot.id:
                continue
            try:
                every(self.view.read_at, size, (slot,))
            except DamagedError as error:
                if slot.id == oldest and len(slots) > 1 and not record.in_fields:
                    self.findings.notes.append(f"checkpoint {slot.id} was being written over, or is damaged")
                else:
                    costs = "an older one is used" if len(slots) > 1 else "nothing can be resumed"
                    self.findings.add(str(error), f"slot {number} (byte {slot.offset})", costs)

    def check_rows(self, progress: Progress) -> tuple[int, int]:
        """Decode every chunk and compare all rows with the table of episodes."""
        if self.chunks is None or self.rows is None:
            return 0, 0
        sizes = self.chunks.sweep(self.view.read_at, progress)
        for episodes in self.episodes:
            if episodes.sound:
                known = [tail.start for tail in self.tails if tail.env == episodes.env]
                episodes.check_rows(min(known, default=episodes.count))
        return sizes

    def moved(self) -> bool:
        """Tell whether a writer has committed since."""
        return RegionCheck(self.fd, self.header, Findings()).seen != self.seen

    def report(self, stored: int, decoded: int, seconds: float, quick: bool) -> Verification:
        """Return what was found."""
        return Verification(
            path=self.path,
            commit=self.record.sequence if self.record is not None else 0,
            rows=int(self.record.rows.sum()) if self.record is not None else 0,
            chunks=len(self.chunks.stored) if self.chunks is not None else 0,
            stored=stored,
            decoded=decoded,
            seconds=seconds,
            quick=quick,
            findings=tuple(dict.fromkeys(self.findings.damage)),
            notes=tuple(dict.fromkeys(self.findings.notes)),
        )
