"""Memory of batches, used again once nobody looks at it: memory that is new costs more than copying into it."""

from __future__ import annotations

import sys
import threading
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SMALLEST, LARGEST = 1 << 16, 1 << 24  # bytes of a buffer that is worth keeping
MOST = 1 << 26  # bytes kept
PROBE = [np.empty(1, np.uint8)]
UNUSED = sys.getrefcount(PROBE[0])  # references of an array that only a list holds


class Buffers:
    """Hand out buffers whose last array, view or tensor is gone before new ones; at most MOST bytes are kept."""

    def __init__(self) -> None:
        self.kept: list[Array] = []
        self.lock = threading.Lock()  # from looking at a buffer until it is held

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array of no known content whose memory nobody else holds."""
        nbytes = prod(shape) * dtype.itemsize
        if not SMALLEST <= nbytes <= LARGEST:
            return np.empty(shape, dtype)
        with self.lock:
            buffer = self.buffer(nbytes)
        return buffer.view(dtype).reshape(shape)

    def buffer(self, nbytes: int) -> Array:
        """Return a kept buffer that nobody looks at, or a new one."""
        for at in range(len(self.kept)):
            if sys.getrefcount(self.kept[at]) == UNUSED and self.kept[at].nbytes == nbytes:
                return self.kept[at]
        self.kept.append(np.empty(nbytes, np.uint8))
        while sum(buffer.nbytes for buffer in self.kept) > MOST:
            del self.kept[0]  # whoever holds it keeps it
        return self.kept[-1]
