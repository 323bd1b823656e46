"""What a commit claims, held against the file: damage and strangers must not make a reader look elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import DamagedError
from .header import Header
from .layout import SPARE_ROWS
from .record import BETWEEN, OPEN, Record

Array = np.ndarray[Any, Any]
MOST_ROWS = 1 << 32  # of one environment
MOST_COUNT = 1 << 62  # of commits, checkpoints, bytes


def check_record(record: Record, header: Header, path: str) -> None:
    """Refuse a record whose numbers no run can have, or that places anything outside the file."""
    tail = (
        header.schema.envs
        * 2
        * np.array(
            [(header.rows[name] + SPARE_ROWS - 1) * header.row_bytes(name) for name in header.fields], np.float64
        )
    )
    claims = {
        "rows": (record.rows < 0) | (record.rows > MOST_ROWS),
        "states": (record.states > BETWEEN) | ((record.states == OPEN) & (record.rows == 0)),
        "tail slots": record.tail_slot > 1,
        "tails": (record.tail_offset < 0) | ((record.tail_offset > 0) & (record.tail_offset + tail > record.end)),
        "episodes": record.episodes > record.rows.sum(),
        "places": max(record.end, record.journal_offset, record.journal_length) > MOST_COUNT,
        "sequence": record.sequence > MOST_COUNT or record.epoch >= 1 << 31,
        "checkpoints": any(max(s.id, s.offset, s.length) > MOST_COUNT or s.offset > record.end for s in record.slots),
    }
    for name, wrong in claims.items():
        if np.any(wrong):
            raise DamagedError(f"{path}: the commit record claims {name} that cannot be")


def check_chunks(name: str, numbers: Array, record: Record, header: Header, path: str) -> None:
    """Refuse rows whose chunks are not there; `numbers` are those of the chunks of field `name`."""
    rows, envs = header.rows[name], header.schema.envs
    if not header.row_bytes(name):
        return
    unsettled = np.select([record.states == OPEN, record.states == BETWEEN], [2, 1], 0)
    need = np.maximum(record.rows - unsettled, 0) // rows
    number, env = np.divmod(numbers, envs)
    have = np.bincount(env[number < need[env]], minlength=envs)
    if (have != need).any():
        e = int(np.argmax(have != need))
        found = f"{record.rows[e]} rows committed in environment {e}, but {have[e]} of their {need[e]} chunks"
        raise DamagedError(f"{path}: field {name!r}: {found}")


def check_episodes(table: Mapping[str, Array], record: Record, path: str) -> None:
    """Refuse episodes that lie outside their environment's rows or on one another, and flags that are none."""
    env, start, length = (table[name] for name in ("env", "start", "length"))
    for name, column in table.items():
        if column.dtype == np.bool_ and (column.view(np.uint8) > 1).any():
            raise DamagedError(f"{path}: episode column {name!r}: expected flags")
    if ((env < 0) | (env >= len(record.rows))).any():
        raise DamagedError(f"{path}: an episode of an environment that there is not")
    if ((start < 0) | (start > MOST_ROWS) | (length < 0) | (length > MOST_ROWS)).any():
        raise DamagedError(f"{path}: an episode with a start or length that cannot be")
    order = np.argsort(env.astype(np.uint16), kind="stable")  # in order of arrival
    env, start, stop = env[order], start[order], (start + length + table["final"])[order]
    last = np.append(env[1:] != env[:-1], True)[: len(env)]
    limit = np.where(last, record.rows[env], np.append(start[1:], 0)[: len(env)])
    if (stop > limit).any():
        raise DamagedError(f"{path}: episodes beyond their environment's rows, or on one another")
    going_on = np.zeros(len(record.rows), np.bool_)
    going_on[env[last]] = stop[last] == record.rows[env[last]]
    if ((record.states == OPEN) & ~going_on).any():
        raise DamagedError(f"{path}: an environment that waits for an action, but not at the end of an episode")
