"""The checksum of HDF5's fletcher32 filter."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef inline uint64_t four_words(const uint8_t *at) noexcept nogil:
    """Return eight bytes as one number, the first on top."""
    return (<uint64_t> at[0] << 56 | <uint64_t> at[1] << 48 | <uint64_t> at[2] << 40 | <uint64_t> at[3] << 32
            | <uint64_t> at[4] << 24 | <uint64_t> at[5] << 16 | <uint64_t> at[6] << 8 | at[7])


@cython.overflowcheck(False)                        # nothing below comes near 2^64
cdef inline uint32_t fletcher32(const uint8_t[::1] data) noexcept nogil:
    """Sum 16-bit big-endian words modulo 65535 with non-zero residues, an odd last byte as a high byte."""
    cdef Py_ssize_t at = 0, stop, size = data.shape[0]
    cdef uint64_t low = 0, high = 0                 # low: sum of words; high: sum of the partial sums
    cdef uint64_t words, a, b, c, d
    while at + 1 < size:
        stop = min(size - 1, at + 131072)           # 65,536 words keep high below 2^56
        while at + 7 < stop:
            words = four_words(&data[at])
            a, b, c, d = words >> 48, words >> 32 & 0xFFFF, words >> 16 & 0xFFFF, words & 0xFFFF
            high += 4 * low + 4 * a + 3 * b + 2 * c + d
            low += a + b + c + d
            at += 8
        while at < stop:
            low += (<uint64_t> data[at] << 8) | data[at + 1]
            high += low
            at += 2
        low %= 65535
        high %= 65535
    if at < size:
        low += <uint64_t> data[at] << 8
        high += low
        low %= 65535
        high %= 65535
    for at in range(size):
        if data[at]:                                # HDF5 folds carries, so only all-zero data gives 0
            return ((<uint32_t> (high or 65535)) << 16) | <uint32_t> (low or 65535)
    return 0
