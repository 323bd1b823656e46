"""Repairing a file: what is damaged and can be made right from what remains."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import disk
from ._file import JournaledFile, ReadView
from .budget import modest_memory
from .errors import MissingRunError
from .finding import Finding, Progress, damaged
from .guard import lock
from .header import Header
from .lock import WriterLock
from .record import Record
from .region_check import steady
from .rows import Rows, Tail
from .snapshot import ENTRY, entries, read_journal, recover, take
from .store import Store
from .superblock import SIZE as SUPERBLOCK
from .superblock import superblock
from .verification import header_at, look, trial, verify
from .writer import Writer

EMPTY = 512  # bytes that are written over a record that must not count


@dataclass(frozen=True)
class Patch:
    """Bytes to be written, and what for."""

    what: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Repair:
    """What `archive.repair` did, or would do: `steps` in order, `left` what stays wrong.

    `copy` is the file that holds what was there before; empty if nothing was changed.
    """

    path: str
    steps: tuple[str, ...]
    done: bool
    copy: str
    left: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)


def repair(
    path: str | os.PathLike[str], *, dry_run: bool = False, progress: Progress = lambda done, total: None
) -> Repair:
    """Put right what is damaged of superblock, records, journal, mark and tail; with `dry_run` only say what would be.

    The bytes that are written over are kept in FILE.repair-<n>, and the whole file is verified afterwards. LockedError
    while somebody writes, MissingRunError without a file. Rows of a damaged tail are given up: an open run loses at
    most those that are not in full chunks. A kill in between leaves a file that can be repaired again.

    >>> import archive, tempfile
    >>> schema = archive.Schema(steps={"observation": archive.Field("float32"), "action": archive.Field("int64")})
    >>> path = tempfile.mkdtemp() + "/run.h5"
    >>> with archive.create(path, schema) as run:
    ...     run.reset(0.0)
    >>> archive.repair(path).steps
    ()
    """
    target = Path(path).resolve()
    if not target.is_file():
        raise MissingRunError(f"{target}: no such file")
    fd = os.open(target, (os.O_RDONLY if dry_run else os.O_RDWR) | disk.FLAGS)
    held = None
    try:
        held = WriterLock(target)
        if not dry_run:
            held.claim(fd, target)
        with damaged(str(target)):
            work = Repairing(fd, target)
            work.run(dry_run, held)
    finally:
        os.close(fd)
        if held is not None:
            held.release()
    left = verify(target, quick=dry_run, progress=progress).findings
    return Repair(str(target), tuple(work.steps), not dry_run and bool(work.steps), work.kept.name, left)


class KeepingFile(JournaledFile):
    """A writer's file that keeps what it writes over."""

    kept: Kept

    def put(self, offset: int, data: Any) -> int:
        """Keep the old bytes, then write."""
        self.kept.keep(offset, len(data))
        return JournaledFile.put(self, offset, data)


class Kept:
    """The file beside a run that holds what was written over, as entries of a journal, the newest last."""

    def __init__(self, fd: int, target: Path) -> None:
        self.fd, self.target, self.name = fd, target, ""

    def keep(self, offset: int, size: int) -> None:
        """Write down the bytes of a range, as far as the run has any, and wait for the disk."""
        old = disk.read_at(self.fd, size, offset)
        if not old:
            return
        if not self.name:
            number = next(n for n in range(1 << 20) if not self.place(n).exists())
            self.name = str(self.place(number))
        with open(self.name, "ab") as copy:
            copy.write(ENTRY.pack(offset, len(old)) + old)
            copy.flush()
            os.fsync(copy.fileno())

    def place(self, number: int) -> Path:
        """Return where the copy of repair `number` is."""
        return self.target.with_name(f"{self.target.name}.repair-{number}")


