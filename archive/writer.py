"""The writer: what is appended becomes safe, and is let go of in good order.

After a failure between the first change and the last the writer is broken: it refuses everything, closing discards,
reopening recovers.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from .appender import Appender
from .checkpoint import Checkpoint, every
from .commit import Commits
from .episodes import CHUNK
from .errors import DamagedError, StateError
from .guard import interrupts, quiet, register, unregister
from .lock import WriterLock
from .pictures import contact_sheet
from .record import ENDED, Record
from .returns import cut_short
from .rewind import Rewind
from .rows import Rows
from .store import Store


class Writer(Appender):
    """Append to `rows` and keep them in `store`; `last` is the record that was recovered, None for a new run."""

    def __init__(
        self, rows: Rows, store: Store, held: WriterLock, last: Record | None, commit_every: float | None
    ) -> None:
        super().__init__(rows, store, Commits(rows, store, last))
        self.lock, self.commit_every, self.closed = held, commit_every, False
        self.last_commit, self.owner = time.monotonic(), os.getpid()
        register(self)

    # --- committing

    def commit_when_due(self) -> None:
        """Commit if `commit_every` seconds have passed."""
        if self.commit_every is not None and time.monotonic() - self.last_commit >= self.commit_every:
            self.commit()

    def commit(self, sync: bool = False) -> None:
        """Make everything appended so far survive a kill, with `sync` a power cut as well."""
        with self.change:
            if self.uncommitted or (sync and not self.commits.synced):
                self.chunks.settle()
                self.commits.write(sync)
            self.uncommitted = False
            self.last_commit = time.monotonic()

    def checkpoint(self, values: Mapping[str, Any], keep: int, sync: bool) -> None:
        """Commit together with the user's values."""
        data = self.commits.packed(values, keep)
        with self.change:
            self.chunks.settle()
            self.commits.checkpoint(data, keep, sync)
            self.uncommitted = False
            self.last_commit = time.monotonic()

    def rewind(self, number: int, position: Mapping[str, Any]) -> None:
        """Give up every row after checkpoint `number`; the episodes then going on end there, interrupted."""
        rows, latest = self.rows, self.commits.latest
        made_by = position.get("run_id", self.header.run_id)
        if made_by != self.header.run_id:
            raise StateError(f"{rows.path}: the checkpoint is of run {made_by}, this is run {self.header.run_id}")
        given_up = any(r.first <= number <= r.last for r in rows.rewinds)
        outside = len(position["rows"]) != self.schema.envs or position["episodes"] > rows.episodes.count
        if outside or given_up or number > latest or (position["rows"] > rows.rows).any():
            raise StateError(f"{rows.path}: checkpoint {number} does not lie in this run's past")
        rewind = Rewind(number + 1, latest, rows.rows.tolist(), position["rows"].tolist())
        with self.change:
            self.store.write_rewind(rewind, len(rows.rewinds))
            rows.rewinds.append(rewind)
            rows.episodes.back_to(position)
            rows.states[:] = ENDED
            self.chunks.settle()
            self.commits.forget_after(number)
            self.commits.write(sync=False)
            self.uncommitted = False

    def give_up(self, start: Mapping[int, int]) -> None:
        """Give up the rows of environments from row start[env] on, whose data is damaged; their episode ends there.

        Checkpoints stay, but rewinding to those that knew of these rows would bring them back, and is refused.
        """
        rows, episodes = self.rows, self.rows.episodes
        back_to = np.array([start.get(env, rows.rows[env]) for env in range(self.schema.envs)])
        knew = [c.id for c in self.checkpoints() if (c.position["rows"] > back_to).any()]
        latest = self.commits.latest
        rewind = Rewind(min(knew, default=latest + 1), latest, rows.rows.tolist(), back_to.tolist())
        with self.change:
            self.store.write_rewind(rewind, len(rows.rewinds))
            rows.rewinds.append(rewind)
            before, kept = episodes.count, {name: episodes[name] for name in episodes.columns}
            inside = kept["start"] < back_to[kept["env"]]
            rows.episodes = cut_short(rows, {name: column[inside] for name, column in kept.items()}, back_to)
            rows.episodes.dirty = set(range(-(-before // CHUNK)))  # more than there are now
            rows.states[list(start)] = ENDED
            for name in rows.columns:
                self.commits.changed(name, np.array(list(start)))
            self.chunks.settle()
            self.commits.write(sync=False)
            self.uncommitted = False

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that are whole, newest first; none if all are damaged."""
        with contextlib.suppress(DamagedError):
            return every(self.store.file.read_at, os.fstat(self.store.file.fd).st_size, self.commits.slots)
        return []

    # --- leaving

    def close(self) -> None:
        """Commit, move the tail into the fields, close; a broken writer is abandoned."""
        with interrupts:
            try:
                if not self.closed and self.broken is None:
                    self.finish()
            finally:
                self.abandon()

    def finish(self) -> None:
        """Leave a file that needs no tail to be read."""
        with self.change, quiet:
            self.chunks.settle()
            self.commits.write(sync=False)
            self.store.set_rows(int(self.rows.rows.max()))  # first: a chunk at the edge makes nothing longer
            self.chunks.write_open()
            self.leave()

    def leave(self) -> None:
        """Close the file, all rows being in the fields."""
        with self.change, quiet:
            self.store.write_pictures(self.rows.rows, contact_sheet(self.rows))
            self.store.write_totals(self.rows.steps, self.rows.episodes.count, True)
            self.commits.write(sync=False, in_fields=True)
            self.store.close_handle()
            self.store.check()
            if self.store.file.held_blocks:
                self.commits.seal(False, self.commits.slots, None, True)
            self.store.trim()

    def abandon(self) -> None:
        """Let go of the file as it is on the disk; after a fork the lock stays with the parent."""
        with interrupts:
            if self.closed:
                return
            self.closed = self.rows.closed = True
            self.chunks.abandon()
            self.store.abandon()
            unregister(self)
            if self.owner == os.getpid():
                self.lock.release()
            else:
                self.lock.forget()

    def require_usable(self) -> None:
        """Raise StateError if the writer was closed or is broken."""
        if self.closed:
            raise StateError(f"{self.rows.path}: the run is closed")
        if self.broken is not None:
            raise StateError(f"{self.rows.path}: broken by {self.broken!r}; close it and open it again to recover")
