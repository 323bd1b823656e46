"""Commits: what must be written, in which order, so that a kill at any point leaves the last commit whole.

Chunks and tails first, then HDF5's flush, then journal, record, held blocks and mark in one call of the file object.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from zlib_ng.zlib_ng import crc32

from . import payload
from .casting import is_int
from .errors import FieldError, WriteError
from .record import MAX_SLOTS, Record, Slot
from .rows import Rows, tail_position
from .slots import write_payload
from .store import Store

Array = np.ndarray[Any, Any]
ALIGN = 512


class Commits:
    """Write commits of `rows` into `store`, going on from record `last`.

    A tail slot is append-only while its chunk is open: `tail_base` is the first row of that chunk in the slot that
    the last record names, -1 when the next commit must write the other slot; `tail_rows` how far it is filled.
    """

    def __init__(self, rows: Rows, store: Store, last: Record | None) -> None:
        self.rows, self.store, self.header = rows, store, rows.header
        fields, envs = len(self.header.fields), self.header.schema.envs
        self.sequence, self.epoch = (last.sequence, last.epoch + 1) if last else (0, 1)
        self.slots: tuple[Slot, ...] = last.slots if last else ()
        self.tail_offset = last.tail_offset if last else np.zeros(fields, np.int64)
        self.tail_slot = last.tail_slot if last else np.zeros((fields, envs), np.uint8)
        self.tail_check = last.tail_check if last else np.zeros((fields, envs), np.uint32)
        self.tail_base = np.full((fields, envs), -1, np.int64)
        self.tail_rows = np.zeros((fields, envs), np.int64)
        self.synced = last is not None and last.synced
        if last is not None and not last.in_fields:
            for number, column in enumerate(rows.columns.values()):
                self.tail_base[number] = rows.bases(column.chunk_rows)
                self.tail_rows[number] = rows.known(column.name)

    def write(self, sync: bool, slots: tuple[Slot, ...] | None = None, in_fields: bool = False) -> None:
        """Commit the rows as they are; `in_fields` says that no tail is needed to read them."""
        episodes = self.rows.episodes
        if episodes.changed():
            self.store.write_episodes(episodes.columns, episodes.count, episodes.changed())
        tail = None if in_fields else self.write_tails()
        self.store.write_copy()
        self.store.flush()
        self.seal(sync, self.slots if slots is None else slots, tail, in_fields)
        episodes.dirty = set()

    def changed(self, name: str, env: Array) -> None:
        """Note that a row which may be in the tail already has changed: the other slot is written next."""
        self.tail_base[self.header.fields.index(name), env] = -1

    def write_tails(self) -> tuple[Array, Array, Array, Array, Array]:
        """Append the rows of open chunks to their slots; return what the record will say of them."""
        offset, slot, check = self.tail_offset.copy(), self.tail_slot.copy(), self.tail_check.copy()
        bases, rows = np.empty_like(self.tail_base), np.empty_like(self.tail_rows)
        settled = self.rows.settled
        for number, column in enumerate(self.rows.columns.values()):
            base = bases[number] = settled // column.chunk_rows * column.chunk_rows
            known = rows[number] = self.rows.known(column.name)
            if not column.field.nbytes:
                continue
            if not offset[number] and (known > base).any():
                offset[number] = self.store.create_tail(number)
            moved = self.tail_base[number] != base
            slot[number] ^= moved
            check[number][moved] = 0
            start = np.where(moved, base, self.tail_rows[number])
            for env in np.flatnonzero(known > start).tolist():
                at = tail_position(self.header, offset, slot, number, env)
                at += int(start[env] - base[env]) * column.field.nbytes
                for data in column.open_rows(env, int(start[env]), int(known[env])):
                    self.store.write_at(at, data)
                    check[number, env] = crc32(data, int(check[number, env]))
                    at += len(data)
        return offset, slot, check, bases, rows

    def seal(self, sync: bool, slots: tuple[Slot, ...], tail: tuple[Array, ...] | None, in_fields: bool) -> None:
        """Write journal, record, held blocks and mark; afterwards the commit is what the file says.

        After a synced commit all later ones are synced too: one that were not could undo it in a power cut.
        """
        sync = sync or self.synced
        file, region = self.store.file, self.header.region
        journal = file.journal()
        offset, slot, check, *filled = tail or (self.tail_offset, self.tail_slot, self.tail_check)
        record = Record(
            sequence=self.sequence + 1,
            epoch=self.epoch,
            rows=self.rows.rows,
            states=self.rows.states,
            episodes=self.rows.episodes.count,
            tail_offset=offset,
            tail_slot=slot,
            tail_check=check,
            in_fields=in_fields,
            synced=sync,
            end=file.end,
            journal_offset=-(-max(file.end, file.size) // ALIGN) * ALIGN,
            journal_length=len(journal),
            journal_check=crc32(journal),
            slots=slots,
        )
        places, mark = region.copies(record.sequence), region.mark(record.sequence)
        failed = file.seal(journal, record.journal_offset, record.pack(), places, mark, region.mark_offset, sync)
        if failed:
            raise WriteError(failed, f"{self.rows.path}: {os.strerror(failed)}; reopen the run to go on")
        self.sequence, self.slots, self.synced = record.sequence, slots, sync
        self.tail_offset, self.tail_slot, self.tail_check = offset, slot, check
        self.tail_base, self.tail_rows = filled or (np.full_like(self.tail_base, -1), self.tail_rows)
        if not file.live:
            file.begin(file.end)
        self.store.check()

    # --- checkpoints

    def checkpoint(self, data: bytes, keep: int, sync: bool, number: int | None = None) -> None:
        """Commit together with what `packed` made, in the slot of the oldest of `keep` checkpoints."""
        slots = list(self.slots) + [Slot()] * (max(keep, 2) - len(self.slots))
        oldest = min(range(len(slots)), key=lambda k: slots[k].id)
        slots[oldest] = write_payload(self.store, oldest, number or self.latest + 1, data)
        kept = sorted(s.id for s in slots)[-max(keep, 2) :]  # two at least: should the newest one be damaged
        self.write(sync, tuple(s if s.id in kept else replace(s, id=0) for s in slots))

    @property
    def latest(self) -> int:
        """Number of the newest checkpoint ever made, those given up included."""
        given_up = max((r.last for r in self.rows.rewinds), default=0)
        return max(given_up, max((s.id for s in self.slots), default=0))

    def forget_after(self, number: int) -> None:
        """Empty the slots of later checkpoints; their space stays."""
        self.slots = tuple(replace(s, id=0) if s.id > number else s for s in self.slots)

    def packed(self, values: Mapping[str, Any], keep: int) -> bytes:
        """Return the bytes of a checkpoint; refuses values that cannot be stored before anything is written."""
        if not is_int(keep) or not 1 <= keep <= MAX_SLOTS:
            raise FieldError(f"keep {keep!r}: expected 1 to {MAX_SLOTS}")
        return payload.pack({"run": self.position(), "values": values})

    def position(self) -> dict[str, Any]:
        """Return what a rewind needs to know: rows, states, and how far the latest episodes had come."""
        episodes = self.rows.episodes
        begun = episodes.current >= 0
        last = np.maximum(episodes.current, 0)
        column = {k: np.where(begun, episodes.columns[k][last], 0) for k in ("length", "return", "final")}
        return {
            "run_id": self.header.run_id,
            "rows": self.rows.rows,
            "states": self.rows.states,
            "episodes": episodes.count,
            **column,
        }
