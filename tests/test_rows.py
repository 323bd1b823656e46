"""The compiled kernels that say where rows are, against plain Python: segments, pools, windows, transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from archive._rows import Part, Pool, Segments, gather_parts, look_ahead
from archive.places import ENV, FLAGS, HIGH, LOW, PARTS, ROW, STOP

Array = np.ndarray[Any, Any]


def ints(values: Any) -> Array:
    return np.array(values, np.int64)


# --- the pool


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


def full_pool(rows: int, width: int) -> tuple[Pool, Array]:
    """Return a pool that holds rows 0 .. rows - 1 of one environment in order, and its memory."""
    memory = np.random.default_rng(width).integers(1, 256, (rows, width), np.uint8)
    pool = Pool(memory, 1, 4)
    assert [pool.claim(chunk) for chunk in range(rows // 4)] == list(range(rows // 4))
    return pool, memory


EPISODES = st.tuples(st.integers(0, 19), st.integers(1, 20), st.booleans(), st.integers(-1, 21))


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


# --- transitions


@given(
    wanted=st.lists(st.tuples(EPISODES, st.integers(0, 3)), max_size=8),
    n_step=st.integers(1, 5),
    shorten=st.booleans(),
)
def test_transitions_end_where_their_episodes_do(
    wanted: list[tuple[tuple[int, int, bool, int], int]], n_step: int, shorten: bool
) -> None:
    count, place = len(wanted), np.zeros((PARTS, len(wanted)), np.int64)
    for i, ((low, length, final, step), flags) in enumerate(wanted):
        place[LOW, i], place[STOP, i], place[HIGH, i] = low, low + length, low + length - 1 + final
        last = length - 1 - (shorten and not final and not flags & 1 and length > 1)
        place[ROW, i], place[FLAGS, i] = low + min(max(step, 0), max(last, 0)), flags
    discounts = 0.5 ** np.arange(n_step + 1, dtype=np.float32)
    ahead, flags, discount = np.full((2, count), -9), np.full((2, count), 9, np.uint8), np.empty(count, np.float32)
    look_ahead(place, n_step, shorten, discounts, ahead, flags, discount)
    for i in range(count):
        row, stop, high, ends = (int(place[k, i]) for k in (ROW, STOP, HIGH, FLAGS))
        cut = shorten and high < stop and not ends & 1
        steps = min(n_step, stop - cut - row)
        at_end = row + steps == stop
        assert ahead[:, i].tolist() == [steps, -1 if at_end and high < stop else row + steps]
        assert flags[:, i].tolist() == [at_end and ends & 1, at_end and ends >> 1]
        assert discount[i] == (0 if at_end and ends & 1 else 0.5**steps)


def test_look_ahead_refuses_lengths_that_disagree() -> None:
    place = np.zeros((PARTS, 2), np.int64)
    for sizes in ((3, 2, 2, 2), (2, 3, 2, 2), (2, 2, 3, 2), (2, 2, 2, 3)):
        discounts, ahead = np.ones(sizes[0], np.float32), np.full((2, sizes[1]), -9)
        flags, discount = np.zeros((2, sizes[2]), np.uint8), np.ones(sizes[3], np.float32)
        with pytest.raises(ValueError, match="disagree"):
            look_ahead(place, 1, False, discounts, ahead, flags, discount)
        assert (ahead == -9).all()


# --- which rows may be drawn


class Story(NamedTuple):
    """Per environment its episodes as (first row, transitions, valid starts), and the kernels' arrays."""

    envs: list[list[tuple[int, int, int]]]
    arrays: dict[str, Array]
    stride: int

    @property
    def kernels(self) -> Segments:
        return Segments(*self.arrays.values(), self.stride)

    @property
    def transitions(self) -> Array:
        return ints([sum(length for _, length, _ in mine) for mine in self.envs])

    def place(self, env: int, row: int) -> list[int]:
        """Return the place of a row, or of the episode before it."""
        k = max(k for k, (start, _, _) in enumerate(self.envs[env]) if start <= row)
        start, length, _ = self.envs[env][k]
        number = int(self.arrays["episode"][self.arrays["base"][env] + k])
        final, terminated, truncated = (int(self.arrays[n][number]) for n in ("final", "terminated", "truncated"))
        stop = start + length
        return [env, row, start, stop, stop - 1 + final, number, terminated + 2 * truncated]


