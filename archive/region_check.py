"""The commit region under scrutiny: both records, their copies, the applied mark, the journal.

A killed writer leaves writes cut short here. They are told from damage by what the order of a commit allows.
"""

from __future__ import annotations

import os

from . import disk
from .finding import Findings
from .header import Header
from .record import MARK, Record
from .snapshot import read_journal

OPENS = "the run opens all the same; repair puts it right"
REPAIR = "the run cannot be opened until it is repaired"
SALVAGE = "the run cannot be opened; salvage finds its rows"


class RegionCheck:
    """Check what the bytes of the commit region say; `record` is the newest, None if there is none."""

    def __init__(self, fd: int, header: Header, findings: Findings) -> None:
        self.fd, self.region, self.findings = fd, header.region, findings
        self.size = os.fstat(fd).st_size
        data = steady(fd, header)
        room = self.region.room
        self.images = [data[k * room : (k + 1) * room] for k in range(4)]
        self.copies = [Record.parse(image) for image in self.images]
        self.image = data[4 * room : 4 * room + MARK.size]
        self.record, self.applied = self.region.parse(data)
        self.seen = (self.record.sequence if self.record is not None else 0, self.applied)
        self.closed = self.record is not None and self.record.in_fields and self.size == self.record.end
        if self.record is None:
            findings.add("no valid commit record", f"byte {self.region.offset}", SALVAGE)
            return
        fits = len(self.record.rows) == header.schema.envs and len(self.record.tail_offset) == len(header.fields)
        if not fits:
            findings.add("the commit record does not fit the schema", f"byte {self.region.offset}", SALVAGE)
            self.record = None
            return
        self.check_newest(self.record)
        self.check_older(self.record)
        self.check_mark(self.record)
        if self.size < self.record.end:
            short = f"truncated: {self.record.end} bytes were committed, {self.size} are there"
            findings.add(short, f"byte {self.size}", SALVAGE)

    def check_newest(self, record: Record) -> None:
        """Both copies of the newest record must be there once its commit is complete."""
        packed = record.pack()
        for number, place in enumerate(self.region.copies(record.sequence)):
            if self.images[(record.sequence & 1) * 2 + number][: len(packed)] == packed:
                continue
            if self.applied == record.sequence or self.closed:
                what = f"copy {number + 1} of commit record {record.sequence} is damaged"
                self.findings.add(what, f"byte {place}", OPENS)
            else:
                self.findings.notes.append(f"the writer was killed between both copies of record {record.sequence}")

    def check_older(self, record: Record) -> None:
        """The record before must be whole, but for the first copy if the next commit was cut short there."""
        before = record.sequence - 1
        if not before:
            return
        at = (before & 1) * 2
        first, second = self.region.copies(before)
        whole = [copy is not None and copy.sequence == before for copy in self.copies[at : at + 2]]
        if not whole[1]:
            self.findings.add(f"copy 2 of commit record {before} is damaged", f"byte {second}", OPENS)
        if not whole[0] and (self.closed or not self.cut_short(record.sequence + 1, *self.images[at : at + 2])):
            self.findings.add(f"copy 1 of commit record {before} is damaged", f"byte {first}", OPENS)

    def cut_short(self, sequence: int, image: bytes, before: bytes) -> bool:
        """Tell whether `image` may be record `sequence` whose writing over `before` was cut short."""
        begun = image[8] == sequence & 255 or image[8:] == before[8:]
        if begun and image[:4] == Record.MAGIC:
            self.findings.notes.append(f"the writer was killed while it wrote record {sequence}, which does not count")
            return True
        return False

    def check_mark(self, record: Record) -> None:
        """The mark must name the newest commit, or the one before while the journal is still to be applied."""
        sequence = record.sequence
        before = self.region.mark(sequence - 1) if sequence > 1 else bytes(MARK.size)
        now = self.region.mark(sequence)
        if self.image == now:
            return
        intact = record.synced or read_journal(self.fd, record) is not None
        where = f"byte {self.region.mark_offset}"
        if not any(self.image == now[:k] + before[k:] for k in range(MARK.size)):
            self.findings.add("the applied mark is damaged", where, OPENS if intact else REPAIR)
        elif intact:
            self.findings.notes.append("the last commit is still to be written in place; the next opening does it")
        elif self.closed:
            self.findings.add("the applied mark is behind", where, REPAIR)
        else:
            what = f"the journal of commit {sequence} is damaged"
            self.findings.add(what, f"byte {record.journal_offset}", REPAIR)


def steady(fd: int, header: Header) -> bytes:
    """Return the bytes of the commit region while no writer is changing them."""
    data, before = disk.read_at(fd, header.region.nbytes, header.region.offset), b""
    for _ in range(100):
        if data == before:
            break
        before, data = data, disk.read_at(fd, header.region.nbytes, header.region.offset)
    return data.ljust(header.region.nbytes, b"\0")
