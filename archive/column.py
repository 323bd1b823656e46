"""One field's rows of every environment: decoded chunks in a pool of fixed size, loaded when they are asked for.

The rows still being written live in the same pool, in pinned slots, so reading and writing see one store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._pool import Part, Pool
from .buffers import Buffers
from .chunk import Identity, decode, spread
from .codec import CODECS
from .errors import ArchiveError, DamagedError, MemoryBudgetError
from .header import Header
from .places import Places
from .schema import is_observation

Array = np.ndarray[Any, Any]


@dataclass
class Loads:
    """How often a chunk of any field of a run had to be read."""

    count: int = 0


class Column:
    """The rows of field `number`, `slots` chunks of them decoded in memory.

    `lock` is held while the pool changes and while rows are copied out of it, not while chunks are read and decoded.
    """

    def __init__(
        self,
        header: Header,
        number: int,
        slots: int,
        read: Callable[[int, int], bytes],
        path: str,
        buffers: Buffers,
        lock: threading.RLock,
        loads: Loads,
    ) -> None:
        self.name = header.fields[number]
        self.field = header.schema.steps[self.name]
        self.header, self.number, self.read, self.path, self.lock, self.loads = header, number, read, path, lock, loads
        self.envs, self.chunk_rows = header.schema.envs, header.rows[self.name]
        self.run_id = bytes.fromhex(header.run_id)
        self.chunk_bytes = self.chunk_rows * self.field.nbytes
        self.dtype, self.buffers = np.dtype(self.field.dtype), buffers
        self.codec = CODECS[header.codec(self.name)]
        self.memory = np.empty((slots * self.chunk_rows, self.field.nbytes), np.uint8)
        self.values = self.memory.reshape(-1).view(self.dtype).reshape(len(self.memory), *self.field.shape)
        self.slots = self.memory.reshape(slots, self.chunk_bytes)
        self.pool = Pool(self.memory, self.envs, self.chunk_rows)
        self.filling = -1  # chunk whose slot is claimed and not filled yet
        self.single = self.part()
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

    def fetch(self, chunk: int) -> bytes:
        """Return the decoded bytes of a chunk of the file, still shuffled."""
        return self.stored(chunk, lambda data, identity: decode(data, self.chunk_bytes, self.codec, identity))

    def stored(self, chunk: int, use: Callable[[bytes, Identity], bytes]) -> bytes:
        """Return what `use` makes of a chunk's bytes in the file and what its trailer must name."""
        first, env = chunk // self.envs * self.chunk_rows, chunk % self.envs
        if chunk >= len(self.offset) or self.offset[chunk] < 0:
            raise DamagedError(f"{self.where(env, first)}: the chunk is missing")
        data = self.read(int(self.offset[chunk]), int(self.size[chunk]))
        try:
            return use(data, (self.run_id, self.number, env, first))
        except DamagedError as error:
            raise DamagedError(f"{self.where(env, first)}: {error}") from error

    def where(self, env: int, first: int) -> str:
        """Return what a chunk is called in errors."""
        return f"{self.path}: field {self.name!r}, environment {env}, rows from {first}"

    # --- the pool

    def bytes_of(self, slot: int) -> Array:
        """Return the decoded bytes of a slot, one dimension."""
        if slot < 0:
            raise MemoryBudgetError(f"{self.path}: field {self.name!r}: a chunk being written is not in memory")
        return np.asarray(self.slots[slot])

    def claim(self, chunk: int) -> int:
        """Give a chunk a slot."""
        slot: int = self.pool.claim(chunk)
        if slot < 0:
            raise MemoryBudgetError(f"{self.path}: field {self.name!r}: a batch needs more chunks than memory holds")
        return slot

    def load(self, chunk: int) -> None:
        """Bring a chunk of the file into the pool."""
        decoded = self.fetch(chunk) if self.chunk_bytes else b""  # a field of no elements has no chunks
        with self.lock:
            self.loads.count += 1
            if self.pool.slot(chunk) < 0:
                self.filling = chunk
                try:
                    spread(decoded, self.dtype.itemsize, self.bytes_of(self.claim(chunk)))
                except BaseException:  # Ctrl-C too: a slot that is half filled must not be found
                    self.drop_filling()
                    raise
                self.filling = -1

    def drop_filling(self) -> None:
        """Forget the chunk that was being copied into its slot: it was interrupted, or the copier is in the parent."""
        self.pool.drop(self.filling)
        self.filling = -1

    def load_ahead(self, chunks: Sequence[int]) -> None:
        """Bring chunks into the pool as far as there is room; what cannot be read will be missed when it is needed."""
        for chunk in chunks:
            try:
                self.load(chunk)
            except (OSError, ArchiveError):
                continue

    def begin(self, chunk: int) -> int:
        """Open a chunk for writing, pinned; return where in the pool its first row is.

        It is zeroed, but for observations: each row has one.
        """
        with self.lock:
            if chunk not in self.open:
                self.pool.begin_turn()  # no gather is going on, so nothing but open chunks must stay
                slot = self.claim(chunk)
                self.pool.pin(chunk, True)
                self.open.add(chunk)
                if not is_observation(self.name):
                    self.bytes_of(slot)[:] = 0
            return int(self.pool.slot(chunk)) * self.chunk_rows

    def written(self, chunk: int, offset: int, size: int) -> None:
        """Note that an open chunk is in the file now; its rows stay cached."""
        with self.lock:
            self.locate(chunk, offset, size)
            self.pool.pin(chunk, False)
            self.open.discard(chunk)

    def forget(self, chunk: int) -> None:
        """Drop a chunk from the pool, open or not."""
        with self.lock:
            self.pool.drop(chunk)
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
            self.newest[env] = self.pool.slot(chunk) * self.chunk_rows + (rows - 1) % self.chunk_rows

    def put(self, env: Array, row: Array, values: Array) -> None:
        """Write one row per entry into open chunks, opening those that begin."""
        where = np.empty(len(row), np.int64)
        with self.lock:
            if not self.pool.find(env, row, where):
                for chunk in np.unique((row // self.chunk_rows * self.envs + env)[where < 0]).tolist():
                    self.begin(chunk)
                self.pool.find(env, row, where)
            self.values[where] = values

    def open_rows(self, env: int, start: int, stop: int) -> Iterator[Array]:
        """Yield the bytes of rows of open chunks as they stand in memory, chunk by chunk."""
        for first in range(start // self.chunk_rows * self.chunk_rows, stop, self.chunk_rows):
            raw = self.bytes_of(self.pool.slot(first // self.chunk_rows * self.envs + env))
            low, high = max(start - first, 0), min(stop - first, self.chunk_rows)
            yield raw[low * self.field.nbytes : high * self.field.nbytes]

    def part(self, ahead: int = 0, count: int | None = None, *, repeat: bool = False, later: bool = False) -> Part:
        """Return what a batch takes of the field: rows row + ahead .. row + ahead + count - 1, one row without `count`.

        `repeat`, `later`: see Part.
        """
        shape = self.field.shape if count is None else (count, *self.field.shape)
        steps = not is_observation(self.name)
        return Part(self.pool, self.dtype, shape, ahead, 1 if count is None else count, repeat, steps, later)

    def windows(self, part: Part, place: Array, row: Array) -> Array:
        """Return a part of these rows of places (PARTS, B). Cost: one copy of the output."""
        out = self.buffers.take((len(row), *part.shape), self.dtype)
        if len(row) * part.count <= self.free:
            self.fill(part, place, row, out)
            return out
        piece = self.items_at_once(part.count)
        for k in range(0, len(row), piece):
            some = slice(k, k + piece)
            self.fill(part, np.ascontiguousarray(place[:, some]), row[some], out[some])
        return out

    def fill(self, part: Part, place: Array, row: Array, out: Array) -> None:
        """Copy windows that fit into memory together."""
        with self.lock:
            if part.gather(place, row, out):
                return
            missing = part.missing(place, row)
        self.load_ahead(missing)
        with self.lock:  # what other threads have taken out again meanwhile, and what could not be read
            while not part.gather(place, row, out):
                for chunk in part.missing(place, row):
                    self.load(chunk)

    def missing(self, part: Part, place: Array, row: Array) -> list[int]:
        """Return the chunks that a part of these rows would have to load."""
        with self.lock:
            return list(part.missing(place, row))

    @property
    def free(self) -> int:
        """How many chunks may come and go."""
        return self.pool.limit - len(self.open)

    def items_at_once(self, count: int) -> int:
        """Return of how many windows the chunks are sure to fit into memory together."""
        return max(1, self.free // min(count, (count - 1) // self.chunk_rows + 2))

    def gather(self, env: Array, row: Array) -> Array:
        """Return rows (B, *shape): row[i] of environment env[i]; -1 gives zeros."""
        return self.windows(self.single, Places.outside(env, row).block, row)

    def rows(self, env: int, start: int, stop: int) -> Array:
        """Return rows start to stop of one environment."""
        row = np.arange(start, stop)
        return self.gather(np.full(len(row), env), row)
