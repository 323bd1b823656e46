"""Where rows lie: in which episode, and which of them may be drawn.

A *place* is a column of a block of int64 with PARTS rows, see places.pxd. Everything takes contiguous typed views that
Python has checked, releases the GIL once a call and allocates nothing per row.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from lengths cimport same_length
from places cimport ENV, FLAGS, HIGH, LOW, NUMBER, PARTS, ROW, STOP
from search cimport TOGETHER, last_at_most, last_at_most_many


@cython.final
cdef class Segments:
    """Every environment's episodes in order: those of environment e stand at base[e] .. base[e] + size[e] - 1.

    Per segment: `start`, its first row; `first`, the number of its first transition; `episode`, its place in the
    table, whose columns the next four are; `reach`, how many of its first rows are valid starts; `before`, how many
    of its environment's valid starts come before it, `stride` rows apart. Looks at the arrays, does not copy them.
    """

    cdef const int64_t[::1] base, size, start, first, episode, length, reach, before
    cdef const uint8_t[::1] final, terminated, truncated
    cdef int64_t stride

    def __init__(self, base, size, start, first, episode, length, final, terminated, truncated, reach, before,
                 int64_t stride):
        self.base, self.size, self.start, self.first, self.episode = base, size, start, first, episode
        self.length, self.final, self.terminated, self.truncated = length, final, terminated, truncated
        self.reach, self.before, self.stride = reach, before, stride
        same_length(base.shape[0], size.shape[0], size.shape[0])
        same_length(start.shape[0], first.shape[0], episode.shape[0])
        same_length(start.shape[0], reach.shape[0], reach.shape[0])
        same_length(start.shape[0], before.shape[0], before.shape[0])
        same_length(length.shape[0], final.shape[0], terminated.shape[0])
        same_length(length.shape[0], truncated.shape[0], truncated.shape[0])

    cdef inline void place(self, int64_t segment, int64_t env, int64_t row, int64_t[:, ::1] out, Py_ssize_t i) noexcept nogil:
        """Write one place."""
        cdef int64_t number = self.episode[segment], low = self.start[segment]
        out[ENV, i], out[ROW, i], out[LOW, i], out[NUMBER, i] = env, row, low, number
        out[STOP, i] = low + self.length[number]
        out[HIGH, i] = out[STOP, i] - 1 + self.final[number]
        out[FLAGS, i] = self.terminated[number] | self.truncated[number] << 1

    def find(self, const int64_t[::1] env not None, const int64_t[::1] row not None, int64_t[::1] out not None):
        """Write the segment that row[i] of env[i] lies in or behind, -1 where there is none."""
        cdef Py_ssize_t i = 0, j, count
        cdef int64_t[TOGETHER] base, size, found
        same_length(row.shape[0], env.shape[0], out.shape[0])
        with nogil:
            while i < row.shape[0]:
                count = min(TOGETHER, row.shape[0] - i)
                for j in range(count):
                    base[j], size[j] = self.base[env[i + j]], self.size[env[i + j]]
                last_at_most_many(self.start, base, size, &row[i], found, count)
                for j in range(count):
                    out[i + j] = base[j] + found[j] if found[j] >= 0 else -1
                i += TOGETHER

    def places(self, const int64_t[::1] segment not None, const int64_t[::1] env not None,
               const int64_t[::1] row not None, int64_t[:, ::1] out not None):
        """Write the places of rows whose segments are known."""
        cdef Py_ssize_t i
        same_length(row.shape[0], env.shape[0], segment.shape[0])
        same_length(row.shape[0], out.shape[1], row.shape[0])
        same_length(PARTS, out.shape[0], PARTS)
        with nogil:
            for i in range(row.shape[0]):
                self.place(segment[i], env[i], row[i], out, i)

    def pick(self, const int64_t[::1] rank not None, const int64_t[::1] until not None,
             const int64_t[::1] skip not None, int64_t[:, ::1] out not None, int64_t[::1] ids not None):
        """Write the places and ids of the rank[i]-th valid starts, environment by environment, oldest first.

        until[e]: valid starts of environments 0 .. e; skip[e]: those of e older than the capacity.
        """
        cdef Py_ssize_t i = 0, j, count
        cdef int64_t e, s
        cdef int64_t[TOGETHER] env, base, size, rest, found
        same_length(rank.shape[0], out.shape[1], ids.shape[0])
        same_length(self.base.shape[0], until.shape[0], skip.shape[0])
        same_length(PARTS, out.shape[0], PARTS)
        with nogil:
            while i < rank.shape[0]:
                count = min(TOGETHER, rank.shape[0] - i)
                for j in range(count):
                    e = env[j] = last_at_most(until, 0, until.shape[0], rank[i + j]) + 1
                    rest[j] = rank[i + j] - (until[e - 1] if e else 0) + skip[e]
                    base[j], size[j] = self.base[e], self.size[e]
                last_at_most_many(self.before, base, size, rest, found, count)
                for j in range(count):
                    s = base[j] + found[j]
                    self.place(s, env[j], self.start[s] + (rest[j] - self.before[s]) * self.stride, out, i + j)
                    ids[i + j] = out[ENV, i + j] << 32 | out[ROW, i + j]
                i += TOGETHER

    def pick_leaves(self, const int64_t[::1] leaf not None, const int64_t[::1] transitions not None, int64_t capacity,
                    int64_t[:, ::1] out not None, int64_t[::1] ids not None):
        """Write the places and ids of the transitions whose leaves these are.

        Transition q of environment e has leaf (q % capacity) * N + e; capacity 0 means q * N + e.
        """
        cdef Py_ssize_t i = 0, j, count
        cdef int64_t e, q, s, n = transitions.shape[0]
        cdef int64_t[TOGETHER] base, size, ordinal, found
        same_length(leaf.shape[0], out.shape[1], ids.shape[0])
        same_length(self.base.shape[0], n, n)
        same_length(PARTS, out.shape[0], PARTS)
        with nogil:
            while i < leaf.shape[0]:
                count = min(TOGETHER, leaf.shape[0] - i)
                for j in range(count):
                    e, q = leaf[i + j] % n, leaf[i + j] // n
                    if capacity:
                        q = transitions[e] - 1 - (transitions[e] - 1 - q) % capacity
                    base[j], size[j], ordinal[j] = self.base[e], self.size[e], q
                last_at_most_many(self.first, base, size, ordinal, found, count)
                for j in range(count):
                    e, s = leaf[i + j] % n, base[j] + found[j]
                    self.place(s, e, self.start[s] + ordinal[j] - self.first[s], out, i + j)
                    ids[i + j] = out[ENV, i + j] << 32 | out[ROW, i + j]
                i += TOGETHER

    def leaves(self, const int64_t[::1] ids not None, const int64_t[::1] transitions not None, int64_t capacity,
               int64_t[::1] out not None):
        """Write the leaf of the transition of each id; return whether all are valid starts within the capacity.

        If they are not, what is written means nothing.
        """
        cdef Py_ssize_t i = 0, j, count
        cdef int64_t e, s, step, q, n = transitions.shape[0]
        cdef int64_t[TOGETHER] base, size, row, found
        cdef bint plain = True
        same_length(ids.shape[0], out.shape[0], out.shape[0])
        same_length(self.base.shape[0], n, n)
        with nogil:
            while plain and i < ids.shape[0]:
                count = min(TOGETHER, ids.shape[0] - i)
                for j in range(count):
                    e, row[j] = ids[i + j] >> 32, ids[i + j] & <int64_t> 0xFFFFFFFF
                    base[j] = self.base[e] if 0 <= e < n else 0
                    size[j] = self.size[e] if 0 <= e < n else 0
                last_at_most_many(self.start, base, size, row, found, count)
                for j in range(count):
                    e, s = ids[i + j] >> 32, base[j] + found[j]
                    if found[j] < 0:
                        plain = False
                        break
                    step = row[j] - self.start[s]
                    q = self.first[s] + step
                    if step >= self.reach[s] or step % self.stride or capacity and q < transitions[e] - capacity:
                        plain = False
                        break
                    out[i + j] = (q % capacity if capacity else q) * n + e
                i += TOGETHER
        return plain


def look_ahead(const int64_t[:, ::1] place not None, int64_t n_step, bint shorten, const float[::1] discounts not None,
               int64_t[:, ::1] ahead not None, uint8_t[:, ::1] flags not None, float[::1] discount not None):
    """Write how an n-step transition from each place goes on.

    ahead: the steps really taken, and the row seen after them, -1 where it is not known. flags: terminated and
    truncated, only where the transition reaches the end. discount: discounts[steps], 0 where terminated. `shorten`:
    an episode that was cut without a final observation ends before its last step.
    """
    cdef Py_ssize_t i
    cdef int64_t steps, stop, row
    cdef bint known, at_end
    same_length(place.shape[1], ahead.shape[1], flags.shape[1])
    same_length(place.shape[1], discount.shape[0], discount.shape[0])
    same_length(n_step + 1, discounts.shape[0], discounts.shape[0])
    same_length(2, ahead.shape[0], flags.shape[0])
    same_length(PARTS, place.shape[0], PARTS)
    with nogil:
        for i in range(place.shape[1]):
            row, stop = place[ROW, i], place[STOP, i]
            known = place[HIGH, i] >= stop
            steps = min(n_step, stop - (shorten and not known and not place[FLAGS, i] & 1) - row)
            at_end = row + steps == stop
            ahead[0, i], ahead[1, i] = steps, -1 if at_end and not known else row + steps
            flags[0, i], flags[1, i] = at_end and place[FLAGS, i] & 1, at_end and place[FLAGS, i] >> 1
            discount[i] = 0 if flags[0, i] else discounts[steps]
