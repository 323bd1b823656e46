"""The compiled kernels against plain Python: sum tree, chunk table, windows, gathers, returns, shuffles, checksum."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from model import philox, uniforms

from archive import _core, samplers
from archive._core import ChunkTable, SumTree

Array = np.ndarray[Any, Any]
SIZES = [*range(1, 71), 511, 512, 513, 10_000]


def ints(values: Any) -> Array:
    return np.array(values, np.int64)


# --- random numbers


def test_philox_of_the_model_has_the_published_answer() -> None:
    """Known answer of Random123 for Philox4x64-10 with counter and key 0."""
    assert philox((0, 0), 0) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]


@pytest.mark.parametrize(("seed", "batch"), [(0, 0), (0, 1), (1, 0), (12345, 678), ((1 << 64) - 1, 1 << 40)])
def test_uniforms_are_the_top_bits_of_philox(seed: int, batch: int) -> None:
    found = samplers.uniforms(seed, batch, 11)
    assert found.tolist() == uniforms(seed, batch, 11)
    assert found.tolist()[:5] == samplers.uniforms(seed, batch, 5).tolist()


def test_uniforms_of_neighbouring_batches_and_seeds_differ() -> None:
    streams = {tuple(samplers.uniforms(seed, batch, 4)) for seed in range(20) for batch in range(20)}
    assert len(streams) == 400


# --- sum tree


def sum8(values: list[float]) -> float:
    """Add eight numbers in the order that the draw rule fixes."""
    a, b, c, d, e, f, g, h = values
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


def total_of(leaves: list[float]) -> float:
    """Return the root of a tree of fan-out eight over these leaves."""
    level = leaves + [0.0] * (max(8, -(-len(leaves) // 8) * 8) - len(leaves))
    while len(level) > 8:
        level = [sum8(level[k : k + 8]) for k in range(0, len(level), 8)]
        level += [0.0] * (-len(level) % 8)
    return sum8(level)


def tree_of(leaves: Any) -> SumTree:
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), np.array(leaves, np.float64))
    return tree


def leaves_of(tree: SumTree) -> Array:
    out = np.empty(tree.size)
    tree.get(np.arange(tree.size), out)
    return out


def find(tree: SumTree, mass: Any) -> Array:
    out = np.full(len(mass), -1, np.int64)
    tree.find(np.array(mass, np.float64), out)
    return out


@pytest.mark.parametrize("size", SIZES)
def test_tree_keeps_what_was_set_and_its_sums_are_recomputed(size: int) -> None:
    """Whatever the history, total and owners equal those of a tree built anew from the leaves, to the last bit."""
    rng = np.random.default_rng(size)
    tree, leaves = SumTree(size), np.zeros(size)
    for _ in range(12):
        where = rng.integers(0, size, rng.integers(1, 2 * min(size, 300)))
        values = rng.random(len(where)) ** 8 * 10.0 ** rng.integers(-9, 9, len(where)) * (rng.random(len(where)) < 0.8)
        tree.set(where, values)
        for leaf, value in zip(where.tolist(), values.tolist(), strict=True):  # the last of duplicates wins
            leaves[leaf] = value
        np.testing.assert_array_equal(leaves_of(tree), leaves)
        assert tree.total == total_of(leaves.tolist())
    fresh = tree_of(leaves)
    assert fresh.total == tree.total
    if tree.total > 0:
        mass = rng.random(500) * tree.total
        np.testing.assert_array_equal(find(tree, mass), find(fresh, mass))


@pytest.mark.parametrize("size", SIZES)
def test_leaf_owns_the_mass_from_the_sum_before_it_on(size: int) -> None:
    """Leaf i owns [c_i, c_i+1); with whole numbers there is no rounding, so every bound can be tried."""
    rng = np.random.default_rng(size)
    leaves = rng.integers(0, 4, size).astype(float)
    leaves[rng.integers(size)] = 3.0
    tree, ends = tree_of(leaves), np.cumsum(leaves)
    mass = np.concatenate([np.arange(ends[-1]), np.arange(ends[-1]) + 0.5])
    assert tree.total == ends[-1]
    np.testing.assert_array_equal(find(tree, mass), np.searchsorted(ends, mass, "right"))


@given(
    leaves=st.lists(st.floats(0, 1e300) | st.sampled_from([0.0, 0.0, 5e-324, 1e-310, 1.0]), min_size=1, max_size=600),
    share=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
@example(leaves=[0.0] * 9 + [5e-324] + [0.0] * 9, share=[0.5])
@example(leaves=[1.0, 0.0, 1e300, 0.0, 1.0] + [0.0] * 100, share=[1.0])
def test_leaf_of_zero_is_never_found(leaves: list[float], share: list[float]) -> None:
    """Not at any mass, that of the total included, whatever is lost in rounding."""
    tree = tree_of(leaves)
    if tree.total == 0:
        with pytest.raises(ValueError, match="total 0"):
            find(tree, [0.0])
        return
    ends = np.cumsum(leaves)
    mass = [0.0, tree.total, math.nextafter(tree.total, 0.0), *(s * tree.total for s in share)]
    found = find(tree, mass + np.minimum(ends, tree.total).tolist())
    assert ((found >= 0) & (found < len(leaves))).all()
    assert (np.array(leaves)[found] > 0).all()


@given(
    leaves=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1e-9, 7.0]), min_size=1, max_size=100).filter(any),
    spare=st.integers(1, 5000),
)
def test_depth_of_the_tree_changes_nothing(leaves: list[float], spare: int) -> None:
    """Leaves of 0 behind the others, and levels above, must not matter: at no bound of a leaf and not at the total."""
    small, large = tree_of(leaves), tree_of(leaves + [0.0] * spare)
    assert large.total == small.total
    ends = np.minimum(np.cumsum(leaves), small.total)
    mass = np.concatenate([ends, np.nextafter(ends, 0.0), [small.total]])
    np.testing.assert_array_equal(find(large, mass), find(small, mass))


@given(leaves=st.lists(st.floats(0, 1e6), min_size=1, max_size=300), share=st.floats(0, 1))
def test_owner_contains_the_mass_up_to_rounding(leaves: list[float], share: float) -> None:
    tree = tree_of(leaves)
    if tree.total > 0:
        mass = share * tree.total
        (leaf,) = find(tree, [mass]).tolist()
        below = math.fsum(leaves[:leaf])
        assert below - 1e-12 * tree.total <= mass <= below + leaves[leaf] + 1e-12 * tree.total


@given(leaves=st.lists(st.floats(0, 1e300) | st.sampled_from([0.0, 0.0, 5e-324, 1e-310]), min_size=1, max_size=600))
@example(leaves=[0.0])
@example(leaves=[0.0] * 70 + [3.0])
@example(leaves=[3.0, 0.0, 5e-324])
def test_smallest_leaf_above_zero(leaves: list[float]) -> None:
    assert tree_of(leaves).smallest == min((leaf for leaf in leaves if leaf > 0), default=0.0)


def test_smallest_leaf_follows_changes_and_never_is_a_sum() -> None:
    """Only leaves count: sums of one leaf, and leaves that the size rounds up to, do not."""
    tree = SumTree(9)
    assert tree.smallest == 0
    tree.set(ints([0, 8]), np.array([4.0, 2.0]))
    assert tree.smallest == 2
    tree.set(ints([8]), np.array([0.0]))
    assert tree.smallest == 4
    tree.set(ints([3]), np.array([1.0]))
    assert tree.smallest == 1


def test_tree_copied_into_a_larger_one_draws_the_same() -> None:
    rng = np.random.default_rng(0)
    small, large = tree_of(rng.random(100)), SumTree(1000)
    small.copy_to(large)
    np.testing.assert_array_equal(leaves_of(large)[:100], leaves_of(small))
    assert not leaves_of(large)[100:].any()
    mass = rng.random(300) * small.total * (1 - 1e-12)
    np.testing.assert_array_equal(find(large, mass), find(small, mass))


@pytest.mark.parametrize("leaf", [-1, 5, 7, 8, 1 << 40])
def test_tree_refuses_leaves_it_does_not_have(leaf: int) -> None:
    tree = tree_of([1.0, 2.0, 3.0, 4.0, 5.0])
    with pytest.raises(IndexError, match=str(leaf)):
        tree.set(ints([0, leaf]), np.array([9.0, 9.0]))
    with pytest.raises(IndexError, match=str(leaf)):
        tree.get(ints([leaf]), np.empty(1))
    assert leaves_of(tree).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_tree_refuses_arrays_that_do_not_fit() -> None:
    tree = tree_of([1.0, 2.0])
    room = np.full(3, -1, np.int64)
    with pytest.raises(ValueError, match="lengths disagree: 2, 1"):
        tree.set(ints([0, 1]), np.array([9.0]))
    with pytest.raises(ValueError, match="lengths disagree: 1, 3"):
        tree.get(ints([0]), np.empty(3))
    with pytest.raises(ValueError, match="lengths disagree: 3, 1"):
        tree.find(np.array([0.5, 0.5, 0.5]), room[:1])
    with pytest.raises(ValueError, match="dtype"):
        tree.set(np.array([0], np.int32), np.array([9.0]))
    with pytest.raises(ValueError, match="contiguous"):
        tree.set(np.arange(2)[::-1], np.array([8.0, 9.0]))
    with pytest.raises(TypeError):
        tree.set(None, np.array([9.0]))
    assert room.tolist() == [-1, -1, -1]
    assert leaves_of(tree).tolist() == [1.0, 2.0]


# --- chunk table


class TableMachine(RuleBasedStateMachine):
    """A chunk table of six slots against a dict: pinned chunks and those of the present gather keep their slots."""

    SLOTS, CHUNKS, ENVS, ROWS = 6, 100, 2, 4

    def __init__(self) -> None:
        super().__init__()
        self.table, self.limit = ChunkTable(self.SLOTS), self.SLOTS
        self.slots: dict[int, int] = {}
        self.pinned: set[int] = set()
        self.touched: set[int] = set()

    @rule(chunk=st.integers(0, CHUNKS - 1), pin=st.booleans())
    def claim(self, chunk: int, pin: bool) -> None:
        if chunk in self.slots:
            return
        held = {self.slots[c] for c in self.pinned | self.touched}
        slot = self.table.claim(chunk)
        if len(held & set(range(self.limit))) == self.limit:
            assert slot == -1
            return
        assert slot in set(range(self.limit)) - held
        self.slots = {c: s for c, s in self.slots.items() if s != slot} | {chunk: slot}
        self.touched.add(chunk)
        if pin:
            self.table.pin(chunk, True)
            self.pinned.add(chunk)

    @rule(place=st.integers(0, SLOTS))
    def unpin(self, place: int) -> None:
        if self.pinned:
            chunk = sorted(self.pinned)[place % len(self.pinned)]
            self.table.pin(chunk, False)
            self.pinned.discard(chunk)

    @rule(chunk=st.integers(0, CHUNKS + 50))
    def drop(self, chunk: int) -> None:
        self.table.drop(chunk)
        self.forget(chunk)

    def forget(self, chunk: int) -> None:
        self.slots.pop(chunk, None)
        self.pinned.discard(chunk)
        self.touched.discard(chunk)

    @rule(slots=st.integers(-1, SLOTS + 2))
    def limit_to(self, slots: int) -> None:
        self.table.limit_to(slots)
        self.limit = max([1, min(slots, self.SLOTS), *(self.slots[c] + 1 for c in self.pinned)])
        for chunk in [c for c, s in self.slots.items() if s >= self.limit]:
            self.forget(chunk)
        assert self.table.limit == self.limit

    @rule(
        wanted=st.lists(
            st.tuples(st.integers(0, ENVS - 1), st.lists(st.integers(-2, 60), min_size=3, max_size=3)), max_size=4
        )
    )
    def resolve(self, wanted: list[tuple[int, list[int]]]) -> None:
        env, row = ints([e for e, _ in wanted]), ints([r for _, r in wanted]).reshape(-1, 3)
        out = np.full(row.shape, -9, np.int64)
        missing = self.table.resolve(env, row, self.ENVS, self.ROWS, out)
        chunks = np.where(row < 0, -1, row // self.ROWS * self.ENVS + env[:, None])
        asked = set(chunks.ravel().tolist()) - {-1}
        assert list(missing) == sorted(asked - set(self.slots))
        self.touched = asked & set(self.slots)
        for place, chunk in np.ndenumerate(chunks):
            slot = self.slots.get(int(chunk), -1)
            there = slot * self.ROWS + row[place] % self.ROWS if slot >= 0 else -2
            assert out[place] == (-1 if chunk == -1 else there)

    @invariant()
    def agrees(self) -> None:
        for chunk in [*range(self.CHUNKS), -1, 10**9]:
            assert self.table.slot(chunk) == self.slots.get(chunk, -1)


TestChunkTable = TableMachine.TestCase


# --- windows and gathers


@given(
    starts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(-1, 30)), max_size=6),
    offsets=st.lists(st.integers(-8, 8), max_size=6),
    repeat=st.booleans(),
)
def test_windows_are_clamped_to_the_episode(
    starts: list[tuple[int, int, int]], offsets: list[int], repeat: bool
) -> None:
    start, low, high = ints(starts).reshape(-1, 3).T.copy()
    out = np.full((len(starts), len(offsets)), -9, np.int64)
    _core.windows(start, ints(offsets), low, high, repeat, out)
    for i, (at, first, last) in enumerate(starts):
        for j, offset in enumerate(offsets):
            before = first if repeat and first <= last else -1
            expected = -1 if at + offset > last else before if at + offset < first else at + offset
            assert out[i, j] == expected


def test_windows_refuse_lengths_that_disagree() -> None:
    two, three, out = ints([0, 0]), ints([0, 0, 0]), np.full((2, 1), -9, np.int64)
    for arrays in ((three, two, two), (two, three, two), (two, two, three)):
        with pytest.raises(ValueError, match="disagree"):
            _core.windows(arrays[0], ints([0]), arrays[1], arrays[2], False, out)
    with pytest.raises(ValueError, match="disagree"):
        _core.windows(two, ints([0, 1]), two, two, False, out)
    assert (out == -9).all()


@given(rows=st.lists(st.integers(-2, 9), max_size=20), width=st.integers(0, 70))
def test_gather_copies_rows_and_gives_zeros_for_none(rows: list[int], width: int) -> None:
    pool = np.random.default_rng(width).integers(1, 256, (10, width), np.uint8)
    out = np.full((len(rows), width), 77, np.uint8)
    _core.gather(pool, ints(rows), out)
    expected = [pool[row] if row >= 0 else np.zeros(width, np.uint8) for row in rows]
    np.testing.assert_array_equal(out, np.array(expected, np.uint8).reshape(len(rows), width))


def test_gather_refuses_rows_and_shapes_that_do_not_fit() -> None:
    pool, out = np.ones((4, 3), np.uint8), np.full((2, 3), 77, np.uint8)
    with pytest.raises(IndexError, match="row 4 of a pool of 4"):
        _core.gather(pool, ints([0, 4]), out)
    for rows, width in ((1, 3), (3, 3), (2, 2)):
        with pytest.raises(ValueError, match="disagree"):
            _core.gather(pool, ints([0] * rows), np.ones((2, width), np.uint8))
    assert (out == 77).all()


@given(
    rewards=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=8),
    steps=st.lists(st.integers(0, 6), min_size=8, max_size=8),
    gamma=st.floats(0, 1),
)
def test_returns_sum_the_steps_taken(rewards: list[list[float]], steps: list[int], gamma: float) -> None:
    out = np.empty(len(rewards))
    _core.returns(np.array(rewards), ints(steps[: len(rewards)]), gamma, out)
    for i, row in enumerate(rewards):
        terms = [gamma**k * row[k] for k in range(min(steps[i], 4))]
        assert out[i] == pytest.approx(math.fsum(terms), rel=1e-12, abs=1e-12 * sum(map(abs, terms)))


def test_returns_refuse_lengths_that_disagree() -> None:
    for rewards, steps, out in ((2, 3, 2), (2, 2, 3), (3, 2, 2)):
        with pytest.raises(ValueError, match="disagree"):
            _core.returns(np.ones((rewards, 2)), ints([1] * steps), 0.9, np.empty(out))


# --- which rows may be drawn


def segments(seed: int) -> tuple[list[list[tuple[int, int, int]]], dict[str, Array]]:
    """Return per environment its episodes as (first row, transitions, valid starts), and the kernels' arrays."""
    rng = np.random.default_rng(seed)
    envs: list[list[tuple[int, int, int]]] = []
    for _ in range(rng.integers(1, 5)):
        row, mine = 0, []
        for _ in range(rng.integers(0, 6)):
            row += int(rng.integers(0, 3))  # rows that were given up
            length = int(rng.integers(0, 6))
            mine.append((row, length, int(rng.integers(0, length + 1))))
            row += length + 1
        envs.append(mine)
    room = [len(mine) + int(rng.integers(0, 3)) for mine in envs]
    base = ints(np.cumsum([0, *room])[:-1])
    arrays = {name: np.full(sum(room), -999, np.int64) for name in ("start", "first", "valid")}
    for at, mine in zip(base.tolist(), envs, strict=True):
        for k, (row, _, _) in enumerate(mine):
            arrays["start"][at + k] = row
            arrays["first"][at + k] = sum(length for _, length, _ in mine[:k])
            arrays["valid"][at + k] = sum(valid for _, _, valid in mine[:k])
    return envs, {**arrays, "base": base, "size": ints([len(mine) for mine in envs])}


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_found_in_their_episodes(seed: int) -> None:
    envs, arrays = segments(seed)
    asked = [(env, row) for env in range(len(envs)) for row in range(40)]
    out = np.full(len(asked), -9, np.int64)
    env, row = ints(asked).T.copy()
    _core.find_rows(env, row, arrays["base"], arrays["size"], arrays["start"], out)
    for (e, r), found in zip(asked, out.tolist(), strict=True):
        before = [k for k, (start, _, _) in enumerate(envs[e]) if start <= r]
        assert found == (arrays["base"][e] + before[-1] if before else -1)


