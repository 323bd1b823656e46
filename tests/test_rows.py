"""The compiled kernels that say where rows lie, against plain Python: segments and transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive._rows import Segments, look_ahead
from archive.places import FLAGS, HIGH, LOW, PARTS, ROW, STOP

Array = np.ndarray[Any, Any]


def ints(values: Any) -> Array:
    return np.array(values, np.int64)


EPISODES = st.tuples(st.integers(0, 19), st.integers(1, 20), st.booleans(), st.integers(-1, 21))


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
