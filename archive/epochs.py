"""Passes over all valid starts, each in an order of its own that needs no memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core
from .places import Places
from .valid import ValidStarts

Array = np.ndarray[Any, Any]
FIRST = 1 << 62  # pass p takes its keys from the Philox stream (seed, 2^62 + p), which no batch reaches


class Epochs:
    """Where a replay is in its passes.

    A pass goes over the starts that were valid when it began; `until` and `skip` say which those were.
    """

    def __init__(self, valid: ValidStarts, seed: int) -> None:
        self.valid, self.seed = valid, seed
        self.number, self.position = -1, 0
        self.until = self.skip = np.zeros(len(valid.until), np.int64)

    def begin(self) -> None:
        """Begin the next pass."""
        self.number, self.position = self.number + 1, 0
        self.until, self.skip = self.valid.until.copy(), self.valid.skip.copy()

    def draw(self, count: int) -> tuple[Places, Array]:
        """Return places and ids of the next `count` starts, passing over those that left the capacity."""
        found, kept_ids, left = [], [], count
        while left:
            if self.position >= int(self.until[-1]):
                self.begin()
            stop = min(self.position + left, int(self.until[-1]))
            rank = np.arange(self.position, stop)
            _core.permute(rank, int(self.until[-1]), self.seed, FIRST + self.number, rank)
            self.position = stop
            places, ids = self.valid.pick(rank, self.until, self.skip)
            kept = self.valid.is_kept(places.env, places.row)
            found.append(places.block.compress(kept, axis=1))
            kept_ids.append(ids[kept])
            left -= int(kept.sum())
        return Places(np.ascontiguousarray(np.concatenate(found, axis=1))), np.concatenate(kept_ids)

    def state(self) -> dict[str, Any]:
        """Return what a later replay needs to go on within the pass."""
        return {"number": self.number, "position": self.position, "until": self.until.copy(), "skip": self.skip.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Undo `state`."""
        self.number, self.position = int(state["number"]), int(state["position"])
        self.until, self.skip = np.array(state["until"]), np.array(state["skip"])
