"""The priorities of one replay: a sum tree over its transitions, and what waits until it becomes valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._core import SumTree, largest, weigh
from .errors import IndexRangeError, NotEnoughData, PriorityError
from .leaves import position, split
from .places import Places
from .samplers import Prioritized
from .valid import ValidStarts

Array = np.ndarray[Any, Any]
LARGEST = np.finfo(np.float64).max * 2.0**-48  # no number of leaves that fits in memory can overflow the total
BLOCK = 1 << 18  # transitions taken in at once, to bound memory


class Priorities:
    """Keep a leaf (priority + epsilon)^alpha for each valid start, 0 for every other transition.

    Transition q of environment e has leaf (q mod capacity) * N + e, or q * N + e without a capacity. `value` holds for
    every leaf what it is, or would be if its transition were a valid start: hidden ones and those that wait for rows
    to come keep theirs.
    """

    def __init__(self, valid: ValidStarts, sampler: Prioritized) -> None:
        self.valid, self.sampler = valid, sampler
        self.nbytes = 0
        self.envs = len(valid.transitions)
        self.tree, self.value = self.new_leaves(self.envs * (valid.capacity or 1024))
        self.largest = 1.0
        self.safe = 1e100 if sampler.alpha <= 1 and sampler.epsilon <= 1 else -1.0  # priorities whose leaves are small
        self.ignored = 0
        self.entered = np.zeros(self.envs, np.int64)  # transitions that have a value
        self.decided = np.zeros(self.envs, np.int64)  # transitions of which is known whether they are valid starts
        self.seen: tuple[object, int] = (None, -1)  # the table of episodes, and how often one was hidden or shown
        self.hidden: set[int] = set()
        self.version = -1  # of the rows that were taken in last
        self.whole = True  # nothing was left half done
        self.fresh_leaf()

    def new_leaves(self, size: int) -> tuple[SumTree, Array]:
        """Return a tree of zeros and as many values, their memory taken out of the run's budget."""
        self.nbytes = size * 8 + size * 64 // 7
        self.valid.rows.make_room_for(self)
        return SumTree(size), np.zeros(size)

    def leaf_of(self, priority: Any) -> Array:
        """Return (priority + epsilon)^alpha."""
        with np.errstate(over="ignore"):  # infinity is refused where it would enter the tree
            return np.asarray(np.power(priority + self.sampler.epsilon, self.sampler.alpha), np.float64)

    def leaf_numbers(self, env: Any, ordinal: Array) -> Array:
        """Return the leaf numbers of transitions."""
        capacity = self.valid.capacity
        return np.ascontiguousarray((ordinal % capacity if capacity else ordinal) * self.envs + env)

    # --- rows that arrive

    def enter(self) -> None:
        """Give the transitions that have arrived the largest priority seen.

        An exception in between, Ctrl-C too, is made up for by the next call: all leaves are set anew.
        """
        if self.whole and self.version == self.valid.rows.version:
            return
        fresh, whole = self.fresh_leaf(), self.whole
        self.whole = False
        moved = self.hidden_moved() or not whole
        waiting = (self.entered != self.valid.transitions) | (self.decided != self.entered) | moved
        for env in np.flatnonzero(waiting).tolist():
            now, oldest = int(self.valid.transitions[env]), int(self.valid.oldest[env])
            self.make_room(now)
            for low in range(max(int(self.entered[env]), oldest), now, BLOCK):
                ordinal = np.arange(low, min(low + BLOCK, now))
                self.value[self.leaf_numbers(env, ordinal)] = self.given(env, ordinal, fresh)
            self.entered[env] = now
            self.settle(env, oldest if moved else max(int(self.decided[env]), oldest))
        self.version, self.whole = self.valid.rows.version, True

    def hidden_moved(self) -> bool:
        """Tell whether other episodes are hidden than when this was asked last."""
        episodes = self.valid.rows.episodes
        if self.seen[0] is episodes and self.seen[1] == episodes.shown:
            return False
        before, self.hidden = self.hidden, set(np.flatnonzero(episodes["hidden"]).tolist())
        self.seen = (episodes, episodes.shown)
        return self.hidden != before

    def settle(self, env: int, start: int) -> None:
        """Set the leaves of an environment's transitions from `start` on: their values, 0 where they are not valid."""
        now = int(self.entered[env])
        for low in range(start, now, BLOCK):
            high = min(low + BLOCK, now)
            number = self.leaf_numbers(env, np.arange(low, high))
            self.tree.set(number, np.where(self.valid.are_valid(env, low, high), self.value[number], 0.0))
        self.decided[env] = now - self.valid.undecided(env)

    def given(self, env: int, ordinal: Array, fresh: float) -> Array:
        """Return the values of transitions that arrive: `fresh`, or by the priority that came with their step."""
        rows, values = self.valid.rows, np.full(len(ordinal), fresh)
        if "priority" in rows.columns:
            row = self.valid.rows_of(env, ordinal)
            priority = rows.columns["priority"].gather(np.full(len(row), env), row).astype(np.float64)
            known = np.isfinite(priority) & (priority >= 0)
            values[known] = np.minimum(self.leaf_of(priority[known]), LARGEST)
        return values

    def make_room(self, transitions: int) -> None:
        """Grow the tree of a replay without capacity."""
        needed = transitions * self.envs
        if not self.valid.capacity and needed > self.tree.size:
            tree, value = self.new_leaves(max(needed, 2 * self.tree.size))
            self.tree.copy_to(tree)
            value[: len(self.value)] = self.value
            self.tree, self.value = tree, value

    # --- drawing

    def draw(self, seed: int, batch: int, count: int) -> tuple[Places, Array, Array]:
        """Return places and ids of `count` starts that the uniform numbers of (seed, batch) choose, and N P of each.

        N counts the valid starts, P is the probability.
        """
        if not self.tree.total > 0:
            raise NotEnoughData("every priority is 0: nothing can be drawn")
        leaf, share = np.empty(count, np.int64), np.empty(count)
        self.tree.draw(seed, batch, self.sampler.stratified, float(len(self.valid)), leaf, share)
        return *self.valid.pick_leaves(leaf), share

    def weights(self, share: Array, beta: float) -> Array:
        """Return (N P)^-beta over the largest of the batch or of all, float32."""
        weight, most, result = np.power(share, -beta), -1.0, np.empty(len(share), np.float32)
        if self.sampler.normalize == "global":
            most = float(np.power(len(self.valid) * (self.tree.smallest / self.tree.total), -beta))
        weigh(weight, most, result)
        return result

    # --- updates

    def update(self, ids: Array, priority: Array) -> None:
        """Set priorities; the last of duplicates wins, those of rows that left the capacity are counted and ignored.

        Everything is checked before anything changes.
        """
        most, number = largest(priority), np.empty_like(ids)
        where = (self.valid.transitions, self.valid.capacity, number)
        if most <= self.safe and self.valid.segments.leaves(ids, *where):
            leaf = np.power(priority + self.sampler.epsilon, self.sampler.alpha)
            self.whole = False
            self.largest = max(self.largest, most)
            self.value[number] = leaf
            self.tree.set(number, leaf)
            self.whole = True
        else:
            self.update_some(ids, priority)

    def update_some(self, ids: Array, priority: Array) -> None:
        """Set priorities of ids of which some may be ignored, or refused."""
        leaf, env, ordinal, valid, gone = self.checked(ids, priority)
        self.whole = False
        self.ignored += int(gone.sum())
        self.largest = max(self.largest, float(priority[~gone].max(initial=0.0)))
        number = self.leaf_numbers(env, ordinal)
        self.value[number[~gone]] = leaf[~gone]
        self.tree.set(number[valid & ~gone], leaf[valid & ~gone])
        self.whole = True

    def checked(self, ids: Array, priority: Array) -> tuple[Array, ...]:
        """Return leaves, environments, ordinals, which are valid starts and which are gone; refuse what is wrong."""
        position(~np.isfinite(priority), PriorityError, "not finite", priority)
        position(priority < 0, PriorityError, "negative", priority)
        leaf = self.leaf_of(priority)
        position(leaf > LARGEST, PriorityError, "too large to be summed", priority)
        env, row = split(ids, self.envs)
        ordinal, valid, gone = self.find(env, row)
        return leaf, env, ordinal, valid, gone | (ordinal < self.valid.oldest[env])

    def find(self, env: Array, row: Array) -> tuple[Array, Array, Array]:
        """Return of each row its transition's number, whether it is a valid start, and whether it was given up."""
        segments, rows = self.valid.rows.episodes.segments, self.valid.rows
        position(row >= rows.rows[env], IndexRangeError, "the id of a row that does not exist", env << 32 | row)
        found = self.valid.segment_of(env, row)
        ordinal, valid, gone = np.zeros_like(row), np.zeros(len(row), np.bool_), found < 0
        known = np.flatnonzero(found >= 0)
        at, e = found[known], env[known]
        step, number = row[known] - segments.start[at], segments.episode[at]
        length, has_final = (rows.episodes.columns[name][number] for name in ("length", "final"))
        is_last = at == segments.base[e] + segments.size[e] - 1
        follows = np.where(is_last, rows.rows[e], segments.start[np.minimum(at + 1, len(segments.start) - 1)])
        final = np.zeros(len(row), np.bool_)
        final[known] = has_final & (step == length) & (follows == row[known] + 1)  # otherwise it was given up
        position(final, IndexRangeError, "the id of a final observation", env << 32 | row)
        ordinal[known], valid[known] = (
            segments.first[at] + step,
            (step < self.valid.reach[at]) & (step % self.valid.rule.stride == 0),
        )
        gone[known] = step >= length
        return ordinal, valid, gone

    # --- state

    def state(self) -> dict[str, Any]:
        """Return what a later replay needs to go on: values in order of age, and the largest priority."""
        oldest, now = self.valid.oldest, self.entered
        numbers = [self.leaf_numbers(env, np.arange(oldest[env], now[env])) for env in range(self.envs)]
        return {
            "leaves": self.value[np.concatenate(numbers)],
            "entered": now.copy(),
            "kept": now - oldest,
            "largest": self.largest,
            "ignored": self.ignored,
        }

    def load(self, state: Mapping[str, Any], sampler: Prioritized) -> None:
        """Take over a state that `sampler` made; transitions older than it knows enter at its largest priority.

        NaN, which the first version wrote for transitions that were no valid starts, counts as not known.
        """
        self.largest, self.ignored = float(state["largest"]), int(state["ignored"])
        leaves, fresh = self.translate(state["leaves"], sampler), self.fresh_leaf()
        leaves, ends = np.where(np.isnan(leaves), fresh, leaves), np.cumsum(state["kept"])
        for env in range(self.envs):
            now, kept = int(state["entered"][env]), int(state["kept"][env])
            self.make_room(now)
            low = max(now - (self.valid.capacity or now), 0)
            values = np.full(now - low, fresh)
            known = min(kept, now - low)
            values[now - low - known :] = leaves[ends[env] - known : ends[env]]
            self.value[self.leaf_numbers(env, np.arange(low, now))] = values
            self.entered[env] = now
            self.settle(env, low)

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
