"""What must be fast beside rows and pool: the sum tree, random numbers, n-step returns, checksums and byte shuffles.

Everything here takes contiguous typed views that Python has checked and converted, releases the GIL once a call
and allocates nothing per row. Randomness is an argument. What is drawn is written down in docs/draws.md.
"""

import numpy as np

cimport cython
from libc.math cimport NAN, nextafter
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from checksum cimport fletcher32
from feistel cimport feistel
from lengths cimport same_length
from philox cimport philox
from sumtree cimport AT_ONCE, descend, refresh, sum8


# --- chunks

def checksum(const uint8_t[::1] data not None):
    """Return HDF5's fletcher32 of `data`."""
    cdef uint32_t result
    with nogil:
        result = fletcher32(data)
    return result


def stream_length(const uint8_t[::1] data not None, const uint8_t[::1] run_id not None, int64_t field, int64_t env,
                  int64_t first):
    """Return how long the codec's stream of a chunk is, -1 unless checksum and trailer are right and name these rows.

    Behind the stream: the trailer of 48 bytes as docs/format.md has it, then HDF5's fletcher32 of all before.
    """
    cdef Py_ssize_t size = data.shape[0] - 52
    cdef const uint8_t *trailer
    cdef uint32_t check, found_env, packed
    cdef uint64_t found_first
    cdef uint16_t found_field
    if size < 0 or run_id.shape[0] != 8:
        return -1
    trailer = &data[size]
    with nogil:
        check = fletcher32(data[:size + 48])
        memcpy(&found_field, trailer + 16, 2)
        memcpy(&found_env, trailer + 20, 4)
        memcpy(&found_first, trailer + 28, 8)
        memcpy(&packed, trailer + 40, 4)
        if (memcmp(trailer + 48, &check, 4) or memcmp(trailer, b"RLAT", 4) or memcmp(trailer + 4, &run_id[0], 8)
                or found_field != field or found_env != env or found_first != <uint64_t> first or packed != size):
            size = -1
    return size


def shuffle(const uint8_t[::1] rows not None, uint8_t[::1] out not None, Py_ssize_t itemsize):
    """Write byte k of every item next to each other, as HDF5's shuffle filter does."""
    cdef Py_ssize_t items = rows.shape[0] // itemsize, item, byte
    if out.shape[0] != rows.shape[0] or items * itemsize != rows.shape[0]:
        raise ValueError(f"shuffle of {rows.shape[0]} bytes in items of {itemsize} into {out.shape[0]}")
    with nogil:
        for byte in range(itemsize):
            for item in range(items):
                out[byte * items + item] = rows[item * itemsize + byte]


def unshuffle(const uint8_t[::1] shuffled not None, uint8_t[::1] out not None, Py_ssize_t itemsize):
    """Undo `shuffle`."""
    cdef Py_ssize_t items = out.shape[0] // itemsize, item, byte
    if out.shape[0] != shuffled.shape[0] or items * itemsize != out.shape[0]:
        raise ValueError(f"unshuffle of {shuffled.shape[0]} bytes in items of {itemsize} into {out.shape[0]}")
    with nogil:
        for byte in range(itemsize):
            for item in range(items):
                out[item * itemsize + byte] = shuffled[byte * items + item]


# --- returns

def returns(const double[:, ::1] reward not None, const int64_t[::1] steps not None, double scale, double shift,
            double low, double high, double gamma, float[::1] out not None):
    """Write sum over k < steps[i] of gamma^k * r[i, k], added in that order; r = scale * reward + shift, clipped."""
    cdef Py_ssize_t i, k
    cdef double total, factor, value
    same_length(reward.shape[0], steps.shape[0], out.shape[0])
    with nogil:
        for i in range(reward.shape[0]):
            total, factor = 0.0, 1.0
            for k in range(min(steps[i], reward.shape[1])):
                value = reward[i, k] * scale + shift
                if value < low:                         # a NaN stays one
                    value = low
                elif value > high:
                    value = high
                total += factor * value
                factor *= gamma
            out[i] = <float> total


