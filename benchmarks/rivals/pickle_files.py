"""pickle: all arrays in one file, protocol 5."""

from __future__ import annotations

import pickle
from pathlib import Path

from ..steps import Steps
from . import by_hand


def save(path: Path, steps: Steps) -> None:
    """Write the steps."""
    with path.open("wb") as file:
        pickle.dump((steps.observation, steps.length, steps.action, steps.reward), file, protocol=5)


def first_batch(path: str) -> object:
    """Read everything and draw a batch."""
    with Path(path).open("rb") as file:
        return by_hand.first(Steps(*pickle.load(file)))