class Repairing:
    """Find what to do about a file, and do it."""

    def __init__(self, fd: int, target: Path) -> None:
        self.fd, self.path, self.header = fd, str(target), header_at(fd, str(target))
        self.kept = Kept(fd, target)
        self.size = os.fstat(fd).st_size
        self.steps: list[str] = []

    def run(self, dry_run: bool, held: WriterLock) -> None:
        """Do it, or with `dry_run` only list the steps."""
        if not look(self.fd, self.header, self.path).findings.damage:
            return
        record, patches = self.commit_patches()
        if record is None:
            return
        patches += self.superblock_patches(record, patches)
        tails = trial(self.fd, self.header, self.path, record, overlay(patches)).tails
        self.steps = list(dict.fromkeys(patch.what for patch in patches))
        self.steps += [f"give up the rows of environment {e} from row {row} on" for e, row in starts(tails).items()]
        if not dry_run:
            self.apply(patches)
            if tails:
                self.give_up(held)

    # --- what to do

    def commit_patches(self) -> tuple[Record | None, list[Patch]]:
        """Return the record that counts, and what makes the commit region and what it has yet to apply whole."""
        region = self.header.region
        data = steady(self.fd, self.header)
        record, applied = region.parse(data)
        fields, envs = len(self.header.fields), self.header.schema.envs
        if record is None or (len(record.tail_offset), len(record.rows)) != (fields, envs) or self.size < record.end:
            return None, []
        patches: list[Patch] = []
        closed = record.in_fields and self.size == record.end
        journal = b"" if applied == record.sequence else read_journal(self.fd, record)
        if journal is None and not (record.synced or closed):
            record = self.sound_record(record)
            if record is None:
                return None, []
        for offset, block in entries(journal or b"", record.end) or []:
            patches.append(Patch(f"apply the journal of commit {record.sequence}", offset, block))
        before = record_before(data, self.header, record)
        for one, sequence in ((record, record.sequence), (before, record.sequence - 1)):
            image = one.pack() if one is not None else bytes(EMPTY)
            for offset in region.copies(sequence):
                patches.append(Patch(f"write the record of commit {sequence}", offset, image))
        mark = region.mark(record.sequence)
        patches.append(Patch(f"note that commit {record.sequence} is applied", region.mark_offset, mark))
        return record, [p for p in patches if disk.read_at(self.fd, len(p.data), p.offset) != p.data]

    def sound_record(self, record: Record) -> Record | None:
        """Return the newest record that agrees with the rest of a file whose journal is damaged, None if none does."""
        region = self.header.region
        copies = [disk.read_at(self.fd, region.room, place) for place in region.copies(record.sequence - 1)]
        older = [found for found in map(Record.parse, copies) if found and found.sequence == record.sequence - 1]
        for one in (record, *older):
            if not trial(self.fd, self.header, self.path, one, b"").findings.damage:
                return one
        return None

    def superblock_patches(self, record: Record, patches: list[Patch]) -> list[Patch]:
        """Return what makes the superblock right."""
        view, right = ReadView(self.fd), superblock(record.end)
        view.load(record.end, overlay(patches))
        start = view.read_at(0, SUPERBLOCK + 4)
        if start[:SUPERBLOCK] == right or start[SUPERBLOCK:] != b"OHDR":
            return []
        return [Patch("write the superblock", 0, right)]

    # --- doing it

    def apply(self, patches: list[Patch]) -> None:
        """Keep what is there, then write; what vouches for the rest comes last, as in a commit."""
        for patch in patches:
            self.kept.keep(patch.offset, len(patch.data))
        for patch in sorted(patches, key=lambda patch: patch.offset == self.header.region.mark_offset):
            disk.write_at(self.fd, patch.data, patch.offset)
        os.fsync(self.fd)

    def give_up(self, held: WriterLock) -> None:
        """Commit that the rows of damaged tails are given up."""
        record = recover(self.fd, self.header, self.path)
        snapshot = take(self.fd, self.header, ReadView(self.fd), self.path)
        file = KeepingFile(os.dup(self.fd))
        file.kept = self.kept
        store = Store(file.fd, self.path, file)
        try:
            store.resume(self.header, record.end)
            rows = Rows(self.header, self.path, store.read_at, modest_memory(self.header), lock)
            rows.restore(snapshot)
            failing = rows.restore_open(record)
            writer = Writer(rows, store, held, record, None)
        except BaseException:
            store.abandon()
            raise
        try:
            writer.give_up(starts(failing))
        finally:
            writer.abandon()


def starts(tails: list[Tail]) -> dict[int, int]:
    """Return for each environment the first row that a damaged tail held."""
    return {env: min(tail.start for tail in tails if tail.env == env) for env in {tail.env for tail in tails}}


def record_before(data: bytes, header: Header, record: Record) -> Record | None:
    """Return the record before: as it is, or one that says the same as `record` if both copies are gone."""
    sequence, room = record.sequence - 1, header.region.room
    if not sequence:
        return None
    found = [Record.parse(data[k * room : (k + 1) * room]) for k in (2 * (sequence & 1), 2 * (sequence & 1) + 1)]
    whole = [one for one in found if one is not None and one.sequence == sequence]
    return whole[0] if whole else replace(record, sequence=sequence)


def overlay(patches: list[Patch]) -> bytes:
    """Return patches in the form of a journal."""
    return b"".join(ENTRY.pack(patch.offset, len(patch.data)) + patch.data for patch in patches)
