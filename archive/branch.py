"""A branch: a new run that stands where another one stood at a checkpoint.

Its rows have the ids they had, so the state of a replay goes on in it. Chunks keep their streams: only the trailers,
which name the run, are made anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import payload
from .budget import parse_bytes
from .checkpoint import Checkpoint
from .chunk import relabel
from .column import Column
from .episodes import Episodes
from .errors import DamagedError, StateError
from .finding import Progress
from .guard import lock
from .opening import existing, make_file, new_run_id, open_reader, provenance
from .record import ENDED, OPEN
from .rows import Rows
from .run import Run
from .source import Source
from .store import Store
from .writer import Writer


def fork(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    at: int | str = "last",
    *,
    memory: int | str = "1 GiB",
    progress: Progress | None = None,
) -> None:
    """Make `out` a new run that stands where the run at `path` stood at one of its checkpoints.

    `at`: the number of a checkpoint, "last", or "step=5000" for the newest one with this value; `run.checkpoints()`
    lists them. The new run has the rows that the checkpoint counts, and the checkpoint. Cost: one copy of them,
    nothing is encoded again. StateError without such a checkpoint, ExistingRunError if `out` exists; it appears whole
    or not at all. `progress(done, total)` is called for each chunk, `memory` is as in `open`.

    >>> import archive, tempfile, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> schema = archive.Schema(steps={"observation": archive.Field("float32", (2,)), "action": archive.Field("int64")})
    >>> with archive.create(folder + "/run.h5", schema) as run:
    ...     run.reset(np.zeros(2))
    ...     for t in range(20):
    ...         _ = run.step(0, np.full(2, t), 1.0, False, False)
    ...         if t == 9:
    ...             run.checkpoint(step=10)
    >>> archive.fork(folder + "/run.h5", folder + "/other.h5", at="step=10")
    >>> with archive.open(folder + "/other.h5", "a") as other:
    ...     other.num_steps, other.last_checkpoint["step"]
    (10, 10)
    """
    target, budget = Path(out).resolve(), parse_bytes(memory)
    with open_reader(existing(Path(path).resolve()), budget) as run:
        checkpoint = chosen(run, at)
        run.refresh()  # a live writer may have made the checkpoint after the rows were looked at
        branch = Branch(run, checkpoint, target, budget)
        make_file(target, partial(branch.lay_out, progress or (lambda done, total: None)), branch.commit, None).close()


def chosen(run: Run, at: int | str) -> Checkpoint:
    """Return the checkpoint that is meant."""
    kept = run.checkpoints()
    name, equals, text = str(at).partition("=")
    if at == "last":
        found = kept
    elif equals:
        found = [c for c in kept if isinstance(c.get(name), (int, float, str, np.generic)) and str(c[name]) == text]
    else:
        found = [c for c in kept if str(c.id) == str(at)]
    if not found:
        there = "it has " + ", ".join(str(c.id) for c in reversed(kept)) if kept else "it has none"
        raise StateError(f"{run.path}: no checkpoint {at!r} to fork from; {there}")
    return found[0]


class Branch:
    """What becomes of `run` at `checkpoint` under the name `target`."""

    def __init__(self, run: Run, checkpoint: Checkpoint, target: Path, budget: int) -> None:
        self.checkpoint, self.position, self.target, self.budget = checkpoint, checkpoint.position, target, budget
        self.source, self.header, self.run_id = run._rows, run._header, new_run_id()
        older = run._texts.get("provenance", {}).get("forked_from", [])
        origin = {"run_id": self.header.run_id, "checkpoint": checkpoint.id}
        self.texts = {**run._texts, "provenance": {**provenance(), "forked_from": [*older, origin]}}
        del self.texts["schema"]  # which the file gets from its header
        self.synced = isinstance(run._file, Source) and run._file.record is not None and run._file.record.synced
        rows, episodes = self.position["rows"], int(self.position["episodes"])
        if len(rows) != run.num_envs or (rows > self.source.rows).any() or episodes > run.num_episodes:
            raise DamagedError(f"{run.path}: checkpoint {checkpoint.id} counts rows that are not there")

    def lay_out(self, progress: Progress, store: Store) -> Rows:
        """Write all that the run had but the rows of open chunks, which are put into the rows that are returned."""
        header, position = self.header, self.position
        store.lay_out(header.schema, self.run_id, header.compression, self.texts, header.rows)
        rows = Rows(store.header, str(self.target), store.read_at, self.budget, lock)
        rows.rows, rows.states = position["rows"].astype(np.int64), position["states"].astype(np.uint8)
        rows.rewinds = [rewind for rewind in self.source.rewinds if rewind.last < self.checkpoint.id]
        for number, rewind in enumerate(rows.rewinds):
            store.write_rewind(rewind, number)
        episodes = self.source.episodes
        rows.episodes = Episodes(episodes.envs, header.schema.columns, {k: episodes[k] for k in episodes.columns})
        rows.episodes.back_to(position)
        rows.episodes.rewrite()
        self.copy_chunks(rows, store, progress)
        rows.fill_open(self.fill)
        self.take_back_flags(rows)
        rows.derive_heads()
        return rows

    def copy_chunks(self, rows: Rows, store: Store, progress: Progress) -> None:
        """Copy the chunks that were full at the checkpoint."""
        wanted = [
            (column, int(base) // column.chunk_rows, env)
            for column in rows.columns.values()
            if column.chunk_bytes
            for env, base in enumerate(rows.bases(column.chunk_rows))
        ]
        total, done = sum(count for _, count, _ in wanted), 0
        store.set_rows(max((column.chunk_rows * count for column, count, _ in wanted), default=0))
        for column, count, env in wanted:
            for chunk in range(env, count * column.envs, column.envs):
                column.locate(chunk, *self.copy(column, chunk, store))
                done += 1
                progress(done, total)

    def copy(self, column: Column, chunk: int, store: Store) -> tuple[int, int]:
        """Copy one chunk; return where it is."""
        first, env = chunk // column.envs * column.chunk_rows, chunk % column.envs
        trailer = store.header.trailer(column.number, env, first, column.chunk_rows, 1)
        data = self.source.columns[column.name].stored(
            chunk, lambda data, identity: relabel(data, column.chunk_bytes, identity, trailer)
        )
        return store.write_chunk(column.number, chunk, first + column.chunk_rows, data)

    def fill(self, column: Column, env: int, first: int, stop: int) -> bool:
        """Put rows first to stop into an open chunk."""
        values = self.source.columns[column.name].rows(env, first, stop)
        column.put(np.full(stop - first, env), np.arange(first, stop), values)
        return True

    def take_back_flags(self, rows: Rows) -> None:
        """Clear what ended an episode after the checkpoint: a late flag changes its last whole row."""
        env = np.flatnonzero(rows.states != ENDED)
        last = rows.rows[env] - 1 - (rows.states[env] == OPEN)
        begun = rows.episodes.columns["length"][rows.episodes.current[env]] > 0
        for flag in ("terminated", "truncated"):
            rows.columns[flag].put(env[begun], last[begun], np.zeros(int(begun.sum()), np.bool_))

    def commit(self, writer: Writer) -> None:
        """Commit the rows together with the checkpoint, under its number."""
        values = renamed(dict(self.checkpoint), self.header.run_id, self.run_id)
        data = payload.pack({"run": {**self.position, "run_id": self.run_id}, "values": values})
        with writer.change:
            writer.commits.checkpoint(data, 2, self.synced, self.checkpoint.id)


def renamed(value: Any, old: str, new: str) -> Any:
    """Return a checkpoint's value with the states of replays in it naming another run."""
    if isinstance(value, Mapping):
        result = {name: renamed(part, old, new) for name, part in value.items()}
        return result | {"run_id": new} if "draw_version" in result and result.get("run_id") == old else result
    if isinstance(value, (list, tuple)):
        return type(value)(renamed(part, old, new) for part in value)
    return value
