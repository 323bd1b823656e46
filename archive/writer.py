"""The writer: appends rows to the columns and hands full chunks to the file.

Arguments are checked before anything changes. After a failure between the first change and the last the writer is
broken: it refuses everything, closing discards, reopening recovers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core, bulk
from .change import Change
from .chunk import encode
from .column import Column
from .commit import Commits
from .errors import StateError
from .guard import interrupts, quiet, register, unregister
from .intake import Intake, seeds_of
from .lock import WriterLock
from .record import BETWEEN, ENDED, OPEN, Record
from .rewind import Rewind
from .rows import Rows
from .store import Store

Array = np.ndarray[Any, Any]


class Writer:
    """Append to `rows` and keep them in `store`; `last` is the record that was recovered, None for a new run."""

    def __init__(
        self, rows: Rows, store: Store, held: WriterLock, last: Record | None, commit_every: float | None
    ) -> None:
        self.rows, self.store, self.lock, self.commit_every = rows, store, held, commit_every
        self.header, self.schema = rows.header, rows.header.schema
        self.intake = Intake(self.schema)
        self.commits = Commits(rows, store, last)
        self.broken: BaseException | None = None
        self.closed = False
        self.uncommitted = True
        self.everyone, self.nobody = np.arange(self.schema.envs), np.zeros(0, np.int64)
        self.columns = list(rows.columns.items())
        self.base = {r: rows.bases(r) for r in set(self.header.rows.values())}
        self.steps_left = dict.fromkeys(self.base, 0)  # rows until a chunk of this size may be full
        self.catch_up(self.everyone.tolist())
        self.last_commit = time.monotonic()
        self.owner = os.getpid()
        self.restore_stacks()
        register(self)

    @property
    def change(self) -> Change:
        """Return what must surround every change. Made anew: a cycle would keep decoded chunks alive."""
        return Change(self)

    # --- appending

    def reset(self, observation: Any, mask: Array | None, seed: Any) -> None:
        """Start an episode in every environment, or in those of `mask`; what was going on is interrupted."""
        values = self.intake.group(self.intake.observations, observation)
        env = self.everyone if mask is None else np.flatnonzero(mask)
        frames = self.intake.frames({k: v[env] for k, v in values.items()}, np.ones(len(env), np.bool_))
        seeds = seeds_of(seed, self.schema.envs)
        with self.change:
            self.append_observations(env, frames, env)
            for e in env.tolist():
                self.rows.episodes.begin(e, int(self.rows.rows[e]) - 1, int(seeds[e]))
            self.rows.states[env] = OPEN
            self.intake.remember(values, env)
            self.write_settled()
        self.commit_when_due()

    def step(self, values: Mapping[str, Any], observation: Any, info: Any, extras: Mapping[str, Any]) -> Array:
        """Complete every waiting row and append what it led to; return ids, -1 where an environment was reset."""
        states = self.rows.states
        first = states != OPEN
        begins = bool(first.any())
        if begins:
            self.refuse_step(first)
        done = self.intake.step(values, info, extras)
        observations = self.intake.group(self.intake.observations, observation)
        frames = self.intake.frames(observations, first)
        env = np.flatnonzero(~first) if begins else self.everyone
        done = {k: v[env] for k, v in done.items()} if begins else done
        ids = np.full(self.schema.envs, -1, np.int64)
        with self.change:
            ids[env] = env << 32 | self.rows.rows[env] - 1
            self.complete(env, done)
            self.append_observations(self.everyone, frames, np.flatnonzero(first) if begins else self.nobody)
            ended = done["terminated"] | done["truncated"]
            for at in np.flatnonzero(ended).tolist() if ended.any() else ():
                flags = {name: done[name][at] for name in ("terminated", "truncated")}
                self.rows.episodes.mark(int(env[at]), **flags)
                states[env[at]] = ENDED
            for e in np.flatnonzero(first).tolist() if begins else ():
                self.rows.episodes.begin(e, int(self.rows.rows[e]) - 1)
                states[e] = OPEN
            self.intake.remember(observations, self.everyone)
            self.write_settled()
        self.commit_when_due()
        return ids

    def refuse_step(self, first: Array) -> None:
        """Raise StateError unless the environments that do not wait for an action reset themselves in this step."""
        never = np.flatnonzero(self.rows.episodes.current < 0)
        if len(never):
            raise StateError(f"{self.rows.path}: step before reset of environment {int(never[0])}")
        if (self.rows.states == BETWEEN).any() or self.schema.autoreset != "NextStep":
            ended = int(np.flatnonzero(first)[0])
            raise StateError(f"{self.rows.path}: environment {ended} has ended; call reset before step")

    def complete(self, env: Array, done: Mapping[str, Array]) -> None:
        """Fill in action, reward, flags and extras of waiting rows."""
        columns = self.rows.columns
        for name, array in done.items():
            column = columns[name]
            column.values[column.newest[env]] = array
        last = columns["is_last"]
        last.values[last.newest[env]] = False
        self.rows.episodes.grow(env, done["reward"])

    def append_observations(self, env: Array, frames: Mapping[str, Array], first: Array) -> None:
        """Append a row that holds an observation only; `first` lists the environments whose episode starts with it."""
        row = self.rows.rows[env]
        begins = {r: np.flatnonzero(row % r == 0) for r in self.base}
        for name, column in self.columns:
            starts = begins[column.chunk_rows]
            column.advance(env, row, starts if len(starts) else None)
            if name in frames:
                column.values[column.newest[env]] = frames[name]
            elif name == "is_last":
                column.values[column.newest[env]] = True
            elif name == "is_first" and len(first):
                column.values[column.newest[first]] = True
        self.rows.rows[env] += 1

    def catch_up(self, envs: list[int]) -> None:
        """Point every column at the last row of these environments."""
        for _, column in self.columns:
            for env in envs:
                if self.base[column.chunk_rows][env] < self.rows.rows[env]:
                    column.catch_up(env, int(self.rows.rows[env]))

    def end_episode(self, truncated: bool) -> None:
        """End the episodes going on; `truncated` sets the flag of their last transition."""
        env = np.flatnonzero(self.rows.states != ENDED)
        if not len(env):
            raise StateError(f"{self.rows.path}: no episode is going on")
        with self.change:
            steps = self.rows.episodes.columns["length"][self.rows.episodes.current[env]]
            flag = env[steps > 0] if truncated else env[:0]
            row = self.rows.rows[flag] - 1 - (self.rows.states[flag] == OPEN)
            if len(flag):
                self.rows.columns["truncated"].put(flag, row, np.ones(len(flag), np.bool_))
                self.commits.changed("truncated", flag)
            for e in flag.tolist():
                self.rows.episodes.mark(e, truncated=True)
            self.rows.states[env] = ENDED
            self.write_settled()

    def extend(self, values: Mapping[str, Any], env: int) -> Array:
        """Append whole rows of one environment; return their ids, -1 for rows without a transition."""
        rows = self.intake.extend(values)
        first = bulk.episode_starts(self.rows, rows, env)
        step, start, done = min(self.header.rows.values()), int(self.rows.rows[env]), 0
        with self.change:
            while done < len(first):
                stop = min(done + step - (start + done) % step, len(first))
                bulk.append(self.rows, {k: v[done:stop] for k, v in rows.items()}, first[done:stop], env)
                self.write_settled(stop - done)
                done = stop
            self.catch_up([env])
        self.commit_when_due()
        return np.where(rows["is_last"], -1, np.int64(env) << 32 | np.arange(start, start + len(first)))

    # --- chunks

    def write_settled(self, appended: int = 1) -> None:
        """Write the chunks whose rows can no longer change, after at most `appended` rows of each environment."""
        self.uncommitted = True
        for chunk_rows in self.base:
            self.steps_left[chunk_rows] -= appended
            if self.steps_left[chunk_rows] <= 0:
                self.write_full(chunk_rows)

    def write_full(self, chunk_rows: int) -> None:
        """Write the full chunks of every field of this chunk size."""
        old, new = self.base[chunk_rows], self.rows.bases(chunk_rows)
        self.base[chunk_rows] = new
        for env in np.flatnonzero(new > old).tolist():
            for first in range(int(old[env]), int(new[env]), chunk_rows):
                for _, column in self.columns:
                    if column.chunk_rows == chunk_rows:
                        chunk = first // chunk_rows * column.envs + env
                        column.written(chunk, *self.write_chunk(column, chunk, chunk_rows))
        self.steps_left[chunk_rows] = int((new + chunk_rows - self.rows.rows).min())

    def write_chunk(self, column: Column, chunk: int, rows: int) -> tuple[int, int]:
        """Encode and write one open chunk, of which `rows` rows count; return where it is in the file."""
        first, env = chunk // column.envs * column.chunk_rows, chunk % column.envs
        raw = column.bytes_of(column.table.slot(chunk))
        trailer = self.header.trailer(column.number, env, first, rows, self.commits.epoch)
        return self.store.write_chunk(column.number, chunk, first + rows, encode(raw, column.dtype.itemsize, trailer))

    def write_open_chunks(self) -> None:
        """Put the rows of chunks not yet full into the fields, padded with zeros."""
        for column in self.rows.columns.values():
            for chunk in sorted(column.open):
                first, env = chunk // column.envs * column.chunk_rows, chunk % column.envs
                rows = min(int(self.rows.rows[env]) - first, column.chunk_rows)
                column.locate(chunk, *self.write_chunk(column, chunk, rows))

    # --- committing

    def commit_when_due(self) -> None:
        """Commit if `commit_every` seconds have passed."""
        if self.commit_every is not None and time.monotonic() - self.last_commit >= self.commit_every:
            self.commit()

    def commit(self, sync: bool = False) -> None:
        """Make everything appended so far survive a kill, with `sync` a power cut as well."""
        with self.change:
            if self.uncommitted or (sync and not self.commits.synced):
                self.commits.write(sync)
            self.uncommitted = False
            self.last_commit = time.monotonic()

    def checkpoint(self, values: Mapping[str, Any], keep: int, sync: bool) -> None:
        """Commit together with the user's values."""
        self.commits.check_values(values, keep)
        with self.change:
            self.commits.checkpoint(values, keep, sync)
            self.uncommitted = False
            self.last_commit = time.monotonic()

    def rewind(self, number: int, position: Mapping[str, Any]) -> None:
        """Give up every row after checkpoint `number`; the episodes then going on end there, interrupted."""
        rows, episodes, latest = self.rows, self.rows.episodes, self.commits.latest
        made_by = position.get("run_id", self.header.run_id)
        if made_by != self.header.run_id:
            raise StateError(f"{rows.path}: the checkpoint is of run {made_by}, this is run {self.header.run_id}")
        given_up = any(r.first <= number <= r.last for r in rows.rewinds)
        if given_up or number > latest or len(position["rows"]) != self.schema.envs:
            raise StateError(f"{rows.path}: checkpoint {number} does not lie in this run's past")
        rewind = Rewind(number + 1, latest, rows.rows.tolist(), position["rows"].tolist())
        with self.change:
            self.store.write_rewind(rewind, len(rows.rewinds))
            rows.rewinds.append(rewind)
            episodes.cut(int(position["episodes"]))
            for env in np.flatnonzero(episodes.current >= 0).tolist():
                episodes.mark(env, **{k: position[k][env] for k in ("length", "return", "final")})
                if position["states"][env] != ENDED:
                    episodes.mark(env, terminated=False, truncated=False)
            episodes.cut(episodes.count)
            rows.states[:] = ENDED
            self.write_settled()
            self.commits.forget_after(number)
            self.commits.write(sync=False)
            self.uncommitted = False

    # --- leaving

    def close(self) -> None:
        """Commit, move the tail into the fields, close; a broken writer is abandoned."""
        with interrupts:
            try:
                if not self.closed and self.broken is None:
                    self.finish()
            finally:
                self.abandon()

    def finish(self) -> None:
        """Leave a file that needs no tail to be read."""
        with self.change, quiet:
            self.commits.write(sync=False)
            self.store.set_rows(int(self.rows.rows.max()))  # first: a chunk at the edge makes nothing longer
            self.write_open_chunks()
            self.store.write_totals(self.rows.steps, self.rows.episodes.count, True)
            self.commits.write(sync=False, in_fields=True)
            self.store.close_handle()
            self.store.check()
            if self.store.file.held_blocks:
                self.commits.seal(False, self.commits.slots, None, True)
            self.store.trim()

    def abandon(self) -> None:
        """Let go of the file as it is on the disk; after a fork the lock stays with the parent."""
        with interrupts:
            if self.closed:
                return
            self.closed = self.rows.closed = True
            self.store.abandon()
            unregister(self)
            if self.owner == os.getpid():
                self.lock.release()
            else:
                self.lock.forget()

    def require_usable(self) -> None:
        """Raise StateError if the writer was closed or is broken."""
        if self.closed:
            raise StateError(f"{self.rows.path}: the run is closed")
        if self.broken is not None:
            raise StateError(f"{self.rows.path}: broken by {self.broken!r}; close it and open it again to recover")

    def restore_stacks(self) -> None:
        """Rebuild from the stored rows the stacks that the next observations must continue."""
        env = np.flatnonzero(self.rows.states == OPEN)
        for name, field in self.intake.observations.items():
            if field.stacked is None or not len(env):
                continue
            head = self.rows.rows[env] - 1
            low = self.rows.episodes.columns["start"][self.rows.episodes.current[env]]
            rows = np.empty((len(env), field.stacked), np.int64)
            _core.windows(head, np.arange(1 - field.stacked, 1), low, head, field.padding == "repeat", rows)
            stack = np.zeros((self.schema.envs, field.stacked, *field.shape), field.dtype)
            stack[env] = self.rows.columns[name].gather(env, rows)
            self.intake.stacks[name] = stack
