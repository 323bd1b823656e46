"""Chunks that are brought into memory in the background, for batches that have been drawn but not asked for."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from .column import Column
from .guard import block_signals


class Loading(NamedTuple):
    """Chunks on their way, in process `owner`."""

    owner: int
    futures: list[Future[None]]

    def wait(self) -> None:
        """Wait until they are there; in a forked child nobody brings them."""
        if self.owner == os.getpid():
            wait(self.futures)


class Loader:
    """Load chunks in a thread of its own: two wait for each other more than they load.

    What is loaded never changes a batch, only how soon it is there.
    """

    def __init__(self) -> None:
        self.thread: ThreadPoolExecutor | None = None
        self.owner, self.closed = -1, False

    def bring(self, wanted: list[tuple[Column, list[int]]]) -> Loading:
        """Begin to load these chunks."""
        if self.closed:
            return Loading(self.owner, [])
        if self.thread is None or self.owner != os.getpid():  # threads do not survive a fork
            self.thread, self.owner = ThreadPoolExecutor(1, "archive-loader", block_signals), os.getpid()
        try:
            return Loading(self.owner, [self.thread.submit(column.load_ahead, chunks) for column, chunks in wanted])
        except RuntimeError:  # the run was closed meanwhile, or the interpreter ends: the caller loads by itself
            return Loading(self.owner, [])

    def close(self) -> None:
        """Give up what has not begun, and wait for what has."""
        self.closed = True
        if self.thread is not None and self.owner == os.getpid():
            self.thread.shutdown(wait=True, cancel_futures=True)
