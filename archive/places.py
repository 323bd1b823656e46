"""Rows to read and the episodes they lie in."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ENV, ROW, LOW, STOP, HIGH, NUMBER, FLAGS = range(7)  # as `_core/places.pxd` has them
PARTS = 7


class Places:
    """Rows to read, (B,) or (B, J): one block of int64 (PARTS, ...), in the order in which compiled code wants it.

    `env`; `row`, -1 for nothing; and of the episode each row lies in: `low`, its first row; `stop`, the row behind its
    last transition; `high`, its last row that can be looked at; `number`, its place in the table; `flags`, 1 for
    terminated, 2 for truncated.
    """

    __slots__ = ("block",)

    def __init__(self, block: Array) -> None:
        self.block = block

    env = property(lambda self: self.block[ENV])
    row = property(lambda self: self.block[ROW])
    low = property(lambda self: self.block[LOW])
    stop = property(lambda self: self.block[STOP])
    high = property(lambda self: self.block[HIGH])
    number = property(lambda self: self.block[NUMBER])
    flags = property(lambda self: self.block[FLAGS])

    @classmethod
    def outside(cls, env: Array, row: Array) -> Places:
        """Return places (B,) of rows whose episodes do not matter: nothing is clamped."""
        block = np.zeros((PARTS, len(row)), np.int64)
        block[ENV], block[ROW] = env, row
        return cls(block)

    @property
    def shape(self) -> tuple[int, ...]:
        """(B,) or (B, J)."""
        shape: tuple[int, ...] = self.block.shape
        return shape[1:]

    @property
    def flat(self) -> Array:
        """The block as (PARTS, B * J)."""
        return self.block.reshape(PARTS, -1)

    def at(self, row: Array) -> Places:
        """Return the same episodes at other rows, (B, J) for places (B,)."""
        block = self.block if row.shape == self.shape else self.block[:, :, None]
        spread = np.array(np.broadcast_to(block, (PARTS, *row.shape)), order="C")
        spread[ROW] = row
        return Places(spread)

    def transposed(self) -> Places:
        """Return the places with their two axes exchanged."""
        return Places(np.ascontiguousarray(self.block.transpose(0, 2, 1)))
