"""A sum tree of fan-out 8 over float64 leaves: eight children fill one cache line.

Layout: level 0 holds the leaves, level l + 1 the sums of groups of eight of level l; the last level has eight
nodes. `nodes` is all levels one after the other, `first[l]` where level l starts. Invariant: every inner node
equals `sum8` of its children to the last bit, because it is recomputed and never adjusted.

Many leaves are looked for or changed at once, level by level, so that the waits for memory overlap.
"""

from libc.stdint cimport int64_t

from fetch cimport fetch_soon

cdef enum:
    AT_ONCE = 64                                    # how many searches go down together


cdef inline double sum8(const double[::1] nodes, int64_t at) noexcept nogil:
    """Add eight neighbours in the order that docs/draws.md fixes."""
    return (((nodes[at] + nodes[at + 1]) + (nodes[at + 2] + nodes[at + 3]))
            + ((nodes[at + 4] + nodes[at + 5]) + (nodes[at + 6] + nodes[at + 7])))


cdef inline void refresh(double[::1] nodes, const int64_t[::1] first, const int64_t[::1] leaf,
                         Py_ssize_t level) noexcept nogil:
    """Recompute the ancestors of leaves on one level; those below are right."""
    cdef Py_ssize_t i
    cdef int64_t parent
    for i in range(leaf.shape[0]):
        parent = leaf[i] >> 3 * level
        nodes[first[level] + parent] = sum8(nodes, first[level - 1] + (parent << 3))


cdef inline void descend(const double[::1] nodes, const int64_t[::1] first, double *mass, int64_t[::1] out,
                         Py_ssize_t start, Py_ssize_t count) noexcept nogil:
    """Write the leaves that own mass[0 .. count - 1] to out[start ..]; uses up `mass`.

    A leaf of 0 is never written while the total is positive. At each level the children's masses are taken off from
    the left. When rounding leaves mass behind the last child, the last child above 0 is taken, with the mass that
    was left in front of it: so below it the last leaf above 0 is found, however deep the tree is. Every node above
    0 has a child above 0.
    """
    cdef Py_ssize_t level, i
    cdef int64_t at, child, k
    cdef double[9] rest
    for i in range(start, start + count):
        out[i] = 0
    for level in range(first.shape[0] - 1, -1, -1):
        for i in range(count):
            at, rest[0], child = first[level] + (out[start + i] << 3), mass[i], 0
            for k in range(8):                      # no branch to guess: once rest < node, it is so for all that follow
                child += rest[k] >= nodes[at + k]
                rest[k + 1] = rest[k] - nodes[at + k]
            if child == 8:
                child = last_above_zero(nodes, at, &mass[i])
            else:
                mass[i] = rest[child]
            out[start + i] = (out[start + i] << 3) + child
            if level:
                fetch_soon(&nodes[first[level - 1] + (out[start + i] << 3)])


cdef inline int64_t last_above_zero(const double[::1] nodes, int64_t at, double *mass) noexcept nogil:
    """Return which of eight children is the last above 0, `mass` reduced to what was left in front of it."""
    cdef int64_t child, chosen = 0
    cdef double rest = mass[0], left = mass[0]
    for child in range(8):
        if nodes[at + child] > 0:
            chosen, left = child, rest
            rest -= nodes[at + child]
    mass[0] = left
    return chosen
