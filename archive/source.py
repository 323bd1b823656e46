"""A file open for reading: snapshots of it, one after the other, as rows."""

from __future__ import annotations

import os
import weakref
from typing import Any

from ._file import ReadView
from .checkpoint import Checkpoint, every
from .errors import DamagedError, StateError
from .header import Header
from .record import Record
from .rows import Rows
from .snapshot import ATTEMPTS, read_record, settle, take


class Descriptor:
    """An open file and the view of its newest snapshot; apart from Source, so that no cycle keeps chunks alive."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self.path, self.view = fd, path, ReadView(fd)
        self.closes = weakref.finalize(self, os.close, fd)  # of a reader that is dropped, too

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file as the newest snapshot has them."""
        self.require_open()
        return self.view.read_at(offset, size)

    def require_open(self) -> None:
        """Raise StateError if the file was closed."""
        if self.fd < 0:
            raise StateError(f"{self.path}: the run is closed")

    def close(self) -> None:
        """Close the descriptor."""
        self.fd = -1
        self.closes()


class Source:
    """The rows and texts of the newest snapshot of an open file. Positional reads only, so it may be shared by fork."""

    def __init__(self, file: Descriptor, header: Header, path: str, memory: int) -> None:
        self.file, self.header, self.path = file, header, path
        self.rows = Rows(header, path, self.file.read, memory)
        self.record: Record | None = None
        self.texts: dict[str, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take the newest snapshot together with the rows that its record says are not in full chunks."""
        self.file.require_open()
        for _ in range(ATTEMPTS):
            if self.record is not None and not self.moved(self.record):
                return
            snapshot = take(self.file.fd, self.header, self.file.view, self.path)
            self.record = None  # what follows is whole or done again
            try:
                with self.rows.lock:  # another thread must not copy rows that are half there
                    self.rows.restore(snapshot)
                    self.rows.need_tails(self.rows.restore_open(snapshot.record))
            except DamagedError:
                if self.moved(snapshot.record):
                    continue  # a writer has gone on and reused what was read
                raise
            self.record, self.texts = snapshot.record, snapshot.texts
            return

    def moved(self, record: Record) -> bool:
        """Tell whether a writer has committed since a record."""
        return read_record(self.file.fd, self.header, self.path)[0].sequence != record.sequence

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints of the newest commit, which may be newer than the rows: slots are written over."""
        self.file.require_open()
        view = ReadView(self.file.fd)
        for _ in range(ATTEMPTS):
            record = settle(self.file.fd, self.header, view, self.path)
            try:
                return every(view.read_at, os.fstat(self.file.fd).st_size, record.slots)
            except DamagedError as error:
                if not self.moved(record):
                    raise DamagedError(f"{self.path}: {error}") from error
        return []

    def close(self) -> None:
        """Close the descriptor."""
        self.rows.closed = True
        self.file.close()
