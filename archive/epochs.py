"""Passes over all valid starts, each in an order of its own that needs no memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .places import Places
from .valid import ValidStarts

Array = np.ndarray[Any, Any]
FIRST = 1 << 62  # pass p takes its keys from the Philox stream (seed, 2^62 + p), which no batch reaches


class Pass(NamedTuple):
    """Position `position` in pass `number` over the starts that `until` and `skip` count, see ValidStarts."""

    number: int
    position: int
    until: Array
    skip: Array

    @property
    def size(self) -> int:
        """Starts of the pass."""
        return int(self.until[-1])

    def state(self) -> dict[str, Any]:
        """Return what a later replay needs to go on within the pass."""
        return {**self._asdict(), "until": self.until.copy(), "skip": self.skip.copy()}


class Epochs:
    """Where passes go over the valid starts; a position in them is a Pass, which does not change."""

    def __init__(self, valid: ValidStarts, seed: int) -> None:
        self.valid, self.seed = valid, seed

    def first(self) -> Pass:
        """Return the position before the first pass."""
        none = np.zeros(len(self.valid.until), np.int64)
        return Pass(-1, 0, none, none)

    def draw(self, now: Pass, count: int) -> tuple[Places, Array, Pass]:
        """Return places and ids of the next `count` starts, passing over those that left the capacity, and where it is.

        A pass goes over the starts that were valid when it began.
        """
        found, kept_ids, left = [], [], count
        while left:
            if now.position >= now.size:
                now = Pass(now.number + 1, 0, self.valid.until.copy(), self.valid.skip.copy())
            stop = min(now.position + left, now.size)
            rank = np.arange(now.position, stop)
            _core.permute(rank, now.size, self.seed, FIRST + now.number, rank)
            now = now._replace(position=stop)
            places, ids = self.valid.pick(rank, now.until, now.skip)
            kept = self.valid.is_kept(places.env, places.row)
            found.append(places.block.compress(kept, axis=1))
            kept_ids.append(ids[kept])
            left -= int(kept.sum())
        return Places(np.ascontiguousarray(np.concatenate(found, axis=1))), np.concatenate(kept_ids), now

    def restored(self, state: Mapping[str, Any]) -> Pass:
        """Return the position of a state; ValueError for one that cannot be."""
        until, skip = (checked(state[name], self.valid.until) for name in ("until", "skip"))
        number, position = int(state["number"]), int(state["position"])
        if not -1 <= number < 1 << 61 or not 0 <= position <= until[-1] or (np.diff(until, prepend=0) < 0).any():
            raise ValueError("passes")
        if (until > np.cumsum(self.valid.rows.rows)).any() or (skip < 0).any():
            raise ValueError("passes over starts that do not exist")
        return Pass(number, position, until, skip)


def checked(values: Any, like: Array) -> Array:
    """Return integers as an array of the same shape."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.shape != like.shape:
        raise ValueError(f"{array.dtype} of shape {array.shape}")
    return array.astype(np.int64)
