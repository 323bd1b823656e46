"""All rows of a run as one state: how many each environment has, its episodes, its fields' columns.

A writer appends to it, a reader restores it from a snapshot, a replay samples from it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from zlib_ng.zlib_ng import crc32

from .background import Background
from .budget import slots_for
from .buffers import Buffers
from .casting import is_int
from .chunk import spread
from .column import Column, Loads
from .episodes import Episodes
from .errors import DamagedError, IndexRangeError, MemoryBudgetError, StateError
from .header import Header
from .layout import SPARE_ROWS
from .record import ENDED, OPEN, Record
from .rewind import Rewind
from .schema import is_observation
from .snapshot import Snapshot

Array = np.ndarray[Any, Any]
Read = Callable[[int, int], bytes]


ALIVE: WeakSet[Rows] = WeakSet()


class Tail(NamedTuple):
    """Rows `start` to `stop` of a field that are not in a full chunk yet."""

    field: str
    env: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"field {self.field!r}, environment {self.env}, rows {self.start} to {self.stop - 1},"


class Guest(Protocol):
    """Something else that takes memory from a run's budget."""

    nbytes: int


class Rows:
    """`rows[e]` rows of environment e exist, `states[e]` says whether its last one waits for an action.

    `rewinds` lists what was given up, oldest first; a replay that was made before a rewind must not go on. `version`
    is another one after every change. `reading` must be held while a batch is read: a file that is written changes.
    """

    def __init__(self, header: Header, path: str, read: Read, memory: int, reading: Any = None) -> None:
        self.header, self.path, self.read, self.memory = header, path, read, memory
        self.reading = reading if reading is not None else nullcontext()
        self.loader = Background("loader")
        self.loads = Loads()
        slots, self.buffers, self.lock = slots_for(header, memory), Buffers(), threading.RLock()
        try:
            self.columns = {
                name: Column(header, number, slots[name], read, path, self.buffers, self.lock, self.loads)
                for number, name in enumerate(header.fields)
            }
        except (MemoryError, OverflowError, ValueError) as error:
            raise MemoryBudgetError(f"{path}: memory {memory} bytes cannot be reserved: {error}") from error
        self.rows = np.zeros(header.schema.envs, np.int64)
        self.states = np.full(header.schema.envs, ENDED, np.uint8)
        self.episodes = Episodes(header.schema.envs, header.schema.columns)
        self.rewinds: list[Rewind] = []
        self.guests: WeakSet[Guest] = WeakSet()
        self.closed, self.version = False, 0
        ALIVE.add(self)

    def require_open(self) -> None:
        """Raise StateError if the run was closed."""
        if self.closed:
            raise StateError(f"{self.path}: the run is closed")

    def make_room_for(self, guest: Guest) -> None:
        """Take the memory of a replay's tree out of the budget, leaving fewer decoded chunks."""
        others = sum(g.nbytes for g in self.guests if g is not guest)
        slots = slots_for(self.header, self.memory - others - guest.nbytes)
        self.guests.add(guest)
        for name, column in self.columns.items():
            with self.lock:
                column.pool.limit_to(slots[name])

    def renew_locks(self) -> None:
        """Forget, in the child of a fork, what other threads of the parent held and had half done."""
        self.lock, self.buffers.lock = threading.RLock(), threading.Lock()
        for column in self.columns.values():
            column.lock = self.lock
            column.drop_filling()

    # --- which rows are where

    def bases(self, chunk_rows: int) -> Array:
        """Return for each environment the first row of the first chunk that is not in the file as a full one."""
        return self.settled // chunk_rows * chunk_rows

    @property
    def settled(self) -> Array:
        """Rows of each environment that can no longer change: a late flag may reach the last step of an episode."""
        current = self.episodes.current
        start = np.where(current >= 0, self.episodes.columns["start"][current], 0)
        may_change = 1 + (self.states == OPEN)  # its last whole row, and the head behind it
        return np.where(self.states == ENDED, self.rows, np.maximum(self.rows - may_change, start))

    def known(self, name: str) -> Array:
        """Return for each environment how many rows of a field are known: a head has only its observation."""
        return self.rows if is_observation(name) else self.rows - (self.states == OPEN)

    @property
    def steps(self) -> int:
        """Transitions of all environments, without rows given up."""
        return int(self.episodes["length"].sum())

    def episode(self, number: int) -> dict[str, Array]:
        """Return the rows of one episode by field: its final observation too, and what followed all others."""
        table = self.episodes
        if not is_int(number) or not -table.count <= number < table.count:
            raise IndexRangeError(f"{self.path}: episode {number} of {table.count}")
        values = {name: table[name][number] for name in ("env", "start", "length", "final")}
        env, start, stop = int(values["env"]), int(values["start"]), int(values["start"] + values["length"])
        last = stop + bool(values["final"])
        names = [name for name in self.columns if name not in ("is_first", "is_last")]
        found = {k: self.columns[k].rows(env, start, last if is_observation(k) else stop) for k in names}
        for flag in ("terminated", "truncated"):
            if len(found[flag]):
                found[flag][-1] = table[flag][number]
        return found

    # --- restoring

    def restore(self, snapshot: Snapshot) -> None:
        """Take the state of a snapshot; the rows of chunks not yet full are read by `restore_open`."""
        for name, (numbers, offsets, sizes) in snapshot.chunks.items():
            column = self.columns[name]
            if len(numbers):
                column.locate(int(numbers.max()), -1, 0)
                column.offset[numbers], column.size[numbers] = offsets, sizes
        self.rows, self.states = snapshot.record.rows.copy(), snapshot.record.states.copy()
        self.rewinds = list(snapshot.rewinds)
        self.version += 1
        self.episodes = Episodes(self.header.schema.envs, self.header.schema.columns, snapshot.episodes)

    def restore_open(self, record: Record) -> list[Tail]:
        """Read the rows of chunks not yet full from the tail or the fields; return the tails that fail their checksum.

        Their rows are zeros then.
        """
        return self.fill_open(partial(self.fill_from_chunks if record.in_fields else self.fill_from_tail, record))

    def fill_open(self, fill: Callable[[Column, int, int, int], bool]) -> list[Tail]:
        """Have `fill` put in the known rows of chunks not yet full: column, environment, first, stop; return those not.

        They are zeros then.
        """
        failing = []
        for column in self.columns.values():
            for chunk in list(column.open):
                column.forget(chunk)
            bases, known = self.bases(column.chunk_rows), self.known(column.name)
            for env in np.flatnonzero(self.rows > bases).tolist():
                base, stop = int(bases[env]), int(known[env])
                numbers = range(base // column.chunk_rows, -(-int(self.rows[env]) // column.chunk_rows))
                chunks = [k * column.envs + env for k in numbers]
                for chunk in chunks:
                    column.forget(chunk)
                    column.begin(chunk)  # a head's row too, although only its observation is stored
                if stop > base and column.field.nbytes > 0 and not fill(column, env, base, stop):
                    failing.append(Tail(column.name, env, base, stop))
                    for chunk in chunks:
                        column.bytes_of(column.pool.slot(chunk))[:] = 0
        self.derive_heads()
        return failing

    def fill_from_chunks(self, record: Record, column: Column, env: int, base: int, stop: int) -> bool:
        """Read rows that a clean close has put into the field."""
        for first in range(base, stop, column.chunk_rows):
            chunk = first // column.chunk_rows * column.envs + env
            spread(column.fetch(chunk), column.dtype.itemsize, column.bytes_of(column.pool.slot(chunk)))
        return True

    def fill_from_tail(self, record: Record, column: Column, env: int, base: int, stop: int) -> bool:
        """Read rows from the tail slot that the record names; False if they fail their checksum."""
        number = column.number
        offset = tail_position(self.header, record.tail_offset, record.tail_slot, number, env)
        data = self.read(offset, (stop - base) * column.field.nbytes)
        if crc32(data) != record.tail_check[number, env] or not record.tail_offset[number]:
            return False
        values = np.frombuffer(data, column.dtype).reshape(-1, *column.field.shape)
        column.put(np.full(stop - base, env), np.arange(base, stop), values)
        return True

    def derive_heads(self) -> None:
        """Set the flags of heads, which are not stored until an action completes them."""
        env = np.flatnonzero(self.states == OPEN)
        if len(env):
            head = self.rows[env] - 1
            starts = self.episodes.columns["start"][self.episodes.current[env]]
            self.columns["is_first"].put(env, head, head == starts)
            self.columns["is_last"].put(env, head, np.ones(len(env), np.bool_))

    def need_tails(self, failing: list[Tail]) -> None:
        """Raise DamagedError unless the open rows could be restored."""
        if failing:
            raise DamagedError(f"{self.path}: the tail of {failing[0]} fails its checksum")


def tail_position(header: Header, tail_offset: Array, tail_slot: Array, number: int, env: int) -> int:
    """Return where in the file the tail slot in use of a field and environment starts."""
    name = header.fields[number]
    room = (header.rows[name] + SPARE_ROWS - 1) * header.row_bytes(name)
    return int(tail_offset[number] + (int(tail_slot[number, env]) * header.schema.envs + env) * room)


def renew_locks() -> None:
    """Renew the locks of all rows after a fork."""
    for rows in ALIVE:
        rows.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_locks)
