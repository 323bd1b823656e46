"""A batch of transitions."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Batch:
    """Arrays of one batch, by attribute or by name; observations and actions made of parts come back as dicts.

    observation, action, reward (n-step sum, float32), next_observation, terminated, truncated, discount (gamma^m, 0
    where terminated: the target is reward + discount * V(next_observation)), index (ids), weight; extra fields such
    as batch["log_prob"] by name. The arrays belong to the caller.
    """

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_arrays"][name]
        except KeyError:
            raise AttributeError(f"a batch of {', '.join(self.__dict__.get('_arrays', {}))} has no {name!r}") from None

    def __getitem__(self, name: str) -> Any:
        """Return an array by name; KeyError without one."""
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __len__(self) -> int:
        return len(self._arrays["index"])

    def __repr__(self) -> str:
        shapes = {k: v.shape if isinstance(v, np.ndarray) else "..." for k, v in self._arrays.items()}
        return f"Batch({', '.join(f'{k}: {v}' for k, v in shapes.items())})"

    def asdict(self) -> dict[str, Any]:
        """Return the arrays as a dict."""
        return dict(self._arrays)


def nest(name: str, arrays: dict[str, Array], tuples: tuple[str, ...] = ()) -> Any:
    """Return the array `name`, or the arrays whose names start with `name/` as a nested dict; `tuples` as tuples."""
    if name in arrays:
        return arrays[name]
    result: dict[str, Any] = {}
    for full, array in arrays.items():
        place, keys = result, full.split("/")[1:]
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = array
    return tupled(name, result, tuples)


def texts_of(array: Array) -> Array:
    """Return a copy of an array, stored text as str."""
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array.copy()


def decoded(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return fields by name, stored text as str."""
    return {k: texts_of(v) if v.dtype.kind == "S" else v for k, v in arrays.items()}


def nest_all(arrays: dict[str, Array], tuples: tuple[str, ...]) -> dict[str, Any]:
    """Return fields by name, the parts of an observation or action nested as they arrived, text as str."""
    arrays = decoded(arrays)
    tops = dict.fromkeys(k.split("/")[0] if k.split("/")[0] in ("observation", "action") else k for k in arrays)
    groups = {t: {k: v for k, v in arrays.items() if k == t or k.startswith(f"{t}/")} for t in tops}
    return {top: nest(top, group, tuples) for top, group in groups.items()}


def tupled(name: str, value: Any, tuples: tuple[str, ...]) -> Any:
    """Return a nested dict with those parts that `tuples` names as tuples; None stands where a part was not read."""
    if not isinstance(value, dict):
        return value
    parts = {key: tupled(f"{name}/{key}", part, tuples) for key, part in value.items()}
    if name not in tuples:
        return parts
    return tuple(parts.get(str(k)) for k in range(1 + max(map(int, parts))))
