"""Saying which of many values is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def position(bad: Array, error: type[Exception], what: str, values: Array) -> None:
    """Raise `error` for the first position at which `bad` is true."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise error(f"position {at}: {values[at]} is {what}")
