"""What viewers show of a closed file: a contact sheet, and frames of each environment by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from .datasets import frame_fields
from .rows import Rows

Array = np.ndarray[Any, Any]
SIDE = 5  # frames along each side of the contact sheet


def contact_sheet(rows: Rows) -> Array | None:
    """Return frames from all over the run as one colour picture (h, w, 3), None without frames."""
    names = frame_fields(rows.header.schema.steps)
    if not names or not rows.rows.any():
        return None
    env = int(rows.rows.argmax())
    column = rows.columns[names[0]]
    chosen = np.linspace(0, int(rows.rows[env]) - 1, SIDE * SIDE).astype(np.int64)
    frames = column.gather(np.full(len(chosen), env), chosen)
    pictures = np.stack([as_colour(frame) for frame in frames])
    count, height, width, _ = pictures.shape
    grid = pictures.reshape(count // SIDE, SIDE, height, width, 3).swapaxes(1, 2)
    return np.ascontiguousarray(grid.reshape(count // SIDE * height, SIDE * width, 3))


def as_colour(frame: Array) -> Array:
    """Return a frame as (H, W, 3)."""
    if frame.ndim == 3 and frame.shape[0] in (1, 3) and frame.shape[2] not in (1, 3):
        frame = np.moveaxis(frame, 0, 2)
    if frame.ndim == 2:
        frame = frame[:, :, None]
    return np.broadcast_to(frame, (*frame.shape[:2], 3))
