"""How starts are chosen: frozen values with a round trip to JSON. What is drawn stands in docs/draws.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from .errors import FieldError

DRAW_VERSION = 1
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Uniform:
    """Draw every valid start with the same probability, with replacement.

    >>> sampler_from_json(Uniform().to_json())
    Uniform()
    """

    def to_json(self) -> dict[str, Any]:
        """Return the sampler as JSON values."""
        return {"kind": "uniform"}


@dataclass(frozen=True)
class Prioritized:
    """Draw in proportion to (priority + epsilon)^alpha (Schaul et al. 2016, proportional variant).

    New rows enter at the largest priority seen, 1.0 at first. `stratified`: one draw from each of batch_size equal
    parts of the total. Importance weights are (N P)^-beta over the largest of the batch.

    >>> Prioritized(alpha=0.5).alpha
    0.5
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6
    stratified: bool = True
    normalize: str = "batch"

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "epsilon"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not isfinite(value) or value < 0:
                raise FieldError(f"{name} {value!r}: expected a finite number >= 0")
        if self.normalize != "batch":
            raise FieldError(f"normalize {self.normalize!r}: this version knows 'batch'")

    def to_json(self) -> dict[str, Any]:
        """Return the sampler as JSON values."""
        return {"kind": "prioritized", **asdict(self)}


Sampler = Uniform | Prioritized


def sampler_from_json(values: Mapping[str, Any]) -> Sampler:
    """Undo `to_json` of a sampler."""
    options = {k: v for k, v in values.items() if k != "kind"}
    return Prioritized(**options) if values["kind"] == "prioritized" else Uniform()


def uniforms(seed: int, batch: int, count: int) -> Array:
    """Return `count` float64 in [0, 1): the first words of Philox4x64-10 with key (seed, batch), top 53 bits of each.

    Salmon et al. 2011. Every batch is a stream of its own, so (seed, batch) is all the state there is.

    >>> uniforms(0, 0, 2).shape
    (2,)
    """
    words = np.random.Philox(key=np.array([seed, batch], np.uint64)).random_raw(count)
    result: Array = (np.asarray(words, np.uint64) >> np.uint64(11)) * 2.0**-53
    return result
