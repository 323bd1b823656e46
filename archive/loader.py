"""Chunks that are brought into memory in the background, for batches that have been drawn but not asked for."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from .column import Column

THREADS = 2


class Loading(NamedTuple):
    """Chunks on their way, in process `owner`."""

    owner: int
    futures: list[Future[None]]

    def wait(self) -> None:
        """Wait until they are there; in a forked child nobody brings them."""
        if self.owner == os.getpid():
            wait(self.futures)


class Loader:
    """Load chunks in threads of its own. What is loaded never changes a batch, only how soon it is there."""

    def __init__(self) -> None:
        self.threads: ThreadPoolExecutor | None = None
        self.owner, self.closed = -1, False

    def bring(self, wanted: list[tuple[Column, list[int]]]) -> Loading:
        """Begin to load these chunks, each field's in two parts."""
        if self.closed:
            return Loading(self.owner, [])
        if self.threads is None or self.owner != os.getpid():  # threads do not survive a fork
            self.threads, self.owner = ThreadPoolExecutor(THREADS, "archive-loader"), os.getpid()
        parts = [(column, chunks[k::THREADS]) for column, chunks in wanted for k in range(THREADS)]
        return Loading(self.owner, [self.threads.submit(column.load_ahead, part) for column, part in parts if part])

    def close(self) -> None:
        """Give up what has not begun, and wait for what has."""
        self.closed = True
        if self.threads is not None and self.owner == os.getpid():
            self.threads.shutdown(wait=True, cancel_futures=True)
