"""The compiled way to append a step beside the general one: the same rows, the same refusals, whatever is handed in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import archive

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64"]
HOWS = ["array", "scalar", "python", "list", "wide", "narrow", "strided", "read-only", "big-endian", "wrong shape"]
HOWS += ["wrong kind", "missing", "none", "whole", "whole", "whole"]
WHOLE = [
    True,
    False,
    -1,
    2,
    *(sign * 2**k + off for k in (7, 8, 15, 16, 31, 32, 63, 64) for sign in (1, -1) for off in (-1, 0)),
]


def value(rng: np.random.Generator, field: archive.Field, lead: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return values of a field for all environments, extremes among them."""
    shape, dtype = lead + field.arrives, np.dtype(field.dtype)
    if dtype.kind == "b":
        return np.array(rng.random(shape) < 0.5)
    if dtype.kind == "f":
        return np.array(rng.choice([0.0, -0.0, 1.5, -2.25, 6e4, np.nan, np.inf], shape), dtype)
    extremes = np.iinfo(dtype)
    return np.array(rng.choice(np.array([extremes.min, extremes.max, 0, 1, 3], dtype), shape))


def handed_in(how: str, array: np.ndarray[Any, Any], rng: np.random.Generator) -> Any:
    """Return a value in one of the forms users have it in."""
    if how == "whole":
        return WHOLE[rng.integers(len(WHOLE))]
    if how == "scalar":
        return array[()]
    if how in ("python", "list"):
        return array.tolist()
    if how == "wide":
        return array.astype({"f": "f8", "i": "i8", "u": "u8", "b": "i8"}[array.dtype.kind])
    if how == "narrow":
        return array.astype({"f": "f2", "i": "i1", "u": "u1", "b": "b1"}[array.dtype.kind])
    if how == "strided":
        return np.stack([array, array], axis=-1)[..., 0]
    if how == "read-only":
        copy = np.array(array)
        copy.flags.writeable = False
        return copy
    if how == "big-endian":
        return array.astype(array.dtype.newbyteorder(">"))
    if how == "wrong shape":
        return array[None]
    if how == "wrong kind":
        return array.astype("f4") if array.dtype.kind in "iub" else array.astype("c8")
    return array


def told(action: Callable[[], Any]) -> str:
    """Return what an action gives or how it is refused."""
    try:
        return str(action())
    except archive.ArchiveError as error:
        return f"{type(error).__name__}: {error}"


def everything(run: archive.Run) -> dict[str, Any]:
    """Return all rows and episodes."""
    fields = {name: run[name][:] for name in run.schema.steps}
    return fields | {name: run.episodes[name] for name in ("env", "start", "length", "return", "terminated", "final")}


def same(a: archive.Run, b: archive.Run) -> None:
    """Compare two runs bit for bit."""
    assert a.lengths.tolist() == b.lengths.tolist()
    left, right = everything(a), everything(b)
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        assert array.tobytes() == right[name].tobytes(), name


@settings(max_examples=60)
@given(
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 3),
    reward=st.sampled_from(["float32", "float64", "float16", "int32"]),
    priority=st.sampled_from([None, None, "float16", "float32", "float64"]),
    shape=st.sampled_from([(), (3,), (2, 2)]),
    stacked=st.sampled_from([None, None, 1, 3]),
    envs=st.sampled_from([None, None, 1, 3]),
    seed=st.integers(0, 1 << 32),
)
def test_both_ways_leave_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    dtypes: Any,
    reward: str,
    priority: Any,
    shape: Any,
    stacked: Any,
    envs: Any,
    seed: int,
) -> None:
    """Two runs get the same calls; one of them never takes the compiled way."""
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("plain")
    fields = {
        "observation": archive.Field(dtypes[0], shape, stacked=stacked, padding="repeat" if stacked else None),
        "action": archive.Field(dtypes[1]),
        "reward": archive.Field(reward),
        "extra": archive.Field(dtypes[2], (2,)),
        "info/lives": archive.Field("int32"),
    }
    if priority is not None:
        fields["priority"] = archive.Field(priority)
    schema, lead = archive.Schema(fields, num_envs=envs), () if envs is None else (envs,)
    a, b = (archive.create(folder / name, schema, commit_every=None) for name in ("a.h5", "b.h5"))
    assert (b._file.plain is None) == ("float16" in (reward, priority) or reward == "int32" or stacked == 1)
    b._file.plain = None
    stack = np.array(value(rng, fields["observation"], lead))
    if stacked:
        stack[...] = np.take(stack, [0], axis=len(lead))
    assert told(lambda: a.reset(stack)) == told(lambda: b.reset(stack))
    for _ in range(60):
        how = dict.fromkeys(fields, "array") | {name: str(rng.choice(HOWS)) for name in fields if rng.random() < 0.1}
        given = {name: value(rng, field, lead) for name, field in fields.items()}
        if priority is not None and rng.random() < 0.8:
            given["priority"] = np.abs(np.nan_to_num(given["priority"], posinf=1.0))
        if stacked and rng.random() < 0.95:
            given["observation"] = np.concatenate(
                [np.moveaxis(stack, len(lead), 0)[1:], np.moveaxis(given["observation"], len(lead), 0)[-1:]]
            )
            given["observation"] = np.ascontiguousarray(np.moveaxis(given["observation"], 0, len(lead)))
        flags = {name: rng.random(lead) < 0.05 for name in ("terminated", "truncated")}
        forms = {name: handed_in(how[name], array, rng) for name, array in given.items()}
        lives = {} if how["info/lives"] in ("missing", "none") else {"lives": forms["info/lives"]}
        more = {} if priority is None or rng.random() < 0.2 else {"priority": forms["priority"]}
        extras = (
            more if how["extra"] == "missing" else more | {"extra": None if how["extra"] == "none" else forms["extra"]}
        )
        step = (forms["action"], forms["observation"], forms["reward"], *map(np.bool_, flags.values()), lives)
        before = a.num_rows
        assert told(lambda: a.step(*step, **extras)) == told(lambda: b.step(*step, **extras))  # noqa: B023
        if a.num_rows > before:
            stack = given["observation"]
        if any(np.any(flag) for flag in flags.values()) and a.num_rows > before:
            mask = None if envs is None else np.atleast_1d(flags["terminated"] | flags["truncated"])
            stack = stack.copy()
            if stacked:
                newest = np.take(stack, [-1], axis=len(lead))
                stack[...] = (
                    newest if mask is None else np.where(mask.reshape(-1, *[1] * (stack.ndim - 1)), newest, stack)
                )
            assert told(lambda: a.reset(stack, mask=mask)) == told(lambda: b.reset(stack, mask=mask))  # noqa: B023
        if rng.random() < 0.03:
            a.commit(), b.commit()
    same(a, b)
    for run in (a, b):
        run.close()
    a, b = (archive.open(folder / name) for name in ("a.h5", "b.h5"))
    same(a, b)
    a.close(), b.close()


