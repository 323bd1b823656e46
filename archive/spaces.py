"""Schemas read off Gymnasium spaces and environments. Gymnasium itself is imported by whoever made the environment."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from .errors import SchemaError
from .schema import Field, Schema

SPACES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")


def fields_of_space(name: str, space: Any) -> dict[str, Field]:
    """Return the fields that hold values of a space: one for Box, Discrete, MultiBinary and MultiDiscrete."""
    kind = type(space).__name__
    if kind not in SPACES:
        raise SchemaError(f"{name} space {kind}: this version records {', '.join(SPACES)}")
    return {name: Field(space.dtype, tuple(space.shape))}


def schema_of_env(env: Any) -> Schema:
    """Return the schema of an environment, its frame stack and how it resets."""
    num_envs = getattr(env, "num_envs", None)
    single = "single_" if num_envs is not None else ""
    observation = fields_of_space("observation", getattr(env, f"{single}observation_space"))
    action = fields_of_space("action", getattr(env, f"{single}action_space"))
    stack = frame_stack(env, num_envs is not None)
    if stack is not None:
        size, padding = stack
        field = observation["observation"]
        observation["observation"] = replace_stack(field, size, padding)
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode") if num_envs is not None else None
    return Schema({**observation, **action}, num_envs, getattr(mode, "value", mode), describe(env))


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
