"""Mean, deviation, extremes of fields in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .errors import UnknownFieldError
from .rows import Rows
from .schema import is_observation

Array = np.ndarray[Any, Any]
BLOCK = 8 << 20  # bytes read at once


def stats(rows: Rows, fields: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Return the statistics of numeric fields; without `fields` those of observations, actions and reward."""
    known = [name for name, column in rows.columns.items() if column.dtype.kind in "biuf"]
    default = [name for name in known if name.split("/")[0] in ("observation", "action", "reward")]
    chosen = default if fields is None else list(fields)
    for name in chosen:
        if name not in known:
            raise UnknownFieldError(f"{rows.path}: no numeric field {name!r}; there are {', '.join(known)}")
    return {name: stats_of(rows, name) for name in chosen}


def stats_of(rows: Rows, name: str) -> dict[str, Any]:
    """Return mean, std, min, max (each of one row's shape) and count over all rows that lie in episodes.

    Blocks are merged by the pairwise rule of Chan, Golub and LeVeque (1983), so large offsets cost no digits.
    Without rows all but count are None.
    """
    column = rows.columns[name]
    count, mean, squares = 0, np.zeros(column.field.shape), np.zeros(column.field.shape)
    low: Array | None = None
    high: Array | None = None
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinities are data
        for block in blocks(rows, name):
            values = block.astype(np.float64)
            more, their_mean = len(values), values.mean(axis=0)
            delta, total = their_mean - mean, count + len(values)
            squares += ((values - their_mean) ** 2).sum(axis=0) + delta**2 * (count * more / total)
            mean += delta * (more / total)
            low = block.min(axis=0) if low is None else np.minimum(low, block.min(axis=0))
            high = block.max(axis=0) if high is None else np.maximum(high, block.max(axis=0))
            count = total
        std = np.sqrt(squares / max(count, 1))
    if not count:
        return {"mean": None, "std": None, "min": None, "max": None, "count": 0}
    return {"mean": mean, "std": std, "min": low, "max": high, "count": count}


def blocks(rows: Rows, name: str) -> Iterator[Array]:
    """Yield the rows of a field that lie in episodes, a bounded number at a time."""
    column, table = rows.columns[name], rows.episodes
    step = max(1, BLOCK // max(column.field.nbytes, 1))
    for env, low, stop in runs(table["env"], table["start"], table["length"] + (table["final"] & is_observation(name))):
        for start in range(low, stop, step):
            yield column.rows(env, start, min(start + step, stop))


def runs(env: Array, start: Array, count: Array) -> Iterator[tuple[int, int, int]]:
    """Yield (environment, first row, row behind the last) of episodes, those that follow each other as one."""
    order = np.lexsort((start, env))
    now: tuple[int, int, int] | None = None
    for e, low, rows in zip(env[order].tolist(), start[order].tolist(), count[order].tolist(), strict=True):
        if now is not None and now[0] == e and now[2] == low:
            now = (e, now[1], low + rows)
            continue
        if now is not None and now[2] > now[1]:
            yield now
        now = (e, low, low + rows)
    if now is not None and now[2] > now[1]:
        yield now
