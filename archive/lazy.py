"""A field as an array that reads when it is indexed."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .column import Column
from .guard import lock

Array = np.ndarray[Any, Any]


class Lengths(Protocol):
    """What knows how many rows each environment has."""

    rows: Array


class LazyColumn:
    """A field as an array that reads when it is indexed: (rows, *shape), or (rows, environments, *shape)."""

    def __init__(self, column: Column, owner: Lengths, axis: bool) -> None:
        self._column, self._owner, self._axis = column, owner, axis

    @property
    def _lengths(self) -> Array:
        return self._owner.rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape; rows of the longest environment first."""
        envs = (self._column.envs,) if self._axis else ()
        return (int(self._lengths.max()), *envs, *self._column.field.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the field."""
        return self._column.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        """Read rows (and environments), each index by itself; rows past an environment's end are zeros."""
        key = key if isinstance(key, tuple) else (key,)
        if any(k is Ellipsis for k in key):
            at = next(i for i, k in enumerate(key) if k is Ellipsis)
            key = key[:at] + (slice(None),) * (len(self.shape) - len(key) + 1) + key[at + 1 :]
        rows = np.asarray(np.arange(len(self))[key[0]])
        envs = np.arange(self._column.envs)[key[1] if len(key) > 1 else slice(None)] if self._axis else 0
        rest = key[1 + self._axis :]
        result = self._read(rows, np.asarray(envs))
        return result[(*(slice(None),) * (rows.ndim + np.ndim(envs)), *rest)] if rest else result

    def _read(self, rows: Array, envs: Array) -> Array:
        grid_rows, grid_envs = np.broadcast_arrays(rows.reshape((*rows.shape, *(1,) * envs.ndim)), envs)
        flat_rows, flat_envs = grid_rows.reshape(-1, 1).astype(np.int64), grid_envs.reshape(-1).astype(np.int64)
        exists = flat_rows[:, 0] < self._lengths[flat_envs]
        flat_rows = np.where(exists[:, None], flat_rows, -1)
        with lock:
            found = self._column.gather(flat_envs, np.ascontiguousarray(flat_rows))
        return found.reshape((*grid_rows.shape, *self._column.field.shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)