@pytest.mark.parametrize("dtype", DTYPES[:9])
def test_python_integers_at_the_edge(tmp_path: Path, dtype: str) -> None:
    """The largest and smallest integer of a dtype, and the next ones, which do not fit."""
    low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    schema = archive.Schema({"observation": archive.Field("float32"), "action": archive.Field(dtype)})
    runs = [archive.create(tmp_path / name, schema, commit_every=None) for name in ("a.h5", "b.h5")]
    runs[1]._file.plain = None
    for run in runs:
        run.reset(0)
    for number in (low, high, low - 1, high + 1):
        one, other = (told(lambda run=run: run.step(number, number, number, False, False)) for run in runs)  # noqa: B023
        assert one == other
        assert one.isdigit() == (number in (low, high))
        assert one.isdigit() or "does not fit" in one
    same(*runs)
    for run in runs:
        run.close()


class Proxy:
    """What looks like an array and is none, as lazy arrays and mocks do."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    __class__ = property(lambda self: np.ndarray)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.array


@pytest.mark.parametrize(
    "action",
    [
        Proxy(np.arange(8, dtype="u1")),
        np.datetime64(5, "s"),
        np.bytes_(b"12345678"),
        np.ma.masked_array(np.arange(8, dtype="u1"), np.ones(8, bool)),
        np.arange(8, dtype="u1").view(np.recarray),
        memoryview(np.arange(8, dtype="u1")),
        b"12345678",
    ],
    ids=["proxy", "date", "text", "masked", "record array", "memoryview", "bytes"],
)
def test_what_is_no_plain_array(tmp_path: Path, action: Any) -> None:
    """Both ways take it or refuse it alike, and the run goes on."""
    schema = archive.Schema({"observation": archive.Field("u1", (8,), stacked=1), "action": archive.Field("u1", (8,))})
    runs = [archive.create(tmp_path / name, schema, commit_every=None) for name in ("a.h5", "b.h5")]
    runs[1]._file.plain = None
    plain = archive.Schema({"observation": archive.Field("u1", (8,)), "action": archive.Field("u1", (8,))})
    runs += [archive.create(tmp_path / name, plain, commit_every=None) for name in ("c.h5", "d.h5")]
    runs[3]._file.plain = None
    for run, shape in zip(runs, ((1, 8), (1, 8), (8,), (8,)), strict=True):
        run.reset(np.zeros(shape, "u1"))
        run.step(np.zeros(8, "u1"), np.zeros(shape, "u1"), 0.0, False, False)
    for pair, shape in ((runs[:2], (1, 8)), (runs[2:], (8,))):
        zero, one = np.zeros(shape, "u1"), np.ones(shape, "u1")
        steps = [told(partial(run.step, action, zero, 0.0, False, False)) for run in pair]
        assert steps[0] == steps[1]
        added = [told(partial(run.add, zero, zero.reshape(8), 0.0, one, False, False)) for run in pair]
        assert added[0] == added[1]
        assert added[0].isdigit()
        same(*pair)
    for run in runs:
        run.close()


def test_most_steps_are_plain(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What users hand in day by day takes the compiled way: Gymnasium's arrays, Python's numbers."""
    schema = archive.Schema(
        {"observation": archive.Field("uint8", (4, 4), stacked=4), "action": archive.Field("int64")}
    )
    with archive.create(path, schema, commit_every=None) as run:
        general: list[int] = []
        step = type(run._file.intake).step
        monkeypatch.setattr(
            type(run._file.intake), "step", lambda *given, **more: general.append(1) or step(*given, **more)
        )
        stack = np.zeros((4, 4, 4), np.uint8)
        run.reset(stack)
        for t in range(100):
            stack = np.concatenate([stack[1:], np.full((1, 4, 4), t, np.uint8)])
            run.step(np.int64(t) if t % 2 else t, stack, float(t), bool(t == 50), False)
            if t == 50:
                stack = np.repeat(stack[-1:] * 0, 4, axis=0)
                run.reset(stack)
        assert len(general) == 1  # the step that ended an episode
        assert run["reward"][:3].tolist() == [0.0, 1.0, 2.0]
        assert run.episodes["return"].tolist() == [sum(range(51)), sum(range(51, 100))]