@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("seed", range(30))
def test_valid_starts_are_counted_environment_by_environment(seed: int, stride: int) -> None:
    envs, arrays = segments(seed)
    rng, expected, skip, until = np.random.default_rng(seed), [], [], []
    for e, mine in enumerate(envs):
        starts = [(e, row + k * stride) for row, _, valid in mine for k in range(valid)]
        skip.append(int(rng.integers(0, len(starts) + 1)))
        expected += starts[skip[-1] :]
        until.append(len(expected))
    env, row = np.empty(len(expected), np.int64), np.empty(len(expected), np.int64)
    where = (arrays["base"], arrays["size"], arrays["start"], arrays["valid"])
    _core.pick_valid(np.arange(len(expected)), ints(until), ints(skip), *where, stride, env, row)
    assert list(zip(env.tolist(), row.tolist(), strict=True)) == expected


@pytest.mark.parametrize("capacity", [0, 1, 3, 7])
@pytest.mark.parametrize("seed", range(30))
def test_leaves_belong_to_transitions_by_age(seed: int, capacity: int) -> None:
    envs, arrays = segments(seed)
    expected = {}
    for e, mine in enumerate(envs):
        found = [(e, row + k) for row, length, _ in mine for k in range(length)]
        for q in range(max(len(found) - capacity, 0) if capacity else 0, len(found)):
            expected[(q % capacity if capacity else q) * len(envs) + e] = found[q]
    slots = ints(sorted(expected))
    env, row = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    transitions = ints([sum(length for _, length, _ in mine) for mine in envs])
    where = (arrays["base"], arrays["size"], arrays["start"], arrays["first"])
    _core.pick_slots(slots, transitions, capacity, *where, env, row)
    assert dict(zip(slots.tolist(), zip(env.tolist(), row.tolist(), strict=True), strict=True)) == expected


