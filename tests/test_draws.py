"""What is drawn is what docs/draws.md says, number for number: the rule is written here once more, in plain Python."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model import philox, uniforms

import archive
from archive import _core, epochs
from archive._core import SumTree

DOCUMENT = (Path(__file__).parents[1] / "docs" / "draws.md").read_text(encoding="utf-8")


# --- the rule


def sum8(group: list[float]) -> float:
    """Add eight children in the order of the document."""
    a, b, c, d, e, f, g, h = group
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


def levels_of(leaves: list[float], spare: int = 0) -> list[list[float]]:
    """Return the levels of the tree over these leaves, `spare` of them more than it needs."""
    padded = leaves + [0.0] * (-len(leaves) % 8 if leaves else 8)
    levels = [padded]
    while len(levels[-1]) > 8 or spare:
        spare -= len(levels[-1]) == 8
        sums = [sum8(levels[-1][k : k + 8]) for k in range(0, len(levels[-1]), 8)]
        levels.append(sums + [0.0] * (-len(sums) % 8))
    return levels


def find(levels: list[list[float]], mass: float) -> int:
    """Return the leaf that owns a mass."""
    group = chosen = 0
    for level in reversed(levels):
        rest = mass
        for child in range(group, group + 8):
            if level[child] > 0:
                chosen, rest = child, mass
                if mass < level[child]:
                    break
                mass -= level[child]
        group, mass = 8 * chosen, rest
    return chosen


def masses(total: float, numbers: list[float], stratified: bool) -> list[float]:
    """Return the mass of each draw."""
    count = len(numbers)
    shares = [(j + u) / count for j, u in enumerate(numbers)] if stratified else numbers
    return [min(share * total, math.nextafter(total, 0)) for share in shares]


def drawn(state: dict[str, Any], run: archive.Run, count: int) -> tuple[list[int], list[float]]:
    """Return ids and weights of the next batch of a prioritized replay, from its state and the table of episodes."""
    options, sampler, kept = state["options"], state["sampler"], state["priorities"]
    envs, capacity = run.num_envs, (options["capacity"] or 0) // run.num_envs
    leaves: dict[int, float] = {}
    ids: dict[int, int] = {}
    known = iter(kept["leaves"].tolist())
    for env in range(envs):
        entered, starts = int(kept["entered"][env]), transitions(run, env, options["n_step"])
        assert entered == len(starts)
        for q in range(entered - int(kept["kept"][env]), entered):
            number = (q % capacity if capacity else q) * envs + env
            row, valid = starts[q]
            leaf = next(known)
            ids[number], leaves[number] = env << 32 | row, leaf if valid else 0.0
    levels = levels_of([leaves.get(k, 0.0) for k in range(max(leaves) + 1)])
    total = sum8(levels[-1])
    numbers = uniforms(options["seed"], state["batches"], count)
    found = [find(levels, mass) for mass in masses(total, numbers, sampler["stratified"])]
    valid = sum(leaf > 0 for leaf in leaves.values())
    beta = sampler["beta"]
    if isinstance(beta, dict):
        beta = beta["start"] + (beta["stop"] - beta["start"]) * min(state["batches"] / beta["steps"], 1)
    raw = [(valid * (leaves[k] / total)) ** -beta for k in found]
    smallest = min(leaf for leaf in leaves.values() if leaf > 0)
    largest = max(raw) if sampler["normalize"] == "batch" else (valid * (smallest / total)) ** -beta
    return [ids[k] for k in found], [w / largest for w in raw]


def transitions(run: archive.Run, env: int, n_step: int) -> list[tuple[int, bool]]:
    """Return row and validity of every transition of an environment, all of them recorded by `step`."""
    table = run.episodes
    mine = np.flatnonzero(table["env"] == env).tolist()
    found = []
    for k in mine:
        start, length = int(table["start"][k]), int(table["length"][k])
        over = k != mine[-1] or table["terminated"][k] or table["truncated"][k]
        valid = length if over else max(length - n_step + 1, 0)
        found += [(start + i, i < valid) for i in range(length)]
    return found


def shuffled(index: int, count: int, seed: int, number: int) -> int:
    """Return where pass `number` sends an index."""
    keys = philox((seed, (1 << 62) + number), 1)
    half = max((max(count - 1, 1).bit_length() + 1) // 2, 1)
    while True:
        left, right = index >> half, index % (1 << half)
        for key in keys:
            left, right = right, left ^ mixed(right ^ key) % (1 << half)
        index = left << half | right
        if index < count:
            return index


def mixed(v: int) -> int:
    """Return the end of splitmix64."""
    word = (1 << 64) - 1
    v = v + 0x9E3779B97F4A7C15 & word
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 & word
    v = (v ^ v >> 27) * 0x94D049BB133111EB & word
    return v ^ v >> 31


class Passes:
    """The draws of an Epoch over runs recorded by `step` with n_step=1, every row but the final ones a start."""

    def __init__(self, run: archive.Run, seed: int, capacity: int | None, stride: int) -> None:
        self.run, self.seed, self.stride = run, seed, stride
        self.capacity = (capacity or 0) // run.num_envs
        self.number, self.position = -1, 0
        self.ranked: list[int] = []

    def starts(self, *, shown: bool) -> list[int]:
        """Return the ids of valid starts within the capacity by rank; hidden ones only if not `shown`."""
        table, found = self.run.episodes, []
        for env in range(self.run.num_envs):
            mine = []
            for k in np.flatnonzero(table["env"] == env).tolist():
                first = int(table["start"][k])
                on_grid = [
                    i % self.stride == 0 and not (shown and table["hidden"][k]) for i in range(table["length"][k])
                ]
                mine += [(first + i, there) for i, there in enumerate(on_grid)]
            kept = mine[max(len(mine) - self.capacity, 0) :] if self.capacity else mine
            found += [env << 32 | row for row, there in kept if there]
        return found

    def draw(self, count: int) -> list[int]:
        """Return the ids of the next batch."""
        found: list[int] = []
        while len(found) < count:
            if self.position >= len(self.ranked):
                self.number, self.position, self.ranked = self.number + 1, 0, self.starts(shown=False)
            rank = shuffled(self.position, len(self.ranked), self.seed, self.number)
            self.position += 1
            if self.ranked[rank] in self.starts(shown=True):
                found.append(self.ranked[rank])
        return found


# --- is followed


@given(st.lists(st.just(0.0) | st.floats(1e-12, 1e6), min_size=1, max_size=700), st.data())
def test_tree(leaves: list[float], data: st.DataObject) -> None:
    spare = data.draw(st.integers(0, 3))
    tree = SumTree(len(leaves) * 8**spare)
    tree.set(np.arange(len(leaves)), np.array(leaves))
    levels = levels_of(leaves)
    assert tree.total == sum8(levels[-1])
    if not tree.total:
        return
    shares = [1.0, 0.0, *data.draw(st.lists(st.floats(0, 1), max_size=20))]
    wanted = masses(tree.total, shares, stratified=False)
    found = np.empty(len(wanted), np.int64)
    tree.find(np.array(wanted), found)
    assert found.tolist() == [find(levels, mass) for mass in wanted]
    assert all(leaves[k] > 0 for k in found)


def test_more_levels_than_needed_change_nothing() -> None:
    rng = np.random.default_rng(0)
    leaves = rng.random(100).tolist()
    plain, deep = levels_of(leaves), levels_of(leaves, spare=2)
    assert len(deep) == len(plain) + 2
    assert sum8(plain[-1]) == sum8(deep[-1])
    for mass in masses(sum8(plain[-1]), [*rng.random(1000).tolist(), 1.0, 0.0], stratified=False):
        assert find(plain, mass) == find(deep, mass)


@pytest.mark.parametrize("envs", [None, 3])
@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize(
    ("beta", "normalize"), [(0.5, "batch"), (archive.Linear(0.2, 1.0, 30), "global")], ids=["batch", "global"]
)
def test_state_and_rule_give_the_next_batch(
    path: Path, envs: int | None, capacity: int | None, stratified: bool, beta: Any, normalize: str
) -> None:
    rng = np.random.default_rng(1)
    lead = () if envs is None else (envs,)
    fields = {"observation": archive.Field("float32", (2,)), "action": archive.Field("int64")}
    sampler = archive.Prioritized(0.6, beta, 1e-3, stratified, normalize)
    with archive.create(path, archive.Schema(fields, envs, "NextStep"), commit_every=None) as run:
        run.reset(np.zeros((*lead, 2), np.float32))
        replay = run.replay(batch_size=16, capacity=capacity, n_step=3, seed=5, sampler=sampler)
        for t in range(60):
            ends = rng.random(lead) < 0.1
            run.step(
                np.zeros(lead, int), rng.random((*lead, 2), np.float32), np.ones(lead), ends, ~ends & (t % 20 == 19)
            )
            if t > 5:
                index, weight = drawn(replay.state_dict(), run, 16)
                found = replay.draw()
                assert found[0].tolist() == index
                np.testing.assert_allclose(found[1], weight, rtol=1e-6)
                replay.update_priorities(found[0], rng.random(16) * 3)


def permuted(index: np.ndarray, count: int, seed: int, number: int) -> np.ndarray:
    """Return where pass `number` sends each index."""
    out = np.empty_like(index)
    _core.permute(index, count, seed, epochs.FIRST + number, out)
    return out


@given(count=st.integers(1, 300), seed=st.integers(0, (1 << 64) - 1), number=st.integers(0, 1 << 61))
def test_every_pass_is_a_permutation(count: int, seed: int, number: int) -> None:
    found = permuted(np.arange(count), count, seed, number).tolist()
    assert sorted(found) == list(range(count))
    assert found == [shuffled(i, count, seed, number) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "seed", "number", "expected"),
    [
        (1, 0, 0, [0]),
        (2, 0, 0, [1, 0]),
        (10, 0, 0, [7, 2, 4, 1, 6, 8, 5, 0, 9, 3]),
        (1000, 12345, 3, [601, 388, 832, 328, 268]),
        (1 << 40, (1 << 64) - 1, 7, [746518710716, 916754344644, 629606993111]),
    ],
)
def test_passes_stay_as_they_are(count: int, seed: int, number: int, expected: list[int]) -> None:
    assert permuted(np.arange(len(expected)), count, seed, number).tolist() == expected
    assert [shuffled(i, count, seed, number) for i in range(len(expected))] == expected


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("capacity", [None, 30])
@pytest.mark.parametrize("envs", [None, 3])
def test_passes_follow_the_rule(path: Path, envs: int | None, capacity: int | None, stride: int) -> None:
    """While rows arrive and leave, episodes are hidden and shown, and the replay is made anew from its state."""
    rng = np.random.default_rng(2)
    lead = () if envs is None else (envs,)
    fields = {"observation": archive.Field("float32"), "action": archive.Field("int64")}
    with archive.create(path, archive.Schema(fields, envs, "NextStep"), commit_every=None) as run:
        run.reset(np.zeros(lead))
        replay = run.replay(sampler=archive.Epoch(), capacity=capacity, stride=stride, seed=9)
        passes = Passes(run, 9, capacity, stride)
        for t in range(100):
            ends = rng.random(lead) < 0.15
            run.step(np.zeros(lead, int), np.zeros(lead), np.ones(lead), ends, ends & False)
            if t % 7 == 6:
                run.annotate(int(rng.integers(run.num_episodes)), hidden=bool(t % 2))
            assert len(replay) == len(passes.starts(shown=True))
            if len(replay) and t % 4 == 0:
                count = int(rng.integers(1, 20))
                assert replay.draw(count)[0].tolist() == passes.draw(count)
            if t % 10 == 5:
                replay = run.replay(state=replay.state_dict())
        assert passes.number > 2


def test_priorities_given_with_steps(path: Path) -> None:
    """A finite one >= 0 gives the leaf; it does not raise the largest, so it does not matter when a replay looks."""
    given = [0.5, 40.0, math.nan, 0.0, 1e307, 2.0]
    fields = {"observation": archive.Field("float32"), "action": archive.Field("int64")}
    with archive.create(path, archive.Schema(fields | {"priority": archive.Field("float64")})) as run:
        plain = archive.Prioritized(alpha=1, epsilon=0)
        early = run.replay(sampler=plain)
        run.reset(0.0)
        for priority in given:
            run.step(0, 0.0, 1.0, False, False, priority=priority)
            len(early)
        most = np.finfo(np.float64).max * 2.0**-48
        for replay in (early, run.replay(sampler=plain)):
            kept = replay.state_dict()["priorities"]
            assert kept["leaves"].tolist() == [0.5, 40.0, 1.0, 0.0, most, 2.0]
            assert kept["largest"] == 1.0


def test_hidden_episodes_keep_their_place_and_their_leaves(path: Path) -> None:
    fields = {"observation": archive.Field("float32"), "action": archive.Field("int64")}
    with archive.create(path, archive.Schema(fields), commit_every=None) as run:
        for _ in range(3):
            run.reset(0.0)
            for t in range(3):
                run.step(0, 0.0, 1.0, t == 2, False)
        replay = run.replay(sampler=archive.Prioritized(alpha=1, epsilon=0), capacity=8, seed=1)
        ids = [1, 2, 4, 5, 6, 8, 9, 10]
        replay.update_priorities(ids, range(1, 9))
        run.annotate(1, hidden=True)
        assert len(replay) == 5
        assert set(replay.draw(200)[0].tolist()) == {1, 2, 8, 9, 10}
        replay.update_priorities([5], [9])
        for seen in (replay, run.replay(state=replay.state_dict())):
            assert seen.state_dict()["priorities"]["leaves"].tolist() == [1, 2, 3, 9, 5, 6, 7, 8]
        run.annotate(1, hidden=False)
        assert len(replay) == 8
        assert replay.state_dict()["priorities"]["leaves"].tolist() == [1, 2, 3, 9, 5, 6, 7, 8]


def example(run: archive.Run, **options: Any) -> archive.Replay:
    """Return the replay of the document's example."""
    return run.replay(batch_size=4, seed=7, **options)


