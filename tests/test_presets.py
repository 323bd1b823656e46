"""Presets: valid starts and values are those of golden vectors and of the older systems' rules, step by step.

The golden vectors G1 .. G9 were produced by the systems' own code: step k has observation, action and reward k, gamma
is 0.5. What differs on purpose stands in docs/presets.md, and is checked here. `make peers` compares with the packages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from older import DopamineRing, PlanetRing, RainbowRing, RlpytRing, Story, at, drawable

import archive
from archive import presets

Array = np.ndarray[Any, Any]
PRESETS: dict[str, Callable[..., dict[str, Any]]] = {
    name: make
    for name, make in vars(presets).items()
    if inspect.isfunction(make) and make.__module__ == presets.__name__ and name not in ("transitions", "frames")
}


def story(count: int, terminated: Any = (), truncated: Any = ()) -> Story:
    return Story(count, frozenset(terminated), frozenset(truncated))


def stacks(array: Array, axis: int = 1) -> list[list[int]]:
    """Return stacks (B, K, 1), or with their frames on another axis, as lists of steps."""
    found: list[list[int]] = np.moveaxis(array, axis, 1)[..., 0].tolist()
    return found


# --- the functions


def test_there_is_a_preset_for_each_system() -> None:
    systems = {"dopamine", "dopamine_offline", "rainbow", "rlpyt", "planet", "sb3", "d3rlpy", "tianshou"}
    assert set(PRESETS) == systems | {"rlpyt_sequences", "d3rlpy_trajectories"}


@pytest.mark.parametrize("name", PRESETS)
def test_defaults_are_options_of_a_replay_and_go_through_a_state(name: str, path: Path) -> None:
    with story(200, [150]).record(path) as run:
        replay = run.replay(**PRESETS[name]())
        batch = replay.sample(4)
        again = run.replay(state=replay.state_dict())
        assert (again.options, again.sampler) == (replay.options, replay.sampler)
        assert np.array_equal(again.sample(4).index, replay.sample(4).index)
        assert len(batch.index) == 4


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_given_arrives(name: str) -> None:
    """Every argument that is named like an option is that option; those of a sampler are the sampler's."""
    other = {"n_step": 2, "gamma": 0.5, "stack": 3, "capacity": 50, "batch_size": 7, "burn_in": 2, "stride": 3}
    parameters = inspect.signature(PRESETS[name]).parameters
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())
    for option in other.keys() & parameters.keys():
        made = PRESETS[name](**{option: other[option]})
        if option in made:
            assert made[option] == other[option]
        else:
            assert (option, made["sequence_length"]) == ("n_step", 80 + 2)
    if "alpha" in parameters:
        given = {"prioritized": True} if "prioritized" in parameters else {}
        sampler = PRESETS[name](alpha=0.25, beta=0.75, **given)["sampler"]
        assert (sampler.alpha, sampler.beta) == (0.25, 0.75)
    if "length" in parameters:
        rows = PRESETS[name](length=11)
        assert rows["sequence_length"] == (16 if name == "rlpyt_sequences" else 11)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_stands_in_the_documentation(name: str) -> None:
    """With its arguments and their defaults; `...` stands for a beta that moves."""
    document = (Path(__file__).parents[1] / "docs/presets.md").read_text(encoding="utf-8")
    given = inspect.signature(PRESETS[name]).parameters.values()
    values = [f"{p.default:_}" if type(p.default) is int else p.default for p in given]
    values = ["..." if isinstance(value, archive.Linear) else value for value in values]
    arguments = ", ".join(f"{p.name}={value}" for p, value in zip(given, values, strict=True))
    assert f"`{name}({arguments})`" in document


def test_examples_of_the_documentation_run(path: Path) -> None:
    document = (Path(__file__).parents[1] / "docs/presets.md").read_text(encoding="utf-8")
    block = document.split("```")[1]
    with story(200, [150]).record(path) as run:
        names: dict[str, Any] = {"archive": archive, "run": run}
        for line in block.strip().splitlines():
            exec(line, names)
            assert len(names["replay"].sample().index) in (32, 50)


