"""stable-baselines3: memories of numpy arrays that give torch tensors; they store stacks as they arrive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

from ..steps import GAMMA, STACK, Steps
from ..steps import stacked as stacks_of
from . import Array, Drawn


def space(shape: tuple[int, ...], dtype: Any) -> Box:
    """Return a space of observations."""
    return Box(0, 255 if np.dtype(dtype) == np.uint8 else np.inf, shape, dtype)


def stacked(folder: Path, steps: Steps, n_step: int) -> Callable[[int], Drawn]:
    """Both stacks stored, which is its faster way."""
    sizes = (len(steps.observation), space((STACK, *steps.observation.shape[1:]), np.uint8), Discrete(4), "cpu")
    buffer = ReplayBuffer(*sizes) if n_step == 1 else NStepReplayBuffer(*sizes, n_steps=n_step, gamma=GAMMA)
    for episode in steps.episodes():
        stacks: Array = np.moveaxis(stacks_of(episode), -1, 1)
        for t in range(len(stacks) - 1):
            done = episode.terminated[t : t + 1]
            buffer.add(stacks[t], stacks[t + 1], episode.action[t], episode.reward[t], done, [{}])

    def sample(batch: int) -> Drawn:
        found = buffer.sample(batch)
        return Drawn(found.observations, found.actions, found.rewards, found.next_observations)

    return sample


def stepper(folder: Path, steps: Steps, envs: int) -> Callable[[int], object]:
    """Append single observations; the next one is stored in its own row."""
    shape, dtype = steps.observation.shape[1:], steps.observation.dtype
    options = {"n_envs": envs, "optimize_memory_usage": True, "handle_timeout_termination": False}
    buffer = ReplayBuffer(20_480, space(shape, dtype), Discrete(4), "cpu", **options)
    seen, action, reward, done = steps.streams(envs), np.zeros(envs, int), np.ones(envs), np.zeros(envs, bool)
    infos: list[dict[str, Any]] = [{}] * envs

    def step(t: int) -> None:
        buffer.add(seen[t % len(seen)], seen[(t + 1) % len(seen)], action, reward, done, infos)

    return step
