"""Returns of episodes: their rewards added one after the other, as they were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .episodes import Episodes
from .errors import DamagedError
from .rows import Rows

Array = np.ndarray[Any, Any]
BLOCK = 1 << 18  # rows that are read together


def returns_of(rows: Rows, env: int, start: Array, stop: Array) -> tuple[Array, Array]:
    """Return the sums of rewards of rows start[k] to stop[k], which lie one behind the other, in bounded memory.

    And which of them are known: rewards that cannot be read leave theirs unknown.
    """
    totals, known = np.zeros(len(start)), np.ones(len(start), np.bool_)
    end = int(stop.max(initial=0))
    for low in range(0, end, BLOCK):
        high = min(low + BLOCK, end)
        here = np.flatnonzero((start < high) & (stop > low))
        try:
            rewards = rows.columns["reward"].rows(env, low, high).astype(np.float64)
        except DamagedError:
            known[here] = False
            continue
        sums = totals[here]
        add_in_order(sums, rewards, np.maximum(start[here] - low, 0), np.minimum(stop[here], high) - low)
        totals[here] = sums
    return totals, known


def cut_short(rows: Rows, table: Mapping[str, Array], back_to: Array) -> Episodes:
    """Return the episodes of a table, those that go on behind row back_to[env] interrupted there."""
    columns = {name: column.copy() for name, column in table.items()}
    for env, end in enumerate(back_to.tolist()):
        stop = table["start"] + table["length"]
        columns["final"][(table["env"] == env) & (stop + table["final"] > end)] = False
        late = np.flatnonzero((table["env"] == env) & (stop > end))
        columns["length"][late] = end - table["start"][late]
        columns["terminated"][late] = columns["truncated"][late] = False
        columns["return"][late] = returns_of(rows, env, table["start"][late], np.full(len(late), end))[0]
    return Episodes(len(back_to), rows.header.schema.columns, columns)


def add_in_order(totals: Array, rewards: Array, first: Array, last: Array) -> None:
    """Add rewards[first[k] : last[k]] to totals[k], one after the other as they were recorded."""
    length = last - first
    for k in np.flatnonzero(length > 1000).tolist():
        totals[k] = np.cumsum(np.append(totals[k], rewards[first[k] : last[k]]))[-1]
    short = np.flatnonzero(length <= 1000)
    for step in range(int(length[short].max(initial=0))):
        short = short[length[short] > step]
        totals[short] += rewards[first[short] + step]
