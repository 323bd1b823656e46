"""This package, through its public interface; the tree by itself, which has none, through the core."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import archive
from archive._core import SumTree

from ..steps import GAMMA, STACK, Steps
from . import Array, Drawn


def schema(shape: tuple[int, ...], dtype: Any, envs: int | None = None) -> archive.Schema:
    """Return a schema with observations of one shape."""
    fields = {"observation": archive.Field(dtype, shape), "action": archive.Field("int64")}
    return archive.Schema(fields, num_envs=envs, autoreset="NextStep" if envs else None)


def new_run(path: Path, steps: Steps, envs: int | None = None, **options: Any) -> archive.Run:
    """Create a run for such observations that commits only when asked to."""
    observation = steps.observation
    return archive.create(path, schema(observation.shape[1:], observation.dtype, envs), commit_every=None, **options)


def extend(run: archive.Run, steps: Steps, env: int = 0) -> None:
    """Append whole episodes."""
    rows = {"observation": steps.observation, "action": steps.action, "reward": steps.reward}
    run.extend(rows | {"terminated": steps.terminated, "is_last": steps.is_last}, env=env)


def save(path: Path, steps: Steps) -> None:
    """Write a run, a hundred episodes at once."""
    with new_run(path, steps) as run:
        for low in range(0, len(steps.observation), 100 * steps.length):
            rows = slice(low, low + 100 * steps.length)
            extend(run, Steps(steps.observation[rows], steps.length, steps.action[rows], steps.reward[rows]))


def stored(folder: Path, steps: Steps, memory: str = "2 GiB") -> archive.Run:
    """Return a run of these steps, open for reading."""
    path = folder / "run.h5"
    if not path.exists():
        save(path, steps)
    return archive.open(path, memory=memory)


def first_batch(path: str) -> object:
    """Open a run and draw a batch."""
    run = archive.open(path)
    return run.replay(batch_size=32, stack=STACK if len(run.schema.steps["observation"].shape) > 1 else 1).sample()


class OurTree:
    """The sum tree of the core, drawn from as a replay does."""

    def __init__(self, values: Array) -> None:
        self.tree, self.batches = SumTree(len(values)), count()
        self.tree.set(np.arange(len(values)), values)

    def sample(self, batch: int) -> Array:
        """Draw leaves."""
        leaf, share = np.empty(batch, np.int64), np.empty(batch)
        self.tree.draw(0, next(self.batches), True, 1.0, leaf, share)
        return leaf

    def update(self, index: Array, value: Array) -> None:
        """Set leaves."""
        self.tree.set(index, value)


tree = OurTree


class Loop:
    """A prioritised replay."""

    def __init__(self, folder: Path, steps: Steps) -> None:
        self.replay = stored(folder, steps).replay(sampler=archive.Prioritized(), capacity=len(steps.observation))
        self.update = self.replay.update_priorities

    def sample(self, batch: int) -> Drawn:
        """Draw a batch."""
        return drawn(self.replay.sample(batch))


prioritised = Loop


def drawn(batch: archive.Batch) -> Drawn:
    """Name the parts of a batch as everybody's are named."""
    return Drawn(batch.observation, batch.action, batch.reward, batch.next_observation, batch.index)


def stacked(folder: Path, steps: Steps, n_step: int) -> Callable[[int], Drawn]:
    """Draw from the cache."""
    replay = stored(folder, steps).replay(stack=STACK, n_step=n_step, gamma=GAMMA)
    return lambda batch: drawn(replay.sample(batch))


def overlapping(folder: Path, steps: Steps) -> Callable[[int], Drawn]:
    """Draw from the cache what both observations share once."""
    replay = stored(folder, steps).replay(stack=STACK, overlap=True)
    return lambda batch: drawn(replay.sample(batch))


def uncached(folder: Path, steps: Steps, memory: str = "8 MiB", prefetch: int = 0) -> Callable[[int], Drawn]:
    """Draw with a cache too small to hold what a batch needs twice."""
    replay = stored(folder, steps, memory=memory).replay(stack=STACK, prefetch=prefetch)
    return lambda batch: drawn(replay.sample(batch))


def sequences(folder: Path, steps: Steps, length: int) -> Callable[[int], Any]:
    """Draw sequences from the cache."""
    replay = stored(folder, steps).replay(sequence_length=length)
    return lambda batch: replay.sample(batch).observation


def stepper(folder: Path, steps: Steps, envs: int) -> Callable[[int], object]:
    """Append with step(), and commit every 2,000 rows: memory that is committed is used again."""
    memory = "64 MiB" if envs <= 64 else "512 MiB"
    run = new_run(folder / "steps.h5", steps, envs if envs > 1 else None, memory=memory)
    seen = steps.streams(envs)
    action, reward, no = (0, 1.0, False) if envs == 1 else (np.zeros(envs, int), np.ones(envs), np.zeros(envs, bool))
    every = max(2000 // envs, 20)
    run.reset(seen[0])

    def step(t: int) -> None:
        run.step(action, seen[(t + 1) % len(seen)], reward, no, no)
        if t % every == 0:
            run.commit()

    return step
