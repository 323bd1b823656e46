"""Batches of frame stacks and of sequences from real frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from ..measure import Contest
from ..rivals import Array, Rivals
from ..steps import STACK, atari
from .case import Case, check_frames, check_stacks, drawing

LENGTH = 20


def stacked_batch(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` 4-stacks of 84x84 and their next ones, all in memory (d3rlpy's are cast to float32)."""
    return stacks(rivals, "stacked", folder, size, 1)


def overlapping_batch(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` 4-stacks and their next ones as views of the five frames that they are made of."""
    steps = atari()
    found = rivals.offer("overlapping", folder, steps)
    frame = steps.observation.shape[1:]
    for name, sample in found.items():
        check_stacks(name, sample(size), size, frame)
        for _ in range(10_000 // size):
            sample(size)
    return Contest(drawing(found, size), moved=size * (STACK + 1) * math.prod(frame))


def drawn_ahead(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` 4-stacks that are not in memory while a learner computes, drawn ahead and in turn, on two cores."""
    contestants = {}
    for name, prefetch in (("archive", 2), ("in turn", 0)):
        for sample in rivals.among("archive").offer("uncached", folder, atari(), "32 MiB", prefetch).values():
            contestants[name] = partial(learn, partial(sample, size), np.ones((128, 128), np.float32))
    return Contest(contestants)


def learn(sample: Callable[[], object], weights: Array) -> None:
    """Draw a batch and compute about as long as that takes, without the interpreter."""
    sample()
    for _ in range(20):
        weights @ weights


def fresh_batch(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw stacks where the C library gives large blocks back, as it does unless larger ones have been freed."""
    return stacked_batch(rivals.among("archive", "numpy", "cpprb"), folder, size)


def n_step_batch(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` 4-stacks and the ones three steps on."""
    return stacks(rivals, "stacked", folder, size, 3)


def uncached_batch(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` 4-stacks and their next ones from a file, which only the system has in memory."""
    return stacks(rivals, "uncached", folder, size)


def stacks(rivals: Rivals, function: str, folder: Path, size: int, *options: int) -> Contest:
    """Check everybody's frame stacks and draw them."""
    steps = atari()
    found = rivals.offer(function, folder, steps, *options)
    frame = steps.observation.shape[1:]
    for name, sample in found.items():
        check_stacks(name, sample(size), size, frame)
    for sample in found.values():
        for _ in range(10_000 // size):  # until all frames have been seen
            sample(size)
    return Contest(drawing(found, size), moved=size * 2 * STACK * math.prod(frame))


def sequences(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` sequences of 20 frames."""
    steps = atari()
    frame = steps.observation.shape[1:]
    found = rivals.offer("sequences", folder, steps, LENGTH)
    for name, sample in found.items():
        check_frames(name, sample(size), {(size, LENGTH, *frame)})
    for sample in found.values():
        for _ in range(10_000 // size // LENGTH * 4):
            sample(size)
    return Contest(drawing(found, size), moved=size * LENGTH * math.prod(frame))


BATCHES = {
    "stacked-batch": Case(stacked_batch, (32, 256)),
    "stacked-batch-overlap": Case(overlapping_batch, (32, 256)),
    "stacked-batch-fresh-memory": Case(fresh_batch, (32, 256), kept=False),
    "n-step-batch": Case(n_step_batch, (32, 256)),
    "sequences": Case(sequences, (16,)),
    "uncached-batch": Case(uncached_batch, (32, 256), (32,)),
    "drawn-ahead": Case(drawn_ahead, (32,), cores=2),
}
