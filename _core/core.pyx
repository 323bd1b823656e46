"""What must be fast: the sum tree, which rows may be drawn, the chunk cache's table, gathers, byte shuffles.

Everything here takes contiguous typed views that Python has checked and converted, releases the GIL once a call
and allocates nothing per row. Randomness is an argument. What is drawn is written down in docs/draws.md.
"""

import numpy as np

cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from checksum cimport fletcher32
from feistel cimport feistel
from philox cimport philox
from search cimport last_at_most
from sumtree cimport descend, refresh, sum8


cdef int same_length(Py_ssize_t a, Py_ssize_t b, Py_ssize_t c) except -1:
    """Refuse arrays that do not fit together: nothing below would notice."""
    if not a == b == c:
        raise ValueError(f"lengths disagree: {a}, {b}, {c}")
    return 0


# --- chunks

def checksum(const uint8_t[::1] data not None):
    """Return HDF5's fletcher32 of `data`."""
    cdef uint32_t result
    with nogil:
        result = fletcher32(data)
    return result


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


@cython.final
cdef class ChunkTable:
    """Which chunk sits in which slot of a pool, and which slot is given up next (clock with a second chance).

    A chunk is a number; `slot_of[chunk]` is its slot or -1, `chunk_of[slot]` the inverse. Pinned slots (rows
    still being written) and slots touched in the current `turn` (a gather going on) are never given up.
    """

    cdef int32_t[::1] slot_of
    cdef int64_t[::1] chunk_of, turn_of
    cdef uint8_t[::1] used, pinned
    cdef int64_t hand, turn
    cdef readonly int64_t limit

    def __init__(self, int64_t slots):
        self.slot_of = np.full(64, -1, np.int32)
        self.chunk_of = np.full(slots, -1, np.int64)
        self.turn_of = np.zeros(slots, np.int64)
        self.used, self.pinned = np.zeros(slots, np.uint8), np.zeros(slots, np.uint8)
        self.limit = slots

    def slot(self, int64_t chunk):
        """Return the slot of a chunk or -1."""
        return self.slot_of[chunk] if 0 <= chunk < self.slot_of.shape[0] else -1

    def claim(self, int64_t chunk):
        """Give `chunk` a slot, dropping another if none is free, and return it; -1 if all are in use."""
        cdef int64_t step, slot
        if chunk >= self.slot_of.shape[0]:
            grown = np.full(max(chunk + 1, 2 * self.slot_of.shape[0]), -1, np.int32)
            grown[: self.slot_of.shape[0]] = self.slot_of
            self.slot_of = grown
        for step in range(2 * self.limit + 1):
            slot = self.hand
            self.hand = (self.hand + 1) % self.limit
            if self.pinned[slot] or (self.turn_of[slot] == self.turn and self.chunk_of[slot] >= 0):
                continue
            if self.chunk_of[slot] >= 0 and self.used[slot]:
                self.used[slot] = 0
                continue
            if self.chunk_of[slot] >= 0:
                self.slot_of[self.chunk_of[slot]] = -1
            self.slot_of[chunk], self.chunk_of[slot] = <int32_t> slot, chunk
            self.used[slot], self.turn_of[slot] = 1, self.turn
            return slot
        return -1

    def begin_turn(self):
        """Let go of what the last gather touched."""
        self.turn += 1

    def drop(self, int64_t chunk):
        """Forget a chunk."""
        cdef int64_t slot = self.slot(chunk)
        if slot >= 0:
            self.slot_of[chunk], self.chunk_of[slot], self.pinned[slot] = -1, -1, 0

    def pin(self, int64_t chunk, bint pinned):
        """Keep the chunk's slot until it is unpinned."""
        self.pinned[self.slot_of[chunk]] = pinned

    def limit_to(self, int64_t slots):
        """Use at most the first `slots` slots, but no fewer than reach the last pinned one."""
        cdef int64_t slot
        slots = max(1, min(slots, self.chunk_of.shape[0]))
        for slot in range(slots, self.chunk_of.shape[0]):
            if self.pinned[slot]:
                slots = slot + 1
        for slot in range(slots, self.chunk_of.shape[0]):
            if self.chunk_of[slot] >= 0:
                self.drop(self.chunk_of[slot])
        self.limit, self.hand = slots, 0

    def resolve(self, const int64_t[::1] env not None, const int64_t[:, ::1] row not None, int64_t num_envs,
                int64_t chunk_rows, int64_t[:, ::1] out not None):
        """Turn rows of environments into rows of the pool; return the chunks that must be loaded first.

        Row (i, j) of environment env[i] becomes slot * chunk_rows + row % chunk_rows, -1 stays -1, and a row
        whose chunk is absent becomes -2. Chunk of a row: row // chunk_rows * num_envs + env.
        """
        cdef Py_ssize_t i, j
        cdef int64_t chunk, slot, known = self.slot_of.shape[0], last = -1, last_slot = -1
        cdef bint absent = False
        same_length(row.shape[0], env.shape[0], out.shape[0])
        same_length(row.shape[1], out.shape[1], out.shape[1])
        self.turn += 1
        with nogil:
            for i in range(row.shape[0]):
                for j in range(row.shape[1]):
                    if row[i, j] < 0:
                        out[i, j] = -1
                        continue
                    chunk = row[i, j] // chunk_rows * num_envs + env[i]
                    if chunk != last:
                        last, last_slot = chunk, self.slot_of[chunk] if chunk < known else -1
                        if last_slot >= 0:
                            self.used[last_slot], self.turn_of[last_slot] = 1, self.turn
                    absent |= last_slot < 0
                    out[i, j] = last_slot * chunk_rows + row[i, j] % chunk_rows if last_slot >= 0 else -2
        if not absent:
            return ()
        rows, where = np.asarray(row), np.asarray(out) == -2
        chunks = rows // chunk_rows * num_envs + np.asarray(env)[:, None]
        return np.unique(chunks[where]).tolist()


