"""Ids of rows, and saying which of many values is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import IndexRangeError

Array = np.ndarray[Any, Any]


def position(bad: Array, error: type[Exception], what: str, values: Array) -> None:
    """Raise `error` for the first position at which `bad` is true."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise error(f"position {at}: {values[at]} is {what}")


def split(ids: Array, envs: int) -> tuple[Array, Array]:
    """Return environment and row of ids."""
    env = ids >> 32
    position((ids < 0) | (env >= envs), IndexRangeError, "of an environment that does not exist", ids)
    return env, ids & 0xFFFFFFFF
