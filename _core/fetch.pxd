"""Asking for memory before it is needed; a hint, and nothing where the compiler has none. Any address will do."""

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define fetch_soon(at) __builtin_prefetch(at)
    #else
    #define fetch_soon(at)
    #endif
    """
    void fetch_soon(const void *at) noexcept nogil