def test_beta_moves_at_the_pace_of_the_systems() -> None:
    """Rainbow learns from step 20,000 to 50 million, every 4th; rlpyt from 50,000 on, 8 samples a step in 32s."""
    assert presets.rainbow()["sampler"].beta == archive.Linear(0.4, 1.0, (50_000_000 - 20_000) // 4)
    assert presets.rlpyt(prioritized=True)["sampler"].beta == archive.Linear(0.4, 1.0, (50_000_000 - 50_000) * 8 // 32)


# --- G1, G2: stacks; K=4, terminal at 6, a new episode from 7 on

ZEROS = [[0, 0, 0, 1], [0, 0, 1, 2], [3, 4, 5, 6], [0, 0, 0, 7]]
FIRST = [[1, 1, 1, 1], [1, 1, 1, 2], [3, 4, 5, 6], [7, 7, 7, 7]]


@pytest.mark.parametrize(
    ("options", "axis", "expected"),
    [
        (presets.dopamine(), -1, ZEROS),
        (presets.dopamine_offline(), -1, ZEROS),
        (presets.rainbow(n_step=1), 1, ZEROS),
        (presets.rlpyt(), 1, ZEROS),
        (presets.d3rlpy(stack=4), 1, ZEROS),
        (presets.tianshou(stack=4), 1, FIRST),
    ],
    ids=["dopamine", "dopamine_offline", "rainbow", "rlpyt", "d3rlpy", "tianshou"],
)
def test_g1_stacks(options: dict[str, Any], axis: int, expected: list[list[int]], path: Path) -> None:
    with story(8, [6]).record(path) as run:
        batch = at(run, options, [1, 2, 6, 7])
        assert stacks(batch.observation, axis) == expected
        assert batch.observation.shape == ((4, 1, 4) if axis == -1 else (4, 4, 1))
        assert drawable(run, options) == [1, 2, 3, 4, 5, 6, 7]  # Dopamine's rows 3 .. 8 and 12


def test_g1_rlpyt_has_previous_actions_and_rewards(path: Path) -> None:
    with story(8, [6]).record(path) as run:
        batch = at(run, presets.rlpyt(), [6, 7, 1])
        assert batch["prev_action"].tolist() == batch["prev_reward"].tolist() == [5, 0, 0]


@pytest.mark.parametrize("name", ["dopamine", "rainbow", "rlpyt", "sb3", "d3rlpy", "tianshou"])
def test_g2_a_terminal_ends_the_return_whatever_comes_next(name: str, path: Path) -> None:
    """What the systems return as next observation there differs and is multiplied by 0; ours is d3rlpy's zeros."""
    with story(8, [6]).record(path) as run:
        batch = at(run, PRESETS[name](n_step=1), [6])
        assert (batch.reward.tolist(), batch.terminated.tolist(), batch.discount.tolist()) == ([6.0], [True], [0.0])
        assert not batch.next_observation.any()


def test_g2_the_true_final_observation_of_sb3(path: Path) -> None:
    with story(8, [6]).record(path, final={6: 60}) as run:
        batch = at(run, presets.sb3(), [6])
        assert (batch.next_observation.tolist(), batch.terminated.tolist()) == ([[60]], [True])


# --- G3, G4: three steps across the end of an episode at 5, 11 steps


@pytest.mark.parametrize(("name", "stack"), [("dopamine", 2), ("rlpyt", 4), ("rainbow", 4)])
def test_g3_n_steps_across_a_terminal(name: str, stack: int, path: Path) -> None:
    """Rainbow reads the flag of state 2 one step late, as 1; not copied."""
    options = PRESETS[name](n_step=3, gamma=0.5, stack=stack)
    with story(11, [5]).record(path) as run:
        batch = at(run, options, [1, 2, 3, 4, 5, 6])
        assert batch.reward.tolist() == [2.75, 4.5, 6.25, 6.5, 5.0, 11.5]
        assert batch.terminated.tolist() == [False, False, True, True, True, False]
        after = stacks(batch.next_observation, options["stack_axis"])
        assert [s[-2:] for s in after] == [[3, 4], [4, 5], [0, 0], [0, 0], [0, 0], [8, 9]]
        assert drawable(run, options) == [1, 2, 3, 4, 5, 6, 7, 8]  # Dopamine's rows 1 .. 5, 7 .. 9; Rainbow's 0 .. 7


def test_g3_stacks_of_rainbow(path: Path) -> None:
    with story(11, [5]).record(path) as run:
        batch = at(run, presets.rainbow(gamma=0.5), [1, 3, 5, 6])
        assert stacks(batch.observation) == [[0, 0, 0, 1], [0, 1, 2, 3], [2, 3, 4, 5], [0, 0, 0, 6]]
        assert stacks(batch.next_observation)[::3] == [[1, 2, 3, 4], [6, 7, 8, 9]]


def test_g3_d3rlpy(path: Path) -> None:
    """Returns, intervals 3, 3, 3, 2, 1 as discounts where the state is not terminal, terminals."""
    with story(5, [5]).record(path) as run:
        batch = at(run, presets.d3rlpy(n_step=3, gamma=0.5), [1, 2, 3, 4, 5])
        assert batch.reward.tolist() == [2.75, 4.5, 6.25, 6.5, 5.0]
        assert batch.discount.tolist() == [0.125, 0.125, 0.0, 0.0, 0.0]
        assert batch.terminated.tolist() == [False, False, True, True, True]
        assert batch.next_observation[:, 0].tolist() == [4, 5, 0, 0, 0]


@pytest.mark.parametrize(("n_step", "rows"), [(3, [1, 2, 6, 7, 8, 9]), (1, [1, 2, 3, 4, *range(6, 12)])])
def test_g4_dopamine_drops_windows_into_a_truncation(n_step: int, rows: list[int], path: Path) -> None:
    """Its valid rows; row 6 is a blank one, which ours never draws. Row 7 and those behind it are the states 6, ..."""
    options = presets.dopamine(n_step=n_step, gamma=0.5, stack=2)
    with story(11, truncated=[5]).record(path) as run:
        store = [0, 1, 2, 3, 4, 5, 0, *range(6, 12)]
        assert drawable(run, options) == [store[row] for row in rows if row != 6]
        if n_step == 3:
            batch = at(run, options, [1, 2, 6])
            assert batch.reward.tolist() == [2.75, 4.5, 11.5]
            assert stacks(batch.next_observation, -1) == [[3, 4], [4, 5], [8, 9]]


def test_g4_sb3_bootstraps_from_the_true_final_observation(path: Path) -> None:
    with story(11, truncated=[5]).record(path, final={5: 50}) as run:
        options = presets.sb3(n_step=3, gamma=0.5)
        batch = at(run, options, [3, 4, 5])
        assert batch.reward.tolist() == [6.25, 6.5, 5.0]
        assert batch.discount.tolist() == [0.125, 0.25, 0.5]
        assert (batch.next_observation[:, 0].tolist(), batch.terminated.tolist()) == ([50] * 3, [False] * 3)


def test_g4_sb3_waits_at_the_write_head(path: Path) -> None:
    """SB3 draws the states 10 (15.5, factor 0.25) and 11 (11.0, factor 0.5); once the episode is over so do we."""
    with archive.create(path, archive.Schema.from_example({"observation": 1, "action": 1})) as run:
        run.reset(1)
        for k in range(1, 12):
            run.step(k, k + 1, float(k), False, False)
        options = presets.sb3(n_step=3, gamma=0.5)
        assert steps_drawable(run, options) == list(range(1, 10))
        run.end_episode()
        assert steps_drawable(run, options) == list(range(1, 12))
        batch = run.replay(**options).gather([9, 10])
        assert (batch.reward.tolist(), batch.discount.tolist()) == ([15.5, 11.0], [0.25, 0.5])
        assert batch.next_observation.tolist() == [12, 12]


def steps_drawable(run: archive.Run, options: dict[str, Any]) -> list[int]:
    """Return the valid starts of a run whose rows are the steps 1, 2, 3, ..."""
    replay = run.replay(**options | {"sampler": archive.Epoch()})
    return sorted((replay.draw(len(replay))[0] + 1).tolist())


def test_g4_d3rlpy_shortens_before_a_cut(path: Path) -> None:
    """An episode of 5 that did not terminate: states 1 .. 4, intervals 3, 3, 2, 1."""
    with story(6, truncated=[5]).record(path) as run:
        options = presets.d3rlpy(n_step=3, gamma=0.5)
        assert drawable(run, options) == [1, 2, 3, 4]
        batch = at(run, options, [1, 2, 3, 4])
        assert batch.reward.tolist() == [2.75, 4.5, 5.0, 4.0]
        assert batch.discount.tolist() == [0.125, 0.125, 0.25, 0.5]
        assert batch.next_observation[:, 0].tolist() == [4, 5, 5, 5]


# --- G5: rings that have wrapped, and one that has not


@pytest.mark.parametrize(
    ("options", "count", "theirs", "more"),
    [
        # Dopamine, C=10: states 6 .. 12; the ring holds 4 .. 13, and ours reads the history of 4 and 5 from the file
        (presets.dopamine(stack=2, capacity=10), 13, range(6, 13), [4, 5]),
        (presets.dopamine(stack=4, n_step=3, capacity=12), 17, range(10, 15), [6, 7, 8, 9]),
        (presets.rainbow(capacity=12), 17, range(10, 15), [6, 7, 8, 9]),
        # rlpyt, T=10: slots 0, 1, 4 .. 9 (states 11, 12, 5 .. 10); with n=3 4 .. 9
        (presets.rlpyt(stack=None, capacity=10), 13, [*range(5, 11), 11, 12], [4]),
        (presets.rlpyt(stack=None, n_step=3, capacity=10), 13, range(5, 11), [4]),
        (presets.rlpyt(n_step=3, capacity=12), 17, range(9, 15), [6, 7, 8]),
        (presets.rlpyt(n_step=3, capacity=12), 8, [4, 5], [1, 2, 3]),
    ],
)
def test_g5_valid_starts(options: dict[str, Any], count: int, theirs: Any, more: list[int], path: Path) -> None:
    """Theirs, and the oldest ones, whose history their rings have lost."""
    with story(count).record(path) as run:
        assert drawable(run, options) == sorted([*theirs, *more])


def test_g5_values(path: Path) -> None:
    """Dopamine's row 0; the returns that rlpyt stores for its states 4 .. 10."""
    with story(13).record(path) as run:
        batch = at(run, presets.dopamine(stack=2, capacity=10), [10])
        assert (stacks(batch.observation, -1), stacks(batch.next_observation, -1)) == ([[9, 10]], [[10, 11]])
        batch = at(run, presets.rlpyt(stack=None, n_step=3, gamma=0.5, capacity=10), range(4, 11))
        assert batch.reward.tolist() == [8.0, 9.75, 11.5, 13.25, 15.0, 16.75, 18.5]


def test_g5_stacks_of_rlpyt_across_the_wrap(path: Path) -> None:
    """T=12, K=4, 14 steps, done at 11: its slots 11, 0, 10 and what comes after slot 0."""
    with story(14, [11]).record(path) as run:
        batch = at(run, presets.rlpyt(capacity=12), [12, 13, 11])
        assert stacks(batch.observation) == [[0, 0, 0, 12], [0, 0, 12, 13], [8, 9, 10, 11]]
        assert stacks(batch.next_observation)[1] == [0, 12, 13, 14]


# --- G6: sequences


def test_g6_planet(path: Path) -> None:
    """C=10, L=3, 13 steps, done at 5: starts {0,3,..,9}; chunks at the ring's [8,9,0] and [3,4,5], time-major."""
    options = presets.planet(length=3, capacity=10)
    with story(13, [5]).record(path) as run:
        assert drawable(run, options) == [4, 5, 6, 7, 8, 9, 10, 11]
        batch = at(run, options, [9, 4])
        assert batch.observation[..., 0].tolist() == batch.action.tolist() == [[9, 4], [10, 5], [11, 6]]
        assert batch.reward.tolist() == [[9, 4], [10, 5], [11, 6]]
        assert batch.discount.tolist() == [[1, 1], [1, 0], [1, 1]]
        assert batch.mask.all()


def test_g6_planet_before_the_wrap(path: Path) -> None:
    """8 steps: its starts 0 .. 4; it never draws the last whole chunk, which ours does."""
    with story(8).record(path) as run:
        assert drawable(run, presets.planet(length=3, capacity=10)) == [1, 2, 3, 4, 5, 6]


def test_g6_rlpyt(path: Path) -> None:
    """T=12, n=1, batch_T=3, 17 steps, done at 15: its starts {0,6,..,11} are the steps 7 .. 13.

    Ours has 6, whose previous action is read from the file, and 14: rlpyt gives up n + batch_T starts, one too many.
    At its start 0 rlpyt mixes up the previous actions.
    """
    options = presets.rlpyt_sequences(length=3, burn_in=0, n_step=1, stride=1, stack=None, capacity=12)
    with story(17, [15]).record(path) as run:
        assert drawable(run, options) == [6, *range(7, 14), 14]
        batch = at(run, options, [12, 13])
        assert batch.observation[..., 0].T.tolist() == [[12, 13, 14, 15], [13, 14, 15, 16]]
        assert batch["prev_action"][:3].T.tolist() == [[11, 12, 13], [12, 13, 14]]
        assert batch.reward[:3].T.tolist() == [[12, 13, 14], [13, 14, 15]]
        assert batch.terminated[:3].T.tolist() == [[False, False, False], [False, False, True]]


def test_g6_d3rlpy_trajectories(path: Path) -> None:
    """Rows up to a step, zeros before the episode, what is left of the return; by rule."""
    with story(9, [5]).record(path) as run:
        batch = at(run, presets.d3rlpy_trajectories(length=4), [2, 5])
        assert batch.observation[..., 0].tolist() == [[0, 0, 1, 2], [2, 3, 4, 5]]
        assert batch["return_to_go"].tolist() == [[0, 0, 15, 14], [14, 12, 9, 5]]
        assert ((batch["timestep"] + 1) * batch.mask).tolist() == [[0, 0, 1, 2], [2, 3, 4, 5]]
        assert batch.terminated.tolist() == [[False] * 4, [False, False, False, True]]
        assert batch.mask.tolist() == [[False, False, True, True], [True] * 4]


# --- G7, G8: leaves, draws and weights


@pytest.mark.parametrize(
    ("options", "priorities", "expected"),
    [
        (presets.dopamine(prioritized=True), [1.0, 2.0, 3.0, 4.0], [1, 0.70711, 0.57735, 0.5]),
        (presets.rlpyt(prioritized=True, alpha=1.0, beta=0.4), [1, 2, 3, 4], [1, 0.757858, 0.644394, 0.574349]),
        (presets.rainbow(n_step=1, beta=0.4), [1, 4, 9, 16], [1, 0.757858, 0.644394, 0.574349]),
        (presets.tianshou(prioritized=True, alpha=1.0), [1, 2, 3, 4], [1, 0.757858, 0.644394, 0.574349]),
        (presets.dopamine(prioritized=True), [0, 2, 0, 4], [None, 1, None, 0.70711]),
        (presets.rainbow(n_step=1, beta=0.4), [0, 4, 0, 16], [None, 1, None, 0.757858]),
    ],
    ids=["dopamine", "rlpyt", "rainbow", "tianshou", "dopamine of two", "rainbow of two"],
)
def test_g8_weights(options: dict[str, Any], priorities: list[float], expected: list[Any], path: Path) -> None:
    """Leaves 1, 2, 3, 4, or of the batch of 2 and 4 only, by priorities as each system's agent gives them."""
    with story(5).record(path) as run:
        replay = run.replay(**options)
        replay.update_priorities([0, 1, 2, 3], priorities)
        index, weight = replay.draw(400)
        found = dict(zip(index.tolist(), weight.tolist(), strict=True))
        wanted = {i: w for i, w in enumerate(expected) if w is not None}
        assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "leaves"),
    [
        (presets.rainbow(n_step=1, beta=1.0), (2.0, 3.0)),  # losses 4, 9
        (presets.rlpyt(prioritized=True, beta=1.0), (2.2974, 3.7372)),  # |td| 4, 9, not clipped
        (presets.tianshou(prioritized=True, beta=1.0), (2.2974, 3.7372)),  # the same and 1.19e-7
    ],
    ids=["rainbow", "rlpyt", "tianshou"],
)
def test_g8_updates(options: dict[str, Any], leaves: tuple[float, float], path: Path) -> None:
    """Priorities 4 and 9 beside one whose leaf is 1: at beta 1 a weight is the smallest leaf over its own."""
    with story(4).record(path) as run:
        replay = run.replay(**options)
        replay.update_priorities([0, 1, 2], [1.0, 4.0, 9.0])
        index, weight = replay.draw(400)
        found = dict(zip(index.tolist(), (1 / weight).tolist(), strict=True))
        assert found == pytest.approx({0: 1.0, 1: leaves[0], 2: leaves[1]}, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "leaf"),
    [
        (presets.dopamine(prioritized=True), 16.0),
        (presets.rainbow(n_step=1), 4.0),
        (presets.tianshou(prioritized=True), 16**0.6),
    ],
    ids=["dopamine", "rainbow", "tianshou"],
)
def test_g8_new_rows_enter_at_the_largest_priority(options: dict[str, Any], leaf: float, path: Path) -> None:
    with story(4).record(path) as run:
        replay = run.replay(**options)
        replay.update_priorities([0, 1, 2], [1.0, 16.0, 1.0])
        run.extend({"observation": np.array([[5], [6]], np.int32), "action": [5, 6], "reward": [5.0, 6.0]})
        index, weight = replay.draw(400, beta=1.0)  # row 3 had arrived before, row 4 came after
        found = dict(zip(index.tolist(), (1 / weight).tolist(), strict=True))
        assert found == pytest.approx({0: 1.0, 1: leaf, 2: 1.0, 3: 1.0, 4: leaf}, rel=1e-5)