# --- gathers

def windows(const int64_t[::1] start not None, const int64_t[::1] offset not None, const int64_t[::1] low not None,
            const int64_t[::1] high not None, bint repeat, int64_t[:, ::1] out not None):
    """Write the rows start[i] + offset[j], clamped: below low[i] is low[i] (repeat) or -1, above high[i] is -1."""
    cdef Py_ssize_t i, j
    cdef int64_t row
    same_length(start.shape[0], low.shape[0], high.shape[0])
    same_length(start.shape[0], out.shape[0], out.shape[0])
    same_length(offset.shape[0], out.shape[1], out.shape[1])
    with nogil:
        for i in range(start.shape[0]):
            for j in range(offset.shape[0]):
                row = start[i] + offset[j]
                if row > high[i]:
                    row = -1
                elif row < low[i]:
                    row = low[i] if repeat and low[i] <= high[i] else -1
                out[i, j] = row


def gather(const uint8_t[:, ::1] pool not None, const int64_t[::1] row not None, uint8_t[:, ::1] out not None):
    """Copy pool[row[i]] to out[i]; a negative row gives zeros."""
    cdef Py_ssize_t i, size = pool.shape[1]
    same_length(row.shape[0], out.shape[0], out.shape[0])
    same_length(size, out.shape[1], out.shape[1])
    for i in range(row.shape[0]):
        if row[i] >= pool.shape[0]:
            raise IndexError(f"gather: row {row[i]} of a pool of {pool.shape[0]}")
    if size == 0:
        return
    with nogil:
        for i in range(row.shape[0]):
            if row[i] < 0:
                memset(&out[i, 0], 0, size)
            else:
                memcpy(&out[i, 0], &pool[row[i], 0], size)


def returns(const double[:, ::1] reward not None, const int64_t[::1] steps not None, double gamma,
            double[::1] out not None):
    """Write sum over k < steps[i] of gamma^k * reward[i, k], added in that order."""
    cdef Py_ssize_t i, k
    cdef double total, factor
    same_length(reward.shape[0], steps.shape[0], out.shape[0])
    with nogil:
        for i in range(reward.shape[0]):
            total, factor = 0.0, 1.0
            for k in range(min(steps[i], reward.shape[1])):
                total += factor * reward[i, k]
                factor *= gamma
            out[i] = total


# --- random numbers

