"""How starts are chosen: frozen values with a round trip to JSON. What is drawn stands in docs/draws.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from . import _core
from .casting import is_int, is_number
from .errors import FieldError

DRAW_VERSION = 1
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Linear:
    """Go from `start` to `stop` over `steps` batches, then stay: beta=Linear(0.4, 1.0, steps=10**6).

    >>> Linear(0.0, 1.0, steps=10).at(5)
    0.5
    """

    start: float
    stop: float
    steps: int

    def __post_init__(self) -> None:
        ends = all(is_number(v) and isfinite(v) and v >= 0 for v in (self.start, self.stop))
        if not ends or not is_int(self.steps) or self.steps < 1:
            raise FieldError(f"{self}: expected finite numbers >= 0 and at least one step")

    def at(self, batch: int) -> float:
        """Return the value for batch number `batch`, counted from 0."""
        return self.start + (self.stop - self.start) * min(batch / self.steps, 1.0)


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
class Epoch:
    """Draw every valid start once a pass, each pass in an order of its own. Rows that arrive join the next pass.

    >>> sampler_from_json(Epoch().to_json())
    Epoch()
    """

    def to_json(self) -> dict[str, Any]:
        """Return the sampler as JSON values."""
        return {"kind": "epoch"}


@dataclass(frozen=True)
class Prioritized:
    """Draw in proportion to (priority + epsilon)^alpha (Schaul et al. 2016, proportional variant).

    New rows enter at the largest priority seen, 1.0 at first. `stratified`: one draw from each of batch_size equal
    parts of the total. Importance weights are (N P)^-beta over the largest of the batch, or, with
    normalize="global", of all valid starts (which reads every leaf). `beta`: a number, or Linear over batches.

    >>> sampler_from_json(Prioritized(beta=Linear(0.4, 1.0, 100)).to_json()).beta
    Linear(start=0.4, stop=1.0, steps=100)
    """

    alpha: float = 0.6
    beta: float | Linear = 0.4
    epsilon: float = 1e-6
    stratified: bool = True
    normalize: str = "batch"

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "epsilon"):
            value = getattr(self, name)
            if name == "beta" and isinstance(value, Linear):
                continue
            if not is_number(value) or not isfinite(value) or value < 0:
                raise FieldError(f"{name} {value!r}: expected a finite number >= 0")
        if not isinstance(self.stratified, bool):
            raise FieldError(f"stratified {self.stratified!r}: expected True or False")
        if self.normalize not in ("batch", "global"):
            raise FieldError(f"normalize {self.normalize!r}: expected 'batch' or 'global'")

    def beta_at(self, batch: int) -> float:
        """Return beta for batch number `batch`."""
        return self.beta.at(batch) if isinstance(self.beta, Linear) else self.beta

    def to_json(self) -> dict[str, Any]:
        """Return the sampler as JSON values."""
        return {"kind": "prioritized", **asdict(self)}


Sampler = Uniform | Epoch | Prioritized


def sampler_from_json(values: Mapping[str, Any]) -> Sampler:
    """Undo `to_json` of a sampler."""
    options = {k: v for k, v in values.items() if k != "kind"}
    if isinstance(options.get("beta"), Mapping):
        options["beta"] = Linear(**options["beta"])
    kinds: dict[str, type[Sampler]] = {"uniform": Uniform, "epoch": Epoch, "prioritized": Prioritized}
    return kinds[values["kind"]](**options)


def uniforms(seed: int, batch: int, count: int) -> Array:
    """Return `count` float64 in [0, 1): the first words of Philox4x64-10 with key (seed, batch), top 53 bits of each.

    Salmon et al. 2011. Every batch is a stream of its own, so (seed, batch) is all the state there is.

    >>> uniforms(0, 0, 2).shape
    (2,)
    """
    result = np.empty(count)
    _core.uniforms(seed, batch, result)
    return result
