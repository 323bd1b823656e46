"""What a run stores per step and per episode, as frozen values with a round trip to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import FieldError, FieldTypeError, SchemaError

FLAGS = ("terminated", "truncated", "is_first", "is_last")
EPISODE_COLUMNS = {
    "env": "<i4",
    "start": "<i8",
    "length": "<i8",
    "return": "<f8",
    "terminated": "|b1",
    "truncated": "|b1",
    "final": "|b1",
    "seed": "<i8",
    "hidden": "|b1",
}
MAX_ENVS = 1 << 16
RESERVED = ("discount", "index", "weight", "mask", "timestep", "episode", "remaining", "return_to_go")


def is_observation(name: str) -> bool:
    """Tell whether a field is (a part of) the observation, which is known one row before the rest."""
    return name == "observation" or name.startswith("observation/")


@dataclass(frozen=True)
class Field:
    """Describe one value per step: its dtype and the shape of one row.

    A field that arrives stacked (a frame-stack wrapper stays in the user's code) gives the shape of *one* frame and
    `stacked`, the number of frames that arrive along axis `stack_axis`; only the newest frame is stored, `padding`
    ("zero" or "repeat" the first frame) says how the wrapper fills stacks at the start of an episode.

    >>> Field("uint8", (84, 84), stacked=4, padding="repeat").arrives
    (4, 84, 84)
    """

    dtype: str
    shape: tuple[int, ...] = ()
    stacked: int | None = None
    stack_axis: int = 0
    padding: str | None = None
    compression: str | None = None
    description: str = ""

    def __init__(
        self,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...] = (),
        *,
        stacked: int | None = None,
        stack_axis: int = 0,
        padding: str | None = None,
        compression: str | None = None,
        description: str = "",
    ) -> None:
        try:
            kind = np.dtype(dtype)
            shape = tuple(int(n) for n in shape)
        except (TypeError, ValueError) as error:
            raise SchemaError(f"dtype {dtype!r}, shape {shape!r}: {error}") from error
        if kind.kind not in "biufc" or kind.itemsize > 16 or kind == np.dtype("longdouble"):
            raise SchemaError(f"dtype {kind} cannot be stored; bool, integers, floats and complex numbers can")
        if any(n < 1 for n in shape):
            raise SchemaError(f"shape {shape}: every axis needs at least one element")
        if padding not in (None, "zero", "repeat"):
            raise SchemaError(f"padding {padding!r}: expected 'zero' or 'repeat'")
        if stacked is not None and (stacked < 1 or not 0 <= stack_axis <= len(shape)):
            raise SchemaError(f"stacked={stacked}, stack_axis={stack_axis} does not fit rows of shape {shape}")
        if compression not in (None, "gzip"):
            raise SchemaError(f"compression {compression!r}: this version writes 'gzip'")
        values = (kind.str, shape, stacked, stack_axis, padding, compression, description)
        for name, value in zip(self.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def nbytes(self) -> int:
        """Bytes of one stored row."""
        return np.dtype(self.dtype).itemsize * prod(self.shape)

    @property
    def arrives(self) -> tuple[int, ...]:
        """Shape in which one row is handed in: with the stack's axis where the field arrives stacked."""
        if self.stacked is None:
            return self.shape
        return (*self.shape[: self.stack_axis], self.stacked, *self.shape[self.stack_axis :])

    def cast(self, name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return `value` as an array of the field's dtype and the given shape, or say why it does not fit.

        Floats follow numpy's same_kind rule; an integer is accepted if it fits; a float into an integer field is not.
        """
        target = np.dtype(self.dtype)
        array = as_array(name, value)
        if array.shape != shape:
            raise FieldError(f"field {name!r}: expected shape {shape}, found {array.shape}")
        if array.dtype == target:
            return array
        return convert(name, array, target)

    def to_json(self) -> dict[str, Any]:
        """Return the field as JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"shape": list(self.shape)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Field:
        """Undo `to_json`."""
        options = {k: v for k, v in values.items() if k not in ("dtype", "shape")}
        return cls(values["dtype"], tuple(values["shape"]), **options)


def as_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Return `value` as an array; anything with __array__ or dlpack on the CPU will do."""
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise FieldTypeError(
            f"field {name!r}: {type(value).__name__} cannot be read as an array on the CPU ({error}); "
            "move it to the CPU first, for instance with .cpu().numpy()"
        ) from error


def convert(name: str, array: np.ndarray[Any, Any], target: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Cast under the rules of `Field.cast`."""
    source = array.dtype
    if source.kind not in "biufc":
        raise FieldTypeError(f"field {name!r}: expected {target}, found {source}")
    if target.kind in "biu" and source.kind in "biu":
        low, high = (0, 1) if target.kind == "b" else (int(np.iinfo(target).min), int(np.iinfo(target).max))
        for extreme in (array.min(), array.max()) if array.size else ():
            if not low <= int(extreme) <= high:
                raise FieldError(f"field {name!r}: {extreme} does not fit {target}, which holds {low} to {high}")
        return array.astype(target)
    if not np.can_cast(source, target, "same_kind"):
        raise FieldTypeError(f"field {name!r}: expected {target}, found {source}")
    with np.errstate(over="ignore"):
        return array.astype(target)


@dataclass(frozen=True)
class Schema:
    """Describe a run: `steps` gives a Field for observation, action and any extra value per step.

    reward (float32 unless given) and the flags terminated, truncated, is_first and is_last are implied. Names may
    hold slashes: `observation/pixels` and `info/lives` are parts of a dict.

    >>> schema = Schema(steps={"observation": Field("float32", (4,)), "action": Field("int64")})
    >>> list(schema.steps)
    ['observation', 'action', 'reward', 'terminated', 'truncated', 'is_first', 'is_last']
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    steps: Mapping[str, Field]
    num_envs: int | None = None
    autoreset: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = dict(self.steps)
        for name in given:
            check_name(name)
        for name, value in given.items():
            if not isinstance(value, Field):
                raise SchemaError(f"field {name!r}: expected an archive.Field, found {value!r}")
            if any(other.startswith(f"{name}/") for other in given):
                raise SchemaError(f"field {name!r} cannot have a value and parts")
        for flag in FLAGS:
            if given.pop(flag, Field("bool")) != Field("bool"):
                raise SchemaError(f"field {flag!r} is a bool without shape")
        reward = given.pop("reward", Field("float32"))
        if reward.shape or np.dtype(reward.dtype).kind not in "fiub" or reward.stacked is not None:
            raise SchemaError(f"field 'reward': expected a real number without shape, found {reward}")
        observation = {k: v for k, v in given.items() if is_observation(k)}
        if not observation or "action" not in {k.split("/")[0] for k in given}:
            raise SchemaError("a schema needs the fields 'observation' and 'action'")
        action = {k: v for k, v in given.items() if k.split("/")[0] == "action"}
        extras = {k: v for k, v in given.items() if k not in observation and k not in action}
        for name in extras:
            if name in RESERVED or name.startswith(("prev_", "next_")):
                raise SchemaError(f"field {name!r}: batches use this name for something else")
        flags = {flag: Field("bool") for flag in FLAGS}
        object.__setattr__(self, "steps", {**observation, **action, "reward": reward, **flags, **extras})
        if self.num_envs is not None and not 1 <= self.num_envs <= MAX_ENVS:
            raise SchemaError(f"num_envs {self.num_envs}: expected 1 to {MAX_ENVS}")
        if self.autoreset not in (None, "NextStep", "Disabled"):
            raise SchemaError(f"autoreset {self.autoreset!r}: this version records 'NextStep' and 'Disabled'")
        if any(f.stacked is not None for k, f in self.steps.items() if not is_observation(k)):
            raise SchemaError("only observation fields can arrive stacked")

    @property
    def envs(self) -> int:
        """Number of environments, 1 where the run has no environment axis."""
        return self.num_envs or 1

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of the extra fields per step."""
        known = {"reward", *FLAGS}
        return tuple(k for k in self.steps if k not in known and k.split("/")[0] not in ("observation", "action"))

    def with_options(self, num_envs: int | None, autoreset: str | None) -> Schema:
        """Return the schema with another number of environments or reset mode where given."""
        if num_envs is not None and (not isinstance(num_envs, int) or isinstance(num_envs, bool)):
            raise SchemaError(f"num_envs {num_envs!r}: expected an integer")
        if num_envs is not None and self.num_envs is not None and num_envs != self.num_envs:
            raise SchemaError(f"num_envs {num_envs} given, but the environment has {self.num_envs}")
        return replace(
            self, num_envs=self.num_envs if num_envs is None else num_envs, autoreset=autoreset or self.autoreset
        )

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON values; the order of `steps` numbers the fields."""
        return {
            "steps": {name: value.to_json() for name, value in self.steps.items()},
            "num_envs": self.num_envs,
            "autoreset": self.autoreset,
            "environment": dict(self.environment),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Schema:
        """Undo `to_json`."""
        steps = {name: Field.from_json(v) for name, v in values["steps"].items()}
        return cls(steps, values["num_envs"], values["autoreset"], values["environment"])

    @classmethod
    def from_env(cls, env: Any) -> Schema:
        """Read the schema off a Gymnasium environment or vector environment, frame stacks included."""
        from .spaces import schema_of_env

        return schema_of_env(env)

    @classmethod
    def from_spaces(cls, observation_space: Any, action_space: Any) -> Schema:
        """Read the schema off two Gymnasium spaces of one environment."""
        from .spaces import fields_of_space

        return cls({**fields_of_space("observation", observation_space), **fields_of_space("action", action_space)})

    @classmethod
    def from_example(cls, example: Mapping[str, Any]) -> Schema:
        """Read the schema off one row: {"observation": ..., "action": ...} and any extras.

        >>> schema = Schema.from_example({"observation": np.zeros(3, "float32"), "action": 1})
        >>> schema.steps["observation"].shape, schema.steps["action"].dtype
        ((3,), '<i8')
        """
        arrays = {name: as_array(name, value) for name, value in example.items()}
        return cls({name: Field(a.dtype, a.shape) for name, a in arrays.items()})


def check_name(name: str) -> None:
    """Refuse names that cannot be a path below /steps."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if not all(part and part.isprintable() and part not in (".", "..") for part in parts) or len(name) > 200:
        raise SchemaError(f"field name {name!r}: expected printable text, parts separated by single slashes")
