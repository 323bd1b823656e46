"""Real Atari frames, played once by random policies and kept in the temporary folder, and noise."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RECORDED = 33_500  # of each game, a hundred thousand in all
SOURCES = {  # yars-revenge compresses worst of twenty games
    "breakout": "ALE/Breakout-v5",
    "pong": "ALE/Pong-v5",
    "yars-revenge": "ALE/YarsRevenge-v5",
    "noise": "",
}


def frames(count: int, source: str = SOURCES["breakout"]) -> Array:
    """Return the first `count` grey frames (84, 84) of a game, in the order in which they were played, or of noise."""
    if not source:
        return np.random.default_rng(0).integers(256, size=(count, 84, 84), dtype=np.uint8)
    cache = Path(tempfile.gettempdir()) / f"rl-archive-{source.split('/')[-1]}-{RECORDED}.npy"
    if not cache.exists():
        played = play(RECORDED, source)
        draft = cache.with_suffix(".part.npy")
        np.save(draft, played)
        draft.rename(cache)
    return np.asarray(np.load(cache, mmap_mode="r")[:count])


def play(count: int, game: str) -> Array:
    """Play with random actions."""
    import ale_py
    import gymnasium

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make(game, frameskip=1))
    env.action_space.seed(0)
    result = np.empty((count, 84, 84), np.uint8)
    result[0], _ = env.reset(seed=0)
    ended = False
    for t in range(1, count):
        if ended:
            result[t], _ = env.reset()
            ended = False
        else:
            result[t], _, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    return result
