"""How a replay makes batches of rows: a frozen value that its state carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from .casting import is_int, is_number
from .errors import FieldError
from .rule import Rule

UNSET: Any = object()  # an argument that was not given
EXTRAS = ("timestep", "episode", "remaining", "return_to_go")
MOST = {"batch_size": 24, "n_step": 20, "stack": 17, "sequence_length": 20, "burn_in": 20}  # powers of two; others: 48
LEAST = {
    "batch_size": 1,
    "capacity": 1,
    "n_step": 1,
    "stack": 0,
    "seed": 0,
    "sequence_length": 1,
    "burn_in": 0,
    "stride": 1,
}
CHOICES = {
    "padding": (None, "zero", "repeat"),
    "pad": (None, "left", "right"),
    "missing_final": ("drop", "shorten"),
}


@dataclass(frozen=True)
class Options:
    """Every option of `run.replay` but the sampler; see there."""

    batch_size: int | None = None
    capacity: int | None = None
    gamma: float = 0.99
    n_step: int = 1
    stack: int | None = None
    stack_axis: int = 1
    padding: str | None = None
    sequence_length: int | None = None
    burn_in: int = 0
    stride: int = 1
    within_episode: bool = True
    pad: str | None = None
    time_major: bool = False
    offsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    previous: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    cast: Mapping[str, str] = field(default_factory=dict)
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    reward_clip: tuple[float, float] | None = None
    missing_final: str = "drop"
    overlap: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in LEAST.items():
            value = getattr(self, name)
            optional = type(self).__dataclass_fields__[name].default is None
            if not (value is None and optional) and (not is_int(value) or value < low):
                raise FieldError(f"{name} {value!r}: expected an integer >= {low}")
            most = MOST.get(name, 48)
            if value is not None and name != "seed" and value >= 1 << most:
                raise FieldError(f"{name} {value!r}: expected less than 2^{most}")
        if self.seed >= 1 << 64:
            raise FieldError(f"seed {self.seed}: expected less than 2^64")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise FieldError(f"{name} {getattr(self, name)!r}: expected one of {known}")
        for name in ("gamma", "reward_scale", "reward_shift"):
            value = getattr(self, name)
            if not is_number(value) or not isfinite(value):
                raise FieldError(f"{name} {getattr(self, name)!r}: expected a finite number")
        if not 0 <= self.gamma <= 1:
            raise FieldError(f"gamma {self.gamma!r}: expected 0 to 1")
        self.normalise()
        unknown = set(self.extras) - set(EXTRAS)
        if unknown:
            raise FieldError(f"extras {sorted(unknown)}: expected some of {EXTRAS}")
        if self.sequence_length is None and (self.burn_in or self.pad or self.time_major or not self.within_episode):
            raise FieldError("burn_in, pad, time_major and within_episode need sequence_length")
        if self.sequence_length is not None and self.offsets:
            raise FieldError("offsets and sequence_length exclude each other: a sequence is a window already")
        if not is_int(self.stack_axis) or self.stack_axis == 0:
            raise FieldError(f"stack_axis {self.stack_axis!r}: expected 1 or more, or a negative axis; 0 is the batch")
        if not isinstance(self.overlap, bool) or (
            self.overlap and (self.sequence_length is not None or self.n_step != 1)
        ):
            raise FieldError(f"overlap {self.overlap!r}: expected True or False; True needs transitions of one step")
        if self.sequence_length is not None and self.n_step != 1:
            raise FieldError("n_step and sequence_length exclude each other: sequences hold raw rewards")

    def normalise(self) -> None:
        """Bring what may be given in several forms into one, so that a round trip to JSON gives an equal value."""
        if self.reward_clip is not None:
            object.__setattr__(self, "reward_clip", checked_clip(self.reward_clip))
        for name in ("offsets", "cast"):
            if not isinstance(getattr(self, name), Mapping) or not all(isinstance(k, str) for k in getattr(self, name)):
                raise FieldError(f"{name} {getattr(self, name)!r}: expected a dict by field name")
        object.__setattr__(self, "offsets", {k: checked_offsets(k, v) for k, v in self.offsets.items()})
        object.__setattr__(self, "cast", {k: checked_dtype(k, v) for k, v in self.cast.items()})
        for name in ("previous", "extras"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(v, str) for v in given):
                raise FieldError(f"{name} {given!r}: expected a tuple of names")
            object.__setattr__(self, name, tuple(given))

    @property
    def rule(self) -> Rule:
        """Return which starts are valid under these options."""
        if self.sequence_length is None:
            return Rule(self.n_step, stride=self.stride, missing_final=self.missing_final)
        rows = self.burn_in + self.sequence_length
        return Rule(rows, True, self.stride, self.within_episode, self.pad)

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], **given: Any) -> Options:
        """Undo `to_json`; options given beside win. TypeError for an option that this version does not know."""
        return cls(**{**values, **given})


def checked_offsets(name: str, given: Any) -> tuple[int, ...]:
    """Return offsets given as any sequence of integers."""
    offsets = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else ()
    if not offsets or not all(is_int(o) and abs(o) < 1 << 48 for o in offsets):
        raise FieldError(f"offsets of {name!r}: expected integers, found {given!r}")
    return tuple(int(o) for o in offsets)


def checked_dtype(name: str, given: Any) -> str:
    """Return the name of a dtype of numbers."""
    try:
        dtype = np.dtype(given)
    except TypeError as error:
        raise FieldError(f"cast of {name!r}: {error}") from error
    if given is None or dtype.kind not in "biufc":
        raise FieldError(f"cast of {name!r}: expected a dtype of numbers, found {given!r}")
    return str(dtype.str)


def checked_clip(clip: Any) -> tuple[float, float]:
    """Return the lowest and highest reward of a clip given as a number or as both."""
    pair: Any = (-abs(float(clip)), abs(float(clip))) if is_number(clip) else clip
    try:
        low, high = (float(v) for v in pair)
    except (TypeError, ValueError):
        low = high = float("nan")
    if not low <= high:
        raise FieldError(f"reward_clip {clip!r}: expected a number, or the lowest and the highest reward")
    return low, high
