"""Options that draw as older systems' memories do: run.replay(**presets.dopamine(n_step=3)).

Each function takes what users of that system set, with the system's own defaults, and returns options as a dict, to
which more may be added. The starts that are valid and the values at each of them are that system's; the order in which
they are drawn is ours. docs/presets.md says what is set and why, and what differs on purpose.

>>> import archive, tempfile, numpy as np
>>> run = archive.create(tempfile.mkdtemp() + "/run.h5", archive.Schema.from_example({"observation": 0, "action": 0}))
>>> _ = run.extend({"observation": np.arange(1, 12), "action": np.arange(11), "reward": np.arange(1, 12)})
>>> replay = run.replay(**archive.presets.dopamine(n_step=3, gamma=0.5, stack=2), seed=7)
>>> batch = replay.gather([0, 1])
>>> batch.observation.tolist(), batch.reward.tolist(), batch.next_observation.tolist()
([[0, 1], [1, 2]], [2.75, 4.5], [[3, 4], [4, 5]])
>>> run.close()
"""

from __future__ import annotations

from typing import Any

from .samplers import Linear, Prioritized

Keywords = dict[str, Any]
RAINBOW_BETA = Linear(0.4, 1.0, steps=12_495_000)  # 50 million steps less the 20,000 before it learns, one batch in 4
RLPYT_BETA = Linear(0.4, 1.0, steps=12_487_500)  # steps 50,000 to 50 million, 8 samples a step in batches of 32
FLOAT32_EPSILON = 2.0**-23  # tianshou adds it to priorities


def dopamine(
    *,
    n_step: int = 1,
    gamma: float = 0.99,
    stack: int | None = 4,
    capacity: int | None = 1_000_000,
    batch_size: int = 32,
    prioritized: bool = False,
) -> Keywords:
    """Return the options of Dopamine's circular buffers, the ones before its JAX buffer: frames on the last axis.

    With `prioritized`, give `update_priorities` what its agents give: sqrt(loss + 1e-10).

    >>> dopamine(n_step=3, stack=None)["n_step"]
    3
    >>> dopamine(prioritized=True)["sampler"].beta
    0.5
    """
    options = transitions(n_step, gamma, capacity, batch_size) | frames(stack, axis=-1)
    if prioritized:
        options["sampler"] = Prioritized(alpha=1.0, beta=0.5, epsilon=0.0)
    return options


def dopamine_offline(*, n_step: int = 1, gamma: float = 0.99, stack: int | None = 4, batch_size: int = 32) -> Keywords:
    """Return the options of batch_rl's FixedReplayBuffer: Dopamine's, over all rows of a file.

    >>> dopamine_offline()["capacity"] is None
    True
    """
    return dopamine(n_step=n_step, gamma=gamma, stack=stack, capacity=None, batch_size=batch_size)


def rainbow(
    *,
    n_step: int = 3,
    gamma: float = 0.99,
    stack: int | None = 4,
    capacity: int | None = 1_000_000,
    batch_size: int = 32,
    alpha: float = 0.5,
    beta: float | Linear = RAINBOW_BETA,
) -> Keywords:
    """Return the options of Kaixhin's Rainbow; give `update_priorities` the losses. beta counts batches.

    >>> rainbow(beta=0.4)["sampler"]
    Prioritized(alpha=0.5, beta=0.4, epsilon=0.0, stratified=True, normalize='batch')
    """
    sampler = Prioritized(alpha=alpha, beta=beta, epsilon=0.0)
    return transitions(n_step, gamma, capacity, batch_size) | frames(stack) | {"sampler": sampler}


def rlpyt(
    *,
    n_step: int = 1,
    gamma: float = 0.99,
    stack: int | None = 4,
    capacity: int | None = 1_000_000,
    batch_size: int = 32,
    prioritized: bool = False,
    alpha: float = 0.6,
    beta: float | Linear = RLPYT_BETA,
) -> Keywords:
    """Return the options of rlpyt's replay and frame buffers, with prev_action and prev_reward in a batch.

    With `prioritized`, give `update_priorities` absolute TD errors, clipped where your loss is. beta counts batches.

    >>> rlpyt()["previous"]
    ('action', 'reward')
    >>> rlpyt(prioritized=True)["sampler"].stratified
    False
    """
    options = transitions(n_step, gamma, capacity, batch_size) | frames(stack) | {"previous": ("action", "reward")}
    if prioritized:
        options["sampler"] = Prioritized(alpha=alpha, beta=beta, epsilon=0.0, stratified=False)
    return options


