"""Rows to read and the episodes they lie in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Places(NamedTuple):
    """Rows to read, (B, J): environment, row (-1: nothing), and the episode each row lies in.

    `low`: first row of the episode; `stop`: the row behind its last transition; `high`: its last row that can be
    looked at; `number`: its place in the table.
    """

    env: Array
    row: Array
    low: Array
    stop: Array
    high: Array
    number: Array

    def at(self, row: Array) -> Places:
        """Return the same episodes at other rows."""
        return Places(self.env, row, self.low, self.stop, self.high, self.number)

    def reshaped(self, *shape: int) -> Places:
        """Return the places in another shape."""
        return Places(*(v.reshape(shape) for v in self))

    def spread(self, shape: tuple[int, ...]) -> Places:
        """Return the places repeated to a shape."""
        return Places(*(np.broadcast_to(v, shape) for v in self))

    def transposed(self) -> Places:
        """Return the places with their two axes exchanged."""
        return Places(*(np.ascontiguousarray(v.T) for v in self))
