"""cpprb: memories written in C++."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

from ..steps import GAMMA, STACK, Steps
from ..steps import stacked as stacks_of
from . import Array, Drawn


class BufferTree:
    """cpprb's tree is not to be had by itself: the smallest prioritised memory, of one number a row."""

    def __init__(self, values: Array) -> None:
        self.buffer = PrioritizedReplayBuffer(len(values), {"done": {}}, alpha=1.0)
        self.buffer.add(done=np.zeros(len(values)), priorities=values)
        self.update = self.buffer.update_priorities

    def sample(self, batch: int) -> Array:
        """Draw leaves."""
        return np.asarray(self.buffer.sample(batch)["indexes"])


tree = BufferTree


def layout(steps: Steps, *stack: int) -> dict[str, Any]:
    """Describe rows as cpprb wants them described."""
    observation = {"shape": (*steps.observation.shape[1:], *stack), "dtype": steps.observation.dtype}
    return {"obs": observation, "act": {"dtype": np.int64}, "rew": {}, "done": {}}


def fill(buffer: Any, steps: Steps, stack: bool) -> Any:
    """Add episodes, each at once."""
    for episode in steps.episodes():
        seen = stacks_of(episode) if stack else episode.observation
        reward = episode.reward[:-1].copy()  # its n-step sums are written into what it is given
        rows = {"obs": seen[:-1], "next_obs": seen[1:], "act": episode.action[:-1], "rew": reward}
        buffer.add(**rows, done=episode.terminated[:-1])
        buffer.on_episode_end()
    return buffer


def drawn(batch: Any) -> Drawn:
    """Name the parts of a batch as everybody's are named."""
    return Drawn(batch["obs"], batch["act"], batch["rew"], batch["next_obs"], batch.get("indexes"))


class Loop:
    """The prioritised memory, each observation stored once."""

    def __init__(self, folder: Path, steps: Steps) -> None:
        buffer = PrioritizedReplayBuffer(len(steps.observation), layout(steps), alpha=0.6, next_of="obs")
        self.buffer = fill(buffer, steps, stack=False)
        self.update, self.save = self.buffer.update_priorities, self.buffer.save_transitions

    def sample(self, batch: int) -> Drawn:
        """Draw a batch."""
        return drawn(self.buffer.sample(batch, beta=0.4))


prioritised = Loop


def stacked(folder: Path, steps: Steps, n_step: int) -> Callable[[int], Drawn]:
    """Frames stored once for n_step 1; both stacks stored whole for more, which is its faster way."""
    rows = layout(steps, STACK)
    if n_step == 1:
        buffer = ReplayBuffer(len(steps.observation), rows, next_of="obs", stack_compress="obs")
    else:
        returns = {"size": n_step, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
        buffer = ReplayBuffer(len(steps.observation), rows | {"next_obs": rows["obs"]}, Nstep=returns)
    fill(buffer, steps, stack=True)
    return lambda batch: drawn(buffer.sample(batch))


def stepper(folder: Path, steps: Steps, envs: int) -> Callable[[int], object]:
    """Append transitions of single observations, the next one stored with its own row."""
    buffer = ReplayBuffer(20_000, layout(steps), next_of="obs")
    seen, action, reward, done = steps.streams(envs), np.zeros(envs, int), np.ones(envs), np.zeros(envs)

    def step(t: int) -> None:
        now, later = seen[t % len(seen)], seen[(t + 1) % len(seen)]
        buffer.add(obs=now, next_obs=later, act=action, rew=reward, done=done)

    return step
