"""Philox4x64-10 (Salmon et al. 2011): ten rounds turn a counter and a key into four random words."""

cimport cython
from libc.stdint cimport uint64_t


@cython.overflowcheck(False)                        # here and below products wrap around on purpose
cdef inline uint64_t high_word(uint64_t a, uint64_t b) noexcept nogil:
    """Return the upper 64 bits of a * b."""
    cdef uint64_t a_low = a & 0xFFFFFFFFu, a_high = a >> 32, b_low = b & 0xFFFFFFFFu, b_high = b >> 32
    cdef uint64_t middle = a_high * b_low + (a_low * b_low >> 32)
    return a_high * b_high + (middle >> 32) + ((a_low * b_high + (middle & 0xFFFFFFFFu)) >> 32)


@cython.overflowcheck(False)
cdef inline void philox(uint64_t counter, uint64_t key, uint64_t key2, uint64_t[4] out) noexcept nogil:
    """Write the four words of a block."""
    cdef uint64_t x0 = counter, x1 = 0, x2 = 0, x3 = 0, y0, y2
    cdef int k
    for k in range(10):
        y0 = high_word(0xCA5A826395121157u, x2) ^ x1 ^ key
        y2 = high_word(0xD2E7470EE14C6C93u, x0) ^ x3 ^ key2
        x1, x3 = 0xCA5A826395121157u * x2, 0xD2E7470EE14C6C93u * x0
        x0, x2 = y0, y2
        key += 0x9E3779B97F4A7C15u
        key2 += 0xBB67AE8584CAA73Bu
    out[0], out[1], out[2], out[3] = x0, x1, x2, x3
