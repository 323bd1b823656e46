"""tianshou: memories of numpy arrays, the tree compiled by numba."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer, SegmentTree, VectorReplayBuffer

from ..steps import STACK, Steps
from . import Array, Drawn


class CompiledTree:
    """SegmentTree; the masses are drawn as its own memory draws them."""

    def __init__(self, values: Array) -> None:
        self.tree = SegmentTree(len(values))
        self.tree[np.arange(len(values))] = values

    def sample(self, batch: int) -> Array:
        """Draw leaves."""
        return np.asarray(self.tree.get_prefix_sum_idx(np.random.rand(batch) * self.tree.reduce()))

    def update(self, index: Array, value: Array) -> None:
        """Set leaves."""
        self.tree[index] = value


tree = CompiledTree


def drawn(batch: Any, index: Array) -> Drawn:
    """Name the parts of a batch as everybody's are named."""
    return Drawn(batch.obs, batch.act, batch.rew, batch.obs_next, index)


class Loop:
    """The prioritised memory, filled from a plain one: row by row a million takes a minute."""

    def __init__(self, folder: Path, steps: Steps) -> None:
        row = np.flatnonzero(~steps.is_last)
        done, never = steps.terminated[row], np.zeros(len(row), bool)
        rows = (steps.observation[row], steps.action[row], steps.reward[row], done, never, done)
        self.buffer = PrioritizedReplayBuffer(len(row), alpha=0.6, beta=0.4)
        self.buffer.update(ReplayBuffer.from_data(*rows, steps.observation[row + 1]))
        self.update = self.buffer.update_weight

    def sample(self, batch: int) -> Drawn:
        """Draw a batch."""
        return drawn(*self.buffer.sample(batch))

    def save(self, path: str) -> None:
        """Write everything into an HDF5 file."""
        self.buffer.save_hdf5(path)


prioritised = Loop


def row(observation: Array, later: Array, action: Any, reward: Any, done: Any) -> Batch:
    """Return a row to add."""
    values = {"obs": observation, "obs_next": later, "act": action, "rew": reward}
    return Batch(values, terminated=done, truncated=np.zeros_like(done))


def filled(steps: Steps, **options: Any) -> ReplayBuffer:
    """Return a memory of frames that is added to step by step, which is how it learns where episodes end."""
    buffer = ReplayBuffer(len(steps.observation), stack_num=STACK, **options)
    for episode in steps.episodes():
        for t in range(len(episode.action) - 1):
            seen, done = episode.observation, episode.terminated[t]
            buffer.add(row(seen[t], seen[t + 1], episode.action[t], episode.reward[t], done))
    return buffer


def stacked(folder: Path, steps: Steps, n_step: int) -> Callable[[int], Drawn]:
    """Both observations stored as single frames: without the second one the last of each episode is lost."""
    if n_step > 1:
        raise NotImplementedError("n-step returns belong to its algorithms, not to its memory")
    buffer = filled(steps)
    return lambda batch: drawn(*buffer.sample(batch))


def dump(path: Path, steps: Steps) -> None:
    """Save a memory that stores each frame once."""
    filled(steps, ignore_obs_next=True).save_hdf5(str(path))


def first_batch(path: str) -> object:
    """Read a memory and draw a batch."""
    return ReplayBuffer.load_hdf5(path).sample(32)


def stepper(folder: Path, steps: Steps, envs: int) -> Callable[[int], object]:
    """Append single observations, the next ones not stored."""
    seen, action, reward, done = steps.streams(envs), np.zeros(envs, int), np.ones(envs), np.zeros(envs, bool)
    if envs == 1:
        single = ReplayBuffer(20_000, ignore_obs_next=True)
        return lambda t: single.add(row(seen[t % len(seen)], seen[0], action[0], reward[0], done[0]))
    many, ids = VectorReplayBuffer(20_480, envs, ignore_obs_next=True), np.arange(envs)
    return lambda t: many.add(row(seen[t % len(seen)], seen[0], action, reward, done), ids)
