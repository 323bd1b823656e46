"""Frame stacks as they would arrive, made of stored rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .record import OPEN
from .rows import Rows

Array = np.ndarray[Any, Any]


def stored_stacks(rows: Rows) -> dict[str, Array]:
    """Return of each stacked field the stacks (envs, frames, *shape) that the next observations must continue."""
    env, stacks = np.flatnonzero(rows.states == OPEN), {}
    for name, field in rows.header.schema.steps.items():
        if field.stacked is not None and len(env):
            head = rows.rows[env] - 1
            low = rows.episodes.columns["start"][rows.episodes.current[env]]
            where = np.empty((len(env), field.stacked), np.int64)
            _core.windows(head, np.arange(1 - field.stacked, 1), low, head, field.padding == "repeat", where)
            stacks[name] = np.zeros((len(rows.rows), field.stacked, *field.shape), field.dtype)
            stacks[name][env] = rows.columns[name].gather(env, where)
    return stacks
