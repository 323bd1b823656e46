"""Where in memory rows stand: decoded chunks in slots, and copies of windows of rows out of them.

Everything takes contiguous typed views that Python has checked and allocates nothing per row; bytes are copied without
the GIL. A pool is not for two threads at once: whoever calls it holds the lock of its rows.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from fetch cimport fetch_soon
from lengths cimport same_length
from places cimport ENV, HIGH, LOW, PARTS, ROW, STOP

cdef enum:
    MOST_PARTS = 64
cdef enum:
    SHORT = 256                                     # bytes of a window that is one wait for memory
cdef enum:
    LARGE = 65536                                   # bytes of an array that is worth being made of used memory

cdef enum:
    PAGE = 4096

cdef object EMPTY = np.empty


@cython.final
cdef class Pool:
    """Decoded chunks of one field in slots of fixed size; which slot is given up next (clock with a second chance).

    A chunk is a number, row // chunk_rows * num_envs + environment; `slot_of[chunk]` is its slot or -1,
    `chunk_of[slot]` the inverse. Pinned slots (rows still being written) and slots touched in the current `turn` (a
    gather going on) are never given up. `memory`: all rows of all slots, one after the other.
    """

    cdef int32_t[::1] slot_of
    cdef int64_t[::1] chunk_of, turn_of
    cdef uint8_t[::1] used, pinned
    cdef const uint8_t[:, ::1] memory
    cdef int64_t hand, turn, num_envs, chunk_rows
    cdef readonly int64_t limit

    def __init__(self, const uint8_t[:, ::1] memory not None, int64_t num_envs, int64_t chunk_rows):
        slots = memory.shape[0] // chunk_rows
        self.memory, self.num_envs, self.chunk_rows = memory, num_envs, chunk_rows
        self.slot_of = np.full(64, -1, np.int32)
        self.chunk_of = np.full(slots, -1, np.int64)
        self.turn_of = np.zeros(slots, np.int64)
        self.used, self.pinned = np.zeros(slots, np.uint8), np.zeros(slots, np.uint8)
        self.limit = slots

    cpdef int64_t slot(self, int64_t chunk):
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

    def find(self, const int64_t[::1] env not None, const int64_t[::1] row not None, int64_t[::1] out not None):
        """Write which row of memory holds row[i] of env[i], -1 where its chunk is absent; return whether none is."""
        cdef Py_ssize_t i
        cdef int64_t slot
        cdef bint there = True
        same_length(row.shape[0], env.shape[0], out.shape[0])
        for i in range(row.shape[0]):
            slot = self.slot(row[i] // self.chunk_rows * self.num_envs + env[i])
            out[i] = slot * self.chunk_rows + row[i] % self.chunk_rows if slot >= 0 else -1
            there &= slot >= 0
        return there

    cdef bint resolve(self, const int64_t[:, ::1] place, const int64_t[::1] row, int64_t ahead, int64_t count,
                      bint repeat, bint steps, int64_t[::1] where) noexcept nogil:
        """Write which rows of memory hold each window, -1 for zeros, -2 - chunk for an absent chunk.

        Return whether all chunks are there. Those that are will not be given up in this turn.
        """
        cdef Py_ssize_t i, j
        cdef int64_t at, low, high, chunk, slot, known = self.slot_of.shape[0], last = -1, last_slot = -1
        cdef bint absent = False
        for i in range(row.shape[0]):
            low, high = place[LOW, i], max(row[i], place[STOP, i] - 1 if steps else place[HIGH, i])
            for j in range(count):
                at = row[i] + ahead + j
                if at < low and repeat:
                    at = low
                if row[i] < 0 or at < low or at > high:
                    where[i * count + j] = -1
                    continue
                chunk = at // self.chunk_rows * self.num_envs + place[ENV, i]
                if chunk != last:
                    last, last_slot = chunk, self.slot_of[chunk] if 0 <= chunk < known else -1
                    if last_slot >= 0:
                        self.used[last_slot], self.turn_of[last_slot] = 1, self.turn
                absent |= last_slot < 0
                where[i * count + j] = last_slot * self.chunk_rows + at % self.chunk_rows if last_slot >= 0 else -2 - chunk
        return not absent


cdef struct Copy:                                   # of all windows of one part
    Py_buffer view
    uint8_t *to
    const uint8_t *memory
    const int64_t *where
    int64_t size, count


cdef inline void copy_window(const Copy *copy, Py_ssize_t i) noexcept nogil:
    """Copy one window; rows that are neighbours in memory are copied at once."""
    cdef int64_t j = 0, run
    cdef const int64_t *where = copy.where + i * copy.count
    cdef uint8_t *to = copy.to + i * copy.count * copy.size
    while j < copy.count:
        run = 1
        if where[j] < 0:
            memset(to + j * copy.size, 0, copy.size)
        else:
            while j + run < copy.count and where[j + run] == where[j] + run:
                run += 1
            memcpy(to + j * copy.size, copy.memory + where[j] * copy.size, run * copy.size)
        j += run


@cython.final
cdef class Part:
    """What a batch takes of one field: at each start, or at the row after its transition (`later`), a window.

    The window of a row are the `count` rows from row + `ahead` on. Before the row's episode stands its first row
    (`repeat`) or zeros; behind it, which for `steps` is behind its last transition, and for row -1, zeros. `shape` and
    `dtype` are those of what one start gives.
    """

    cdef Pool pool
    cdef object dtype
    cdef readonly tuple shape
    cdef int64_t ahead
    cdef readonly int64_t count
    cdef readonly bint later
    cdef bint repeat, steps
    cdef int64_t[::1] where                         # rows of memory of the windows that are read now

    def __init__(self, Pool pool not None, object dtype, tuple shape, int64_t ahead, int64_t count, bint repeat,
                 bint steps, bint later):
        self.pool, self.dtype, self.shape, self.later = pool, dtype, shape, later
        self.ahead, self.count, self.repeat, self.steps = ahead, count, repeat, steps
        self.where = np.empty(64, np.int64)

    cdef bint find(self, const int64_t[:, ::1] place, const int64_t[::1] row) except -1:
        """Find the windows in memory; return whether all are there."""
        cdef bint there
        same_length(row.shape[0], place.shape[1], row.shape[0])
        same_length(PARTS, place.shape[0], PARTS)
        if row.shape[0] * self.count > self.where.shape[0]:
            self.where = np.empty(2 * row.shape[0] * self.count, np.int64)
        self.pool.turn += 1
        with nogil:
            there = self.pool.resolve(place, row, self.ahead, self.count, self.repeat, self.steps, self.where)
        return there

    def missing(self, const int64_t[:, ::1] place not None, const int64_t[::1] row not None):
        """Return the chunks that must be loaded before the windows of these rows can be gathered."""
        if self.find(place, row):
            return ()
        where = np.asarray(self.where)[: row.shape[0] * self.count]
        return (-2 - np.unique(where[where < -1])[::-1]).tolist()

    def gather(self, const int64_t[:, ::1] place not None, const int64_t[::1] row not None, out not None):
        """Copy the windows of these rows to `out`, unless a chunk is absent; return whether it was done."""
        cdef Copy copy
        cdef Py_ssize_t i
        if not self.find(place, row):
            return False
        self.begin(&copy, out, row.shape[0])
        with nogil:
            for i in range(row.shape[0] if copy.size else 0):
                copy_window(&copy, i)
        PyBuffer_Release(&copy.view)
        return True

    cdef int begin(self, Copy *copy, object out, Py_ssize_t rows) except -1:
        """Prepare the copying of windows that have been found."""
        PyObject_GetBuffer(out, &copy.view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        copy.size, copy.count = self.pool.memory.shape[1], self.count
        if copy.view.len != rows * copy.count * copy.size:
            PyBuffer_Release(&copy.view)
            raise ValueError(f"{rows} windows of {copy.count * copy.size} bytes into {copy.view.len}")
        copy.to = <uint8_t *> copy.view.buf
        copy.memory = &self.pool.memory[0, 0] if copy.size else NULL
        copy.where = &self.where[0]
        return 0


cdef inline void fetch_windows(const Copy *copy, Py_ssize_t windows) noexcept nogil:
    """Ask for the first rows of all windows, so that the waits for them overlap."""
    cdef Py_ssize_t i
    for i in range(windows):
        if copy.where[i * copy.count] >= 0:
            fetch_soon(copy.memory + copy.where[i * copy.count] * copy.size)


cdef inline void fetch_pages(const Copy *copy, Py_ssize_t i) noexcept nogil:
    """Ask for the beginning of each page of a long window; the processor goes on by itself until the next."""
    cdef int64_t byte = 0, first = copy.where[i * copy.count], size = copy.size * copy.count
    while first >= 0 and size >= PAGE and byte < size:
        fetch_soon(copy.memory + first * copy.size + byte)
        byte += PAGE


def gather_parts(list parts not None, const int64_t[:, ::1] place not None, const int64_t[:, ::1] after not None,
                 object take):
    """Return an array for each part, filled; None if a chunk is absent. Large ones are made by take(shape, dtype).

    after[1]: the rows after the transitions. All of one start is copied before the next: fields share frames.
    """
    cdef Part part
    cdef const int64_t[::1] now, later
    cdef Copy[MOST_PARTS] copies
    cdef Py_ssize_t ready = 0, i, k, count = len(parts)
    cdef list found = []
    cdef bint there
    same_length(PARTS, place.shape[0], PARTS)
    same_length(2, after.shape[0], 2)
    same_length(place.shape[1], after.shape[1], place.shape[1])
    if count > MOST_PARTS:
        return None
    now, later = place[ROW], after[1]
    for part in parts:
        there = part.find(place, later) if part.later else part.find(place, now)
        if not there:
            return None
    try:
        for part in parts:
            large = place.shape[1] * part.count * part.pool.memory.shape[1] >= LARGE
            out = (take if large else EMPTY)((place.shape[1], *part.shape), part.dtype)
            part.begin(&copies[ready], out, place.shape[1])
            found.append(out)
            ready += 1
        with nogil:
            for k in range(count):
                if copies[k].size and copies[k].size * copies[k].count <= SHORT:
                    fetch_windows(&copies[k], place.shape[1])
            for i in range(place.shape[1]):
                for k in range(count):
                    if copies[k].size:
                        if i + 1 < place.shape[1]:
                            fetch_pages(&copies[k], i + 1)
                        copy_window(&copies[k], i)
    finally:
        for k in range(ready):
            PyBuffer_Release(&copies[k].view)
    return found
