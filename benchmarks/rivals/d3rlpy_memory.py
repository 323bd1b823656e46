"""d3rlpy: whole episodes, transitions picked from them one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import (
    Episode,
    FIFOBuffer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    ReplayBuffer,
    Signature,
)

from ..steps import STACK, Steps
from . import Array, Drawn


def memory(steps: Steps, **options: Any) -> ReplayBuffer:
    """Return a memory of these steps."""
    episodes = [episode_of(episode) for episode in steps.episodes()]
    return ReplayBuffer(InfiniteBuffer(), episodes=episodes, action_space=ActionSpace.DISCRETE, **options)


def episode_of(steps: Steps) -> Episode:
    """Return an episode with a leading axis of channels; the final observation has no place in it."""
    reward = steps.reward[:-1, None]
    return Episode(steps.observation[:-1, None], steps.action[:-1, None], reward, terminated=True)


def stacked(folder: Path, steps: Steps, n_step: int) -> Callable[[int], Drawn]:
    """Stacks are made when drawn."""
    if n_step > 1:
        raise NotImplementedError("it picks stacks or n-step transitions, not both")
    buffer = memory(steps, transition_picker=FrameStackTransitionPicker(STACK))

    def sample(batch: int) -> Drawn:
        found = buffer.sample_transition_batch(batch)
        return Drawn(found.observations, found.actions, found.rewards, found.next_observations)

    return sample


def dump(path: Path, steps: Steps) -> None:
    """Save the episodes."""
    with path.open("w+b") as file:
        memory(steps).dump(file)


def first_batch(path: str) -> object:
    """Read the episodes and draw a batch."""
    with open(path, "rb") as file:
        buffer = ReplayBuffer.load(file, InfiniteBuffer(), transition_picker=FrameStackTransitionPicker(STACK))
    return buffer.sample_transition_batch(32)


def sequences(folder: Path, steps: Steps, length: int) -> Callable[[int], Any]:
    """Sequences that end at any step, padded at the left."""
    buffer = memory(steps)
    return lambda batch: np.squeeze(buffer.sample_trajectory_batch(batch, length).observations, 2)


def stepper(folder: Path, steps: Steps, envs: int) -> Callable[[int], object]:
    """Append single observations of one environment, episodes of 500."""
    if envs > 1:
        raise NotImplementedError("it records one environment")
    signatures = {
        "observation_signature": Signature([steps.observation.dtype], [(1, *steps.observation.shape[1:])]),
        "action_signature": Signature([np.dtype(np.int64)], [(1,)]),
        "reward_signature": Signature([np.dtype(np.float32)], [(1,)]),
    }
    options = {"action_space": ActionSpace.DISCRETE, "action_size": 4, "cache_size": 500}
    buffer = ReplayBuffer(FIFOBuffer(20_000), **signatures, **options)
    seen: list[Array] = [frame[None] for frame in steps.streams(1)]

    def step(t: int) -> None:
        buffer.append(seen[t % len(seen)], 0, 1.0)
        if t % 500 == 499:
            buffer.clip_episode(False)

    return step