def test_example_of_the_document(path: Path) -> None:
    schema = archive.Schema({"observation": archive.Field("float32"), "action": archive.Field("int64")})
    with archive.create(path, schema, commit_every=None) as run:
        for rewards, ends in ((4, True), (3, False)):
            run.reset(0.0)
            for t in range(rewards):
                run.step(0, 0.0, 1.0, ends and t == rewards - 1, False)
        assert [repr(u) for u in uniforms(7, 0, 4)] == DOCUMENT.split("u = ")[1].splitlines()[0].split()
        uniform = example(run)
        assert len(uniform) == 7
        assert [uniform.draw()[0].tolist() for _ in range(2)] == [[7, 2, 2, 2], [7, 2, 3, 2]]
        epoch = example(run, sampler=archive.Epoch())
        assert f"{philox((7, 1 << 62), 1)[0]:016x}" in DOCUMENT
        assert [epoch.draw()[0].tolist() for _ in range(3)] == [[0, 1, 3, 5], [2, 7, 6, 6], [1, 0, 7, 2]]
        plain = archive.Prioritized(alpha=1, beta=1, epsilon=0)
        index, weight = example(run, sampler=plain).draw()
        assert (index.tolist(), weight.tolist()) == ([1, 2, 5, 6], [1, 1, 1, 1])
        for sampler, ids in ((plain, [1, 2, 3, 7]), (archive.Prioritized(1, 1, 0, stratified=False), [7, 2, 2, 2])):
            replay = example(run, sampler=sampler)
            replay.update_priorities([0, 1, 2, 3, 5, 6, 7], [1, 2, 3, 4, 0.5, 0, 2.5])
            index, weight = replay.draw()
            assert index.tolist() == ids
            if sampler.stratified:
                np.testing.assert_allclose(weight, [1, 0.6666667, 0.5, 0.8], rtol=1e-6)