def uniforms(uint64_t seed, uint64_t batch, double[::1] out not None):
    """Write numbers in [0, 1): the top 53 bits of Philox words with key (seed, batch), its counter from 1 on."""
    cdef Py_ssize_t i
    cdef uint64_t[4] words
    with nogil:
        for i in range(out.shape[0]):
            if i % 4 == 0:
                philox(i // 4 + 1, seed, batch, words)
            out[i] = <double> (words[i % 4] >> 11) * 1.1102230246251565e-16     # 2^-53


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


# --- which rows may be drawn. Segments are the episodes of each environment in order: those of environment e
# --- stand at base[e] .. base[e] + size[e] - 1 of `start` (first row) and `first` (number of its first transition).

def find_rows(const int64_t[::1] env not None, const int64_t[::1] row not None, const int64_t[::1] base not None,
              const int64_t[::1] size not None, const int64_t[::1] start not None, int64_t[::1] out not None):
    """Write the segment that row[i] of env[i] lies in or behind, -1 where there is none."""
    cdef Py_ssize_t i
    cdef int64_t k
    same_length(row.shape[0], env.shape[0], out.shape[0])
    with nogil:
        for i in range(row.shape[0]):
            k = last_at_most(start, base[env[i]], size[env[i]], row[i])
            out[i] = base[env[i]] + k if k >= 0 else -1


def pick_valid(const int64_t[::1] rank not None, const int64_t[::1] until not None, const int64_t[::1] skip not None,
               const int64_t[::1] base not None, const int64_t[::1] size not None, const int64_t[::1] start not None,
               const int64_t[::1] valid not None, int64_t stride, int64_t[::1] env not None, int64_t[::1] row not None):
    """Write environment and row of the rank[i]-th valid start, environment by environment, oldest first.

    until[e]: valid starts of environments 0 .. e; skip[e]: those of e older than the capacity;
    valid[s]: valid starts of s's environment before segment s; within a segment they lie `stride` rows apart.
    """
    cdef Py_ssize_t i
    cdef int64_t e, rest, s
    same_length(rank.shape[0], env.shape[0], row.shape[0])
    with nogil:
        for i in range(rank.shape[0]):
            e = last_at_most(until, 0, until.shape[0], rank[i]) + 1
            rest = rank[i] - (until[e - 1] if e else 0) + skip[e]
            s = base[e] + last_at_most(valid, base[e], size[e], rest)
            env[i] = e
            row[i] = start[s] + (rest - valid[s]) * stride


def pick_slots(const int64_t[::1] slot not None, const int64_t[::1] transitions not None, int64_t capacity,
               const int64_t[::1] base not None, const int64_t[::1] size not None, const int64_t[::1] start not None,
               const int64_t[::1] first not None, int64_t[::1] env not None, int64_t[::1] row not None):
    """Write environment and row of the transition whose leaf is slot[i].

    Transition q of environment e has leaf (q % capacity) * N + e; capacity 0 means q * N + e.
    """
    cdef Py_ssize_t i
    cdef int64_t e, q, s, n = transitions.shape[0]
    same_length(slot.shape[0], env.shape[0], row.shape[0])
    with nogil:
        for i in range(slot.shape[0]):
            e, q = slot[i] % n, slot[i] // n
            if capacity:
                q = transitions[e] - 1 - (transitions[e] - 1 - q) % capacity
            s = base[e] + last_at_most(first, base[e], size[e], q)
            env[i] = e
            row[i] = start[s] + q - first[s]


# --- priorities

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
            if leaf.shape[0] < self.size // 8:
                for i in range(leaf.shape[0]):
                    refresh(self.nodes, self.first, leaf[i])
            else:                                   # as many leaves as parents: cheaper to recompute all
                for level in range(1, self.first.shape[0]):
                    for child in range((self.first[level] - self.first[level - 1]) // 8):
                        self.nodes[self.first[level] + child] = sum8(self.nodes, self.first[level - 1] + 8 * child)

    def find(self, const double[::1] mass not None, int64_t[::1] out not None):
        """Write the leaf that owns mass[i], 0 <= mass[i] <= total."""
        cdef Py_ssize_t i
        same_length(mass.shape[0], out.shape[0], out.shape[0])
        if not self.total > 0:
            raise ValueError("a sum tree with total 0 has no leaf to find")
        with nogil:
            for i in range(mass.shape[0]):
                out[i] = descend(self.nodes, self.first, mass[i])

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