@pytest.mark.parametrize("short", range(3))
def test_kernels_that_find_rows_refuse_lengths_that_disagree(short: int) -> None:
    """Not even the first entry is written."""
    _, arrays = segments(0)
    zeros, room = [ints([0, 0, 0])[k == short :] for k in range(3)], np.full(3, -9, np.int64)
    base, size, start, first = (arrays[name] for name in ("base", "size", "start", "first"))
    counts = ints([0] * len(base))
    calls: list[Any] = [
        lambda a, b, c: _core.find_rows(a, b, base, size, start, c),
        lambda a, b, c: _core.pick_valid(a, counts, counts, base, size, start, first, 1, b, c),
        lambda a, b, c: _core.pick_slots(a, counts, 0, base, size, start, first, b, c),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="disagree"):
            call(*zeros[:2], room[short == 2 :])
        assert (room == -9).all()


def test_table_refuses_lengths_that_disagree() -> None:
    table, room = ChunkTable(4), np.full((3, 2), -9, np.int64)
    for env, row, out in ((2, (3, 2), room), (3, (3, 2), room[:2]), (3, (3, 1), room)):
        with pytest.raises(ValueError, match="disagree"):
            table.resolve(ints([0] * env), np.zeros(row, np.int64), 1, 4, out)
    assert (room == -9).all()


