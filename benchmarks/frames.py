"""Real Atari frames, played once by random policies and kept in the temporary folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

GAMES = ("ALE/Breakout-v5", "ALE/Pong-v5")


def frames(count: int, game: str = GAMES[0]) -> np.ndarray[Any, Any]:
    """Return `count` grey frames (84, 84) of a game in the order in which they were played."""
    cache = Path(tempfile.gettempdir()) / f"rl-archive-{game.split('/')[-1]}-{count}.npy"
    if not cache.exists():
        played = play(count, game)
        draft = cache.with_suffix(".part.npy")
        np.save(draft, played)
        draft.rename(cache)
    return np.asarray(np.load(cache, mmap_mode="r"))


def play(count: int, game: str) -> np.ndarray[Any, Any]:
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
