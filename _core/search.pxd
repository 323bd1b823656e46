"""Where a value lies in a sorted range."""

from libc.stdint cimport int64_t


cdef inline int64_t last_at_most(const int64_t[::1] sorted_, int64_t start, int64_t size, int64_t value) noexcept nogil:
    """Return the largest k < size with sorted_[start + k] <= value, or -1."""
    cdef int64_t low = 0, half
    while size > 1:                                 # invariant: low to low + size entries are <= value
        half = size >> 1
        low += half & -<int64_t> (sorted_[start + low + half - 1] <= value)      # no branch to guess
        size -= half
    return low + (sorted_[start + low] <= value) - 1 if size else -1


cdef enum:
    TOGETHER = 32                                   # how many searches go on together


cdef inline void last_at_most_many(const int64_t[::1] sorted_, const int64_t *start, const int64_t *size,
                                   const int64_t *value, int64_t *out, Py_ssize_t count) noexcept nogil:
    """Write `last_at_most` of each of `count` <= TOGETHER searches, step by step so that waits for memory overlap."""
    cdef int64_t[TOGETHER] left
    cdef int64_t half, most = 0
    cdef Py_ssize_t i
    for i in range(count):
        out[i], left[i] = 0, size[i]
        most = max(most, size[i])
    while most > 1:                                 # a search that has one entry left stays where it is: half is 0
        for i in range(count):
            half = left[i] >> 1
            out[i] += half & -<int64_t> (half > 0 and sorted_[start[i] + out[i] + half - 1] <= value[i])
            left[i] -= half
        most -= most >> 1
    for i in range(count):
        out[i] = out[i] + (sorted_[start[i] + out[i]] <= value[i]) - 1 if size[i] else -1
