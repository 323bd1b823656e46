"""A new file made of what is left of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import payload
from .block import Block
from .chunk import checked, decode, encode, spread
from .column import Column
from .lock import WriterLock
from .lost import Lost
from .ranges import Ranges
from .record import ENDED, MAX_SLOTS, Record, Slot
from .remains import Remains
from .rows import Rows
from .scan import Found
from .schema import is_observation
from .segments import episodes_of
from .slots import read_payload, write_payload
from .store import Store
from .writer import Writer

Array = np.ndarray[Any, Any]
FRESH = 0  # epoch of chunks that stand for lost ones: another salvage takes them for stale


class Rebuilding:
    """Write the rows of `remains` into a new file, each at its old place.

    `missing`: (field, environment, start, stop) of rows that are not there; zeros stand in their place. `lost`:
    (environment, start, stop) of rows that lack any field.
    """

    def __init__(self, remains: Remains, rows: Rows, store: Store, held: WriterLock) -> None:
        self.remains, self.rows, self.store, self.header = remains, rows, store, rows.header
        self.fields = [n for n, name in enumerate(self.header.fields) if self.header.row_bytes(name)]
        self.missing: list[tuple[str, int, int, int]] = []
        self.lost: list[tuple[int, int, int]] = []
        self.present = {(n, env): Ranges() for n in self.fields for env in range(self.header.schema.envs)}
        for one in remains.chunks.values():
            self.present[one.field, one.env].add(one.first, one.stop)
        for (number, env), (base, data) in remains.tails.items():
            self.present[number, env].add(base, base + len(data) // self.header.row_bytes(self.header.fields[number]))
        rows.rows[:] = [max(self.present[n, env].end for n in self.fields) for env in range(self.header.schema.envs)]
        last = remains.record.rows if remains.record is not None else rows.rows
        self.heads = {env: start for env, start in remains.heads.items() if rows.rows[env] == last[env]}
        rows.states[:] = ENDED
        rows.rewinds = list(remains.rewinds)
        self.epoch = max([one.epoch for one in remains.chunks.values()], default=0)
        self.writer = Writer(rows, store, held, self.start(), None)

    def start(self) -> Record:
        """Return a record before the first commit, so that the new file goes on with the epochs of the old one."""
        fields, envs = len(self.header.fields), self.header.schema.envs
        zeros = np.zeros((fields, envs), np.int64)
        tails = (np.zeros(fields, np.int64), zeros.astype(np.uint8), zeros.astype(np.uint32))
        return Record(0, self.epoch, self.rows.rows, self.rows.states, 0, *tails, in_fields=True)

    def finish(self) -> None:
        """Write everything and close the file."""
        self.write_chunks()
        self.find_lost()
        self.write_blocks()
        exact = self.write_episodes()
        self.write_checkpoints(exact)
        self.store.set_rows(int(self.rows.rows.max()))
        self.writer.commits.write(sync=False, in_fields=True)
        self.writer.leave()

    # --- rows

    def write_chunks(self) -> None:
        """Write every chunk of every field, those that are gone as zeros."""
        for number in self.fields:
            column = self.rows.columns[self.header.fields[number]]
            for env, rows in enumerate(self.rows.rows.tolist()):
                for first in range(0, rows, column.chunk_rows):
                    chunk = first // column.chunk_rows * column.envs + env
                    data = self.chunk(number, env, first, min(column.chunk_rows, rows - first))
                    column.locate(chunk, *self.store.write_chunk(number, chunk, rows, data))

    def chunk(self, number: int, env: int, first: int, rows: int) -> bytes:
        """Return the bytes of a chunk of which `rows` rows count: as found, or encoded anew."""
        found = self.remains.chunks.get((number, env, first))
        tail = self.remains.tails.get((number, env))
        if found is not None and found.rows == rows and (tail is None or tail[0] >= first + rows):
            return self.stored(found)
        column = self.rows.columns[self.header.fields[number]]
        raw = np.zeros(column.chunk_bytes, np.uint8)
        epoch = FRESH
        if found is not None:
            spread(self.decoded(column, found), column.dtype.itemsize, raw)
            raw[found.rows * column.field.nbytes :] = 0
            epoch = found.epoch
        if tail is not None and tail[0] < first + rows and first < tail[0] + len(tail[1]) // column.field.nbytes:
            self.lay_tail(column.field.nbytes, first, raw, *tail)
            epoch = self.epoch + 1
        row = int(self.rows.rows[env]) - 1
        if env in self.heads and first <= row < first + rows:  # its flags are not in the tail
            if column.name == "is_last" or (column.name == "is_first" and row == self.heads[env]):
                raw[row - first] = 1
            epoch = self.epoch + 1
        trailer = self.header.trailer(number, env, first, rows, epoch)
        return encode(raw, column.dtype.itemsize, column.codec, trailer)

    def stored(self, found: Found) -> bytes:
        """Return the bytes of a chunk as it was stored; the last checksum, which may be gone, is made anew."""
        return checked(self.remains.read(found.offset, found.size))

    def decoded(self, column: Column, found: Found) -> bytes:
        """Return the rows of a chunk, still shuffled."""
        identity = (column.run_id, found.field, found.env, found.first)
        return decode(self.stored(found), column.chunk_bytes, column.codec, identity)

    def lay_tail(self, rowsize: int, first: int, raw: Array, base: int, data: bytes) -> None:
        """Write the rows of a tail that starts with row `base` over those of a chunk."""
        low, high = max(base, first), min(base + len(data) // rowsize, first + len(raw) // rowsize)
        part = data[(low - base) * rowsize : (high - base) * rowsize]
        raw[(low - first) * rowsize : (high - first) * rowsize] = np.frombuffer(part, np.uint8)

    def find_lost(self) -> None:
        """Find the rows that lack a field; of a head only the observation is there."""
        for env, rows in enumerate(self.rows.rows.tolist()):
            gaps = Ranges()
            for number in self.fields:
                name = self.header.fields[number]
                known = rows - (env in self.heads and not is_observation(name))
                for start, stop in self.present[number, env].gaps(known):
                    self.missing.append((name, env, start, stop))
                    gaps.add(start, stop)
            for lost in self.remains.lost:
                for e, start, stop in lost.ranges:
                    if e == env and start < rows:
                        gaps.add(start, min(stop, rows))
            self.lost += [(env, start, stop) for start, stop in gaps.merged()]

    # --- everything else

    def write_blocks(self) -> None:
        """Write down again what was given up, and what is lost now."""
        self.rows.rewinds = [r for r in self.rows.rewinds if r.fits(len(self.rows.rows))]
        for number, rewind in enumerate(self.rows.rewinds):
            self.store.write_rewind(rewind, number)
        if self.lost:
            self.store.write_block("meta/lost_block_0", Block.LOST, Lost(tuple(self.lost)).to_json())

    def write_episodes(self) -> bool:
        """Rebuild the table of episodes; return whether the old one said the same."""
        table, old = episodes_of(self.rows, self.lost), self.remains.table
        same = old is not None and self.take_over(table, old)
        if not same:
            order = np.lexsort((table["env"], table["start"]))
            table = {name: column[order] for name, column in table.items()}
            gone = ["seed", "hidden", *self.header.schema.episodes] if old is None else ["order"]
            self.remains.notes.append(f"of the table of episodes is gone: {', '.join(gone)}")
        self.rows.episodes = type(self.rows.episodes)(self.header.schema.envs, self.header.schema.columns, table)
        self.rows.episodes.rewrite()
        return same

    def take_over(self, table: dict[str, Array], old: dict[str, Array]) -> bool:
        """Take from the old table what rows do not tell; return whether it had the same episodes, then in its order."""
        places = {key: k for k, key in enumerate(zip(old["env"].tolist(), old["start"].tolist(), strict=True))}
        keys = list(zip(table["env"].tolist(), table["start"].tolist(), strict=True))
        at = np.array([places.get(key, -1) for key in keys], np.int64)
        known = at >= 0
        for name in ("seed", *(set(self.header.schema.episodes) & set(old))):
            table[name][known] = old[name][at[known]]
        table["hidden"][known] |= old["hidden"][at[known]]
        if not known.all() or len(at) != len(old["env"]):
            return False
        order = np.argsort(at)
        for name in table:
            table[name] = table[name][order]
        return True

    def write_checkpoints(self, exact: bool) -> None:
        """Write the checkpoints that were found; only with `exact` episodes can the run be rewound to them."""
        slots = []
        for number, slot in enumerate(self.remains.slots[:MAX_SLOTS]):
            data = read_payload(self.remains.read, 1 << 62, slot)
            if not exact:
                values = payload.unpack(data)
                values["run"]["run_id"] = f"{self.header.run_id} before it was salvaged"
                data = payload.pack(values)
            slots.append(write_payload(self.store, number, slot.id, data))
        while 0 < len(slots) < 2:
            slots.append(Slot())
        self.writer.commits.slots = tuple(replace(slot) for slot in slots)
