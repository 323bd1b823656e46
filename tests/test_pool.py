"""The compiled pool of decoded chunks against plain Python: its slots, and windows of rows copied out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from archive._pool import Part, Pool, gather_parts
from archive.places import ENV, HIGH, LOW, PARTS, ROW, STOP

Array = np.ndarray[Any, Any]


def ints(values: Any) -> Array:
    return np.array(values, np.int64)


class PoolMachine(RuleBasedStateMachine):
    """A pool of six slots against a dict: pinned chunks and those of the present gather keep their slots."""

    SLOTS, CHUNKS, ENVS, ROWS = 6, 100, 2, 4

    def __init__(self) -> None:
        super().__init__()
        self.memory = np.zeros((self.SLOTS * self.ROWS, 1), np.uint8)
        self.pool, self.limit = Pool(self.memory, self.ENVS, self.ROWS), self.SLOTS
        self.part = Part(self.pool, np.dtype(np.uint8), (3,), 0, 3, False, True, False)
        self.slots: dict[int, int] = {}
        self.pinned: set[int] = set()
        self.touched: set[int] = set()

    @rule(chunk=st.integers(0, CHUNKS - 1), pin=st.booleans())
    def claim(self, chunk: int, pin: bool) -> None:
        if chunk in self.slots:
            return
        held = {self.slots[c] for c in self.pinned | self.touched}
        slot = self.pool.claim(chunk)
        if len(held & set(range(self.limit))) == self.limit:
            assert slot == -1
            return
        assert slot in set(range(self.limit)) - held
        self.slots = {c: s for c, s in self.slots.items() if s != slot} | {chunk: slot}
        self.touched.add(chunk)
        if pin:
            self.pool.pin(chunk, True)
            self.pinned.add(chunk)

    @rule(place=st.integers(0, SLOTS))
    def unpin(self, place: int) -> None:
        if self.pinned:
            chunk = sorted(self.pinned)[place % len(self.pinned)]
            self.pool.pin(chunk, False)
            self.pinned.discard(chunk)

    @rule(chunk=st.integers(0, CHUNKS + 50))
    def drop(self, chunk: int) -> None:
        self.pool.drop(chunk)
        self.forget(chunk)

    def forget(self, chunk: int) -> None:
        self.slots.pop(chunk, None)
        self.pinned.discard(chunk)
        self.touched.discard(chunk)

    @rule(slots=st.integers(-1, SLOTS + 2))
    def limit_to(self, slots: int) -> None:
        self.pool.limit_to(slots)
        self.limit = max([1, min(slots, self.SLOTS), *(self.slots[c] + 1 for c in self.pinned)])
        for chunk in [c for c, s in self.slots.items() if s >= self.limit]:
            self.forget(chunk)
        assert self.pool.limit == self.limit

    @rule(wanted=st.lists(st.tuples(st.integers(0, ENVS - 1), st.integers(-2, 60)), max_size=4))
    def look_for_windows(self, wanted: list[tuple[int, int]]) -> None:
        """Three rows each; -1 and -2 ask for nothing."""
        env, row = ints([e for e, _ in wanted]), ints([r for _, r in wanted])
        place = np.zeros((PARTS, len(row)), np.int64)
        place[ENV], place[ROW], place[STOP] = env, row, 100
        asked = {at // self.ROWS * self.ENVS + e for e, r in wanted if r >= 0 for at in range(r, r + 3)}
        assert list(self.part.missing(place, row)) == sorted(asked - set(self.slots))
        self.touched = asked & set(self.slots)
        self.memory[:, 0] = np.arange(1, len(self.memory) + 1)
        out = np.full((len(row), 3), 77, np.uint8)
        assert self.part.gather(place, row, out) == (asked <= set(self.slots))
        for i, (e, r) in enumerate(wanted):
            for j, at in enumerate(range(r, r + 3)):
                slot = self.slots.get(at // self.ROWS * self.ENVS + e, -1)
                expected = 0 if r < 0 else slot * self.ROWS + at % self.ROWS + 1
                assert out[i, j] == (expected if asked <= set(self.slots) else 77)

    @rule(wanted=st.lists(st.tuples(st.integers(0, ENVS - 1), st.integers(0, 60)), max_size=4))
    def find(self, wanted: list[tuple[int, int]]) -> None:
        out = np.full(len(wanted), -9, np.int64)
        there = self.pool.find(ints([e for e, _ in wanted]), ints([r for _, r in wanted]), out)
        slots = [self.slots.get(r // self.ROWS * self.ENVS + e, -1) for e, r in wanted]
        assert there == (-1 not in slots)
        expected = [s * self.ROWS + r % self.ROWS if s >= 0 else -1 for s, (_, r) in zip(slots, wanted, strict=True)]
        assert out.tolist() == expected

    @invariant()
    def agrees(self) -> None:
        for chunk in [*range(self.CHUNKS), -1, 10**9]:
            assert self.pool.slot(chunk) == self.slots.get(chunk, -1)


TestPool = PoolMachine.TestCase


# --- windows and gathers


EPISODES = st.tuples(st.integers(0, 19), st.integers(1, 20), st.booleans(), st.integers(-1, 21))


def full_pool(rows: int, width: int) -> tuple[Pool, Array]:
    """Return a pool that holds rows 0 .. rows - 1 of one environment in order, and its memory."""
    memory = np.random.default_rng(width).integers(1, 256, (rows, width), np.uint8)
    pool = Pool(memory, 1, 4)
    assert [pool.claim(chunk) for chunk in range(rows // 4)] == list(range(rows // 4))
    return pool, memory


@given(
    wanted=st.lists(EPISODES, max_size=8),
    ahead=st.integers(-6, 6),
    count=st.integers(1, 6),
    repeat=st.booleans(),
    steps=st.booleans(),
    width=st.integers(0, 70),
)
def test_windows_stay_within_their_episodes(
    wanted: list[tuple[int, int, bool, int]], ahead: int, count: int, repeat: bool, steps: bool, width: int
) -> None:
    """Episodes of `length` steps from `low` on, with a final observation or not, of which step `step` is looked at."""
    pool, memory = full_pool(40, width)
    place = np.zeros((PARTS, len(wanted)), np.int64)
    for i, (low, length, final, step) in enumerate(wanted):
        length = min(length, 39 - low)
        place[LOW, i], place[STOP, i], place[HIGH, i] = low, low + length, low + length - 1 + final
        place[ROW, i] = -1 if step < 0 else min(low + step, low + length)
    part = Part(pool, np.dtype(np.uint8), (count, width), ahead, count, repeat, steps, False)
    out = np.full((len(wanted), count, width), 77, np.uint8)
    assert part.gather(place, place[ROW].copy(), out)
    for i in range(len(wanted)):
        low, stop, high, row = (int(place[k, i]) for k in (LOW, STOP, HIGH, ROW))
        for j in range(count):
            at = row + ahead + j
            at = low if at < low and repeat else at
            inside = row >= 0 and low <= at <= max(row, stop - 1 if steps else high)
            np.testing.assert_array_equal(out[i, j], memory[at] if inside else np.zeros(width, np.uint8))


@pytest.mark.parametrize("rows", [3, 5, 5000])
def test_parts_are_gathered_together(rows: int) -> None:
    """Two fields, one of them also after the transitions, into new arrays; nothing if one chunk is absent."""
    pool, memory = full_pool(40, 5)
    other, numbers = full_pool(40, 8)
    parts = [
        Part(pool, np.dtype(np.uint8), (2, 5), -1, 2, True, False, False),
        Part(other, np.dtype(np.int64), (), 0, 1, False, True, False),
        Part(pool, np.dtype(np.uint8), (5,), 0, 1, False, False, True),
    ]
    rng = np.random.default_rng(rows)
    place = np.zeros((PARTS, rows), np.int64)
    place[ROW], place[STOP], place[HIGH] = rng.integers(0, 39, rows), 39, 39
    after = np.array([np.ones(rows, np.int64), np.where(rng.random(rows) < 0.3, -1, place[ROW] + 1)])
    taken: list[tuple[int, ...]] = []

    def take(shape: tuple[int, ...], dtype: Any) -> Array:
        taken.append(shape)
        return np.full(shape, 77, dtype)

    found = gather_parts(parts, place, after, take)
    assert found is not None
    stacks, actions, seen = found
    np.testing.assert_array_equal(stacks[:, 1], memory[place[ROW]])
    np.testing.assert_array_equal(stacks[:, 0], memory[np.maximum(place[ROW] - 1, 0)])
    np.testing.assert_array_equal(actions, numbers.view(np.int64)[place[ROW], 0])
    np.testing.assert_array_equal(seen, np.where(after[1][:, None] < 0, 0, memory[after[1]]))
    assert taken == [array.shape for array in found if array.nbytes >= 1 << 16]
    other.drop(0)
    place[ROW, 1] = 2
    assert gather_parts(parts, place, after, take) is None


def test_gathers_refuse_shapes_that_do_not_fit() -> None:
    pool, _ = full_pool(8, 3)
    part = Part(pool, np.dtype(np.uint8), (2, 3), 0, 2, False, True, False)
    place, row, out = np.zeros((PARTS, 2), np.int64), ints([0, 0]), np.full((2, 2, 3), 77, np.uint8)
    for bad_place, bad_row in ((place[:, :1].copy(), row), (place[1:].copy(), row), (place, row[:1])):
        with pytest.raises(ValueError, match="disagree"):
            part.gather(bad_place, bad_row, out)
        with pytest.raises(ValueError, match="disagree"):
            part.missing(bad_place, bad_row)
    with pytest.raises(ValueError, match="2 windows of 6 bytes into 6"):
        part.gather(place, row, out[:1])
    with pytest.raises(ValueError, match="read-only"):
        part.gather(place, row, np.frombuffer(bytes(12), np.uint8))
    for bad_place, after in (
        (place[1:].copy(), np.zeros((2, 2))),
        (place, np.zeros((1, 2))),
        (place, np.zeros((2, 1))),
    ):
        with pytest.raises(ValueError, match="disagree"):
            gather_parts([part], bad_place, after.astype(np.int64), np.empty)
    with pytest.raises(ValueError, match="2 windows of 6 bytes into 4"):
        gather_parts(
            [Part(pool, np.dtype(np.uint8), (2,), 0, 2, False, True, False)], place, place[:2].copy(), np.empty
        )
    with pytest.raises(ValueError, match="disagree"):
        pool.find(row, row, row[:1])
    assert (out == 77).all()
