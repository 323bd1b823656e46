"""What a run stores per step and per episode, as frozen values with a round trip to JSON."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from .casting import as_array, convert, encoded, is_int
from .errors import FieldError, SchemaError

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
MAX_TEXT = 1 << 20
MAX_AXES = 30  # HDF5 has 32, and rows and environments take two
MAX_LENGTH = (1 << 32) - 1  # of an axis, and bytes of one row: a chunk holds at least one
MAX_STACK = 1 << 16
MAX_DTYPE = 10  # characters: |S1048576
AUTORESET = ("NextStep", "SameStep", "Disabled")
COMPRESSIONS = ("gzip", "zstd", "lz4", "none")
RESERVED = ("discount", "index", "weight", "mask", "timestep", "episode", "remaining", "return_to_go")
ARGUMENTS = ("self", "info", "mask", "observation", "episode")  # of the calls that take fields and columns by keyword


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
            shape = tuple(operator.index(n) for n in shape)
        except (TypeError, ValueError) as error:
            raise SchemaError(f"dtype {dtype!r}, shape {shape!r}: {error}") from error
        if dtype is None:
            raise SchemaError("dtype None: expected a dtype")
        storable = kind.kind in "biufc" and kind.itemsize <= 16 and kind != np.dtype("longdouble")
        if not storable and not (kind.kind == "S" and 1 <= kind.itemsize <= MAX_TEXT):
            raise SchemaError(f"dtype {kind} cannot be stored; bool, integers, floats, complex and fixed text can")
        if any(n < 0 for n in shape):
            raise SchemaError(f"shape {shape}: an axis cannot be negative")
        if len(shape) > MAX_AXES:
            raise SchemaError(f"shape of {len(shape)} axes; at most {MAX_AXES} can be stored")
        if max((*shape, kind.itemsize * prod(shape))) > MAX_LENGTH:
            raise SchemaError(f"shape {shape}: a row must be smaller than 4 GiB")
        if padding not in (None, "zero", "repeat"):
            raise SchemaError(f"padding {padding!r}: expected 'zero' or 'repeat'")
        counts = is_int(stack_axis) and (stacked is None or (is_int(stacked) and 1 <= stacked <= MAX_STACK))
        if not counts or (stacked is not None and not 0 <= stack_axis <= len(shape)):
            raise SchemaError(f"stacked={stacked!r}, stack_axis={stack_axis!r} does not fit rows of shape {shape}")
        if compression not in (None, *COMPRESSIONS):
            raise SchemaError(f"compression {compression!r}: expected one of {', '.join(COMPRESSIONS)}")
        if not isinstance(description, str):
            raise SchemaError(f"description {description!r}: expected text")
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
        array = encoded(name, value, target) if target.kind == "S" else as_array(name, value)
        if target.kind in "iu" and array.dtype.kind in "fO" and isinstance(value, (int, list, tuple)):
            array = np.asarray(value, object)  # numpy makes floats of a list that holds 2^63 and 0
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
        if not isinstance(values["dtype"], str) or len(values["dtype"]) > MAX_DTYPE:
            raise SchemaError(f"dtype {str(values['dtype'])[:50]!r}: expected numpy's short form")
        return cls(values["dtype"], tuple(values["shape"]), **options)


def Text(max_bytes: int, *, description: str = "") -> Field:  # noqa: N802 - reads as a kind of Field
    """Return a field of text of at most `max_bytes` bytes of UTF-8. It reads back as str from batches and episodes.

    >>> Text(16).dtype
    '|S16'
    """
    if not is_int(max_bytes):
        raise SchemaError(f"Text({max_bytes!r}): expected a number of bytes")
    return Field(f"S{max_bytes}", description=description)


@dataclass(frozen=True)
class Schema:
    """Describe a run: `steps` gives a Field for observation, action and any extra value per step.

    reward (float32 unless given) and the flags terminated, truncated, is_first and is_last are implied. Names may
    hold slashes: `observation/pixels` and `info/lives` are parts of a dict; `tuples` names what comes back as a
    tuple instead. A field `priority` gives the priority at which its row enters. `episodes` gives a Field for any
    value per episode, set by reset, end_episode or annotate.

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
    episodes: Mapping[str, Field] = field(default_factory=dict)
    tuples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what in ("steps", "episodes", "environment"):
            if not isinstance(getattr(self, what), Mapping):
                raise SchemaError(f"{what}: expected a dict, found {getattr(self, what)!r}")
        given = dict(self.steps)
        for name in given:
            check_name(name)
        for name, value in given.items():
            if not isinstance(value, Field):
                raise SchemaError(f"field {name!r}: expected an archive.Field, found {value!r}")
            for above in (name[:at] for at, c in enumerate(name) if c == "/"):
                if above in given:
                    raise SchemaError(f"field {above!r} cannot have a value and parts")
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
        priority = extras.get("priority", Field("float64"))
        if priority.shape or np.dtype(priority.dtype).kind != "f":
            raise SchemaError(f"field 'priority': expected a float without shape, found {priority}")
        for name in extras:
            if name in RESERVED or name in ARGUMENTS or name.startswith(("prev_", "next_")):
                raise SchemaError(f"field {name!r}: batches or calls use this name for something else")
        flags = {flag: Field("bool") for flag in FLAGS}
        object.__setattr__(self, "steps", {**observation, **action, "reward": reward, **flags, **extras})
        if self.num_envs is not None and not (is_int(self.num_envs) and 1 <= self.num_envs <= MAX_ENVS):
            raise SchemaError(f"num_envs {self.num_envs!r}: expected an integer, 1 to {MAX_ENVS}")
        object.__setattr__(self, "autoreset", autoreset_mode(self.autoreset))
        object.__setattr__(self, "tuples", tuple(self.tuples))
        for name, column in self.episodes.items():
            check_name(name)
            if not isinstance(column, Field):
                raise SchemaError(f"episode column {name!r}: expected an archive.Field, found {column!r}")
            if name in EPISODE_COLUMNS or name in ARGUMENTS or column.shape or "/" in name:
                raise SchemaError(f"episode column {name!r}: expected a name of its own and a value without shape")
        if any(f.stacked is not None for k, f in self.steps.items() if not is_observation(k)):
            raise SchemaError("only observation fields can arrive stacked")

    @property
    def envs(self) -> int:
        """Number of environments, 1 where the run has no environment axis."""
        return self.num_envs or 1

    @property
    def columns(self) -> dict[str, str]:
        """dtypes of all episode columns."""
        return EPISODE_COLUMNS | {name: column.dtype for name, column in self.episodes.items()}

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of the extra fields per step."""
        known = {"reward", *FLAGS}
        return tuple(k for k in self.steps if k not in known and k.split("/")[0] not in ("observation", "action"))

    def with_options(self, num_envs: int | None, autoreset: str | None) -> Schema:
        """Return the schema with another number of environments or reset mode where given."""
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
            "episodes": {name: value.to_json() for name, value in self.episodes.items()},
            "tuples": list(self.tuples),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Schema:
        """Undo `to_json`."""
        steps, episodes = (
            {name: Field.from_json(v) for name, v in values.get(group, {}).items()} for group in ("steps", "episodes")
        )
        known, tuples = (values["num_envs"], values["autoreset"], values["environment"]), values.get("tuples", ())
        if not all(isinstance(name, str) for name in tuples):
            raise SchemaError("tuples: expected names")
        return cls(steps, *known, episodes, tuple(tuples))

    @classmethod
    def from_env(cls, env: Any) -> Schema:
        """Read the schema off a Gymnasium environment or vector environment, frame stacks included."""
        from .spaces import schema_of_env

        return schema_of_env(env)

    @classmethod
    def from_spaces(cls, observation_space: Any, action_space: Any) -> Schema:
        """Read the schema off two Gymnasium spaces of one environment."""
        from .spaces import Parts

        parts = Parts().add("observation", observation_space).add("action", action_space)
        return cls(parts.fields, tuples=tuple(parts.tuples))

    @classmethod
    def from_example(cls, example: Mapping[str, Any]) -> Schema:
        """Read the schema off one row: {"observation": ..., "action": ...} and any extras.

        >>> schema = Schema.from_example({"observation": np.zeros(3, "float32"), "action": 1})
        >>> schema.steps["observation"].shape, schema.steps["action"].dtype
        ((3,), '<i8')
        """
        from .spaces import Parts

        parts = Parts()
        if not isinstance(example, Mapping):
            raise SchemaError(f"an example is one row, a dict by field name; found {type(example).__name__}")
        for name, value in example.items():
            parts.add_example(name, value)
        return cls(parts.fields, tuples=tuple(parts.tuples))


def autoreset_mode(mode: Any) -> str | None:
    """Return the name of a reset mode, given as Gymnasium's enum or as its value."""
    name = getattr(mode, "value", mode)
    if name is not None and name not in AUTORESET:
        raise SchemaError(f"autoreset {mode!r}: expected one of {', '.join(AUTORESET)}")
    return None if name is None else str(name)


def check_name(name: str) -> None:
    """Refuse names that cannot be a path below /steps."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if not all(part and part.isprintable() and part not in (".", "..") for part in parts) or len(name) > 200:
        raise SchemaError(f"field name {str(name)[:100]!r}: expected printable text, parts separated by single slashes")
