"""Sum trees and the prioritised loop around them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from ..measure import Contest
from ..rivals import Prioritised, Rivals, Tree
from ..steps import small
from .case import Case, check_columns, drawing

LEAVES = 1 << 20
BATCHES = (32, 256, 1024)


def trees(rivals: Rivals) -> dict[str, Tree]:
    """Return everybody's tree over the same values."""
    return rivals.offer("tree", np.random.default_rng(0).random(LEAVES))


def tree_sample(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` of 2^20 leaves, random numbers included."""
    found = trees(rivals)
    for name, tree in found.items():
        leaf = tree.sample(size)
        if leaf.shape != (size,) or leaf.dtype.kind not in "iu" or len(np.unique(leaf)) < size * 0.9:
            raise TypeError(f"{name}: leaves {leaf.dtype} {leaf.shape}")
    return Contest(drawing({name: tree.sample for name, tree in found.items()}, size), moved=8 * size)


def tree_update(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Set `size` of 2^20 leaves, other ones each time."""
    rng = np.random.default_rng(1)
    batches = [(rng.integers(LEAVES, size=size), rng.random(size)) for _ in range(200)]
    contestants = {name: updating(tree, batches) for name, tree in trees(rivals).items()}
    return Contest(contestants, moved=16 * size)


def updating(tree: Tree, batches: list[tuple[Any, Any]]) -> Callable[[], object]:
    """Return an update with the next batch."""
    turn = cycle(batches)
    return lambda: tree.update(*next(turn))


def prioritised_loop(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Draw `size` of a million transitions of 4 floats and set their priorities."""
    found = rivals.offer("prioritised", folder, small(1_000_000))
    return Contest({name: looping(name, loop, size) for name, loop in found.items()}, moved=size * 2 * 16)


def looping(name: str, loop: Prioritised, size: int) -> Callable[[], object]:
    """Check what a memory draws; return one turn of the loop."""
    first = loop.sample(size)
    check_columns(name, first, size)
    for observation in (first.observation, first.next_observation):
        if observation.shape != (size, 4) or observation.dtype != np.float32:
            raise TypeError(f"{name}: observations {observation.dtype} {observation.shape}")
    for _ in range(300):  # until whatever is read from files has been read
        loop.sample(1024)
    priority = np.random.default_rng(0).random(size) + 0.1

    def turn() -> None:
        loop.update(loop.sample(size).index, priority)

    return turn


TREES = {
    "tree-sample": Case(tree_sample, BATCHES),
    "tree-update": Case(tree_update, BATCHES),
    "prioritised-loop": Case(prioritised_loop, (32, 256)),
}