def test_g8_new_rows_of_rlpyt_enter_at_a_constant(path: Path) -> None:
    """Its default_priority is a field `priority` that is given with every row."""
    fields = {"observation": archive.Field("int64"), "action": archive.Field("int64")}
    with archive.create(path, archive.Schema({**fields, "priority": archive.Field("float32")})) as run:
        rows = {"observation": [1, 2], "action": [1, 2], "reward": [0.0, 0.0], "priority": [1.0, 1.0]}
        run.extend(rows)
        replay = run.replay(**presets.rlpyt(stack=None, prioritized=True))
        replay.update_priorities([0], [16.0])
        run.extend(rows)
        index, weight = replay.draw(400, beta=1.0)
        found = dict(zip(index.tolist(), (1 / weight).tolist(), strict=True))
        assert found == pytest.approx({0: 16**0.6, 1: 1.0, 2: 1.0}, rel=1e-5)


def test_g7_whoever_is_stratified_draws_from_every_part(path: Path) -> None:
    """Dopamine, Rainbow: of leaves of one size, as many as are drawn, each is drawn once. rlpyt and tianshou: not."""
    with story(33).record(path) as run:
        for options in (presets.dopamine(prioritized=True), presets.rainbow(n_step=1)):
            assert sorted(run.replay(**options).draw(32)[0].tolist()) == list(range(32))
        for options in (presets.rlpyt(prioritized=True), presets.tianshou(prioritized=True)):
            assert len(set(run.replay(**options).draw(32)[0].tolist())) < 32


