"""Schemas read off Gymnasium spaces and environments. Gymnasium itself is imported by whoever made the environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .casting import as_array
from .errors import FieldTypeError, SchemaError
from .schema import Field, Schema, is_observation

ARRAYS = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")


class Parts:
    """Fields by name, collected from spaces or examples; parts of dicts and tuples get names with slashes."""

    def __init__(self) -> None:
        self.fields: dict[str, Field] = {}
        self.tuples: list[str] = []

    def add(self, name: str, space: Any) -> Parts:
        """Add the fields that hold values of a space."""
        kind = type(space).__name__
        if kind in ARRAYS:
            self.fields[name] = Field(space.dtype, tuple(space.shape))
        elif kind == "Text":
            ascii_only = all(ord(c) < 128 for c in space.character_set)
            self.fields[name] = Field(f"S{max(space.max_length, 1) * (1 if ascii_only else 4)}")
        elif kind in ("Dict", "Tuple"):
            self.parts(name, space.spaces, self.add)
        else:
            raise SchemaError(f"{name} space {kind} cannot be recorded; {', '.join(ARRAYS)}, Text, Dict and Tuple can")
        return self

    def add_example(self, name: str, value: Any) -> Parts:
        """Add the fields that hold values like this one."""
        if isinstance(value, (Mapping, tuple)):
            self.parts(name, value, self.add_example)
        elif isinstance(value, str):
            self.fields[name] = Field(f"S{max(len(value.encode()), 1)}")
        else:
            array = as_array(name, value)
            self.fields[name] = Field(array.dtype, array.shape)
        return self

    def parts(self, name: str, values: Any, add: Callable[[str, Any], Parts]) -> None:
        """Add each part of a dict or tuple under its key."""
        if not isinstance(values, Mapping):
            self.tuples.append(name)
            values = dict(enumerate(values))
        if not values:
            raise SchemaError(f"{name}: a dict or tuple needs at least one part")
        for key, value in values.items():
            add(f"{name}/{key}", value)


def schema_of_env(env: Any) -> Schema:
    """Return the schema of an environment, its frame stack and how it resets."""
    num_envs = getattr(env, "num_envs", None)
    single = "single_" if num_envs is not None else ""
    if not all(hasattr(env, f"{single}{what}_space") for what in ("observation", "action")):
        raise FieldTypeError(f"expected a Gymnasium environment or a Schema, found {type(env).__name__}")
    parts = Parts()
    parts.add("observation", getattr(env, f"{single}observation_space"))
    parts.add("action", getattr(env, f"{single}action_space"))
    stack = frame_stack(env, num_envs is not None)
    if stack is not None:
        for name, field in parts.fields.items():
            if is_observation(name):
                parts.fields[name] = replace_stack(field, *stack)
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode") if num_envs is not None else None
    return Schema(parts.fields, num_envs, mode, describe(env), tuples=tuple(parts.tuples))


def replace_stack(field: Field, size: int, padding: str) -> Field:
    """Return the field of one frame for observations that arrive as (size, *frame)."""
    if field.shape[:1] != (size,):
        raise SchemaError(f"the environment stacks {size} frames, but its observations have shape {field.shape}")
    return replace(field, shape=field.shape[1:], stacked=size, padding=padding)


def frame_stack(env: Any, vector: bool) -> tuple[int, str] | None:
    """Return (frames, padding) of a FrameStackObservation among the wrappers, None without one.

    Vector environments may live in other processes, so they are asked, not looked into.
    """
    if vector:
        if not hasattr(env, "call") or not all(env.call("has_wrapper_attr", "stack_size")):
            return None
        sizes, paddings = env.get_attr("stack_size"), env.get_attr("padding_type")
        if len(set(sizes)) > 1 or len(set(paddings)) > 1:
            raise SchemaError(f"the environments stack differently: {sizes}, {paddings}")
        size, padding = int(sizes[0]), str(paddings[0])
    else:
        wrapper = next((w for w in wrappers(env) if type(w).__name__ == "FrameStackObservation"), None)
        if wrapper is None:
            return None
        size, padding = int(wrapper.stack_size), str(wrapper.padding_type)
    names = {"reset": "repeat", "zero": "zero"}
    if padding not in names:
        raise SchemaError(f"FrameStackObservation(padding_type={padding!r}): only 'reset' and 'zero' can be recorded")
    return size, names[padding]


def wrappers(env: Any) -> Any:
    """Yield an environment and what it wraps, from the outside in."""
    while env is not None:
        yield env
        env = getattr(env, "env", None)


def describe(env: Any) -> dict[str, Any]:
    """Return what a person wants to know of the environment: id, spec and spaces as text."""
    spec = getattr(env, "spec", None)
    if spec is None and hasattr(env, "get_attr"):
        spec = env.get_attr("spec")[0]
    text: dict[str, Any] = {"id": getattr(spec, "id", None) or type(getattr(env, "unwrapped", env)).__name__}
    text["observation_space"] = str(getattr(env, "single_observation_space", env.observation_space))
    text["action_space"] = str(getattr(env, "single_action_space", env.action_space))
    kwargs = getattr(spec, "kwargs", None) or {}
    text["kwargs"] = {k: v for k, v in kwargs.items() if is_json(v)}
    return text


def is_json(value: Any) -> bool:
    """Tell whether a value can be written down as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, np.generic)