# --- random numbers

def uniforms(uint64_t seed, uint64_t batch, double[::1] out not None):
    """Write numbers in [0, 1): the top 53 bits of Philox words with key (seed, batch), its counter from 1 on."""
    with nogil:
        write_uniforms(seed, batch, out)


def ranks(uint64_t seed, uint64_t batch, int64_t count, int64_t[::1] out not None):
    """Write numbers in 0 .. count - 1 that the uniform numbers of (seed, batch) choose."""
    cdef Py_ssize_t i
    cdef uint64_t[4] words
    with nogil:
        for i in range(out.shape[0]):
            if i % 4 == 0:
                philox(i // 4 + 1, seed, batch, words)
            out[i] = min(<int64_t> (unit(words[i % 4]) * count), count - 1)


cdef inline double unit(uint64_t word) noexcept nogil:
    """Return the top 53 bits of a word as a number in [0, 1)."""
    return <double> (word >> 11) * 1.1102230246251565e-16       # 2^-53


cdef void write_uniforms(uint64_t seed, uint64_t batch, double[::1] out) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint64_t[4] words
    for i in range(out.shape[0]):
        if i % 4 == 0:
            philox(i // 4 + 1, seed, batch, words)
        out[i] = unit(words[i % 4])


def permute(const int64_t[::1] index not None, int64_t count, uint64_t seed, uint64_t stream, int64_t[::1] out not None):
    """Write where a permutation of 0 .. count - 1 sends each index; its keys are the first words of (seed, stream).

    The network spans the smallest even number of bits that holds `count` values; values outside are sent on until
    they fall inside (Black and Rogaway 2002, "cycle walking").
    """
    cdef Py_ssize_t i
    cdef uint64_t[4] keys
    cdef uint64_t value
    cdef int half = 1
    same_length(index.shape[0], out.shape[0], out.shape[0])
    for i in range(index.shape[0]):
        if not 0 <= index[i] < count:
            raise IndexError(f"permute: {index[i]} of {count}")
    while half < 31 and count - 1 >> 2 * half:
        half += 1
    with nogil:
        philox(1, seed, stream, keys)
        for i in range(index.shape[0]):
            value = feistel(index[i], keys, half)
            while value >= <uint64_t> count:
                value = feistel(value, keys, half)
            out[i] = value


# --- priorities

def largest(const double[::1] value not None):
    """Return the largest of numbers, 0 without any; NaN if one of them is negative or NaN."""
    cdef Py_ssize_t i
    cdef double result = 0
    with nogil:
        for i in range(value.shape[0]):
            if not value[i] >= 0:
                result = NAN
                break
            result = max(result, value[i])
    return result


@cython.cdivision(True)                             # 0 / 0 is a NaN, as in numpy
def weigh(const double[::1] weight not None, double most, float[::1] out not None):
    """Write weight / most; a negative `most` stands for the largest weight."""
    cdef Py_ssize_t i
    same_length(weight.shape[0], out.shape[0], out.shape[0])
    with nogil:
        if most < 0:
            for i in range(weight.shape[0]):
                most = max(most, weight[i])
        for i in range(weight.shape[0]):
            out[i] = <float> (weight[i] / most)


@cython.final
cdef class SumTree:
    """Float64 leaves whose sums are kept, to draw a leaf in proportion to its value. See sumtree.pxd."""

    cdef double[::1] nodes
    cdef int64_t[::1] first
    cdef readonly int64_t size

    def __init__(self, int64_t size):
        widths = [max(8, (size + 7) // 8 * 8)]
        while widths[len(widths) - 1] > 8:
            widths.append((widths[len(widths) - 1] // 8 + 7) // 8 * 8)
        self.first = np.concatenate(([0], np.cumsum(widths)[:len(widths) - 1])).astype(np.int64)
        self.nodes = np.zeros(sum(widths))
        self.size = size

    @property
    def total(self):
        """Sum of all leaves."""
        return sum8(self.nodes, self.first[self.first.shape[0] - 1])

    @property
    def smallest(self):
        """Smallest leaf above 0; 0 if there is none. Reads every leaf."""
        cdef double result = 0
        cdef Py_ssize_t i
        with nogil:
            for i in range(self.size):
                if self.nodes[i] > 0 and (result == 0 or self.nodes[i] < result):
                    result = self.nodes[i]
        return result

    @property
    def nbytes(self):
        """Memory in bytes."""
        return self.nodes.shape[0] * 8

    def get(self, const int64_t[::1] leaf not None, double[::1] out not None):
        """Write the values of leaves."""
        cdef Py_ssize_t i
        self.require(leaf, out.shape[0])
        with nogil:
            for i in range(leaf.shape[0]):
                out[i] = self.nodes[leaf[i]]

    def set(self, const int64_t[::1] leaf not None, const double[::1] value not None):
        """Set leaves, the last of duplicates winning, and recompute the sums above them."""
        cdef Py_ssize_t i, level
        cdef int64_t child
        self.require(leaf, value.shape[0])
        with nogil:
            for i in range(leaf.shape[0]):
                self.nodes[leaf[i]] = value[i]
            for level in range(1, self.first.shape[0]):
                if leaf.shape[0] < self.size // 8:
                    refresh(self.nodes, self.first, leaf, level)
                else:                               # as many leaves as parents: cheaper to recompute all
                    for child in range((self.first[level] - self.first[level - 1]) // 8):
                        self.nodes[self.first[level] + child] = sum8(self.nodes, self.first[level - 1] + 8 * child)

    def find(self, const double[::1] mass not None, int64_t[::1] out not None):
        """Write the leaf that owns mass[i], 0 <= mass[i] <= total."""
        cdef Py_ssize_t i = 0, j, count
        cdef double[AT_ONCE] rest
        same_length(mass.shape[0], out.shape[0], out.shape[0])
        if not self.total > 0:
            raise ValueError("a sum tree with total 0 has no leaf to find")
        with nogil:
            while i < mass.shape[0]:
                count = min(AT_ONCE, mass.shape[0] - i)
                for j in range(count):
                    rest[j] = mass[i + j]
                descend(self.nodes, self.first, rest, out, i, count)
                i += AT_ONCE

    def draw(self, uint64_t seed, uint64_t batch, bint stratified, double count, int64_t[::1] leaf not None,
             double[::1] share not None):
        """Write leaves that the uniform numbers of (seed, batch) choose, and count * (value / total) of each.

        `stratified`: number i falls into the i-th of equal parts of the total.
        """
        cdef Py_ssize_t i = 0, j, some, n = leaf.shape[0]
        cdef double[AT_ONCE] rest
        cdef double total = self.total, most = nextafter(total, 0), at
        same_length(n, share.shape[0], n)
        if not total > 0:
            raise ValueError("a sum tree with total 0 has no leaf to find")
        with nogil:
            write_uniforms(seed, batch, share)
            while i < n:
                some = min(AT_ONCE, n - i)
                for j in range(some):
                    at = (i + j + share[i + j]) / n if stratified else share[i + j]
                    rest[j] = min(at * total, most)
                descend(self.nodes, self.first, rest, leaf, i, some)
                for j in range(i, i + some):
                    share[j] = count * (self.nodes[leaf[j]] / total)
                i += AT_ONCE

    def copy_to(self, SumTree other not None):
        """Set the first leaves of a larger tree to those of this one."""
        leaves = np.arange(self.size)
        values = np.empty(self.size)
        self.get(leaves, values)
        other.set(leaves, values)

    cdef int require(self, const int64_t[::1] leaf, Py_ssize_t values) except -1:
        cdef Py_ssize_t i
        same_length(leaf.shape[0], values, values)
        for i in range(leaf.shape[0]):
            if not 0 <= leaf[i] < self.size:
                raise IndexError(f"leaf {leaf[i]} of a tree of {self.size}")
        return 0
