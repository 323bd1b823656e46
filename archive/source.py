"""A file open for reading: snapshots of it, one after the other, as rows."""

from __future__ import annotations

import os
from typing import Any

from ._file import ReadView
from .header import Header
from .record import Record
from .rows import Rows
from .snapshot import ATTEMPTS, read_record, take


class Source:
    """The rows and texts of the newest snapshot of an open file. Positional reads only, so it may be shared by fork."""

    def __init__(self, fd: int, header: Header, path: str, memory: int) -> None:
        self.fd, self.header, self.path = fd, header, path
        self.view = ReadView(fd)
        self.rows = Rows(header, path, self.view.read_at, memory)
        self.record: Record | None = None
        self.texts: dict[str, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take the newest snapshot together with the tail that its record names."""
        for _ in range(ATTEMPTS):
            if (
                self.record is not None
                and read_record(self.fd, self.header, self.path)[0].sequence == self.record.sequence
            ):
                return
            snapshot = take(self.fd, self.header, self.view, self.path)
            self.rows.restore(snapshot)
            whole = self.rows.restore_open(snapshot.record)
            moved = read_record(self.fd, self.header, self.path)[0].sequence != snapshot.record.sequence
            if whole or not moved:  # a tail that fails although no writer moved on is damaged
                self.rows.need_tail(whole)
                self.record, self.texts = snapshot.record, snapshot.texts
                return

    def close(self) -> None:
        """Close the descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
