"""Many whole rows at once: which of them start and end episodes, and how they are appended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .errors import FieldError, StateError
from .record import BETWEEN, ENDED, OPEN
from .rows import Rows
from .schema import is_observation

Array = np.ndarray[Any, Any]


def episode_starts(rows: Rows, values: Mapping[str, Array], env: int) -> Array:
    """Return which rows start an episode, or refuse rows that contradict each other or what came before."""
    last, flagged = values["is_last"], values["terminated"] | values["truncated"]
    if not len(last):
        return last
    state, current = int(rows.states[env]), rows.episodes.current[env]
    lacks_final = state == ENDED and current >= 0 and not rows.episodes.columns["final"][current]
    if lacks_final:  # unless rows behind it were given up, which separates it from what comes now
        lacks_final = rows.rows[env] == sum(rows.episodes.columns[k][current] for k in ("start", "length"))
    ends = last | flagged & ~np.append(last[1:], False)
    must = np.append(state == ENDED and not (lacks_final and last[0]), ends[:-1])
    first: Array = values["is_first"] | must
    if state == OPEN and not first[0]:
        raise StateError(
            f"{rows.path}: environment {env} has an observation waiting for its action; end its episode, "
            "or let the first row start one with is_first"
        )
    for name, bad in (
        ("a final observation cannot start an episode or be flagged", last & (flagged | first)),
        ("the row before ended the episode", np.append(False, flagged[:-1]) & ~first & ~last),
    ):
        if bad.any():
            raise FieldError(f"row {int(np.flatnonzero(bad)[0])}: {name}")
    return first


def append(rows: Rows, values: Mapping[str, Array], first: Array, env: int) -> None:
    """Append rows that lie in one chunk of every field."""
    count, start = len(first), int(rows.rows[env])
    last = values["is_last"]
    for name, array in values.items():
        column = rows.columns[name]
        if name == "is_first":
            array = first
        elif not is_observation(name) and name != "is_last":
            array = np.where(last.reshape(-1, *(1,) * (array.ndim - 1)), np.zeros((), array.dtype), array)
        column.put(np.full(count, env), np.arange(start, start + count), array)
    for low, high in runs(first, last):
        if first[low]:
            rows.episodes.begin(env, start + low)
        count_run(rows, {k: v[low:high] for k, v in values.items()}, env)
    rows.rows[env] += count


def runs(first: Array, last: Array) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows that belong to one episode."""
    cuts = np.unique(np.concatenate([[0], np.flatnonzero(first), np.flatnonzero(last) + 1, [len(first)]]))
    yield from zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)


def count_run(rows: Rows, values: Mapping[str, Array], env: int) -> None:
    """Count rows of one episode in the table of episodes and set where the environment is."""
    final = bool(values["is_last"][-1])
    steps = len(values["reward"]) - final
    if steps:
        rows.episodes.extend(env, values["reward"][:steps])
        flags = {name: bool(values[name][steps - 1]) for name in ("terminated", "truncated")}
        rows.episodes.mark(env, {**flags, "final": final})
        rows.states[env] = ENDED if final or any(flags.values()) else BETWEEN
    else:
        rows.episodes.mark(env, {"final": True})
        rows.states[env] = ENDED
