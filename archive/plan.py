"""What a batch of transitions takes of all its fields, gathered in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._pool import gather_parts
from .column import Column
from .places import Places
from .rows import Rows
from .window import Window

Array = np.ndarray[Any, Any]


class Plan:
    """The fields of `windows` at the start of each transition, observations after it too, and `n_step` rewards.

    With `overlap` an observation and the one after it are views of one array.
    """

    def __init__(self, windows: list[Window], rewards: Column | None, n_step: int, rows: Rows, overlap: bool) -> None:
        self.rows, self.summed = rows, rewards is not None
        self.now = [w for w in windows if not (overlap and w.observed)]
        self.later = [w for w in windows if w.observed and not overlap]
        self.both = [w for w in windows if w.observed and overlap]
        self.parts = [w.part for w in self.now] + [w.taken(later=True) for w in self.later]
        self.parts += [w.taken_once() for w in self.both]
        self.columns = [w.column for w in (*self.now, *self.later, *self.both)]
        self.names, self.seen = [w.name for w in self.now], [w.name for w in self.later]
        self.plain = not self.both and all(window.plain for window in windows)
        if rewards is not None:
            self.parts.append(rewards.part(0, n_step))
            self.columns.append(rewards)

    def read(self, place: Places, after: Array) -> tuple[dict[str, Array], dict[str, Array], Array | None]:
        """Return fields by name, observations after the transitions by name, and rewards (B, n_step).

        `after` (2, B): steps taken, and the rows after them.
        """
        with self.rows.lock:
            found = gather_parts(self.parts, place.block, after, self.rows.buffers.take)
        if found is None:
            found = self.load(place, after)
        reward = found.pop() if self.summed else None
        count = len(self.now)
        if self.plain:
            return dict(zip(self.names, found, strict=False)), dict(zip(self.seen, found[count:], strict=True)), reward
        now = {w.name: w.finished(array) for w, array in zip(self.now, found, strict=False)}
        later = {w.name: w.finished(array) for w, array in zip(self.later, found[count:], strict=False)}
        for w, array in zip(self.both, found[count + len(later) :], strict=True):
            now[w.name], later[w.name] = w.halves(array)
        return now, later, reward

    def load(self, place: Places, after: Array) -> list[Array]:
        """Return the array of each part, some of whose chunks are not in memory."""
        rows = [after[1] if part.later else place.row for part in self.parts]
        return [
            column.windows(part, place.block, row)
            for column, part, row in zip(self.columns, self.parts, rows, strict=True)
        ]