# --- G9: a file cut to size


def test_g9_valid_starts_of_a_file_cut_to_size(path: Path) -> None:
    """K=4, n=1, loaded into a capacity of 20: of the 16 states in front of the cursor 1 .. 15 are drawn, rows 3 .. 17.

    Which rows of a file there are is not for a replay to say: here the run holds them, and no more.
    """
    with story(16).record(path) as run:
        assert drawable(run, presets.dopamine_offline()) == list(range(1, 16))


def test_g9_all_rows_of_a_file(path: Path) -> None:
    """99 adds, three of them blank: the states 1 .. 96, of which the newest waits for what comes after it."""
    with story(96).record(path) as run:
        assert drawable(run, presets.dopamine_offline()) == list(range(1, 96))


# --- every start of made-up stories against the systems' rules

STORIES = [(seed, 400, capacity) for seed in range(3) for capacity in (37, 300, 1000)]


def compare(run: archive.Run, options: dict[str, Any], ring: Any, states: list[int]) -> archive.Batch:
    """Compare the transitions at these steps with those of a ring."""
    batch = at(run, options, states)
    expected = [ring.at(k) for k in states]
    axis = options["stack_axis"]
    assert stacks(batch.observation, axis) == [t.stack for t in expected]
    assert batch.action.tolist() == states
    assert batch.reward.tolist() == [t.reward for t in expected]
    assert batch.terminated.tolist() == [t.terminal for t in expected]
    assert batch.discount.tolist() == [0.0 if t.terminal else ring.gamma**ring.n for t in expected]
    after = stacks(batch.next_observation, axis)
    assert [a for a, t in zip(after, expected, strict=True) if t.after is not None] == [
        t.after for t in expected if t.after is not None
    ]
    return batch


