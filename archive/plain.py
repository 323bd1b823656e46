"""Which fields take part in a plain step, and what each of them expects; see `_core/append.pyx`."""

from __future__ import annotations

import sys

import numpy as np

from ._append import PlainField, PlainStep
from .column import Column
from .record import OPEN
from .rows import Rows
from .schema import is_observation

ROLES = {"reward": "reward", "terminated": "ending", "truncated": "ending", "priority": "priority"}
ROLES |= {"is_first": "first", "is_last": "last"}
READ = ("reward", "priority")  # their values are looked at
MOST_FIELDS, MOST_AXES = 32, 8


def plain_step(rows: Rows) -> PlainStep | None:
    """Return what appends plain steps to `rows`; None where a field has no place in it."""
    columns = rows.columns.values()
    lead = () if rows.header.schema.num_envs is None else (rows.header.schema.num_envs,)
    if sys.byteorder != "little" or len(columns) > MOST_FIELDS or not all(is_plain(c, lead) for c in columns):
        return None
    return PlainStep([plain_field(column, lead) for column in columns], rows, OPEN)


def is_plain(column: Column, lead: tuple[int, ...]) -> bool:
    """Tell whether a field has the form that compiled code knows."""
    field, dtype = column.field, column.dtype
    nested = "/" in column.name and not column.name.startswith("info/")
    known = dtype.isnative and dtype.kind in "biuf" and (column.name not in READ or dtype.char in "fd")
    stacked = field.stacked is None or (field.stacked > 1 and field.stack_axis == 0)
    return known and stacked and not nested and field.nbytes > 0 and len(lead + field.arrives) <= MOST_AXES


def plain_field(column: Column, lead: tuple[int, ...]) -> PlainField:
    """Return a column as compiled code sees it."""
    return PlainField(
        column.name,
        "observation" if is_observation(column.name) else ROLES.get(column.name, "other"),
        column.begin,
        column.memory,
        column.newest,
        np.dtype(column.dtype),
        lead + column.field.arrives,
        column.chunk_rows,
        column.field.stacked or 1,
        column.envs,
    )
