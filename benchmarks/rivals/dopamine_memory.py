"""dopamine: the memory of its JAX agents, which is numpy; the one of its older agents needs TensorFlow.

It takes part in no prioritised loop: a million rows added one by one take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from dopamine.jax.replay_memory.accumulator import TransitionAccumulator
from dopamine.jax.replay_memory.elements import TransitionElement
from dopamine.jax.replay_memory.replay_buffer import ReplayBuffer
from dopamine.jax.replay_memory.samplers import UniformSamplingDistribution
from dopamine.jax.replay_memory.sum_tree import SumTree

from ..steps import GAMMA, STACK, Steps
from . import Array, Drawn


class VectorTree:
    """SumTree; the masses are drawn as its own sampler draws them."""

    def __init__(self, values: Array) -> None:
        self.tree, self.rng = SumTree(len(values)), np.random.default_rng(0)
        self.tree.set(np.arange(len(values)), values)
        self.update = self.tree.set

    def sample(self, batch: int) -> Array:
        """Draw leaves."""
        return np.asarray(self.tree.query(self.rng.uniform(0.0, self.tree.root, size=batch)))


tree = VectorTree


def memory(capacity: int, stack: int, n_step: int) -> ReplayBuffer:
    """Return a memory that does not compress, which is its faster way."""
    accumulator = TransitionAccumulator(stack, n_step, GAMMA)
    sampler = UniformSamplingDistribution(0)
    return ReplayBuffer(accumulator, sampler, batch_size=32, max_capacity=capacity, compress=False)


def elements(episode: Steps) -> Iterator[TransitionElement]:
    """Yield the steps of an episode; the last one has no observation of its own to go on to."""
    for t, done in enumerate(episode.is_last):
        yield TransitionElement(episode.observation[t], episode.action[t], episode.reward[t], bool(done))


def stacked(folder: Path, steps: Steps, n_step: int) -> Callable[[int], Drawn]:
    """Both stacks are made when a step is added."""
    buffer = memory(len(steps.observation), STACK, n_step)
    for episode in steps.episodes():
        for element in elements(episode):
            buffer.add(element)

    def sample(batch: int) -> Drawn:
        found = buffer.sample(batch)
        return Drawn(found.state, found.action, found.reward, found.next_state)

    return sample


def stepper(folder: Path, steps: Steps, envs: int) -> Callable[[int], object]:
    """Append single observations of one environment."""
    if envs > 1:
        raise NotImplementedError("it records one environment")
    buffer, seen = memory(20_000, 1, 1), steps.streams(1)
    return lambda t: buffer.add(TransitionElement(seen[t % len(seen)], 0, 1.0, False))
