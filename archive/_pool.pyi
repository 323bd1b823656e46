"""Where in memory rows stand: decoded chunks in slots, and copies of windows of rows out of them."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Ints = np.ndarray[Any, np.dtype[np.int64]]

@final
class Pool:
    """Decoded chunks of one field in slots of fixed size; which slot is given up next (clock with a second chance)."""

    def __init__(self, memory: _Bytes, num_envs: int, chunk_rows: int) -> None: ...
    @property
    def limit(self) -> int:
        """How many slots may be used."""

    def slot(self, chunk: int) -> int:
        """Return the slot of a chunk or -1."""

    def claim(self, chunk: int) -> int:
        """Give `chunk` a slot, dropping another if none is free, and return it; -1 if all are in use."""

    def begin_turn(self) -> None:
        """Let go of what the last gather touched."""

    def drop(self, chunk: int) -> None:
        """Forget a chunk."""

    def pin(self, chunk: int, pinned: bool) -> None:
        """Keep the chunk's slot until it is unpinned."""

    def limit_to(self, slots: int) -> None:
        """Use at most the first `slots` slots, but no fewer than reach the last pinned one."""

    def find(self, env: _Ints, row: _Ints, out: _Ints) -> bool:
        """Write which row of memory holds row[i] of env[i], -1 where its chunk is absent; return whether none is."""

@final
class Part:
    """What a batch takes of one field: at each start, or at the row after its transition (`later`), a window."""

    def __init__(
        self,
        pool: Pool,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        ahead: int,
        count: int,
        repeat: bool,
        steps: bool,
        later: bool,
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what one start gives."""

    @property
    def count(self) -> int:
        """Rows of a window."""

    @property
    def later(self) -> bool:
        """Whether windows are those of the rows after the transitions."""

    def missing(self, place: _Ints, row: _Ints) -> Sequence[int]:
        """Return the chunks that must be loaded before the windows of these rows can be gathered."""

    def gather(self, place: _Ints, row: _Ints, out: Any) -> bool:
        """Copy the windows of these rows to `out`, unless a chunk is absent; return whether it was done."""

def gather_parts(parts: list[Part], place: _Ints, after: _Ints, take: Any) -> list[Any] | None:
    """Return an array for each part, filled; None if a chunk is absent. Large ones are made by take(shape, dtype)."""
