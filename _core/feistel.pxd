"""A permutation of 0 .. count - 1, computed value by value: a Feistel network with cycle walking."""

cimport cython
from libc.stdint cimport uint64_t


@cython.overflowcheck(False)                        # products and sums wrap around on purpose
cdef inline uint64_t mixed(uint64_t value) noexcept nogil:
    """Return 64 well mixed bits: the finalizer of splitmix64 (Steele et al. 2014)."""
    value += 0x9E3779B97F4A7C15u
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu
    return value ^ (value >> 31)


@cython.overflowcheck(False)
cdef inline uint64_t feistel(uint64_t value, const uint64_t *keys, int half) noexcept nogil:
    """Send a value of 2 * half bits through four rounds, one key each."""
    cdef uint64_t mask = (<uint64_t> 1 << half) - 1, left = value >> half, right = value & mask, next_
    cdef int k
    for k in range(4):
        next_ = left ^ (mixed(right ^ keys[k]) & mask)
        left, right = right, next_
    return left << half | right