def rlpyt_sequences(
    *,
    length: int = 80,
    burn_in: int = 40,
    n_step: int = 5,
    gamma: float = 0.997,
    stride: int = 40,
    stack: int | None = 4,
    capacity: int | None = 1_000_000,
    batch_size: int = 64,
    prioritized: bool = True,
    alpha: float = 0.6,
    beta: float | Linear = 0.9,
) -> Keywords:
    """Return the options of rlpyt's sequence buffers, R2D1's by default: rows (burn_in + length + n_step, B).

    Its names are warmup_T, batch_T and rnn_state_interval. Rewards are raw; your loss sums n of them.

    >>> rlpyt_sequences()["sequence_length"]
    85
    """
    options: Keywords = {
        "sequence_length": length + n_step,
        "burn_in": burn_in,
        "stride": stride,
        "within_episode": False,
        "time_major": True,
        "previous": ("action", "reward"),
        "gamma": gamma,
        "capacity": capacity,
        "batch_size": batch_size,
    }
    if prioritized:
        options["sampler"] = Prioritized(alpha=alpha, beta=beta, epsilon=0.0, stratified=False)
    return options | frames(stack)


def planet(*, length: int = 50, capacity: int | None = 1_000_000, batch_size: int = 50) -> Keywords:
    """Return the options of Kaixhin's PlaNet: chunks (length, B) that run on through the ends of episodes.

    `batch.discount` is its nonterminals: 0 where an episode terminated, 1 elsewhere.

    >>> planet(length=8)["sequence_length"]
    8
    """
    return {
        "sequence_length": length,
        "within_episode": False,
        "time_major": True,
        "gamma": 1.0,
        "capacity": capacity,
        "batch_size": batch_size,
    }


def sb3(*, n_step: int = 1, gamma: float = 0.99, capacity: int | None = 1_000_000, batch_size: int = 256) -> Keywords:
    """Return the options of Stable-Baselines3's ReplayBuffer and NStepReplayBuffer.

    Stacks come as VecFrameStack makes them: those of a field that arrives stacked.

    >>> sb3(n_step=3)["capacity"]
    1000000
    """
    return transitions(n_step, gamma, capacity, batch_size)


def d3rlpy(
    *,
    n_step: int = 1,
    gamma: float = 0.99,
    stack: int | None = None,
    capacity: int | None = None,
    batch_size: int = 256,
) -> Keywords:
    """Return the options of d3rlpy's transition pickers: Basic, MultiStep (n_step) and FrameStack (stack).

    An episode that was cut off ends at its last observation that is there, its last step without one is no start.

    >>> d3rlpy()["missing_final"]
    'shorten'
    """
    return transitions(n_step, gamma, capacity, batch_size) | frames(stack) | {"missing_final": "shorten"}


def d3rlpy_trajectories(
    *, length: int = 20, stack: int | None = None, capacity: int | None = None, batch_size: int = 64
) -> Keywords:
    """Return the options of d3rlpy's trajectory slicers: (B, length) rows up to a step, zeros before its episode.

    `timestep` counts from 0, in d3rlpy from 1.

    >>> d3rlpy_trajectories()["extras"]
    ('timestep', 'return_to_go')
    """
    return frames(stack) | {
        "sequence_length": length,
        "pad": "left",
        "extras": ("timestep", "return_to_go"),
        "capacity": capacity,
        "batch_size": batch_size,
    }


def tianshou(
    *,
    n_step: int = 1,
    gamma: float = 0.99,
    stack: int | None = None,
    capacity: int | None = None,
    batch_size: int = 64,
    prioritized: bool = False,
    alpha: float = 0.6,
    beta: float | Linear = 0.4,
) -> Keywords:
    """Return the options of tianshou's buffers and its n-step targets; stacks repeat an episode's first frame.

    With `prioritized`, give `update_priorities` absolute TD errors.

    >>> tianshou(stack=4)["padding"]
    'repeat'
    """
    options = transitions(n_step, gamma, capacity, batch_size) | frames(stack, padding="repeat")
    if prioritized:
        options["sampler"] = Prioritized(alpha=alpha, beta=beta, epsilon=FLOAT32_EPSILON, stratified=False)
    return options


def transitions(n_step: int, gamma: float, capacity: int | None, batch_size: int) -> Keywords:
    """Return the options that all memories of transitions have."""
    return {"n_step": n_step, "gamma": gamma, "capacity": capacity, "batch_size": batch_size}


def frames(stack: int | None, axis: int = 1, padding: str = "zero") -> Keywords:
    """Return the options of stacks; without `stack` observations come as they arrived."""
    return {"stack": stack, "stack_axis": axis, "padding": padding}
