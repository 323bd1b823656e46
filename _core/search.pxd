"""Where a value lies in a sorted range."""

from libc.stdint cimport int64_t


cdef inline int64_t last_at_most(const int64_t[::1] sorted_, int64_t start, int64_t size, int64_t value) noexcept nogil:
    """Return the largest k < size with sorted_[start + k] <= value, or -1."""
    cdef int64_t low = 0, high = size, middle
    while low < high:                               # invariant: entries below low are <= value, from high on > value
        middle = (low + high) >> 1
        if sorted_[start + middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low - 1
