"""A check of arrays that must fit together: no kernel would notice."""


cdef inline int same_length(Py_ssize_t a, Py_ssize_t b, Py_ssize_t c) except -1:
    """Refuse lengths that disagree."""
    if not a == b == c:
        raise ValueError(f"lengths disagree: {a}, {b}, {c}")
    return 0
