"""npz: numpy's own archive of arrays, compressed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..steps import Steps
from . import by_hand


def save(path: Path, steps: Steps) -> None:
    """Write the steps."""
    with path.open("wb") as file:
        np.savez_compressed(file, observation=steps.observation, action=steps.action, reward=steps.reward)


def first_batch(path: str) -> object:
    """Read everything and draw a batch."""
    with np.load(path) as columns:
        return by_hand.first(Steps(columns["observation"], 500, columns["action"], columns["reward"]))