def compare_starts(run: archive.Run, options: dict[str, Any], ring: Any) -> list[int]:
    """Return the steps that a ring draws. Ours draws them, and those it leaves out although all is known of them."""
    theirs = [k for k in ring.valid() if k]
    kept = range(max(ring.story.count - options["capacity"], 0) + 1, ring.story.count + 1)
    more = {k for k in ring.left_out() if k in kept and ring.story.known(k, ring.n)}
    assert drawable(run, options) == sorted({*theirs, *more})
    return theirs


@pytest.mark.parametrize(("seed", "count", "capacity"), STORIES)
@pytest.mark.parametrize(("stack", "n_step"), [(4, 1), (2, 3), (1, 5)])
def test_dopamine_by_its_rules(seed: int, count: int, capacity: int, stack: int, n_step: int, path: Path) -> None:
    told = Story.random(seed, count)
    ring = DopamineRing(told, capacity, stack, n_step, 0.5)
    options = presets.dopamine(n_step=n_step, gamma=0.5, stack=stack, capacity=ring.kept)
    with told.record(path) as run:
        compare(run, options, ring, compare_starts(run, options, ring))


@pytest.mark.parametrize(("seed", "count", "capacity"), STORIES)
@pytest.mark.parametrize(("stack", "n_step"), [(4, 3), (2, 1)])
def test_rainbow_by_its_rules(seed: int, count: int, capacity: int, stack: int, n_step: int, path: Path) -> None:
    told = Story.random(seed, count, truncation=False)
    ring = RainbowRing(told, capacity, stack, n_step, 0.5)
    options = presets.rainbow(n_step=n_step, gamma=0.5, stack=stack, capacity=capacity)
    with told.record(path) as run:
        theirs = compare_starts(run, options, ring)
        batch = compare(run, options, ring, theirs)
        late = [ring.flag_is_late(k) for k in theirs]
        assert any(late)
        assert not batch.terminated[late].any()


