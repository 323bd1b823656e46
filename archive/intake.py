"""What users hand in, checked and cast before anything changes: one row for every environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .casting import as_array
from .errors import FieldError, PriorityError, UnknownFieldError
from .schema import Field, Schema, is_observation

Array = np.ndarray[Any, Any]


class Intake:
    """Turn arguments of reset, step and extend into arrays (envs, *shape) by field name.

    Fields that arrive stacked are cut to their newest frame; `stacks` keeps the last stack of each, since the next
    one must continue it.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.observations = {k: f for k, f in schema.steps.items() if is_observation(k)}
        self.actions = {k: f for k, f in schema.steps.items() if k.split("/")[0] == "action"}
        self.stacks: dict[str, Array] = {}

    def one(self, name: str, value: Any, rows: int | None = None) -> Array:
        """Return `value` of one field with its leading axis: environments, or `rows` rows of one environment."""
        field = self.schema.steps[name]
        lead = (rows,) if rows is not None else (self.schema.num_envs,) if self.schema.num_envs else ()
        array = field.cast(name, value, (*lead, *field.arrives))
        return array if lead else array[None]

    def group(self, fields: Mapping[str, Field], value: Any, rows: int | None = None) -> dict[str, Array]:
        """Return every field of an observation or action that may be nested."""
        check_parts(value, [name.split("/")[1:] for name in fields], next(iter(fields)).split("/")[0])
        return {name: self.one(name, part(name, value), rows) for name in fields}

    def step(
        self, values: Mapping[str, Any], info: Any, extras: Mapping[str, Any], completes: bool = True
    ) -> dict[str, Array]:
        """Return what completes the waiting rows: action, reward, flags and extra fields.

        Without a row that it `completes`, where every environment is reset, nothing extra is needed.
        """
        result = self.group(self.actions, values["action"])
        for name in ("reward", "terminated", "truncated"):
            result[name] = self.one(name, values[name])
        given = dict(extras)
        ended = result["terminated"] | result["truncated"]
        for name in self.schema.extras:
            value = given.pop(name, None)
            if value is None and name.startswith("info/") and isinstance(info, Mapping):
                value = self.from_info(name, info, ended)
            if value is None and (name == "priority" or not completes):
                value = np.full((*ended.shape, *self.schema.steps[name].shape), np.nan if name == "priority" else 0)
                value = value if self.schema.num_envs is not None else value[0]
            if value is None:
                raise FieldError(f"field {name!r} is missing")
            result[name] = checked_priority(name, self.one(name, value))
        self.refuse_unknown(given)
        return result

    def from_info(self, name: str, info: Mapping[str, Any], ended: Array) -> Any:
        """Return a field's value in `info`; in SAME_STEP mode environments that ended have theirs in final_info."""
        key = name.removeprefix("info/")
        value, final = info.get(key), info.get("final_info")
        if not ended.any() or not isinstance(final, Mapping) or key not in final:
            return value
        lasts = as_array(name, final[key])
        value = np.zeros_like(lasts) if value is None else as_array(name, value)
        return np.where(ended.reshape(-1, *(1,) * (lasts.ndim - 1)), lasts, value)

    def extend(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Return whole rows (rows, *shape) of one environment; missing flags are False."""
        given = dict(values)
        if not all(isinstance(name, str) for name in given):
            raise UnknownFieldError(f"fields are given by name, found {[k for k in given if not isinstance(k, str)]}")
        for top, value in given.items():
            paths = [name.split("/")[1:] for name in self.schema.steps if name.startswith(f"{top}/")]
            if paths and any(name.startswith(f"{top}/") for name in given):
                raise FieldError(f"field {top!r} is given twice: as a whole and in parts")
            if paths:
                check_parts(value, paths, top)
        if "observation" not in {k.split("/")[0] for k in given}:
            raise FieldError("field 'observation' is missing")
        name = next(k for k in given if k.split("/")[0] == "observation")
        shape = np.shape(as_array(name, first_leaf(given[name])))
        if not shape:
            raise FieldError(f"field {name!r}: expected rows, found a single value")
        rows = shape[0]
        result = {}
        for name, field in self.schema.steps.items():
            top = name.split("/")[0]
            if name not in given and top not in given:
                if name not in ("terminated", "truncated", "is_first", "is_last", "priority"):
                    raise FieldError(f"field {name!r} is missing")
                result[name] = np.full(rows, np.nan if name == "priority" else False, field.dtype)
                continue
            value = given[name] if name in given else part(name, given[top])
            shape = (rows, *field.shape)
            result[name] = checked_priority(name, field.cast(name, value, shape))
        self.refuse_unknown(
            {k: v for k, v in given.items() if k not in {n.split("/")[0] for n in result} | set(result)}
        )
        return result

    def finals(self, info: Any, ended: Array, observations: Mapping[str, Array]) -> dict[str, Array]:
        """Return observations with those of ended environments replaced by info["final_obs"] (SAME_STEP autoreset)."""
        if not isinstance(info, Mapping) or "final_obs" not in info:
            raise FieldError("an environment ended, but info has no 'final_obs', which SAME_STEP autoreset puts there")
        result = {name: array.copy() for name, array in observations.items()}
        given = info["final_obs"]
        for env in np.flatnonzero(ended).tolist():
            value = mapped_at(given, env) if isinstance(given, (Mapping, tuple)) else given[env]
            if value is None:
                raise FieldError(f"environment {env} ended, but info['final_obs'] has nothing for it")
            for name, field in self.observations.items():
                result[name][env] = field.cast(name, part(name, value), field.arrives)
        return result

    def columns(self, given: Mapping[str, Any], envs: int) -> dict[str, Array]:
        """Return the user's episode columns, one value for each of `envs` environments."""
        result = {}
        for name, value in given.items():
            if name not in self.schema.episodes:
                known = ", ".join(self.schema.episodes) or "none"
                raise UnknownFieldError(f"episode column {name!r} is not in the schema, which has {known}")
            single = np.ndim(value) == 0
            array = self.schema.episodes[name].cast(name, value, () if single else (envs,))
            result[name] = np.broadcast_to(array, (envs,))
        return result

    def refuse_unknown(self, names: Mapping[str, Any]) -> None:
        """Raise UnknownFieldError if anything is left over."""
        for name in names:
            raise UnknownFieldError(f"field {name!r} is not in the schema, which has {', '.join(self.schema.steps)}")

    # --- frame stacks

    def frames(self, observations: Mapping[str, Array], first: Array) -> dict[str, Array]:
        """Return the newest frame of each stacked field, refusing a stack that does not continue the last one.

        `first` is true where an episode starts.
        """
        for name, array in observations.items():
            if self.observations[name].stacked is not None:
                self.check_stack(name, self.stack_of(name, array), first)
        return self.newest(observations)

    def newest(self, observations: Mapping[str, Array]) -> dict[str, Array]:
        """Return the newest frame of each stacked field, other fields as they are."""
        stacked = {k for k, f in self.observations.items() if f.stacked is not None}
        return {k: self.stack_of(k, v)[:, -1] if k in stacked else v for k, v in observations.items()}

    def stack_of(self, name: str, array: Array) -> Array:
        """Return a stacked field as (envs, frames, *shape)."""
        return np.moveaxis(array, self.observations[name].stack_axis + 1, 1)

    def check_continues(self, before: Mapping[str, Array], after: Mapping[str, Array]) -> None:
        """Refuse stacks `after` whose older frames are not the newer ones of `before`."""
        for name, field in self.observations.items():
            if field.stacked is not None:
                old, new = self.stack_of(name, before[name]), self.stack_of(name, after[name])
                if not same(new[:, :-1], old[:, 1:]):
                    raise FieldError(f"field {name!r}: the next stack does not continue the one before it")

    def check_known(self, observations: Mapping[str, Array], env: Array) -> None:
        """Refuse stacks of these environments that are not the last ones stored."""
        for name, field in self.observations.items():
            known = field.stacked is None or name not in self.stacks
            if not known and not same(self.stack_of(name, observations[name])[env], self.stacks[name][env]):
                raise FieldError(f"field {name!r}: the stack is not the one stored last")

    def check_stack(self, name: str, stack: Array, first: Array) -> None:
        """Refuse a stack whose older frames are not what was stored."""
        old, field = self.stacks.get(name), self.observations[name]
        if not first.all():
            live = slice(None) if not first.any() else ~first
            if old is not None and not same(stack[live, :-1], old[live, 1:]):
                raise FieldError(f"field {name!r}: the stack does not continue the frames stored before it")
        if first.any():
            new = stack[first]
            expected = new[:, -1:] if field.padding == "repeat" else np.zeros_like(new[:, -1:])
            if not same(new[:, :-1], np.broadcast_to(expected, new[:, :-1].shape)):
                raise FieldError(
                    f"field {name!r}: at the start of an episode the stack is not padded by {field.padding!r}"
                )

    def remember(self, observations: Mapping[str, Array], env: Array) -> None:
        """Keep the stacks of these environments to check the next ones against."""
        for name, array in observations.items():
            if self.observations[name].stacked is not None:
                stack = self.stack_of(name, array)
                if name not in self.stacks:
                    self.stacks[name] = np.array(stack, order="C")
                self.stacks[name][env] = stack[env]


def same(a: Array, b: Array) -> bool:
    """Tell whether two arrays hold the same values; NaN equals NaN."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def check_parts(value: Any, paths: list[list[str]], name: str) -> None:
    """Refuse keys of a nested value that no field has."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            rest = [path[1:] for path in paths if path[:1] == [key]]
            if not rest:
                raise UnknownFieldError(f"field {f'{name}/{key}'!r} is not in the schema")
            check_parts(inner, rest, f"{name}/{key}")
    elif isinstance(value, (tuple, list)) and paths and all(path for path in paths):
        parts = len({path[0] for path in paths})
        if len(value) != parts:
            raise FieldError(f"field {name!r}: expected {parts} parts, found {len(value)}")
        for key, inner in enumerate(value):
            check_parts(inner, [path[1:] for path in paths if path[0] == str(key)], f"{name}/{key}")


def checked_priority(name: str, array: Array) -> Array:
    """Return the values of a field; a priority must be finite and >= 0, or NaN for none."""
    if name == "priority" and not ((array >= 0) & (array < np.inf) | np.isnan(array)).all():
        raise PriorityError("priority: expected finite numbers >= 0, or NaN for none")
    return array


def seeds_of(seed: Any, envs: int) -> Array:
    """Return one seed per environment, -1 for none; Gymnasium seeds environment i with seed + i."""
    if seed is None:
        return np.full(envs, -1, np.int64)
    if isinstance(seed, (list, tuple)):  # as Gymnasium's vector environments take them
        seed = [-1 if one is None else one for one in seed]
    seeds = as_array("seed", seed)
    if seeds.dtype.kind not in "iu" or seeds.shape not in ((), (envs,)):
        raise FieldError(f"seed {seed!r}: expected an integer, or one for each of {envs} environments")
    if seeds.size and int(seeds.max()) >= 1 << 62:
        raise FieldError(f"seed {seed!r}: expected less than 2^62")
    return np.asarray(seeds.astype(np.int64) + (np.arange(envs) if seeds.ndim == 0 else 0), np.int64)


def part(name: str, value: Any) -> Any:
    """Return the part of a nested value that a field's name points to."""
    for key in name.split("/")[1:]:
        try:
            value = value[key] if isinstance(value, Mapping) else value[int(key)]
        except (KeyError, IndexError, ValueError, TypeError):
            raise FieldError(f"field {name!r} is missing") from None
    return value


def mapped_at(value: Any, index: int) -> Any:
    """Return entry `index` of every array of a nested value."""
    if isinstance(value, Mapping):
        return {k: mapped_at(v, index) for k, v in value.items()}
    return tuple(mapped_at(v, index) for v in value) if isinstance(value, tuple) else value[index]


def first_leaf(value: Any) -> Any:
    """Return the first array of a value nested in dicts and tuples."""
    while isinstance(value, (Mapping, tuple)):
        if not len(value):
            raise FieldError("field 'observation' has no parts")
        value = next(iter(value.values())) if isinstance(value, Mapping) else value[0]
    return value