# --- bytes of chunks


def stored_by_hdf5(data: Array, **filters: bool) -> bytes:
    """Return the bytes of one chunk as HDF5 itself encodes it."""
    with h5py.File.in_memory() as file:
        dataset = file.create_dataset("d", data=data, chunks=data.shape, **filters)
        mask, chunk = dataset.id.read_direct_chunk((0,) * data.ndim)
        assert mask == 0
        return bytes(chunk)


@pytest.mark.parametrize("dtype", ["<i2", "<f4", "<i8", "<c16", ">f8"])
@pytest.mark.parametrize("items", [1, 2, 7, 1000])
def test_shuffle_is_that_of_hdf5_and_is_undone(dtype: str, items: int) -> None:
    data = np.random.default_rng(items).integers(0, 256, items * np.dtype(dtype).itemsize, np.uint8)
    mixed, back = np.empty_like(data), np.empty_like(data)
    _core.shuffle(data, mixed, np.dtype(dtype).itemsize)
    _core.unshuffle(mixed, back, np.dtype(dtype).itemsize)
    assert mixed.tobytes() == stored_by_hdf5(data.view(dtype), shuffle=True)
    np.testing.assert_array_equal(back, data)


@pytest.mark.parametrize("kernel", [_core.shuffle, _core.unshuffle])
def test_shuffle_refuses_sizes_that_do_not_fit(kernel: Any) -> None:
    for size, room, itemsize in ((8, 7, 4), (8, 9, 4), (7, 7, 4), (8, 16, 2)):
        out = np.full(room, 77, np.uint8)
        with pytest.raises(ValueError, match=str(itemsize)):
            kernel(np.ones(size, np.uint8), out, itemsize)
        assert (out == 77).all()


