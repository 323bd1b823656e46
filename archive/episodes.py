"""Episodes in order of arrival, one array per column, and each environment's episodes as sorted segments."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from .record import ENDED

Array = np.ndarray[Any, Any]
CHUNK = 1024  # episodes of one chunk on disk


class Segments:
    """For each environment its episodes in order: first row, number of the first transition, place in the table.

    Those of environment e stand at base[e] .. base[e] + size[e] - 1 of the arrays. `version` changes when they move.
    """

    def __init__(self, envs: int) -> None:
        self.base = np.zeros(envs, np.int64)
        self.size = np.zeros(envs, np.int64)
        self.room = np.zeros(envs, np.int64)
        self.start = self.first = self.episode = np.zeros(0, np.int64)
        self.version = 0

    def append(self, env: int, start: int, first: int, episode: int) -> None:
        """Add an environment's next episode."""
        if self.size[env] == self.room[env]:
            self.spread(np.maximum(8, 2 * self.size))
        at = self.base[env] + self.size[env]
        self.start[at], self.first[at], self.episode[at] = start, first, episode
        self.size[env] += 1

    def spread(self, room: Array) -> None:
        """Lay the arrays out again with this much room for each environment."""
        base = np.concatenate(([0], np.cumsum(room)[:-1]))
        kept = np.repeat(base - self.base, self.size) + self.places()
        for name in ("start", "first", "episode"):
            spread = np.zeros(int(room.sum()), np.int64)
            spread[kept] = getattr(self, name)[self.places()]
            setattr(self, name, spread)
        self.base, self.room = base, room
        self.version += 1

    def places(self) -> Array:
        """Return the index of every segment, environment by environment."""
        ends = np.cumsum(self.size)
        return np.asarray(np.arange(int(self.size.sum())) + np.repeat(self.base - (ends - self.size), self.size))

    @classmethod
    def of(cls, env: Array, start: Array, length: Array, envs: int) -> Segments:
        """Sort a whole table into segments."""
        segments = cls(envs)
        segments.size = np.bincount(env, minlength=envs).astype(np.int64)
        size, segments.size = segments.size, np.zeros(envs, np.int64)
        segments.spread(np.maximum(8, 2 * size))
        segments.size = size
        order = np.lexsort((start, env))
        before = np.cumsum(length[order]) - length[order]
        heads = np.cumsum(size) - size
        offset = np.where(size > 0, before[np.minimum(heads, max(len(before) - 1, 0))] if len(before) else 0, 0)
        at = segments.places()
        segments.start[at], segments.episode[at] = start[order], order
        segments.first[at] = before - np.repeat(offset, size)
        return segments


def with_room(column: Array, count: int) -> Array:
    """Return the first `count` entries with room for as many more, whose memory is not touched before it is used."""
    result = np.zeros(count + max(64, count), column.dtype)
    result[:count] = column[:count]
    return result


class Episodes:
    """The table of episodes and where each environment is in it.

    `current[e]` is the latest episode of environment e, -1 before the first. `dirty` holds the chunks of the table
    that the file does not have yet, apart from those of `current`.
    """

    def __init__(self, envs: int, dtypes: Mapping[str, str], columns: Mapping[str, Array] | None = None) -> None:
        self.envs = envs
        self.columns = {name: np.zeros(64, dtype) for name, dtype in dtypes.items()}
        self.count = 0
        self.dirty: set[int] = set()
        self.shown = 0  # how often an episode was hidden or shown
        self.current = np.full(envs, -1, np.int64)
        self.segments = Segments(envs)
        if columns is not None:
            self.columns = {name: np.asarray(columns[name], dtype) for name, dtype in dtypes.items()}
            self.cut(len(self.columns["env"]))

    def __getitem__(self, name: str) -> Array:
        """Return a column, one entry per episode; KeyError without one."""
        return self.columns[name][: self.count]

    @property
    def transitions(self) -> Array:
        """Transitions of each environment, those of the episode going on included."""
        seg, last = self.segments, self.segments.base + self.segments.size - 1
        result = np.zeros(self.envs, np.int64)
        begun = seg.size > 0
        result[begun] = seg.first[last[begun]] + self.columns["length"][self.current[begun]]
        return result

    def begin(self, env: int, start: int, given: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Start an environment's next episode at row `start`; its observation is there, so far its final one."""
        first = 0
        if self.current[env] >= 0:
            first = int(self.segments.first[self.segments.base[env] + self.segments.size[env] - 1])
            first += int(self.columns["length"][self.current[env]])
            self.dirty.add(int(self.current[env]) // CHUNK)  # it may have grown since the last commit
        if self.count == len(self.columns["env"]):
            self.columns = {name: with_room(column, self.count) for name, column in self.columns.items()}
        values = {"env": env, "start": start, "seed": -1, "final": True, **given}
        for name, column in self.columns.items():
            column[self.count] = values.get(name, column.dtype.type())
        self.segments.append(env, start, first, self.count)
        self.current[env] = self.count
        self.dirty.add(self.count // CHUNK)
        self.count += 1

    def grow(self, envs: Array, rewards: Array) -> None:
        """Count one more transition for each of these environments."""
        now = self.current[envs]
        self.columns["length"][now] += 1
        self.columns["return"][now] += rewards

    def extend(self, env: int, rewards: Array) -> None:
        """Count many transitions of one environment, added one after the other as `grow` would."""
        now = self.current[env]
        self.columns["length"][now] += len(rewards)
        returns = np.concatenate([self.columns["return"][now : now + 1], rewards.astype(np.float64)])
        self.columns["return"][now] = np.cumsum(returns)[-1]
        self.dirty.add(int(now) // CHUNK)

    def mark(self, env: int, values: Mapping[str, Any]) -> None:
        """Set columns of an environment's latest episode."""
        now = int(self.current[env])
        for name, value in values.items():
            self.columns[name][now] = value
        self.dirty.add(now // CHUNK)

    def annotate(self, number: int, values: Mapping[str, Any]) -> None:
        """Set columns of any episode; hiding or showing one changes what may be drawn."""
        if "hidden" in values and values["hidden"] != self.columns["hidden"][number]:
            self.segments.version += 1
            self.shown += 1
        for name, value in values.items():
            self.columns[name][number] = value
        self.dirty.add(number // CHUNK)

    def changed(self) -> set[int]:
        """Return the chunks of the table that the file does not have yet; those of episodes going on are among them."""
        return self.dirty | set((self.current[self.current >= 0] // CHUNK).tolist())

    def rewrite(self) -> None:
        """Have the next commit write the whole table."""
        self.dirty = set(range(-(-self.count // CHUNK)))

    def cut(self, count: int) -> None:
        """Keep the first `count` episodes and sort them anew."""
        self.columns = {name: with_room(column, count) for name, column in self.columns.items()}
        self.dirty.update(range(count // CHUNK, -(-self.count // CHUNK)))
        self.count = count
        self.segments = Segments.of(self["env"], self["start"], self["length"], self.envs)
        self.current = np.full(self.envs, -1, np.int64)
        begun = self.segments.size > 0
        last = (self.segments.base + self.segments.size - 1)[begun]
        self.current[begun] = self.segments.episode[last]

    def back_to(self, position: Mapping[str, Any]) -> None:
        """Be what the table was at a checkpoint; what `annotate` set on its episodes since then stays."""
        self.cut(int(position["episodes"]))
        for env in np.flatnonzero(self.current >= 0).tolist():
            self.mark(env, {name: position[name][env] for name in ("length", "return", "final")})
            if position["states"][env] != ENDED:
                self.mark(env, {"terminated": False, "truncated": False})
        self.cut(self.count)
