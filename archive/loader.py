"""Chunks that are brought into memory in the background, for batches that have been drawn but not asked for."""

from __future__ import annotations

import os
from concurrent.futures import Future, wait
from typing import NamedTuple

from .background import Background
from .column import Column


class Loading(NamedTuple):
    """Chunks on their way, in process `owner`."""

    owner: int
    futures: list[Future[None]]

    def wait(self) -> None:
        """Wait until they are there; in a forked child nobody brings them."""
        if self.owner == os.getpid():
            wait(self.futures)


def bring(thread: Background, wanted: list[tuple[Column, list[int]]]) -> Loading:
    """Begin to load chunks; the caller does it when it needs them if nobody else does.

    One thread: two wait for each other more than they load. What is loaded never changes a batch, only how soon it is
    there.
    """
    begun = [thread.begin(column.load_ahead, chunks) for column, chunks in wanted]
    return Loading(os.getpid(), [future for future in begun if future is not None])
