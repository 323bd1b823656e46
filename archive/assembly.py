"""The arrays of a batch, made of its starts: rows by (start, offsets, clamp, mask), then one gather a field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import numpy as np

from . import _core
from .batch import Batch, decoded, nest, nest_all
from .errors import FieldError, UnknownFieldError
from .options import EXTRAS, Options
from .places import Places
from .record import ENDED
from .rows import Rows
from .schema import is_observation
from .valid import ValidStarts

Array = np.ndarray[Any, Any]


class Assembly:
    """Make batches of `rows` under `options`."""

    def __init__(self, rows: Rows, valid: ValidStarts, options: Options) -> None:
        self.rows, self.valid, self.options = rows, valid, options
        fields = rows.header.fields
        self.readable = [k for k in fields if k not in ("terminated", "truncated", "is_first", "is_last")]
        for name in (*options.offsets, *options.previous):
            self.matching(name)
        self.offset_names = {k for name in options.offsets for k in self.matching(name)}
        made = {"discount", "weight", "index", "mask", "terminated", "truncated", "is_first", *EXTRAS}
        made |= {f"prev_{name}" for name in options.previous}
        self.cast_late = {name: dtype for name, dtype in options.cast.items() if name in made or name == "reward"}
        for name in options.cast.keys() - made:
            for part in self.matching(name):
                if rows.columns[part].dtype.kind == "S":
                    raise FieldError(f"cast of {name!r}: field {part!r} is text")
        for name, field in rows.header.schema.steps.items():
            stacked = options.stack if options.stack is not None else field.stacked
            axes = 1 + len(field.shape)
            if is_observation(name) and stacked and not -axes <= options.stack_axis <= axes:
                raise FieldError(f"stack_axis {options.stack_axis}: stacks of field {name!r} have {axes} axes")

    def matching(self, name: str) -> list[str]:
        """Return the fields that a name stands for: itself, or all parts of it."""
        found = [k for k in self.readable if k == name or k.startswith(f"{name}/")]
        if not found:
            raise UnknownFieldError(f"field {name!r} cannot be gathered; there are {', '.join(self.readable)}")
        return found

    # --- whole batches

    def make(self, env: Array, row: Array, weight: Array, fields: Sequence[str] | None) -> Batch:
        """Return the batch that starts at these rows."""
        names = self.readable if fields is None else [k for f in fields for k in self.matching(f)]
        kind = self.transitions if self.options.sequence_length is None else self.sequences
        arrays = {**kind(env, row, names), "index": env << 32 | row, "weight": weight}
        for name, dtype in self.cast_late.items():
            if name in arrays:
                arrays[name] = mapped(arrays[name], methodcaller("astype", dtype))
        return Batch(arrays)

    def transitions(self, env: Array, row: Array, names: list[str]) -> dict[str, Any]:
        """Return observation, what was done, n-step return and next observation of each start."""
        place = self.places(env, row)
        shorten = self.options.missing_final == "shorten"
        beyond = (place.high >= place.stop) | self.rows.episodes.columns["terminated"][place.number]
        steps = np.minimum(self.options.n_step, place.stop - (shorten & ~beyond) - place.row)
        at_end = place.row + steps == place.stop
        flags = {k: self.rows.episodes.columns[k][place.number] & at_end for k in ("terminated", "truncated")}
        ahead = place.at(np.where(at_end & (place.high < place.stop), -1, place.row + steps))
        plain = [k for k in names if k not in self.offset_names]
        read = {k: v[:, 0] for k, v in self.read(plain, place).items()}
        moved, mask = self.at_offsets(env, row, names)
        arrays = self.nested({**read, **moved})
        seen = {k: self.casted(k, self.observed(k, ahead)[:, 0]) for k in plain if is_observation(k)}
        if seen:
            arrays["next_observation"] = self.nested(seen)["observation"]
        if "reward" in plain:
            arrays["reward"] = self.returns(place, steps)
        discount = np.where(flags["terminated"], 0.0, np.power(self.options.gamma, steps)).astype(np.float32)
        more = {**flags, "discount": discount, **self.asked_for(place)}
        arrays |= mapped(more, lambda array: array[:, 0])
        return arrays | ({"mask": mask} if mask else {})

    def sequences(self, env: Array, row: Array, names: list[str]) -> dict[str, Any]:
        """Return burn_in + sequence_length rows from each start on (up to it with pad="left")."""
        count = self.options.burn_in + (self.options.sequence_length or 0)
        offset = np.arange(count) - (count - 1 if self.options.pad == "left" else 0)
        place = self.window(env, row, row[:, None] + offset)
        if self.options.time_major:
            place = place.transposed()
        there = place.row >= 0
        mask = there & (place.row < place.stop)
        last = mask & (place.row == place.stop - 1)
        flags = {k: last & self.rows.episodes.columns[k][place.number] for k in ("terminated", "truncated")}
        arrays = self.nested(self.read(names, place))
        if "reward" in names:
            arrays["reward"] = self.rewards(place)
        discount = np.where(mask & ~flags["terminated"], self.options.gamma, 0.0).astype(np.float32)
        first = there & (place.row == place.low)
        return arrays | {**flags, "discount": discount, "is_first": first, "mask": mask, **self.asked_for(place)}

    def window(self, env: Array, row: Array, where: Array) -> Places:
        """Return rows (B, J) around each start, -1 for those that a sequence must not run into."""
        episodes = self.rows.episodes
        envs = np.repeat(env, where.shape[1])
        first = self.valid.segment_of(env, row)
        if self.options.within_episode:
            found = np.repeat(first, where.shape[1])
        else:
            found = self.valid.segment_of(envs, np.ascontiguousarray(where.reshape(-1)))
        at = np.maximum(found, 0)
        place = self.places_in(at, envs, where.reshape(-1)).reshaped(*where.shape)
        chain = self.valid.chain
        same = (found >= 0).reshape(where.shape) & (chain[at].reshape(where.shape) == chain[first][:, None])
        ended = (place.number != episodes.current[place.env]) | (self.rows.states[place.env] == ENDED)
        behind = np.where(ended, place.high + 1, place.stop)
        return place.at(np.where(same & (where >= place.low) & (where < behind), where, -1))

    # --- parts of batches, all (B, J, ...)

    def places(self, env: Array, row: Array) -> Places:
        """Return where rows lie, as (B, 1)."""
        return self.places_in(self.valid.segment_of(env, row), env, row).reshaped(len(row), 1)

    def places_in(self, segment: Array, env: Array, row: Array) -> Places:
        """Return places whose segments are known."""
        segments, columns = self.rows.episodes.segments, self.rows.episodes.columns
        number, low = segments.episode[segment], segments.start[segment]
        stop = low + columns["length"][number]
        return Places(env, row, low, stop, stop - 1 + columns["final"][number], number)

    def read(self, names: list[str], place: Places) -> dict[str, Array]:
        """Return fields at these rows, by name; the reward is made elsewhere."""
        read = {
            k: self.observed(k, place) if is_observation(k) else self.acted(k, place) for k in names if k != "reward"
        }
        return {k: self.casted(k, v) for k, v in read.items()}

    def asked_for(self, place: Places) -> dict[str, Any]:
        """Return what the options `previous` and `extras` ask for."""
        arrays: dict[str, Any] = {}
        if not self.options.previous and not self.options.extras:
            return arrays
        before = place.at(np.where(place.row > place.low, place.row - 1, -1))
        for name in self.options.previous:
            found = {k: self.rewards(before) if k == "reward" else self.acted(k, before) for k in self.matching(name)}
            arrays[f"prev_{name}"] = nest(name, decoded(found), self.rows.header.schema.tuples)
        return arrays | {name: self.extra(name, place) for name in self.options.extras}

    def nested(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Return fields by name with the parts of observation and action nested as they arrived."""
        return nest_all(dict(arrays), self.rows.header.schema.tuples)

    def casted(self, name: str, array: Array) -> Array:
        """Return a field in the dtype that option `cast` gives it, or the group it belongs to."""
        dtype = self.options.cast.get(name, self.options.cast.get(name.split("/")[0]))
        if dtype is None:
            return array
        out = self.rows.buffers.take(array.size * np.dtype(dtype).itemsize).view(dtype).reshape(array.shape)
        np.copyto(out, array, casting="unsafe")  # as astype does
        return out

    def observed(self, name: str, place: Places) -> Array:
        """Return observations, stacked if the field or the option says so."""
        column = self.rows.columns[name]
        stacked = self.options.stack if self.options.stack is not None else column.field.stacked
        count = stacked or 1
        padding = self.options.padding or column.field.padding or "zero"
        row, low = (np.ascontiguousarray(v.reshape(-1)) for v in (place.row, place.low))
        where = np.empty((row.size, count), np.int64)
        _core.windows(row, np.arange(1 - count, 1), low, row, padding == "repeat", where)
        found = column.gather(np.ascontiguousarray(place.env.reshape(-1)), where)
        found = found.reshape(*place.row.shape, count, *column.field.shape)
        if not stacked:
            return found[:, :, 0]
        axis = self.options.stack_axis
        return found if axis == 1 else np.moveaxis(found, 2, 1 + axis if axis >= 0 else axis)

    def acted(self, name: str, place: Places) -> Array:
        """Return a field that is known only for transitions: zeros at final observations."""
        return self.plain(name, place.at(np.where(place.row < place.stop, place.row, -1)))

    def rewards(self, place: Places) -> Array:
        """Return transformed rewards, float32; 0 where there is none."""
        return self.exact_rewards(place).astype(np.float32)

    def exact_rewards(self, place: Places) -> Array:
        """Return transformed rewards, float64; 0 where there is none."""
        row = np.where(place.row < place.stop, place.row, -1)
        return self.transformed(place.env.reshape(-1), row.reshape(-1, 1)).reshape(row.shape)

    def transformed(self, env: Array, row: Array) -> Array:
        """Return the transformed rewards of rows (B, J), float64; 0 where the row is -1."""
        reward = self.rows.columns["reward"].gather(np.ascontiguousarray(env), row).astype(np.float64)
        reward = reward * self.options.reward_scale + self.options.reward_shift
        if self.options.reward_clip is not None:
            reward = np.clip(reward, *self.options.reward_clip)
        return np.where(row >= 0, reward, 0.0)

    def returns(self, place: Places, steps: Array) -> Array:
        """Return the n-step sums (B,) of starts (B, 1): transformed first, added in float64, float32."""
        ahead = np.arange(self.options.n_step)
        row = np.where(ahead < steps, place.row + ahead, -1)
        reward, total = self.transformed(place.env[:, 0], row), np.empty(len(steps))
        _core.returns(reward, steps[:, 0], self.options.gamma, total)
        with np.errstate(over="ignore"):
            return total.astype(np.float32)

    def extra(self, name: str, place: Places) -> Array:
        """Return timestep, episode, remaining or return_to_go of rows; 0 where there is no row."""
        there = place.row >= 0
        if name == "return_to_go":
            return np.where(there, self.returns_to_go(place), 0).astype(np.float32)
        value = {"timestep": place.row - place.low, "episode": place.number, "remaining": place.stop - place.row}[name]
        return np.where(there, value, 0)

    def returns_to_go(self, place: Places) -> Array:
        """Return the sum of transformed rewards from each row to the end of its episode. Reads each episode once."""
        result = np.zeros(place.row.shape)
        for number in np.unique(place.number):
            mine = (place.number == number) & (place.row >= 0)
            env, low, stop = (int(v[mine].max(initial=0)) for v in (place.env, place.low, place.stop))
            reward = self.transformed(np.full(stop - low, env), np.arange(low, stop)[:, None])[:, 0]
            ahead = np.append(np.cumsum(reward[::-1])[::-1], 0.0)
            result[mine] = ahead[place.row[mine] - low]
        return result

    # --- any field at any offsets

    def at_offsets(self, env: Array, row: Array, names: list[str]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the fields of option `offsets` (B, offsets, *shape), clamped to the episode, and which were inside."""
        read, mask = {}, {}
        for given, offsets in self.options.offsets.items():
            for name in sorted(set(self.matching(given)) & set(names)):
                place, mask[name] = self.clamped(env, row, np.array(offsets), is_observation(name))
                read[name] = self.rewards(place) if name == "reward" else self.casted(name, self.plain(name, place))
        return read, mask

    def plain(self, name: str, place: Places) -> Array:
        """Return the rows of a field as they are."""
        column = self.rows.columns[name]
        env, row = (np.ascontiguousarray(v.reshape(-1)) for v in (place.env, place.row))
        return column.gather(env, row[:, None]).reshape(*place.row.shape, *column.field.shape)

    def clamped(self, env: Array, row: Array, offsets: Array, observation: bool) -> tuple[Places, Array]:
        """Return the places at offsets from each row, clamped to its episode, and which needed no clamping."""
        first = self.places(env, row)
        where = row[:, None] + offsets
        place = first.spread(where.shape)
        inside = np.clip(where, place.low, place.high if observation else place.stop - 1)
        return place.at(inside), inside == where


def mapped(value: Any, change: Callable[[Array], Array]) -> Any:
    """Return nested arrays with every array changed."""
    if isinstance(value, Mapping):
        return {k: mapped(v, change) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(v, change) for v in value)
    return change(value)


def check_out(out: Any, arrays: Mapping[str, Any], path: str = "") -> None:
    """Refuse arrays that a batch cannot be copied into."""
    if not isinstance(out, Mapping):
        raise FieldError(f"out {path!r}: expected a dict by name, found {type(out).__name__}")
    for name, target in out.items():
        value = arrays.get(name)
        if value is None:
            raise UnknownFieldError(f"out: a batch has no {path + name!r}; it has {', '.join(arrays)}")
        if isinstance(value, Mapping):
            check_out(target, value, f"{path}{name}/")
        elif not isinstance(target, np.ndarray) or not isinstance(value, np.ndarray):
            raise FieldError(f"out {path + name!r}: expected an array for an array, found {type(target).__name__}")
        elif target.shape != value.shape or target.dtype != value.dtype or not target.flags.writeable:
            found = f"{target.dtype} {target.shape}, {'' if target.flags.writeable else 'not '}writable"
            raise FieldError(f"out {path + name!r}: expected {value.dtype} {value.shape}, writable, found {found}")


def fill(out: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Copy arrays into those of `out` that have their name; return all, `out`'s where given."""
    result = dict(arrays)
    for name, target in out.items():
        if isinstance(target, Mapping):
            result[name] = fill(target, arrays[name])
        else:
            np.copyto(target, arrays[name])
            result[name] = target
    return result
