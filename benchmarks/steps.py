"""The steps that every contestant is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .frames import frames

Array = np.ndarray[Any, Any]

STACK = 4
GAMMA = 0.99


@dataclass(frozen=True)
class Steps:
    """Observations in episodes of `length`, each a row; the last of an episode is the one that it ended on.

    So row t is followed by row t + 1, and an episode has one transition less than it has rows.
    """

    observation: Array
    length: int
    action: Array
    reward: Array

    @property
    def is_last(self) -> Array:
        """Return which rows are final observations."""
        return np.equal(np.arange(1, len(self.observation) + 1) % self.length, 0)

    @property
    def terminated(self) -> Array:
        """Return which rows hold the transition that ended an episode."""
        return np.roll(self.is_last, -1)

    def episodes(self) -> Iterator[Steps]:
        """Yield the episodes."""
        for low in range(0, len(self.observation), self.length):
            rows = slice(low, low + self.length)
            yield Steps(self.observation[rows], self.length, self.action[rows], self.reward[rows])

    def streams(self, envs: int) -> list[Array]:
        """Return what environments see, time by time: all there is for one, a hundred times for more."""
        if envs == 1:
            return list(self.observation)
        start = np.arange(envs) * (len(self.observation) // envs)
        return [self.observation[(start + t) % len(self.observation)] for t in range(100)]


def steps_of(observation: Array, length: int) -> Steps:
    """Give observations actions and rewards; whole episodes of `length` rows."""
    observation = observation[: len(observation) // length * length]
    count = len(observation)
    return Steps(observation, length, np.arange(count) % 4, np.ones(count, np.float32))


def atari(count: int = 10_000) -> Steps:
    """Return frames of Breakout in episodes of 500, in memory."""
    return steps_of(np.array(frames(count)), 500)


def small(count: int) -> Steps:
    """Return observations of 4 floats in episodes of 1,000."""
    return steps_of(np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32), 1000)


def stacked(episode: Steps) -> Array:
    """Return the frame stacks of an episode (rows, height, width, stack), zeros before its start; copies nothing."""
    before = np.zeros((STACK - 1, *episode.observation.shape[1:]), episode.observation.dtype)
    padded = np.concatenate([before, episode.observation])
    return np.lib.stride_tricks.sliding_window_view(padded, STACK, axis=0)
