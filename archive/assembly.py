"""The arrays of a batch, made of the places of its starts: rows by (place, window), then one gather a field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import numpy as np

from . import _core, _rows
from .batch import Batch, decoded, nest, nest_all
from .column import Column
from .errors import FieldError, UnknownFieldError
from .options import EXTRAS, Options
from .places import PARTS, Places
from .plan import Plan
from .record import ENDED
from .rows import Rows
from .valid import ValidStarts
from .window import Window

Array = np.ndarray[Any, Any]
FLAG_NAMES = ("terminated", "truncated")


class Assembly:
    """Make batches of `rows` under `options`. Whatever may change later is in the places; rows do not change."""

    def __init__(self, rows: Rows, valid: ValidStarts, options: Options) -> None:
        self.rows, self.valid, self.options = rows, valid, options
        fields = rows.header.fields
        self.readable = [k for k in fields if k not in (*FLAG_NAMES, "is_first", "is_last")]
        for name in (*options.offsets, *options.previous):
            self.matching(name)
        self.offset_names = {k for name in options.offsets for k in self.matching(name)}
        made = {"discount", "weight", "index", "mask", *FLAG_NAMES, "is_first", *EXTRAS}
        made |= {f"prev_{name}" for name in options.previous}
        self.cast_late = {name: dtype for name, dtype in options.cast.items() if name in made or name == "reward"}
        for name in options.cast.keys() - made:
            for part in self.matching(name):
                if rows.columns[part].dtype.kind == "S":
                    raise FieldError(f"cast of {name!r}: field {part!r} is text")
        self.windows = {k: Window(rows.columns[k], options) for k in self.readable}
        self.nests = any("/" in k or rows.columns[k].dtype.kind == "S" for k in self.readable)
        self.plan = self.plan_of(self.readable)
        self.discounts = np.power(options.gamma, np.arange(options.n_step + 1)).astype(np.float32)

    def matching(self, name: str) -> list[str]:
        """Return the fields that a name stands for: itself, or all parts of it."""
        found = [k for k in self.readable if k == name or k.startswith(f"{name}/")]
        if not found:
            raise UnknownFieldError(f"field {name!r} cannot be gathered; there are {', '.join(self.readable)}")
        return found

    # --- whole batches

    def places(self, starts: Places) -> Places:
        """Return the rows that a batch of these starts is made of."""
        return starts if self.options.sequence_length is None else self.sequence(starts)

    def make(self, index: Array, weight: Array, place: Places, fields: Sequence[str] | None = None) -> Batch:
        """Return the batch of these places."""
        names = self.readable if fields is None else [k for f in fields for k in self.matching(f)]
        arrays = self.transitions(place, names) if self.options.sequence_length is None else self.rows_of(place, names)
        arrays["index"], arrays["weight"] = index, weight
        for name, dtype in self.cast_late.items():
            if name in arrays:
                arrays[name] = mapped(arrays[name], methodcaller("astype", dtype))
        return Batch(arrays)

    def transitions(self, place: Places, names: list[str]) -> dict[str, Any]:
        """Return observation, what was done, n-step return and next observation of each start."""
        count, options = len(place.row), self.options
        after, flags = np.empty((2, count), np.int64), np.empty((2, count), np.bool_)
        discount, shorten = np.empty(count, np.float32), options.missing_final == "shorten"
        _rows.look_ahead(place.block, options.n_step, shorten, self.discounts, after, flags.view(np.uint8), discount)
        moved, mask = self.at_offsets(place, names) if options.offsets else ({}, {})
        arrays = self.read(self.plan if names is self.readable else self.plan_of(names), place, after, moved)
        arrays["terminated"], arrays["truncated"], arrays["discount"] = flags[0], flags[1], discount
        if options.previous or options.extras:
            arrays |= self.asked_for(place)
        return arrays | ({"mask": mask} if mask else {})

    def plan_of(self, names: list[str]) -> Plan:
        """Return how these fields are read."""
        windows = [self.windows[k] for k in names if k not in self.offset_names and k != "reward"]
        summed = "reward" in names and "reward" not in self.offset_names
        rewards = self.rows.columns["reward"] if summed else None
        return Plan(windows, rewards, self.options.n_step, self.rows, self.options.overlap)

    def read(self, plan: Plan, place: Places, after: Array, more: dict[str, Array]) -> dict[str, Any]:
        """Return the fields of a plan at the starts of transitions, `more` beside them, and what was seen after."""
        arrays, seen, reward = plan.read(place, after)
        arrays = self.nested(arrays | more)
        if seen:
            arrays["next_observation"] = self.nested(seen)["observation"]
        if reward is not None:
            arrays["reward"] = self.returns(reward, after[0])
        return arrays

    def rows_of(self, place: Places, names: list[str]) -> dict[str, Any]:
        """Return the rows (B, T) of sequences, or (T, B)."""
        place = place.transposed() if self.options.time_major else place
        there = place.row >= 0
        mask = there & (place.row < place.stop)
        last = mask & (place.row == place.stop - 1)
        flags = {k: last & (place.flags & bit > 0) for k, bit in zip(FLAG_NAMES, (1, 2), strict=True)}
        arrays = self.nested({k: self.windows[k].read(place) for k in names if k != "reward"})
        if "reward" in names:
            arrays["reward"] = self.rewards(place)
        discount = np.where(mask & ~flags["terminated"], self.options.gamma, 0.0).astype(np.float32)
        first = there & (place.row == place.low)
        return arrays | {**flags, "discount": discount, "is_first": first, "mask": mask, **self.asked_for(place)}

    def sequence(self, starts: Places) -> Places:
        """Return burn_in + sequence_length rows (B, T) from each start on (up to it with pad="left").

        -1 stands for those that a sequence must not run into.
        """
        count = self.options.burn_in + (self.options.sequence_length or 0)
        where = starts.row[:, None] + (np.arange(count) - (count - 1 if self.options.pad == "left" else 0))
        env, flat, episodes = np.repeat(starts.env, count), where.reshape(-1), self.rows.episodes
        first = self.valid.segment_of(starts.env, starts.row)
        found = np.repeat(first, count) if self.options.within_episode else self.valid.segment_of(env, flat)
        at, chain = np.maximum(found, 0), self.valid.chain
        place = Places(self.valid.places(env, flat, at).block.reshape(PARTS, *where.shape))
        same = (found >= 0).reshape(where.shape) & (chain[at].reshape(where.shape) == chain[first][:, None])
        ended = (place.number != episodes.current[place.env]) | (self.rows.states[place.env] == ENDED)
        behind = np.where(ended, place.high + 1, place.stop)
        place.row[...] = np.where(same & (where >= place.low) & (where < behind), where, -1)
        return place

    def wanted(self, place: Places, batches: int) -> list[tuple[Column, list[int]]]:
        """Return the chunks that are not in memory, of fields that have room for those of so many batches."""
        found, next_row = [], np.minimum(place.row + self.options.n_step, place.high)
        for window in self.windows.values():
            rows = [place.row, next_row] if window.observed and self.options.sequence_length is None else [place.row]
            chunks = {chunk for row in rows for chunk in window.missing(place, row)}
            if 0 < len(chunks) * batches <= window.column.free:
                found.append((window.column, sorted(chunks)))
        return found

    # --- parts of batches

    def asked_for(self, place: Places) -> dict[str, Any]:
        """Return what the options `previous` and `extras` ask for."""
        arrays: dict[str, Any] = {}
        if not self.options.previous and not self.options.extras:
            return arrays
        before = place.at(np.where(place.row > place.low, place.row - 1, -1))
        for name in self.options.previous:
            found = {
                k: self.rewards(before) if k == "reward" else self.previous(k, before) for k in self.matching(name)
            }
            arrays[f"prev_{name}"] = nest(name, decoded(found), self.rows.header.schema.tuples)
        return arrays | {name: self.extra(name, place) for name in self.options.extras}

    def previous(self, name: str, before: Places) -> Array:
        """Return a field one row earlier, as it is stored."""
        window = self.windows[name]
        return window.rows(window.column.single, before, np.where(before.row < before.stop, before.row, -1))

    def nested(self, arrays: dict[str, Array]) -> dict[str, Any]:
        """Return fields by name with the parts of observation and action nested as they arrived, text as str."""
        return nest_all(arrays, self.rows.header.schema.tuples) if self.nests else arrays

    def rewards(self, place: Places) -> Array:
        """Return transformed rewards, float32; 0 where there is none."""
        row = np.where(place.row < place.stop, place.row, -1)
        with np.errstate(over="ignore"):
            return self.transformed(place.flat, row.reshape(-1)).reshape(row.shape).astype(np.float32)

    def transformed(self, place: Array, row: Array) -> Array:
        """Return the transformed rewards of rows (B,), float64; 0 where the row is -1."""
        column = self.rows.columns["reward"]
        reward = column.windows(column.single, place, row).astype(np.float64)
        reward = reward * self.options.reward_scale + self.options.reward_shift
        if self.options.reward_clip is not None:
            reward = np.clip(reward, *self.options.reward_clip)
        return np.where(row >= 0, reward, 0.0)

    def returns(self, reward: Array, steps: Array) -> Array:
        """Return the n-step sums (B,) of rewards (B, n): transformed first, added in float64, float32."""
        options, total = self.options, np.empty(len(steps), np.float32)
        low, high = options.reward_clip or (-np.inf, np.inf)
        values = reward.astype(np.float64)
        _core.returns(values, steps, options.reward_scale, options.reward_shift, low, high, options.gamma, total)
        return total

    def extra(self, name: str, place: Places) -> Array:
        """Return timestep, episode, remaining or return_to_go of rows; 0 where there is no row."""
        there = place.row >= 0
        if name == "return_to_go":
            return np.where(there, self.returns_to_go(place), 0).astype(np.float32)
        value = {"timestep": place.row - place.low, "episode": place.number, "remaining": place.stop - place.row}[name]
        return np.where(there, value, 0)

    def returns_to_go(self, place: Places) -> Array:
        """Return the sum of transformed rewards from each row to the end of its episode. Reads each episode once."""
        result = np.zeros(place.shape)
        for number in np.unique(place.number):
            mine = (place.number == number) & (place.row >= 0)
            env, low, stop = (int(v[mine].max(initial=0)) for v in (place.env, place.low, place.stop))
            row = np.arange(low, stop)
            reward = self.transformed(Places.outside(np.full(stop - low, env), row).block, row)
            ahead = np.append(np.cumsum(reward[::-1])[::-1], 0.0)
            result[mine] = ahead[place.row[mine] - low]
        return result

    # --- any field at any offsets

    def at_offsets(self, place: Places, names: list[str]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the fields of option `offsets` (B, offsets, *shape), clamped to the episode, and which were inside."""
        read, mask = {}, {}
        for given, offsets in self.options.offsets.items():
            for name in sorted(set(self.matching(given)) & set(names)):
                window = self.windows[name]
                where = place.row[:, None] + np.array(offsets)
                last = place.high if window.observed else place.stop - 1
                inside = place.at(np.clip(where, place.low[:, None], last[:, None]))
                mask[name] = inside.row == where
                read[name] = self.rewards(inside) if name == "reward" else window.single(inside)
        return read, mask


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