def check_checksum(data: Array) -> None:
    expected = int.from_bytes(stored_by_hdf5(data, fletcher32=True)[-4:], "little")
    assert _core.checksum(data) == expected


@given(data=st.binary(min_size=1, max_size=400))
@example(data=bytes(1))
@example(data=bytes(17))
@example(data=b"\xff" * 2)
@example(data=b"\xff" * 33)
@example(data=b"\x00\x01\xff\xfe")
def test_checksum_is_that_of_hdf5(data: bytes) -> None:
    check_checksum(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("size", [359, 360, 361, 720, 65_535, 65_536, 131_071, 131_072, 131_073, 131_074, 400_001])
@pytest.mark.parametrize("kind", ["random", "ones", "zeros", "last"])
def test_checksum_of_large_chunks(size: int, kind: str) -> None:
    """Around HDF5's blocks of 360 words and ours of 65,536; sums whose residue is zero among them."""
    data = np.full(size, 255 if kind == "ones" else 0, np.uint8)
    if kind == "random":
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    if kind == "last":
        data[-1] = 1
    check_checksum(data)


def test_permute_refuses_what_is_outside() -> None:
    out = np.empty(1, np.int64)
    for index in (-1, 10):
        with pytest.raises(IndexError, match="of 10"):
            _core.permute(np.array([index]), 10, 0, 0, out)
    with pytest.raises(ValueError, match="lengths"):
        _core.permute(np.zeros(2, np.int64), 10, 0, 0, out)
