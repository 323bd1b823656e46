"""One field's rows of every environment: decoded chunks in a pool of fixed size, loaded when they are asked for.

The rows still being written live in the same pool, in pinned slots, so reading and writing see one store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _core
from .buffers import Buffers
from .chunk import decode
from .codec import CODECS
from .errors import DamagedError, MemoryBudgetError
from .header import Header

Array = np.ndarray[Any, Any]


class Column:
    """The rows of field `number`, `slots` chunks of them decoded in memory."""

    def __init__(
        self,
        header: Header,
        number: int,
        slots: int,
        read: Callable[[int, int], bytes],
        path: str,
        buffers: Buffers | None = None,
    ) -> None:
        self.name = header.fields[number]
        self.field = header.schema.steps[self.name]
        self.header, self.number, self.read, self.path = header, number, read, path
        self.envs, self.chunk_rows = header.schema.envs, header.rows[self.name]
        self.dtype, self.buffers = np.dtype(self.field.dtype), buffers or Buffers()
        self.codec = CODECS[header.codec(self.name)]
        self.table = _core.ChunkTable(slots)
        self.pool = np.empty((slots * self.chunk_rows, self.field.nbytes), np.uint8)
        self.values = self.pool.reshape(-1).view(self.dtype).reshape(len(self.pool), *self.field.shape)
        self.open: set[int] = set()  # chunks with rows that are not in the file as a full chunk yet
        self.newest = np.zeros(self.envs, np.int64)  # of a writer: where in the pool each environment's last row is
        self.offset = np.full(64, -1, np.int64)
        self.size = np.zeros(64, np.int64)

    # --- where chunks are in the file

    def locate(self, chunk: int, offset: int, size: int) -> None:
        """Remember where in the file a chunk is."""
        if chunk >= len(self.offset):
            room = max(chunk + 1, 2 * len(self.offset))
            self.offset = np.concatenate([self.offset, np.full(room - len(self.offset), -1, np.int64)])
            self.size = np.concatenate([self.size, np.zeros(room - len(self.size), np.int64)])
        self.offset[chunk], self.size[chunk] = offset, size

    def fetch(self, chunk: int, slot: int) -> None:
        """Read and decode a chunk of the file into a slot."""
        first, env = chunk // self.envs * self.chunk_rows, chunk % self.envs
        where = f"{self.path}: field {self.name!r}, environment {env}, rows from {first}"
        if chunk >= len(self.offset) or self.offset[chunk] < 0:
            raise DamagedError(f"{where}: the chunk is missing")
        data = self.read(int(self.offset[chunk]), int(self.size[chunk]))
        expected = self.header.trailer(self.number, env, first, self.chunk_rows, 0)
        decode(data, self.dtype.itemsize, self.codec, expected, self.bytes_of(slot), where)

    # --- the pool

    def bytes_of(self, slot: int) -> Array:
        """Return the decoded bytes of a slot, one dimension."""
        if slot < 0:
            raise MemoryBudgetError(f"{self.path}: field {self.name!r}: a chunk being written is not in memory")
        return self.pool[slot * self.chunk_rows : (slot + 1) * self.chunk_rows].reshape(-1)

    def claim(self, chunk: int) -> int:
        """Give a chunk a slot."""
        slot: int = self.table.claim(chunk)
        if slot < 0:
            raise MemoryBudgetError(f"{self.path}: field {self.name!r}: a batch needs more chunks than memory holds")
        return slot

    def load(self, chunk: int) -> None:
        """Bring a chunk of the file into the pool."""
        slot = self.claim(chunk)
        if not self.field.nbytes:
            return  # a field of no elements has no chunks
        try:
            self.fetch(chunk, slot)
        except BaseException:
            self.table.drop(chunk)
            raise

    def begin(self, chunk: int) -> int:
        """Open a chunk for writing, zeroed and pinned; return where in the pool its first row is."""
        if chunk not in self.open:
            self.table.begin_turn()  # no gather is going on, so nothing but open chunks must stay
            slot = self.claim(chunk)
            self.table.pin(chunk, True)
            self.open.add(chunk)
            self.bytes_of(slot)[:] = 0
        return int(self.table.slot(chunk)) * self.chunk_rows

    def written(self, chunk: int, offset: int, size: int) -> None:
        """Note that an open chunk is in the file now; its rows stay cached."""
        self.locate(chunk, offset, size)
        self.table.pin(chunk, False)
        self.open.discard(chunk)

    def forget(self, chunk: int) -> None:
        """Drop a chunk from the pool, open or not."""
        self.table.drop(chunk)
        self.open.discard(chunk)

    # --- rows

    def advance(self, env: Array, row: Array, begins: Array | None) -> None:
        """Move on to the next row of these environments; `begins` lists those whose row starts a chunk."""
        self.newest[env] += 1
        if begins is not None:
            for e, r in zip(env[begins].tolist(), row[begins].tolist(), strict=True):
                chunk = r // self.chunk_rows * self.envs + e
                self.newest[e] = self.begin(chunk)

    def catch_up(self, env: int, rows: int) -> None:
        """Point at an environment's last row after rows were appended by `put` or restored."""
        if rows:
            chunk = (rows - 1) // self.chunk_rows * self.envs + env
            self.newest[env] = self.table.slot(chunk) * self.chunk_rows + (rows - 1) % self.chunk_rows

    def put(self, env: Array, row: Array, values: Array) -> None:
        """Write one row per entry into open chunks, opening those that begin."""
        where = np.empty((len(row), 1), np.int64)
        for chunk in self.table.resolve(env, row[:, None], self.envs, self.chunk_rows, where):
            self.begin(chunk)
        if where.min(initial=0) < 0:
            self.table.resolve(env, row[:, None], self.envs, self.chunk_rows, where)
        self.values[where[:, 0]] = values

    def gather(self, env: Array, row: Array, out: Array | None = None) -> Array:
        """Return rows (B, J, *shape): row[i, j] of environment env[i]; -1 gives zeros. Cost: one copy of the output."""
        if out is None:
            memory = self.buffers.take(row.size * self.field.nbytes)
            out = memory.view(self.dtype).reshape(*row.shape, *self.field.shape)
        flat = out.reshape(-1).view(np.uint8).reshape(row.size, self.field.nbytes)
        piece = self.items_at_once(row)
        where = np.empty(row.shape, np.int64)
        for k in range(0, len(row), piece):
            part = slice(k, k + piece)
            missing = self.table.resolve(env[part], row[part], self.envs, self.chunk_rows, where[part])
            for chunk in missing:
                self.load(chunk)
            if missing:
                self.table.resolve(env[part], row[part], self.envs, self.chunk_rows, where[part])
            spread = row.shape[1]
            _core.gather(self.pool, where[part].reshape(-1), flat[k * spread : (k + piece) * spread])
        return out

    def items_at_once(self, row: Array) -> int:
        """Return of how many items the chunks are sure to fit the pool together."""
        free: int = self.table.limit - len(self.open)
        if row.size <= free:
            return max(len(row), 1)
        low = np.where(row < 0, row.max(axis=1, keepdims=True), row).min(axis=1)
        reach = int((row.max(axis=1) - low).max())
        return max(1, free // int(min(row.shape[1], reach // self.chunk_rows + 2)))

    def rows(self, env: int, start: int, stop: int) -> Array:
        """Return rows start to stop of one environment."""
        row = np.arange(start, stop)[:, None]
        return self.gather(np.full(len(row), env), row)[:, 0]
