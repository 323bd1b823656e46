"""What a careful person writes with numpy in twenty lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..steps import GAMMA, STACK, Steps
from . import Array, Drawn


class ArrayTree:
    """A binary heap of sums, all queries of a batch going down together."""

    def __init__(self, values: Array) -> None:
        self.half, self.rng = 1 << (len(values) - 1).bit_length(), np.random.default_rng(0)
        self.sums = np.zeros(2 * self.half)
        self.sums[self.half : self.half + len(values)] = values
        level = self.half
        while level > 1:
            self.sums[level // 2 : level] = self.sums[level : 2 * level].reshape(-1, 2).sum(axis=1)
            level //= 2

    def sample(self, batch: int) -> Array:
        """Draw leaves, one of each of `batch` equal shares."""
        mass = (np.arange(batch) + self.rng.random(batch)) * (self.sums[1] / batch)
        node = np.ones(batch, np.int64)
        for _ in range(self.half.bit_length() - 1):
            node *= 2
            left = self.sums[node]
            right = mass >= left
            mass -= left * right
            node += right
        return node - self.half

    def update(self, index: Array, value: Array) -> None:
        """Set leaves and recompute the sums above them."""
        node = index + self.half
        self.sums[node] = value
        for _ in range(self.half.bit_length() - 1):
            node = node >> 1
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]


tree = ArrayTree


class Loop:
    """Arrays of transitions and a tree of priorities ** alpha."""

    def __init__(self, folder: Path, steps: Steps) -> None:
        self.steps, self.tree = steps, ArrayTree((~steps.is_last).astype(float))

    def sample(self, batch: int) -> Drawn:
        """Draw a batch and weigh it."""
        index = self.tree.sample(batch)
        weight = (self.tree.sums[self.tree.half + index] * (len(self.steps.action) / self.tree.sums[1])) ** -0.4
        weight /= weight.max()
        seen, action, reward = self.steps.observation, self.steps.action, self.steps.reward
        return Drawn(seen[index], action[index], reward[index], seen[index + 1], index)

    def update(self, index: Array, priority: Array) -> None:
        """Set priorities."""
        self.tree.update(index, priority**0.6)


prioritised = Loop


def stacked(folder: Path, steps: Steps, n_step: int) -> Callable[[int], Drawn]:
    """Draw stacks: frames before an episode's start are zeros, returns end with the episode."""
    frames, rng = steps.observation, np.random.default_rng(0)
    valid = np.flatnonzero(~steps.is_last)
    first = np.arange(len(frames)) // steps.length * steps.length
    back, ahead, powers = np.arange(1 - STACK, 1), np.arange(n_step), GAMMA ** np.arange(n_step)

    def stacks(row: Array, start: Array) -> Array:
        rows = row[:, None] + back
        found = frames[np.maximum(rows, start)]
        found[rows < start] = 0
        return np.asarray(found)

    def sample(batch: int) -> Drawn:
        row = valid[rng.integers(len(valid), size=batch)]
        start = first[row][:, None]
        until = np.minimum(row + n_step, first[row] + steps.length - 1)
        rows = row[:, None] + ahead
        reward = (steps.reward[np.minimum(rows, until[:, None])] * (rows < until[:, None])) @ powers
        return Drawn(stacks(row, start), steps.action[row], reward, stacks(until, start))

    return sample


def sequences(folder: Path, steps: Steps, length: int) -> Callable[[int], Any]:
    """Draw sequences that lie in one episode."""
    rng, frames = np.random.default_rng(0), steps.observation
    valid = np.flatnonzero(np.arange(len(frames)) % steps.length <= steps.length - length)
    ahead = np.arange(length)
    return lambda batch: frames[valid[rng.integers(len(valid), size=batch)][:, None] + ahead]


def first(steps: Steps) -> Drawn:
    """Draw the first batch of what a file held: frame stacks, or rows and the ones after them."""
    if steps.observation.ndim > 2:
        return stacked(Path(), steps, 1)(32)
    row = np.random.default_rng(0).integers(len(steps.action) - 1, size=32)
    return Drawn(steps.observation[row], steps.action[row], steps.reward[row], steps.observation[row + 1])
