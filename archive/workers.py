"""Work on many chunks in threads: reading, checksums and codecs leave the interpreter's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .guard import block_signals


def in_threads(items: Iterable[Any], work: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """Yield every item with what `work` makes of it, a few of them at a time."""
    workers = min(os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(workers, "archive-check", block_signals) as pool:
        waiting: deque[tuple[Any, Future[Any]]] = deque()
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > 2 * workers:
                item, future = waiting.popleft()
                yield item, future.result()
        for item, future in waiting:
            yield item, future.result()
