"""What must be fast beside rows and pool: the sum tree, random numbers, n-step returns, checksums and byte shuffles."""

from typing import Any, final

import numpy as np

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Singles = np.ndarray[Any, np.dtype[np.float32]]

def checksum(data: _Bytes) -> int:
    """Return HDF5's fletcher32 of `data`."""

def stream_length(data: bytes, run_id: bytes, field: int, env: int, first: int) -> int:
    """Return how long a chunk's stream is, -1 unless checksum and trailer are right and name these rows."""

def shuffle(rows: _Bytes, out: _Bytes, itemsize: int) -> None:
    """Write byte k of every item next to each other, as HDF5's shuffle filter does."""

def unshuffle(shuffled: _Bytes, out: _Bytes, itemsize: int) -> None:
    """Undo `shuffle`."""

def returns(
    reward: _Floats,
    steps: _Ints,
    scale: float,
    shift: float,
    low: float,
    high: float,
    gamma: float,
    out: _Singles,
) -> None:
    """Write sum over k < steps[i] of gamma^k * r[i, k], added in that order; r = scale * reward + shift, clipped."""

def uniforms(seed: int, batch: int, out: _Floats) -> None:
    """Write numbers in [0, 1): the top 53 bits of Philox words with key (seed, batch), its counter from 1 on."""

def ranks(seed: int, batch: int, count: int, out: _Ints) -> None:
    """Write numbers in 0 .. count - 1 that the uniform numbers of (seed, batch) choose."""

def permute(index: _Ints, count: int, seed: int, stream: int, out: _Ints) -> None:
    """Write where a permutation of 0 .. count - 1 sends each index; its keys are the first words of (seed, stream)."""

def largest(value: _Floats) -> float:
    """Return the largest of numbers, 0 without any; NaN if one of them is negative or NaN."""

def weigh(weight: _Floats, most: float, out: _Singles) -> None:
    """Write weight / most; a negative `most` stands for the largest weight."""

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

    def draw(self, seed: int, batch: int, stratified: bool, count: float, leaf: _Ints, share: _Floats) -> None:
        """Write leaves that the uniform numbers of (seed, batch) choose, and count * (value / total) of each."""

    def copy_to(self, other: SumTree) -> None:
        """Set the first leaves of a larger tree to those of this one."""
