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
