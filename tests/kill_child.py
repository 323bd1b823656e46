"""A process that records a run until it is killed.

It reads its orders from standard input (one pickle) and announces on standard output, each as one pickle, what it
is about to do: ("phase", name), and around each commit ("doing", diary) and ("done",).
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

from faults import OPEN, Diary, DyingFile, Player

import archive.chunks
import archive.store

PHASES = ("open", "append", "commit", "checkpoint", "rewind", "close")


@dataclass
class Orders:
    """What to do: go on with the run at `path` as `diary` knows it, die at write `die_at` (0: wait for the kill)."""

    path: Path
    diary: Diary
    life: int
    die_at: int = 0
    tear: str = "none"
    sync: bool = False
    sizes: list[int] = field(default_factory=lambda: [100, 5000, 1_500_000])


def announce(*message):
    """Write a message in one piece as far as the pipe allows; a reader ignores a torn last one."""
    data = pickle.dumps(message)
    while data:
        data = data[os.write(1, data) :]


def commit(player, choice, orders):
    """Make what was appended last, in one of the ways there are."""
    kind = choice.choice(["commit", "commit", "commit", "checkpoint", "rewind"])
    if kind == "rewind" and (player.diary.checkpoint is None or choice.random() < 0.5):
        kind = "commit"
    announce("phase", kind)
    if kind == "commit":
        player.commit(orders.sync)
    elif kind == "checkpoint":
        player.checkpoint(choice.choice(orders.sizes))
    else:
        player.rewind()


def append(player, choice):
    """Append up to a dozen rows."""
    announce("phase", "append")
    for _ in range(choice.randint(1, 12)):
        player.step(choice.choice(["", "", "", "", "terminated", "truncated"]))
    if choice.random() < 0.1 and OPEN in player.diary.states:
        player.end_episode()
    if choice.random() < 0.2 and player.diary.episodes:
        player.hide(choice.randrange(len(player.diary.episodes)), choice.random() < 0.5)


def record(orders):
    """Open, append, commit, close, without end."""
    choice = random.Random(orders.life)
    DyingFile.die_at, DyingFile.tear, DyingFile.choice = orders.die_at, orders.tear, choice
    archive.store.JournaledFile = DyingFile
    archive.chunks.SLOW = choice.choice([-1.0, archive.chunks.SLOW])  # half of them encode in the background
    player = Player(
        orders.diary,
        life=orders.life,
        before=lambda diary: announce("doing", diary),
        after=lambda: announce("done"),
    )
    while True:
        announce("phase", "open")
        if orders.path.exists():
            player.reopen(orders.path)
        else:
            player.create(orders.path)
        for _ in range(choice.randint(1, 5)):
            append(player, choice)
            commit(player, choice, orders)
        announce("phase", "close")
        player.close()


if __name__ == "__main__":
    record(pickle.load(sys.stdin.buffer))
