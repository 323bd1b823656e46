"""What must be fast: the sum tree, which rows may be drawn, the chunk cache's table, gathers, byte shuffles."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Floats = np.ndarray[Any, np.dtype[np.float64]]

def checksum(data: _Bytes) -> int:
    """Return HDF5's fletcher32 of `data`."""

def shuffle(rows: _Bytes, out: _Bytes, itemsize: int) -> None:
    """Write byte k of every item next to each other, as HDF5's shuffle filter does."""

def unshuffle(shuffled: _Bytes, out: _Bytes, itemsize: int) -> None:
    """Undo `shuffle`."""

@final
class ChunkTable:
    """Which chunk sits in which slot of a pool, and which slot is given up next (clock with a second chance)."""

    def __init__(self, slots: int) -> None: ...
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

    def resolve(self, env: _Ints, row: _Ints, num_envs: int, chunk_rows: int, out: _Ints) -> Sequence[int]:
        """Turn rows of environments into rows of the pool; return the chunks that must be loaded first."""

def windows(start: _Ints, offset: _Ints, low: _Ints, high: _Ints, repeat: bool, out: _Ints) -> None:
    """Write the rows start[i] + offset[j], clamped: below low[i] is low[i] (repeat) or -1, above high[i] is -1."""

def gather(pool: _Bytes, row: _Ints, out: _Bytes) -> None:
    """Copy pool[row[i]] to out[i]; a negative row gives zeros."""

def returns(reward: _Floats, steps: _Ints, gamma: float, out: _Floats) -> None:
    """Write sum over k < steps[i] of gamma^k * reward[i, k], added in that order."""

def find_rows(env: _Ints, row: _Ints, base: _Ints, size: _Ints, start: _Ints, out: _Ints) -> None:
    """Write the segment that row[i] of env[i] lies in or behind, -1 where there is none."""

def pick_valid(
    rank: _Ints,
    until: _Ints,
    skip: _Ints,
    base: _Ints,
    size: _Ints,
    start: _Ints,
    valid: _Ints,
    stride: int,
    env: _Ints,
    row: _Ints,
) -> None:
    """Write environment and row of the rank[i]-th valid start, environment by environment, oldest first."""

def pick_slots(
    slot: _Ints,
    transitions: _Ints,
    capacity: int,
    base: _Ints,
    size: _Ints,
    start: _Ints,
    first: _Ints,
    env: _Ints,
    row: _Ints,
) -> None:
    """Write environment and row of the transition whose leaf is slot[i]."""

def uniforms(seed: int, batch: int, out: _Floats) -> None:
    """Write numbers in [0, 1): the top 53 bits of Philox words with key (seed, batch), its counter from 1 on."""

def permute(index: _Ints, count: int, seed: int, stream: int, out: _Ints) -> None:
    """Write where a permutation of 0 .. count - 1 sends each index; its keys are the first words of (seed, stream)."""

@final
class SumTree:
    """Float64 leaves whose sums are kept, to draw a leaf in proportion to its value."""

    def __init__(self, size: int) -> None: ...
    @property
    def size(self) -> int:
        """Number of leaves."""

    @property
    def total(self) -> float:
        """Sum of all leaves."""

    @property
    def smallest(self) -> float:
        """Smallest leaf above 0; 0 if there is none. Reads every leaf."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""

    def get(self, leaf: _Ints, out: _Floats) -> None:
        """Write the values of leaves."""

    def set(self, leaf: _Ints, value: _Floats) -> None:
        """Set leaves, the last of duplicates winning, and recompute the sums above them."""

    def find(self, mass: _Floats, out: _Ints) -> None:
        """Write the leaf that owns mass[i], 0 <= mass[i] <= total."""

    def copy_to(self, other: SumTree) -> None:
        """Set the first leaves of a larger tree to those of this one."""
