"""Which rows may be drawn as the start of a transition or a sequence, counted episode by episode.

In every episode the valid starts are its first ones, so prefix counts over episodes find the k-th in O(log episodes)
and no memory per row is needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ._rows import Segments
from .places import PARTS, Places
from .record import ENDED
from .rows import Rows
from .rule import Ends, Rule

Array = np.ndarray[Any, Any]


class ValidStarts:
    """The valid starts under `rule` among the newest `capacity` transitions of each environment; 0 keeps all.

    `transitions`: per environment how many there are. Per segment: `reach`, its first steps that are valid starts
    (on the rule's grid), 0 where it is hidden, `shown` the same as if it were not; `before`, the valid starts of its
    environment before it; `chain`, equal for segments that a sequence may run through. `until`: valid starts of
    environments 0 .. e within the capacity; `skip`: those of e that are older. With `rank_hidden` these three count
    hidden starts too, so that hiding an episode does not move the ranks of others.
    """

    def __init__(self, rows: Rows, rule: Rule, capacity: int, rank_hidden: bool = False) -> None:
        self.rows, self.rule, self.capacity, self.rank_hidden = rows, rule, capacity, rank_hidden
        envs = rows.header.schema.envs
        self.seen_rows, self.seen_states = np.full(envs, -1, np.int64), np.zeros(envs, np.uint8)
        self.transitions, self.total = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self.settled = np.zeros(envs, np.int64)  # segments whose reach no longer changes
        self.skip, self.until = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self.reach = self.shown = self.before = self.chain = np.zeros(0, np.int64)
        self.hidden = 0  # hidden starts among those counted
        self.laid_out: tuple[object, int] = (None, -1)
        self.seen = -1  # version of the rows that was taken in last

    def __len__(self) -> int:
        return int(self.until[-1]) - self.hidden

    def refresh(self) -> None:
        """Take in the rows that have arrived. An exception in between, Ctrl-C too, is made up for by the next call."""
        rows, segments = self.rows, self.rows.episodes.segments
        if self.seen == rows.version:
            return
        changed = (rows.rows != self.seen_rows) | (rows.states != self.seen_states)
        if self.laid_out[0] is not segments or self.laid_out[1] != segments.version:
            self.reach, self.shown, self.before, self.chain = np.zeros((4, len(segments.start)), np.int64)
            self.settled[:] = 0
            self.seen_rows[:] = -1  # all is counted anew, also after Ctrl-C before the end
            self.laid_out = (segments, segments.version)
            changed[:] = True
        found: list[int] = np.flatnonzero(changed).tolist()
        if found:
            self.transitions = rows.episodes.transitions
            for env in found:
                self.count(env)
            self.until = np.cumsum(self.total - self.skip)
            self.hidden = self.count_hidden() if self.rank_hidden else 0
            self.seen_rows, self.seen_states = rows.rows.copy(), rows.states.copy()
        self.segments = self.look()
        self.seen = rows.version

    def look(self) -> Segments:
        """Return the episodes as compiled code sees them, until something changes."""
        segments, columns = self.rows.episodes.segments, self.rows.episodes.columns
        final, terminated, truncated = (columns[k].view(np.uint8) for k in ("final", "terminated", "truncated"))
        return Segments(
            segments.base,
            segments.size,
            segments.start,
            segments.first,
            segments.episode,
            columns["length"],
            final,
            terminated,
            truncated,
            self.reach,
            self.before,
            self.rule.stride,
        )

    def count(self, env: int) -> None:
        """Count an environment's valid starts from its first segment on that is not settled."""
        segments = self.rows.episodes.segments
        base, size = int(segments.base[env]), int(segments.size[env])
        if not size:
            return
        at, stop = base + int(self.settled[env]), base + size
        ends = self.ends(env, at, stop)
        reach, open_ = self.rule.reach(ends)
        self.reach[at:stop] = np.where(ends.hidden, 0, reach)
        self.shown[at:stop] = reach
        if self.rank_hidden:  # ranks are counted as if nothing were hidden, chains of sequences included
            self.shown[at:stop], open_ = self.rule.reach(replace(ends, hidden=np.zeros_like(ends.hidden)))
        self.chain[at + 1 : stop] = self.chain[at] + np.cumsum(~self.rule.joined(ends))
        counted = self.shown if self.rank_hidden else self.reach
        starts = self.rule.on_grid(counted[at:stop])
        self.before[at + 1 : stop] = self.before[at] + np.cumsum(starts)[:-1]
        self.total[env] = self.before[stop - 1] + starts[-1]
        self.settled[env] += open_
        oldest = int(self.oldest[env])
        if oldest > 0:
            k = base + int(np.searchsorted(segments.first[base:stop], oldest, "right")) - 1
            gone = min(int(counted[k]), oldest - int(segments.first[k]))
            self.skip[env] = self.before[k] + int(self.rule.on_grid(np.asarray(gone)))

    def count_hidden(self) -> int:
        """Return how many of the starts that are counted are no valid starts because something is hidden."""
        segments, total = self.rows.episodes.segments, 0
        if not self.rows.episodes["hidden"].any():
            return 0
        for env in range(len(self.total)):
            mine = slice(int(segments.base[env]), int(segments.base[env] + segments.size[env]))
            gone = np.maximum(self.oldest[env] - segments.first[mine], 0)
            counts = [self.rule.on_grid(a) for a in (self.shown[mine], self.reach[mine])]
            gone_counts = [self.rule.on_grid(np.minimum(gone, a)) for a in (self.shown[mine], self.reach[mine])]
            total += int((counts[0] - gone_counts[0] - counts[1] + gone_counts[1]).sum())
        return total

    def ends(self, env: int, at: int, stop: int) -> Ends:
        """Return how segments at .. stop - 1 of an environment end."""
        episodes = self.rows.episodes
        number = episodes.segments.episode[at:stop]
        column = {k: episodes.columns[k][number] for k in ("length", "final", "terminated", "truncated", "hidden")}
        return Ends(
            start=episodes.segments.start[at:stop],
            length=column["length"],
            final=column["final"],
            ended=(number != episodes.current[env]) | (self.rows.states[env] == ENDED),
            terminated=column["terminated"],
            flagged=column["terminated"] | column["truncated"],
            hidden=column["hidden"],
        )

    def pick(self, rank: Array, until: Array | None = None, skip: Array | None = None) -> tuple[Places, Array]:
        """Return places and ids of the rank-th valid starts, environment by environment, oldest first."""
        block, ids = np.empty((PARTS, len(rank)), np.int64), np.empty(len(rank), np.int64)
        counts = (self.until if until is None else until, self.skip if skip is None else skip)
        self.segments.pick(rank, *counts, block, ids)
        return Places(block), ids

    def pick_leaves(self, leaf: Array) -> tuple[Places, Array]:
        """Return places and ids of the transitions that these leaves of a sum tree stand for."""
        block, ids = np.empty((PARTS, len(leaf)), np.int64), np.empty(len(leaf), np.int64)
        self.segments.pick_leaves(leaf, self.transitions, self.capacity, block, ids)
        return Places(block), ids

    def places(self, env: Array, row: Array, segment: Array | None = None) -> Places:
        """Return the places of rows."""
        block = np.empty((PARTS, len(row)), np.int64)
        self.segments.places(self.segment_of(env, row) if segment is None else segment, env, row, block)
        return Places(block)

    def segment_of(self, env: Array, row: Array) -> Array:
        """Return the segment of each row, -1 before the first."""
        found = np.empty_like(row)
        self.segments.find(env, row, found)
        return found

    def rows_of(self, env: int, ordinal: Array) -> Array:
        """Return the rows of an environment's transitions, given by number."""
        segments = self.rows.episodes.segments
        mine = slice(int(segments.base[env]), int(segments.base[env] + segments.size[env]))
        k = np.searchsorted(segments.first[mine], ordinal, "right") - 1 + mine.start
        return np.asarray(segments.start[k] + ordinal - segments.first[k])

    def contains(self, env: Array, row: Array) -> Array:
        """Tell which rows are valid starts, whatever the capacity."""
        found = self.segment_of(env, row)
        result = np.zeros(len(row), np.bool_)
        inside = np.flatnonzero(found >= 0)
        step = row[inside] - self.rows.episodes.segments.start[found[inside]]
        result[inside] = (step < self.reach[found[inside]]) & (step % self.rule.stride == 0)
        return result

    def undecided(self, env: int) -> int:
        """Return how many of an environment's newest transitions may yet become valid starts."""
        segments = self.rows.episodes.segments
        if not segments.size[env]:
            return 0
        first = int(segments.base[env] + self.settled[env])
        return int(self.transitions[env] - segments.first[first]) - int(self.shown[first])

    def are_valid(self, env: int, start: int, stop: int) -> Array:
        """Tell which of an environment's transitions start .. stop - 1 are valid starts, whatever the capacity."""
        if stop <= start:
            return np.zeros(0, np.bool_)
        segments = self.rows.episodes.segments
        base = int(segments.base[env])
        mine = segments.first[base : base + segments.size[env]]
        low, high = (int(np.searchsorted(mine, q, "right")) - 1 for q in (start, stop - 1))
        first = mine[low : high + 1]
        count = np.diff(np.append(first, stop))
        count[0] -= start - first[0]
        ordinal = np.arange(start, stop)
        valid = ordinal < np.repeat(first + self.reach[base + low : base + high + 1], count)
        if self.rule.stride > 1:
            valid &= (ordinal - np.repeat(first, count)) % self.rule.stride == 0
        return np.asarray(valid)

    def is_kept(self, env: Array, row: Array) -> Array:
        """Tell which valid starts are within the capacity and not hidden."""
        segments, found = self.rows.episodes.segments, self.segment_of(env, row)
        step = row - segments.start[found]
        return np.asarray((step < self.reach[found]) & (segments.first[found] + step >= self.oldest[env]))

    @property
    def oldest(self) -> Array:
        """Number of each environment's oldest transition within the capacity."""
        return np.maximum(self.transitions - self.capacity, 0) if self.capacity else np.zeros_like(self.transitions)
