"""A sum tree of fan-out 8 over float64 leaves: eight children fill one cache line.

Layout: level 0 holds the leaves, level l + 1 the sums of groups of eight of level l; the last level has eight
nodes. `nodes` is all levels one after the other, `first[l]` where level l starts. Invariant: every inner node
equals `sum8` of its children to the last bit, because it is recomputed and never adjusted.
"""

from libc.stdint cimport int64_t


cdef inline double sum8(const double[::1] nodes, int64_t at) noexcept nogil:
    """Add eight neighbours in the order that docs/draws.md fixes."""
    return (((nodes[at] + nodes[at + 1]) + (nodes[at + 2] + nodes[at + 3]))
            + ((nodes[at + 4] + nodes[at + 5]) + (nodes[at + 6] + nodes[at + 7])))


cdef inline void refresh(double[::1] nodes, const int64_t[::1] first, int64_t leaf) noexcept nogil:
    """Recompute the ancestors of one leaf."""
    cdef Py_ssize_t level
    cdef int64_t child = leaf
    for level in range(1, first.shape[0]):
        child >>= 3
        nodes[first[level] + child] = sum8(nodes, first[level - 1] + (child << 3))


cdef inline int64_t descend(const double[::1] nodes, const int64_t[::1] first, double mass) noexcept nogil:
    """Return the leaf that owns `mass`; a leaf of 0 is never returned while the total is positive.

    At each level the children's masses are taken off from the left. When rounding leaves mass behind the last
    child, the last child above 0 is taken, with the mass that was left in front of it: so below it the last leaf
    above 0 is found, however deep the tree is. Every node above 0 has a child above 0.
    """
    cdef Py_ssize_t level
    cdef int64_t node = 0, child, chosen = 0
    cdef double value, rest
    for level in range(first.shape[0] - 1, -1, -1):
        chosen, rest = node, mass
        for child in range(node, node + 8):
            value = nodes[first[level] + child]
            if value > 0:
                chosen, rest = child, mass
                if mass < value:
                    break
                mass -= value
        mass = rest
        node = chosen << 3
    return chosen
