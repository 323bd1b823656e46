"""What a batch of transitions takes of all its fields, gathered in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._rows import gather_parts
from .column import Column
from .places import Places
from .rows import Rows
from .window import Window

Array = np.ndarray[Any, Any]


class Plan:
    """The fields of `windows` at the start of each transition, observations after it too, and `n_step` rewards."""

    def __init__(self, windows: list[Window], rewards: Column | None, n_step: int, rows: Rows) -> None:
        later = [window for window in windows if window.observed]
        self.names, self.seen = [w.name for w in windows], [w.name for w in later]
        self.windows, self.rewards, self.rows = windows + later, rewards, rows
        self.parts = [w.part for w in windows] + [w.taken(later=True) for w in later]
        self.columns = [window.column for window in self.windows]
        self.finished = all(window.is_finished for window in windows)
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
        reward = found.pop() if self.rewards is not None else None
        if not self.finished:
            found = [window.finished(array) for window, array in zip(self.windows, found, strict=True)]
        count = len(self.names)
        return (
            dict(zip(self.names, found[:count], strict=True)),
            dict(zip(self.seen, found[count:], strict=True)),
            reward,
        )

    def load(self, place: Places, after: Array) -> list[Array]:
        """Return the array of each part, some of whose chunks are not in memory."""
        later = len(self.names), len(self.windows)
        rows = [after[1] if later[0] <= k < later[1] else place.row for k in range(len(self.parts))]
        return [
            column.windows(part, place.block, row)
            for column, part, row in zip(self.columns, self.parts, rows, strict=True)
        ]
