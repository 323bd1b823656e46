"""The priorities of one replay: a sum tree over its transitions, and what waits until it becomes valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._core import SumTree, pick_slots
from .errors import IndexRangeError, NotEnoughData, PriorityError
from .samplers import Prioritized
from .valid import ValidStarts

Array = np.ndarray[Any, Any]
LARGEST = np.finfo(np.float64).max * 2.0**-48  # no number of leaves that fits in memory can overflow the total
BLOCK = 1 << 18  # transitions taken in at once, to bound memory


class Priorities:
    """Keep a leaf (priority + epsilon)^alpha for each valid start, 0 for every other transition.

    Transition q of environment e has leaf (q mod capacity) * N + e, or q * N + e without a capacity. `waiting[e]`
    holds the leaves-to-be of e's newest transitions, those that may still become valid.
    """

    def __init__(self, valid: ValidStarts, sampler: Prioritized) -> None:
        self.valid, self.sampler = valid, sampler
        self.nbytes = 0
        self.envs = len(valid.transitions)
        self.tree = self.new_tree(self.envs * (valid.capacity or 1024))
        self.largest = 1.0
        self.ignored = 0
        self.entered = np.zeros(self.envs, np.int64)  # transitions that have a leaf or wait for one
        self.waiting = [np.zeros(0) for _ in range(self.envs)]
        self.fresh_leaf()

    def new_tree(self, size: int) -> SumTree:
        """Return a tree of zeros, its memory taken out of the run's budget."""
        self.nbytes = size * 64 // 7
        self.valid.rows.make_room_for(self)
        return SumTree(size)

    def leaf_of(self, priority: Any) -> Array:
        """Return (priority + epsilon)^alpha."""
        with np.errstate(over="ignore"):  # infinity is refused where it would enter the tree
            return np.asarray(np.power(priority + self.sampler.epsilon, self.sampler.alpha), np.float64)

    def leaf_numbers(self, env: Any, ordinal: Array) -> Array:
        """Return the leaf numbers of transitions."""
        capacity = self.valid.capacity
        return np.ascontiguousarray((ordinal % capacity if capacity else ordinal) * self.envs + env)

    # --- rows that arrive

    def enter(self, changed: list[int]) -> None:
        """Give the transitions that have arrived in these environments the largest priority seen."""
        fresh = self.fresh_leaf()
        for env in changed:
            now, kept = int(self.valid.transitions[env]), self.waiting[env]
            start = int(self.entered[env]) - len(kept)
            self.make_room(now)
            for low in range(max(start, int(self.valid.oldest[env])), now, BLOCK):
                high = min(low + BLOCK, now)
                leaves = leaves_between(low, high, start, kept, fresh)
                leaves[~self.valid.are_valid(env, low, high)] = 0.0
                self.tree.set(self.leaf_numbers(env, np.arange(low, high)), leaves)
            self.waiting[env] = leaves_between(now - self.valid.undecided(env), now, start, kept, fresh)
            self.entered[env] = now

    def make_room(self, transitions: int) -> None:
        """Grow the tree of a replay without capacity."""
        needed = transitions * self.envs
        if not self.valid.capacity and needed > self.tree.size:
            larger = self.new_tree(max(needed, 2 * self.tree.size))
            self.tree.copy_to(larger)
            self.tree = larger

    # --- drawing

    def draw(self, uniform: Array) -> tuple[Array, Array, Array]:
        """Return environment, row and probability of one start per uniform number in [0, 1)."""
        total, count = self.tree.total, len(uniform)
        if not total > 0:
            raise NotEnoughData("every priority is 0: nothing can be drawn")
        share = (np.arange(count) + uniform) / count if self.sampler.stratified else uniform
        number, leaf = np.empty(count, np.int64), np.empty(count)
        self.tree.find(np.minimum(share * total, np.nextafter(total, 0)), number)
        self.tree.get(number, leaf)
        env, row = np.empty(count, np.int64), np.empty(count, np.int64)
        segments = self.valid.rows.episodes.segments
        where = (segments.base, segments.size, segments.start, segments.first)
        pick_slots(number, self.valid.transitions, self.valid.capacity, *where, env, row)
        return env, row, leaf / total

    def weights(self, probability: Array, beta: float) -> Array:
        """Return (N P)^-beta over its largest, float32; N is the number of valid starts."""
        weight = np.power(len(self.valid) * probability, -beta)
        return np.asarray(weight / weight.max(), np.float32)

    # --- updates

    def update(self, env: Array, row: Array, priority: Array) -> None:
        """Set priorities; the last of duplicates wins, those of rows that left the capacity are counted and ignored.

        Everything is checked before anything changes.
        """
        self.check(priority)
        leaf = self.leaf_of(priority)
        position(leaf > LARGEST, PriorityError, "too large to be summed", priority)
        ordinal, valid, gone = self.find(env, row)
        gone |= ordinal < self.valid.oldest[env]
        self.ignored += int(gone.sum())
        self.largest = max(self.largest, float(priority[~gone].max(initial=0.0)))
        now = valid & ~gone
        self.tree.set(self.leaf_numbers(env, ordinal)[now], leaf[now])
        for e in np.unique(env[~valid & ~gone]).tolist():
            place = ordinal - (int(self.entered[e]) - len(self.waiting[e]))
            waits = (env == e) & ~valid & ~gone & (place >= 0)
            self.waiting[e][place[waits]] = leaf[waits]

    def check(self, priority: Array) -> None:
        """Refuse priorities that are negative or not finite, naming the first."""
        position(~np.isfinite(priority), PriorityError, "not finite", priority)
        position(priority < 0, PriorityError, "negative", priority)

    def find(self, env: Array, row: Array) -> tuple[Array, Array, Array]:
        """Return of each row its transition's number, whether it is a valid start, and whether it was given up."""
        segments, rows = self.valid.rows.episodes.segments, self.valid.rows
        position(row >= rows.rows[env], IndexRangeError, "the id of a row that does not exist", env << 32 | row)
        found = self.valid.segment_of(env, row)
        ordinal, valid, gone = np.zeros_like(row), np.zeros(len(row), np.bool_), found < 0
        known = np.flatnonzero(found >= 0)
        at, e = found[known], env[known]
        step, length = row[known] - segments.start[at], rows.episodes.columns["length"][segments.episode[at]]
        is_last = at == segments.base[e] + segments.size[e] - 1
        follows = np.where(is_last, rows.rows[e], segments.start[np.minimum(at + 1, len(segments.start) - 1)])
        final = np.zeros(len(row), np.bool_)
        final[known] = (step == length) & (follows == row[known] + 1)  # otherwise what it led to was given up
        position(final, IndexRangeError, "the id of a final observation", env << 32 | row)
        ordinal[known], valid[known] = segments.first[at] + step, step < self.valid.of_segments(at)
        gone[known] = step >= length
        return ordinal, valid, gone

    # --- state

    def state(self) -> dict[str, Any]:
        """Return what a later replay needs to go on: leaves in order of age and the largest priority.

        A transition that waits has the leaf it would have; NaN stands for one that had no valid start and no priority.
        """
        oldest, now = self.valid.oldest, self.entered
        leaves = np.empty(int((now - oldest).sum()))
        at = 0
        for env in range(self.envs):
            low, high, waits = int(oldest[env]), int(now[env]), self.waiting[env]
            mine = leaves[at : at + high - low]
            self.tree.get(self.leaf_numbers(env, np.arange(low, high)), mine)
            if not mine.all():
                mine[~self.valid.are_valid(env, low, high)] = np.nan
            waits = waits[max(len(waits) - len(mine), 0) :]
            mine[len(mine) - len(waits) :] = waits
            at += len(mine)
        return {
            "leaves": leaves,
            "entered": now.copy(),
            "kept": now - oldest,
            "largest": self.largest,
            "ignored": self.ignored,
        }

    def load(self, state: Mapping[str, Any], sampler: Prioritized) -> None:
        """Take over a state that `sampler` made; what has no priority there enters at its largest."""
        self.largest, self.ignored = float(state["largest"]), int(state["ignored"])
        leaves, ends = self.translate(state["leaves"], sampler), np.cumsum(state["kept"])
        fresh = self.fresh_leaf()
        leaves = np.where(np.isnan(leaves), fresh, leaves)
        for env in range(self.envs):
            now, kept = int(state["entered"][env]), int(state["kept"][env])
            low = max(now - (self.valid.capacity or now), 0)
            mine = leaves_between(low, now, now - kept, leaves[ends[env] - kept : ends[env]], fresh)
            undecided = int(self.valid.transitions[env]) - self.valid.undecided(env)
            self.waiting[env] = mine[max(undecided - low, 0) :].copy()
            self.entered[env] = now
            mine[~self.valid.are_valid(env, low, now)] = 0.0
            self.make_room(now)
            self.tree.set(self.leaf_numbers(env, np.arange(low, now)), mine)

    def translate(self, leaves: Array, sampler: Prioritized) -> Array:
        """Return leaves made with another alpha or epsilon as this sampler would have made them."""
        if (sampler.alpha, sampler.epsilon) == (self.sampler.alpha, self.sampler.epsilon):
            return leaves
        if sampler.alpha == 0:
            raise PriorityError("the state was made with alpha=0, which forgets priorities: alpha cannot be changed")
        translated = self.leaf_of(np.maximum(np.power(leaves, 1 / sampler.alpha) - sampler.epsilon, 0.0))
        position(translated > LARGEST, PriorityError, "a leaf too large to be summed", translated)
        return translated

    def fresh_leaf(self) -> float:
        """Return the leaf of a transition that enters now."""
        leaf = float(self.leaf_of(self.largest))
        if leaf > LARGEST:
            raise PriorityError(f"the largest priority, {self.largest}, has a leaf too large to be summed: {leaf}")
        return leaf


def leaves_between(low: int, high: int, start: int, kept: Array, fresh: float) -> Array:
    """Return the leaves of transitions low .. high - 1: `kept` from `start` on, then `fresh`."""
    leaves = np.full(max(high - low, 0), fresh)
    known = kept[max(low - start, 0) : max(high - start, 0)]
    at = max(start - low, 0)
    leaves[at : at + len(known)] = known
    return leaves


def position(bad: Array, error: type[Exception], what: str, values: Array) -> None:
    """Raise `error` for the first position at which `bad` is true."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise error(f"position {at}: {values[at]} is {what}")
