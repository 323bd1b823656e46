"""Full chunks on their way from the columns to the file, each written once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from .background import Background, several_cores
from .budget import ENCODING, waiting
from .chunk import encode
from .column import Column
from .rows import Rows
from .store import Store

Array = np.ndarray[Any, Any]
SLOW = 5e-4  # seconds of work for a chunk from which on a thread of its own pays


class Chunks:
    """`base[R][e]`: first row of environment e whose chunk of R rows is not in the file as a full one.

    Each plain step settles one more row; `rows_left` of them until `at_once` chunks of an environment are full, which
    are written together: most of what a chunk costs beside its compression is paid once then. Fields whose chunks
    take long are encoded in the background, and written later, at the latest by `settle`.
    """

    def __init__(self, rows: Rows, store: Store, epoch: int) -> None:
        self.rows, self.store, self.epoch = rows, store, epoch
        self.base = {r: rows.bases(r) for r in set(rows.header.rows.values())}
        self.columns = {r: [c for c in rows.columns.values() if c.chunk_rows == r] for r in self.base}
        self.rows_left, self.at_once = 0, 1 + waiting(rows.header.schema.envs)
        self.encoder = Background("encoder") if several_cores() else None
        self.slow = set[int]()  # fields that are encoded in the background
        self.encoding: deque[tuple[Column, int, Future[bytes]]] = deque()  # at most ENCODING

    def write_settled(self, at_once: int = 1) -> None:
        """Write the chunks whose rows can no longer change, if there are `at_once` of an environment.

        Counts the plain steps until there are so many.
        """
        settled = self.rows.settled
        self.rows_left = min([self.write_full(chunk_rows, settled, at_once) for chunk_rows in self.base])

    def write_full(self, chunk_rows: int, settled: Array, at_once: int) -> int:
        """Write the full chunks of every field of this chunk size; return how many plain steps to the next ones."""
        old = self.base[chunk_rows]
        left = int((old - settled).min()) + chunk_rows * at_once
        if left > 0:
            return left
        new = self.base[chunk_rows] = settled // chunk_rows * chunk_rows
        for env in np.flatnonzero(new > old).tolist():
            self.store.set_rows(int(new[env]), chunk_rows)
            for first in range(int(old[env]), int(new[env]), chunk_rows):
                for column in self.columns[chunk_rows]:
                    self.write_or_begin(column, first // chunk_rows * column.envs + env)
        return int((new - settled).min()) + chunk_rows * at_once

    def settle(self) -> None:
        """Write every full chunk, also those that are being encoded."""
        self.write_settled()
        while self.encoding:
            self.write_encoded()

    def write_or_begin(self, column: Column, chunk: int) -> None:
        """Write a full chunk, or begin to encode it in the background if the field's last one took long."""
        if self.encoder is not None and column.number in self.slow:
            while len(self.encoding) >= ENCODING:
                self.write_encoded()
            begun = self.encoder.begin(self.encoding_of(column, chunk, column.chunk_rows))
            if begun is not None:
                self.encoding.append((column, chunk, begun))
                return
        start = time.thread_time()
        column.written(chunk, *self.write_chunk(column, chunk, column.chunk_rows))
        if time.thread_time() - start > SLOW:
            self.slow.add(column.number)

    def abandon(self) -> None:
        """Let go of what is being encoded; the thread stays with the parent of a fork, and so may its locks."""
        if self.encoder is not None:
            self.encoder.close(wait=False)

    def write_encoded(self) -> None:
        """Write the chunk that has been in the background longest; what failed there fails here."""
        column, chunk, encoding = self.encoding.popleft()
        column.written(chunk, *self.write(column, chunk, column.chunk_rows, encoding.result()))

    def encoding_of(self, column: Column, chunk: int, rows: int) -> Callable[[], bytes]:
        """Return what encodes one open chunk, of which `rows` rows count; its rows do not change any more."""
        first, env = chunk // column.envs * column.chunk_rows, chunk % column.envs
        raw = column.bytes_of(column.pool.slot(chunk))
        raw[rows * column.field.nbytes :] = 0
        trailer = self.rows.header.trailer(column.number, env, first, rows, self.epoch)
        return partial(encode, raw, column.dtype.itemsize, column.codec, trailer)

    def write(self, column: Column, chunk: int, rows: int, data: bytes) -> tuple[int, int]:
        """Write an encoded chunk; return where it is in the file."""
        first = chunk // column.envs * column.chunk_rows
        return self.store.write_chunk(column.number, chunk, first + rows, data)

    def write_chunk(self, column: Column, chunk: int, rows: int) -> tuple[int, int]:
        """Encode and write one open chunk, of which `rows` rows count; return where it is in the file."""
        if not column.chunk_bytes:
            return -1, 0
        return self.write(column, chunk, rows, self.encoding_of(column, chunk, rows)())

    def write_open(self) -> None:
        """Put the rows of chunks not yet full into the fields, padded with zeros."""
        for column in self.rows.columns.values():
            for chunk in sorted(column.open):
                first, env = chunk // column.envs * column.chunk_rows, chunk % column.envs
                rows = min(int(self.rows.rows[env]) - first, column.chunk_rows)
                column.locate(chunk, *self.write_chunk(column, chunk, rows))

    def catch_up(self, envs: list[int]) -> None:
        """Point every column at the last row of these environments."""
        for column in self.rows.columns.values():
            for env in envs:
                if self.base[column.chunk_rows][env] < self.rows.rows[env]:
                    column.catch_up(env, int(self.rows.rows[env]))
