"""The plain step: one more row of every environment while no episode starts or ends.

`PlainStep.append` either appends the whole row, or finds something that is not plain (another dtype or shape, an
end, a stack that does not continue) and changes nothing; then the general way in Python applies, which also has the
words for what is wrong. Both leave the same bytes.
"""

import numpy as np

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_Clear
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

cimport cython

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

cdef enum:
    MAX_FIELDS = 32
    MAX_AXES = 8
cdef enum Role:                                     # what of a step a field takes
    OBSERVATION, REWARD, ENDING, PRIORITY, OTHER, FIRST, LAST

cdef tuple ROLES = ("observation", "reward", "ending", "priority", "other", "first", "last")
cdef object ARRAY = np.ndarray, SCALAR = np.generic  # no subclasses of arrays: a masked one may hold nothing


cdef struct Values:                                 # of one field, all environments
    const uint8_t *start
    Py_buffer view
    bint held                                       # `view` must be released
    double scalar                                   # room for a Python number in the field's dtype


cdef object bytes_of(object array):
    """Return a contiguous array as bytes that share its memory."""
    return array.reshape(-1).view(np.uint8)


@cython.final
cdef class PlainField:
    """One field of a plain step. `begin(chunk)` opens a chunk and returns its first row in the pool.

    `source`: name of the argument of step; `stack`: frames that arrive, of which the last is stored.
    """

    cdef readonly str source
    cdef object begin
    cdef uint8_t[:, ::1] pool
    cdef int64_t[::1] newest
    cdef uint8_t[::1] converted
    cdef int64_t nbytes, chunk_rows, stack, count
    cdef int axes, itemsize
    cdef Py_ssize_t shape[MAX_AXES]
    cdef char kind
    cdef Role role

    def __init__(self, str source, str role, object begin, pool, newest, object dtype, tuple shape, int64_t chunk_rows,
                 int64_t stack, int64_t envs):
        self.source, self.role, self.begin, self.pool, self.newest = source, <Role> <int> ROLES.index(role), begin, pool, newest
        self.kind, self.itemsize, self.nbytes = ord(dtype.kind), dtype.itemsize, pool.shape[1]
        self.chunk_rows, self.stack, self.axes = chunk_rows, stack, len(shape)
        for axis, size in enumerate(shape):
            self.shape[axis] = size
        self.count = envs * stack * self.nbytes // self.itemsize
        self.converted = np.empty(self.count * self.itemsize, np.uint8)

    cdef bint take(self, object value, Values *values) except -1:
        """Point `values` at a value in the field's dtype; False if it is not plain."""
        cdef Py_ssize_t axis
        if type(value) is not ARRAY and (self.axes or not isinstance(value, SCALAR)):
            values.start = <const uint8_t *> &values.scalar
            return self.axes == 0 and self.take_number(value, <uint8_t *> &values.scalar)
        try:
            PyObject_GetBuffer(value, &values.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        except (BufferError, ValueError, TypeError):
            return False
        values.held = True
        if values.view.ndim != self.axes:
            return False
        for axis in range(self.axes):
            if values.view.shape[axis] != self.shape[axis]:
                return False
        values.start = <const uint8_t *> values.view.buf
        return self.has_dtype(&values.view) or self.narrow(values)

    cdef bint has_dtype(self, Py_buffer *view) noexcept:
        """Tell whether a buffer holds the field's dtype in native order."""
        cdef const char *form = view.format
        cdef char kind
        if form == NULL or form[0] == 0 or form[1] != 0 or view.itemsize != self.itemsize:
            return False
        kind = form[0]
        return (kind in b"bhilq" and self.kind == c"i" or kind in b"BHILQ" and self.kind == c"u"
                or kind in b"efd" and self.kind == c"f" or kind == c"?" and self.kind == c"b")

    cdef bint narrow(self, Values *values) noexcept:
        """Convert float64 to float32, as numpy's same_kind rule allows."""
        cdef const double *wide = <const double *> values.start
        cdef float *narrow
        cdef int64_t k
        if values.view.format == NULL or values.view.format[0] != c"d" or self.kind != c"f" or self.itemsize != 4:
            return False
        narrow = <float *> &self.converted[0]
        for k in range(self.count):
            narrow[k] = <float> wide[k]
        values.start = &self.converted[0]
        return True

    cdef bint take_number(self, object value, uint8_t *to) except -1:
        """Write a Python bool, int or float in the field's dtype; False if it is none of them or does not fit."""
        cdef int overflow = 0
        cdef int64_t whole = 0
        cdef double real
        if type(value) is float:
            if self.kind != c"f":
                return False
            real = value
        elif type(value) is int or type(value) is bool:
            whole = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow:
                return False
            real = <double> whole
        else:
            return False
        if self.kind == c"f":
            return self.take_real(real, whole, to)
        if self.kind == c"b":
            to[0] = whole != 0
            return 0 <= whole <= 1
        if self.itemsize < 8:                       # an integer: its low bytes, if they hold it
            overflow = 8 * self.itemsize
            if self.kind == c"u" and not 0 <= whole < <int64_t> 1 << overflow:
                return False
            if self.kind == c"i" and not -(<int64_t> 1 << (overflow - 1)) <= whole < <int64_t> 1 << (overflow - 1):
                return False
        elif self.kind == c"u" and whole < 0:
            return False
        memcpy(to, &whole, self.itemsize)           # little-endian: `plain_step` asks for that
        return True

    cdef bint take_real(self, double real, int64_t whole, uint8_t *to) noexcept:
        """Write a number as float32 or float64."""
        cdef float single = <float> whole if whole else <float> real
        if self.itemsize == 8:
            memcpy(to, &real, 8)
        elif self.itemsize == 4:
            memcpy(to, &single, 4)
        return self.itemsize >= 4

    cdef double real(self, const uint8_t *values, Py_ssize_t env) noexcept:
        """Return one of many float32 or float64."""
        return (<const float *> values)[env] if self.itemsize == 4 else (<const double *> values)[env]

    cdef int put(self, Py_ssize_t env, const uint8_t *value) except -1:
        """Write the newest row of an environment."""
        memcpy(&self.pool[self.newest[env], 0], value, self.nbytes)
        return 0

    cdef int advance(self, int64_t env, int64_t row, int64_t envs) except -1:
        """Move on to `row` of an environment."""
        if row % self.chunk_rows:
            self.newest[env] += 1
        else:
            self.newest[env] = self.begin(row // self.chunk_rows * envs + env)
        return 0


@cython.final
cdef class PlainStep:
    """Append plain steps to `fields` of `envs` environments; `rows` is what they belong to."""

    cdef list fields
    cdef int64_t envs
    cdef object rows
    cdef tuple bound
    cdef int64_t[::1] row_counts, current, length
    cdef uint8_t[::1] states
    cdef double[::1] returns
    cdef uint8_t waiting

    def __init__(self, list fields not None, object rows, uint8_t waiting):
        if len(fields) > MAX_FIELDS:
            raise ValueError(f"{len(fields)} fields")
        self.fields, self.rows, self.envs, self.waiting = fields, rows, len(rows.rows), waiting

    cdef int bind(self) except -1:
        """Look at the arrays of rows and episodes, which are replaced as they grow."""
        cdef object rows = self.rows, episodes = rows.episodes
        cdef dict columns = episodes.columns
        cdef tuple now = (rows.rows, rows.states, episodes.current, columns["length"], columns["return"])
        if self.bound is None or not (now[0] is self.bound[0] and now[1] is self.bound[1] and now[2] is self.bound[2]
                                      and now[3] is self.bound[3] and now[4] is self.bound[4]):
            self.row_counts, self.states, self.current, self.length, self.returns = now
            self.bound = now
        return 0

    def append(self, dict values not None, dict stacks not None, bint alone):
        """Append a row of every environment and return True, or change nothing and return False.

        `values`: what step was given, by field; `stacks`: the last stack of each field that arrives stacked. Where a
        chunk begins, Python is called back in between: without `alone`, which says that nothing can interrupt it,
        nothing is changed and None returned.
        """
        cdef Values taken[MAX_FIELDS]
        cdef Py_ssize_t at, count = len(self.fields)
        cdef bint plain = len(values) == count - 2      # all but is_first and is_last: none missing, none unknown
        self.bind()
        for at in range(count):
            taken[at].held = False
        try:
            for at in range(self.envs):
                plain = plain and self.states[at] == self.waiting
            for at in range(count):
                plain = plain and self.take(<PlainField> self.fields[at], values, stacks, &taken[at])
            if plain and not alone and self.begins():
                return None
            if plain:
                self.write(taken, stacks)
                self.rows.version += 1
            return plain
        finally:
            for at in range(count):
                if taken[at].held:
                    PyBuffer_Release(&taken[at].view)

    cdef bint begins(self) except -1:
        """Tell whether a chunk begins with the next rows."""
        cdef PlainField field
        cdef int64_t env
        for field in self.fields:
            for env in range(self.envs):
                if self.row_counts[env] % field.chunk_rows == 0:
                    return True
        return False

    cdef bint take(self, PlainField field, dict values, dict stacks, Values *taken) except -1:
        """Take a field's values; False if they are not plain, or end an episode."""
        cdef int64_t env
        cdef const uint8_t[::1] last
        cdef int64_t older = (field.stack - 1) * field.nbytes, whole = field.stack * field.nbytes
        if field.role == FIRST or field.role == LAST:
            return True
        if field.source not in values or not field.take(values[field.source], taken):
            return False
        if field.role == ENDING:
            for env in range(self.envs):
                if taken.start[env]:
                    return False
        if field.role == PRIORITY:
            for env in range(self.envs):
                if not field.real(taken.start, env) >= 0 or field.real(taken.start, env) == INFINITY:
                    return False                    # NaN too: it means that none is given
        if field.stack > 1:
            if field.source not in stacks or not stacks[field.source].flags.c_contiguous:
                return False
            last = bytes_of(stacks[field.source])
            for env in range(self.envs):
                if memcmp(taken.start + env * whole, &last[env * whole + field.nbytes], older):
                    return False
        return True

    cdef int write(self, Values *taken, dict stacks) except -1:
        """Complete the waiting rows, then append one row each that waits."""
        cdef PlainField field
        cdef Py_ssize_t at
        cdef int64_t env
        cdef uint8_t yes = 1, no = 0
        for at in range(len(self.fields)):
            field = <PlainField> self.fields[at]
            for env in range(self.envs):
                if field.role == LAST:
                    field.put(env, &no)
                elif field.role == REWARD:
                    self.count(env, field.real(taken[at].start, env))
                if field.role in (REWARD, ENDING, PRIORITY, OTHER):
                    field.put(env, taken[at].start + env * field.nbytes)
                field.advance(env, self.row_counts[env], self.envs)
                if field.role == LAST:
                    field.put(env, &yes)
                elif field.role == OBSERVATION:
                    field.put(env, taken[at].start + ((env + 1) * field.stack - 1) * field.nbytes)
            if field.stack > 1:
                self.remember(field, taken[at].start, bytes_of(stacks[field.source]))
        for env in range(self.envs):
            self.row_counts[env] += 1
        return 0

    cdef int remember(self, PlainField field, const uint8_t *stack, uint8_t[::1] last) except -1:
        """Keep the stacks, which the next ones must continue."""
        memcpy(&last[0], stack, self.envs * field.stack * field.nbytes)
        return 0

    cdef int count(self, int64_t env, double reward) except -1:
        """Count one transition more in the episode going on."""
        cdef int64_t episode = self.current[env]
        self.length[episode] += 1
        self.returns[episode] += reward
        return 0
