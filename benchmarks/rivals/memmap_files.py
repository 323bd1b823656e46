"""np.memmap: raw arrays in a file each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..steps import Steps, steps_of
from . import Drawn, by_hand

COLUMNS = ("observation", "action", "reward")


def save(path: Path, steps: Steps) -> None:
    """Write the columns into a folder."""
    path.mkdir()
    for name in COLUMNS:
        values = getattr(steps, name)
        column = np.lib.format.open_memmap(path / f"{name}.npy", mode="w+", dtype=values.dtype, shape=values.shape)
        column[:] = values
        column.flush()


def first_batch(path: str) -> object:
    """Map the columns and draw a batch."""
    columns = [np.load(Path(path) / f"{name}.npy", mmap_mode="r") for name in COLUMNS]
    return by_hand.first(Steps(columns[0], 500, columns[1], columns[2]))


def uncached(folder: Path, steps: Steps) -> Callable[[int], Drawn]:
    """Draw stacks from a mapped file."""
    path = folder / "memmap"
    save(path, steps)
    seen = np.load(path / "observation.npy", mmap_mode="r")
    return by_hand.stacked(folder, steps_of(seen, steps.length), 1)