def story(seed: int, stride: int = 1) -> Story:
    """Make up episodes; rows that were given up lie between some, and the arrays have room between environments."""
    rng = np.random.default_rng(seed)
    envs: list[list[tuple[int, int, int]]] = []
    for _ in range(rng.integers(1, 5)):
        row, mine = 0, []
        for _ in range(rng.integers(0, 6)):
            row += int(rng.integers(0, 3))
            length = int(rng.integers(0, 6))
            mine.append((row, length, int(rng.integers(0, length + 1))))
            row += length + 1
        envs.append(mine)
    room = [len(mine) + int(rng.integers(0, 3)) for mine in envs]
    base, total = ints(np.cumsum([0, *room])[:-1]), sum(len(mine) for mine in envs)
    per = {name: np.full(sum(room), -999, np.int64) for name in ("start", "first", "episode", "reach", "before")}
    length, number = np.zeros(total, np.int64), rng.permutation(total).tolist()
    for at, mine in zip(base.tolist(), envs, strict=True):
        for k, (row, steps, valid) in enumerate(mine):
            per["start"][at + k], per["episode"][at + k] = row, number.pop()
            per["first"][at + k] = sum(n for _, n, _ in mine[:k])
            per["reach"][at + k] = valid
            per["before"][at + k] = sum(-(-v // stride) for _, _, v in mine[:k])
            length[per["episode"][at + k]] = steps
    flags = {name: rng.integers(0, 2, total).astype(np.uint8) for name in ("final", "terminated", "truncated")}
    size = ints([len(mine) for mine in envs])
    reach, before = per.pop("reach"), per.pop("before")
    return Story(
        envs, {"base": base, "size": size, **per, "length": length, **flags, "reach": reach, "before": before}, stride
    )


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_found_in_their_episodes(seed: int) -> None:
    told = story(seed)
    asked = [(env, row) for env in range(len(told.envs)) for row in range(40)]
    found, (env, row) = np.full(len(asked), -9, np.int64), ints(asked).T.copy()
    told.kernels.find(env, row, found)
    for (e, r), at in zip(asked, found.tolist(), strict=True):
        before = [k for k, (start, _, _) in enumerate(told.envs[e]) if start <= r]
        assert at == (told.arrays["base"][e] + before[-1] if before else -1)
    known = found >= 0
    block = np.full((PARTS, int(known.sum())), -9, np.int64)
    told.kernels.places(found[known], env[known], row[known], block)
    assert block.T.tolist() == [told.place(*pair) for pair, there in zip(asked, known, strict=True) if there]


@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("seed", range(30))
def test_valid_starts_are_counted_environment_by_environment(seed: int, stride: int) -> None:
    told = story(seed, stride)
    rng, expected, skip, until = np.random.default_rng(seed), [], [], []
    for e, mine in enumerate(told.envs):
        starts = [(e, row + k) for row, _, valid in mine for k in range(0, valid, stride)]
        skip.append(int(rng.integers(0, len(starts) + 1)))
        expected += starts[skip[-1] :]
        until.append(len(expected))
    block = np.full((PARTS, len(expected)), -9, np.int64)
    ids = np.full(len(expected), -9, np.int64)
    told.kernels.pick(np.arange(len(expected)), ints(until), ints(skip), block, ids)
    assert block.T.tolist() == [told.place(*pair) for pair in expected]
    assert ids.tolist() == [env << 32 | row for env, row in expected]


def by_leaf(told: Story, capacity: int) -> dict[int, tuple[int, int]]:
    """Return environment and row of the transition that each leaf stands for."""
    found = {}
    for e, mine in enumerate(told.envs):
        rows = [(e, row + k) for row, length, _ in mine for k in range(length)]
        for q in range(max(len(rows) - capacity, 0) if capacity else 0, len(rows)):
            found[(q % capacity if capacity else q) * len(told.envs) + e] = rows[q]
    return found


@pytest.mark.parametrize("capacity", [0, 1, 3, 7])
@pytest.mark.parametrize("seed", range(30))
def test_leaves_belong_to_transitions_by_age(seed: int, capacity: int) -> None:
    told = story(seed)
    expected = by_leaf(told, capacity)
    leaves = ints(sorted(expected))
    block = np.full((PARTS, len(leaves)), -9, np.int64)
    ids = np.full(len(leaves), -9, np.int64)
    told.kernels.pick_leaves(leaves, told.transitions, capacity, block, ids)
    assert block.T.tolist() == [told.place(*expected[leaf]) for leaf in leaves.tolist()]
    assert ids.tolist() == [env << 32 | row for env, row in map(expected.get, leaves.tolist())]


@pytest.mark.parametrize("capacity", [0, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("seed", range(30))
def test_ids_of_valid_starts_have_leaves_and_no_others(seed: int, stride: int, capacity: int) -> None:
    told = story(seed, stride)
    starts = {(e, row + k) for e, mine in enumerate(told.envs) for row, _, n in mine for k in range(0, n, stride)}
    leaf = {pair: number for number, pair in by_leaf(told, capacity).items() if pair in starts}
    for env in range(-1, len(told.envs) + 1):
        for row in range(40):
            out = ints([-9])
            plain = told.kernels.leaves(ints([env << 32 | row]), told.transitions, capacity, out)
            assert plain == ((env, row) in leaf)
            assert not plain or out[0] == leaf[env, row]
    ids, out = ints([e << 32 | r for e, r in leaf]), np.full(len(leaf), -9, np.int64)
    assert told.kernels.leaves(ids, told.transitions, capacity, out)
    assert out.tolist() == list(leaf.values())


def test_kernels_that_find_rows_refuse_lengths_that_disagree() -> None:
    """Not even the first entry is written."""
    told = story(0)
    kernels, three, two, envs = told.kernels, ints([0] * 3), ints([0] * 2), ints([0] * len(told.envs))
    out, block = np.full(3, -9, np.int64), np.full((PARTS, 3), -9, np.int64)
    calls: list[Any] = [
        lambda: kernels.find(two, three, out),
        lambda: kernels.find(three, two, out),
        lambda: kernels.find(two, two, out),
        lambda: kernels.places(two, three, three, block),
        lambda: kernels.places(two, two, two, block),
        lambda: kernels.places(three, three, three, block[1:].copy()),
        lambda: kernels.pick(two, envs, envs, block, out),
        lambda: kernels.pick(three, envs, envs[1:], block, out),
        lambda: kernels.pick(three, envs, envs, block[1:], out),
        lambda: kernels.pick(three, envs, envs, block, out[1:]),
        lambda: kernels.pick_leaves(two, envs, 0, block, out),
        lambda: kernels.pick_leaves(three, envs[1:], 0, block, out),
        lambda: kernels.pick_leaves(three, envs, 0, block, out[1:]),
        lambda: kernels.leaves(two, envs, 0, out),
        lambda: kernels.leaves(three, envs[1:], 0, out),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="disagree"):
            call()
        assert (out == -9).all()
        assert (block == -9).all()
    for name in told.arrays:
        with pytest.raises(ValueError, match="disagree"):
            Segments(*(array[1:] if key == name else array for key, array in told.arrays.items()), 1)
