"""Frame stacks as they would arrive, made of stored rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .places import LOW, Places
from .record import OPEN
from .rows import Rows

Array = np.ndarray[Any, Any]


def stored_stacks(rows: Rows) -> dict[str, Array]:
    """Return of each stacked field the stacks (envs, frames, *shape) that the next observations must continue."""
    env, stacks = np.flatnonzero(rows.states == OPEN), {}
    for name, field in rows.header.schema.steps.items():
        if field.stacked is not None and len(env):
            head, repeat = rows.rows[env] - 1, field.padding == "repeat"
            low = rows.episodes.columns["start"][rows.episodes.current[env]]
            place = Places.outside(env, head)
            place.block[LOW] = low
            column = rows.columns[name]
            frames = column.windows(column.part(1 - field.stacked, field.stacked, repeat=repeat), place.block, head)
            stacks[name] = np.zeros((len(rows.rows), field.stacked, *field.shape), field.dtype)
            stacks[name][env] = frames
    return stacks
