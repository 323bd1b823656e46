"""The process that the demo kills: records Breakout, and goes on from the last checkpoint when it is started again."""

from __future__ import annotations

import hashlib
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np

import archive

ENVS, STACK, BATCH, KEY = 8, 4, 32, b"rl-archive demo"
FRAME = 84 * 84
CHECKPOINT_STEPS = 100  # vector steps between checkpoints; the recorder also commits every half second
REPLAY: dict[str, Any] = {
    "batch_size": BATCH,
    "capacity": 20_000,
    "n_step": 3,
    "sampler": archive.Prioritized(),
    "seed": 7,
}


def make_env() -> Any:
    """Return Breakout with the usual wrappers; the frame stack stays, since a policy would need it."""
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner in the middle of the progress bar
    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    return FrameStackObservation(AtariPreprocessing(env), STACK)


def learn(replay: archive.Replay, weights: np.ndarray[Any, Any]) -> archive.Batch:
    """Draw a batch and set priorities from the error of a fixed linear value of its frames."""
    batch = replay.sample()
    value, ahead = (
        frames[:, -1].reshape(len(frames), -1).astype(np.float64) @ weights
        for frames in (batch.observation, batch.next_observation)
    )
    replay.update_priorities(batch.index, np.abs(batch.reward + batch.discount * ahead - value))
    return batch


def value_weights() -> np.ndarray[Any, Any]:
    """Return the weights of the value that stands in for a network."""
    return np.random.default_rng(1).normal(size=FRAME) / FRAME / 255


def record(path: Path, rows: int, address: str) -> None:
    """Record until the run has `rows` transitions, going on from the last checkpoint if there is one."""
    import gymnasium

    stream = Client(address, authkey=KEY)
    env = gymnasium.vector.SyncVectorEnv([make_env] * ENVS)
    space: Any = env.single_action_space
    run = archive.open(path, "a", env, commit_every=0.5, metadata={"demo": True})
    last = run.last_checkpoint
    replay = run.replay(state=last["replay"]) if last else run.replay(**REPLAY)
    rng = last["rng"] if last else np.random.default_rng(0)
    number = last.id if last else 0
    stream.send(("resumed", number, run.lengths.tolist()))
    observation, info = env.reset(seed=1000 * number)
    stream.send(("reset", observation))
    run.reset(observation, info)
    weights = value_weights()
    step = 0
    while run.num_steps < rows:
        action = rng.integers(space.n, size=ENVS)
        result = env.step(action)
        stream.send(("step", action, *result[:4]))
        run.step(action, *result)
        step += 1
        if len(replay) >= BATCH:
            learn(replay, weights)
        if step % CHECKPOINT_STEPS == 0 or run.num_steps >= rows:
            number += 1
            stream.send(("checkpoint", number))
            run.checkpoint(replay=replay.state_dict(), rng=rng, step=run.num_steps)
            stream.send(("safe", run.lengths.tolist()))
    run.close()
    stream.send(("done", peak_memory()))


def digest(path: Path) -> None:
    """Print the time to the first batch, the SHA-256 of the next 500 and the peak memory, from a fresh process."""
    start = time.perf_counter()
    run = archive.open(path)
    last = run.last_checkpoint
    if last is None:
        raise SystemExit("no checkpoint")
    replay = run.replay(state=last["replay"])
    sha = hashlib.sha256()
    first = 0.0
    for _ in range(500):
        add_batch(sha, learn(replay, value_weights()))
        first = first or time.perf_counter() - start
    print(first, sha.hexdigest(), peak_memory())


def add_batch(sha: Any, batch: archive.Batch) -> None:
    """Add every array of a batch to a hash."""
    for name, array in sorted(batch.asdict().items()):
        sha.update(name.encode() + np.ascontiguousarray(array).tobytes())


def peak_memory() -> int:
    """Return this process's peak resident bytes, 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
