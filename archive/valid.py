"""Which rows may be drawn as the start of a transition, counted episode by episode.

In every episode the valid starts are its first ones, so prefix counts over episodes find the k-th in O(log episodes)
and no memory per row is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .record import ENDED
from .rows import Rows

Array = np.ndarray[Any, Any]


class ValidStarts:
    """The valid starts of an n-step replay that keeps the newest `capacity` transitions of each environment.

    A start is valid when every value of its transition is known: n steps ahead the episode goes on, or it ended and
    either terminated or has its final observation. `transitions`: per environment how many there are; `before`: per
    segment the valid starts of its environment before it; `until`: valid starts of environments 0 .. e within the
    capacity; `skip`: those older than it. Capacity 0 keeps all.
    """

    def __init__(self, rows: Rows, n_step: int, capacity: int) -> None:
        self.rows, self.n_step, self.capacity = rows, n_step, capacity
        envs = rows.header.schema.envs
        self.seen_rows, self.seen_states = np.full(envs, -1, np.int64), np.zeros(envs, np.uint8)
        self.transitions, self.total = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self.closed = np.zeros(envs, np.int64)  # segments before the last one: they no longer change
        self.skip, self.until = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self.before = np.zeros(0, np.int64)
        self.laid_out: tuple[object, int] = (None, -1)

    def __len__(self) -> int:
        return int(self.until[-1])

    def refresh(self) -> list[int]:
        """Take in the rows that have arrived; return the environments in which something changed."""
        rows, segments = self.rows, self.rows.episodes.segments
        changed = (rows.rows != self.seen_rows) | (rows.states != self.seen_states)
        if self.laid_out[0] is not segments or self.laid_out[1] != segments.version:
            self.laid_out = (segments, segments.version)
            self.before = np.zeros(len(segments.start), np.int64)
            self.closed[:] = 0
            changed[:] = True
        found: list[int] = np.flatnonzero(changed).tolist()
        if found:
            self.transitions = rows.episodes.transitions
            for env in found:
                self.count(env)
            self.until = np.cumsum(self.total - self.skip)
            self.seen_rows, self.seen_states = rows.rows.copy(), rows.states.copy()
        return found

    def count(self, env: int) -> None:
        """Count an environment's valid starts from its last closed segment on."""
        segments = self.rows.episodes.segments
        base, size = int(segments.base[env]), int(segments.size[env])
        if not size:
            return
        at = base + int(self.closed[env])
        valid = self.of_segments(slice(at, base + size))
        self.before[at + 1 : base + size] = self.before[at] + np.cumsum(valid)[:-1]
        self.total[env] = self.before[base + size - 1] + valid[-1]
        self.closed[env] = size - 1
        oldest = int(self.oldest[env])
        if oldest > 0:
            k = base + int(np.searchsorted(segments.first[base : base + size], oldest, "right")) - 1
            within = int(self.of_segments(k))
            self.skip[env] = self.before[k] + min(within, oldest - int(segments.first[k]))

    def of_segments(self, where: Any) -> Array:
        """Return how many starts of these segments (indices or a slice) are valid."""
        episodes = self.rows.episodes
        number = episodes.segments.episode[where]
        env, length, final, terminated, hidden = (
            episodes.columns[k][number] for k in ("env", "length", "final", "terminated", "hidden")
        )
        ended = (number != episodes.current[env]) | (self.rows.states[env] == ENDED)
        ahead = np.maximum(length - self.n_step + final, 0)  # n steps ahead lies in the episode
        return np.where(hidden, 0, np.where(terminated | ended & final, length, ahead))

    def pick(self, rank: Array) -> tuple[Array, Array]:
        """Return environment and row of the rank-th valid starts, environment by environment, oldest first."""
        segments = self.rows.episodes.segments
        env, row = np.empty_like(rank), np.empty_like(rank)
        where = (segments.base, segments.size, segments.start)
        _core.pick_valid(rank, self.until, self.skip, *where, self.before, env, row)
        return env, row

    def segment_of(self, env: Array, row: Array) -> Array:
        """Return the segment of each row, -1 before the first."""
        segments = self.rows.episodes.segments
        found = np.empty_like(row)
        _core.find_rows(env, row, segments.base, segments.size, segments.start, found)
        return found

    def contains(self, env: Array, row: Array) -> Array:
        """Tell which rows are valid starts, whatever the capacity."""
        found = self.segment_of(env, row)
        result = np.zeros(len(row), np.bool_)
        inside = np.flatnonzero(found >= 0)
        step = row[inside] - self.rows.episodes.segments.start[found[inside]]
        result[inside] = step < self.of_segments(found[inside])
        return result

    def undecided(self, env: int) -> int:
        """Return how many of an environment's newest transitions are not valid starts yet: at most n_step."""
        segments = self.rows.episodes.segments
        if not segments.size[env]:
            return 0
        last = int(segments.base[env] + segments.size[env] - 1)
        return int(self.transitions[env] - segments.first[last]) - int(self.of_segments(last))

    def are_valid(self, env: int, start: int, stop: int) -> Array:
        """Tell which of an environment's transitions start .. stop - 1 are valid starts, whatever the capacity."""
        if stop <= start:
            return np.zeros(0, np.bool_)
        segments = self.rows.episodes.segments
        mine = segments.first[segments.base[env] : segments.base[env] + segments.size[env]]
        low, high = (int(np.searchsorted(mine, q, "right")) - 1 for q in (start, stop - 1))
        first = mine[low : high + 1]
        ends = first + self.of_segments(slice(int(segments.base[env]) + low, int(segments.base[env]) + high + 1))
        count = np.diff(np.append(first, stop))
        count[0] -= start - first[0]
        return np.asarray(np.arange(start, stop) < np.repeat(ends, count))

    @property
    def oldest(self) -> Array:
        """Number of each environment's oldest transition within the capacity."""
        return np.maximum(self.transitions - self.capacity, 0) if self.capacity else np.zeros_like(self.transitions)
