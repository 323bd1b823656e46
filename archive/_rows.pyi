"""Where rows lie: in which episode, and which of them may be drawn."""

from typing import Any, final

import numpy as np

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Singles = np.ndarray[Any, np.dtype[np.float32]]

@final
class Segments:
    """Every environment's episodes in order."""

    def __init__(
        self,
        base: _Ints,
        size: _Ints,
        start: _Ints,
        first: _Ints,
        episode: _Ints,
        length: _Ints,
        final: _Bytes,
        terminated: _Bytes,
        truncated: _Bytes,
        reach: _Ints,
        before: _Ints,
        stride: int,
    ) -> None: ...
    def find(self, env: _Ints, row: _Ints, out: _Ints) -> None:
        """Write the segment that row[i] of env[i] lies in or behind, -1 where there is none."""

    def places(self, segment: _Ints, env: _Ints, row: _Ints, out: _Ints) -> None:
        """Write the places of rows whose segments are known."""

    def pick(self, rank: _Ints, until: _Ints, skip: _Ints, out: _Ints, ids: _Ints) -> None:
        """Write the places and ids of the rank[i]-th valid starts, environment by environment, oldest first."""

    def pick_leaves(self, leaf: _Ints, transitions: _Ints, capacity: int, out: _Ints, ids: _Ints) -> None:
        """Write the places and ids of the transitions whose leaves these are."""

    def leaves(self, ids: _Ints, transitions: _Ints, capacity: int, out: _Ints) -> bool:
        """Write the leaf of the transition of each id; return whether all are valid starts within the capacity."""

def look_ahead(
    place: _Ints, n_step: int, shorten: bool, discounts: _Singles, ahead: _Ints, flags: _Bytes, discount: _Singles
) -> None:
    """Write how an n-step transition from each place goes on."""
