"""The table of episodes as the flags of rows tell it, where the table itself is gone."""

from __future__ import annotations

from typing import Any

import numpy as np

from .ranges import Ranges
from .returns import BLOCK, returns_of
from .rows import Rows
from .schema import FLAGS

Array = np.ndarray[Any, Any]


def episodes_of(rows: Rows, lost: list[tuple[int, int, int]]) -> dict[str, Array]:
    """Return the columns of the table by name, environment by environment; `lost`: (environment, start, stop).

    Rows that are lost or were given up are in no episode. One that goes on into lost rows ends there, interrupted.
    What is left of an episode that has lost its beginning is an episode of its own, hidden. Where rows were given up
    the last one kept becomes a final observation: what followed it is among them.
    """
    parts = []
    for env in range(len(rows.rows)):
        gone = [(start, stop) for e, start, stop in lost if e == env]
        given_up = [(r.back_to[env], r.rows[env]) for r in rows.rewinds]
        parts.append(episodes_of_one(rows, env, gone, given_up))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def episodes_of_one(
    rows: Rows, env: int, lost: list[tuple[int, int]], given_up: list[tuple[int, int]]
) -> dict[str, Array]:
    """Return the columns for one environment."""
    count = int(rows.rows[env])
    live = Ranges()
    for part in Ranges.of([*lost, *given_up]).gaps(count):
        live.add(*part)
    flags = flags_of(rows, env, count)
    starts, stops = cut(flags, live.merged())
    last = stops - 1
    final = np.isin(last, flags["is_last"]) | np.isin(stops, [start for start, stop in given_up if start < stop])
    steps_end = stops - final
    end = {name: np.isin(steps_end - 1, flags[name]) & (steps_end > starts) for name in ("terminated", "truncated")}
    fragment = ~np.isin(starts, flags["is_first"]) & np.isin(starts, [stop for _, stop in lost])
    known = {"env": np.full(len(starts), env), "start": starts, "length": steps_end - starts, "final": final}
    known |= {"return": returns_of(rows, env, starts, steps_end)[0], "hidden": fragment, **end}
    known["seed"] = np.full(len(starts), -1)
    table = {name: np.zeros(len(starts), dtype) for name, dtype in rows.header.schema.columns.items()}
    return {name: np.asarray(known.get(name, column), column.dtype) for name, column in table.items()}


def flags_of(rows: Rows, env: int, count: int) -> dict[str, Array]:
    """Return by name the rows at which each flag is set."""
    found: dict[str, list[Array]] = {name: [np.zeros(0, np.int64)] for name in FLAGS}
    for low in range(0, count, BLOCK):
        for name in FLAGS:
            found[name].append(low + np.flatnonzero(rows.columns[name].rows(env, low, min(low + BLOCK, count))))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def cut(flags: dict[str, Array], live: list[tuple[int, int]]) -> tuple[Array, Array]:
    """Return where episodes start and stop within ranges of rows."""
    ended = np.union1d(flags["terminated"], flags["truncated"]) + 1
    behind = np.union1d(flags["is_last"] + 1, np.setdiff1d(ended, flags["is_last"]))
    marks = np.union1d(flags["is_first"], behind)
    starts, stops = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for low, high in live:
        inside = np.append(low, marks[(marks > low) & (marks < high)])
        starts.append(inside)
        stops.append(np.append(inside[1:], high))
    return np.concatenate(starts), np.concatenate(stops)