@pytest.mark.parametrize(("seed", "count", "capacity"), STORIES)
@pytest.mark.parametrize(("stack", "n_step"), [(4, 1), (2, 3)])
def test_rlpyt_by_its_rules(seed: int, count: int, capacity: int, stack: int, n_step: int, path: Path) -> None:
    told = Story.random(seed, count, truncation=False)
    ring = RlpytRing(told, capacity, stack, n_step, 0.5)
    options = presets.rlpyt(n_step=n_step, gamma=0.5, stack=stack, capacity=capacity)
    with told.record(path) as run:
        theirs = compare_starts(run, options, ring)
        batch = compare(run, options, ring, theirs)
        before = [ring.previous(k) for k in theirs]
        assert batch["prev_action"].tolist() == before
        assert batch["prev_reward"].tolist() == [told.reward(k) if k else 0.0 for k in before]


@pytest.mark.parametrize(("seed", "count", "capacity"), STORIES)
@pytest.mark.parametrize(("stack", "n_step"), [(4, 2), (1, 5)])
def test_rlpyt_sequences_by_their_rules(
    seed: int, count: int, capacity: int, stack: int, n_step: int, path: Path
) -> None:
    """Rows and what came before them; summed as a loss does, the rewards are the returns that rlpyt stores."""
    told = Story.random(seed, count, truncation=False)
    ring = RlpytRing(told, capacity, stack, n_step, 0.5)
    sizes = {"length": 5, "burn_in": 3, "n_step": n_step, "gamma": 0.5, "stride": 1}
    options = presets.rlpyt_sequences(**sizes, stack=stack, capacity=capacity)
    with told.record(path) as run:
        theirs = [k for k in ring.valid() if k + 8 + n_step <= count]
        early = range(ring.oldest, ring.oldest + max(1, stack - 1))
        assert drawable(run, options) == [*early, *theirs, theirs[-1] + 1]
        batch = at(run, options, theirs)
        steps = np.array(theirs) + np.arange(8 + n_step)[:, None]
        seen = batch.observation[..., 0].reshape(*steps.shape, stack)
        assert seen.tolist() == [[ring.frames(k) for k in row] for row in steps.tolist()]
        assert batch.action.tolist() == steps.tolist()
        assert batch["prev_action"].tolist() == [[ring.previous(k) for k in row] for row in steps.tolist()]
        going_on = np.ones(steps[:8].shape)
        total = np.zeros(going_on.shape)
        for j in range(n_step):
            total += 0.5**j * going_on * batch.reward[j : 8 + j]
            going_on *= ~batch.terminated[j : 8 + j]
        expected = [[ring.at(k) for k in row] for row in steps[:8].tolist()]
        assert total.tolist() == [[t.reward for t in row] for row in expected]
        assert (going_on == 0).tolist() == [[t.terminal for t in row] for row in expected]


