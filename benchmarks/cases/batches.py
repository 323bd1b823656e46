"""Batches of frame stacks and of sequences from real frames."""

from __future__ import annotations

import math
from pathlib import Path

from ..measure import Contest
from ..rivals import Rivals
from ..steps import STACK, atari
from .case import Case, check_frames, check_stacks, drawing

LENGTH = 20


def stacked_batch(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` 4-stacks of 84x84 and their next ones, all in memory (d3rlpy's are cast to float32)."""
    return stacks(rivals, "stacked", folder, size, 1)


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
    "stacked-batch-fresh-memory": Case(fresh_batch, (32, 256), kept=False),
    "n-step-batch": Case(n_step_batch, (32, 256)),
    "sequences": Case(sequences, (16,)),
    "uncached-batch": Case(uncached_batch, (32, 256), (32,)),
}