@pytest.mark.parametrize(("seed", "count", "capacity"), STORIES)
def test_planet_by_its_rules(seed: int, count: int, capacity: int, path: Path) -> None:
    told = Story.random(seed, count, truncation=False)
    ring, options = PlanetRing(told, capacity, 10), presets.planet(length=10, capacity=capacity)
    with told.record(path) as run:
        theirs = ring.valid()
        assert drawable(run, options) == theirs + [told.count - 9] * (not ring.full)
        batch = at(run, options, theirs)
        expected = np.array([ring.at(k) for k in theirs])
        found = np.stack([batch.observation[..., 0], batch.reward, batch.discount], -1)
        np.testing.assert_array_equal(found, np.moveaxis(expected, 0, 1))


# --- S1g: PlaNet's memory goes on where it stopped


def digests(replay: archive.Replay) -> list[str]:
    """Return digests of the next 100 batches."""
    import hashlib

    batches = [replay.sample() for _ in range(100)]
    arrays = [b"".join(batch[name].tobytes() for name in sorted(batch.asdict())) for batch in batches]
    return [hashlib.sha256(found).hexdigest() for found in arrays]


def resumed(path: str) -> list[str]:
    """Return them after the newest checkpoint."""
    with archive.open(path) as run:
        return digests(run.replay(state=run.last_checkpoint["replay"]))


def test_s1g_chunks_go_on_in_a_new_process(path: Path, fresh_process: Any) -> None:
    """Batches of 50 chunks of 50, time-major, frames of 5 bits: the same as those of a run that did not stop."""
    fields = {"observation": archive.Field("uint8", (3, 8, 8)), "action": archive.Field("float32", (2,))}
    rng = np.random.default_rng(0)
    with archive.create(path, archive.Schema(fields), commit_every=None) as run:
        for _ in range(8):
            frames = rng.integers(0, 32, (100, 3, 8, 8), np.uint8) * 8
            rows = {"observation": frames, "action": rng.normal(size=(100, 2)), "reward": rng.normal(size=100)}
            run.extend({**rows, "terminated": np.arange(100) == 99})
        replay = run.replay(**presets.planet())
        assert replay.sample().observation.shape == (50, 50, 3, 8, 8)
        run.checkpoint(replay=replay.state_dict())
        expected = digests(replay)
    assert len(set(expected)) == 100
    assert fresh_process(resumed, path, uses=(digests,)) == expected
