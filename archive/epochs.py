"""Passes over all valid starts, each in an order of its own that needs no memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .valid import ValidStarts

Array = np.ndarray[Any, Any]
ROUNDS = 4
FIRST = 1 << 62  # pass p takes its keys from the Philox stream (seed, 2^62 + p), which no batch reaches


class Epochs:
    """Where a replay is in its passes.

    A pass goes over the starts that were valid when it began; `until` and `skip` say which those were.
    """

    def __init__(self, valid: ValidStarts, seed: int) -> None:
        self.valid, self.seed = valid, seed
        self.number, self.position = -1, 0
        self.until = self.skip = np.zeros(len(valid.until), np.int64)

    def begin(self) -> None:
        """Begin the next pass."""
        self.number, self.position = self.number + 1, 0
        self.until, self.skip = self.valid.until.copy(), self.valid.skip.copy()

    def draw(self, count: int) -> tuple[Array, Array]:
        """Return environment and row of the next `count` starts, passing over those that left the capacity."""
        envs, rows, left = [], [], count
        while left:
            if self.position >= int(self.until[-1]):
                self.begin()
            stop = min(self.position + left, int(self.until[-1]))
            rank = shuffled(np.arange(self.position, stop), int(self.until[-1]), self.seed, self.number)
            self.position = stop
            env, row = self.valid.pick(rank, self.until, self.skip)
            kept = self.valid.is_kept(env, row)
            envs.append(env[kept])
            rows.append(row[kept])
            left -= int(kept.sum())
        return np.concatenate(envs), np.concatenate(rows)

    def state(self) -> dict[str, Any]:
        """Return what a later replay needs to go on within the pass."""
        return {"number": self.number, "position": self.position, "until": self.until.copy(), "skip": self.skip.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Undo `state`."""
        self.number, self.position = int(state["number"]), int(state["position"])
        self.until, self.skip = np.array(state["until"]), np.array(state["skip"])


def shuffled(index: Array, count: int, seed: int, number: int) -> Array:
    """Return where pass `number` sends each index of 0 .. count - 1: a permutation, computed value by value.

    A Feistel network over the smallest even number of bits that holds `count` values; values outside are sent on
    until they fall inside (Black and Rogaway 2002, "cycle walking").
    """
    keys = np.random.Philox(key=np.array([seed, FIRST + number], np.uint64)).random_raw(ROUNDS)
    half = max((max(count - 1, 1).bit_length() + 1) // 2, 1)
    value = index.astype(np.uint64)
    outside = np.ones(len(value), np.bool_)
    while outside.any():
        value[outside] = feistel(value[outside], keys, half)
        outside = value >= count
    return value.astype(np.int64)


def feistel(value: Array, keys: Array, half: int) -> Array:
    """Send each value of 2 * half bits through a Feistel network with one key a round."""
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = value >> shift, value & mask
    for key in keys:
        left, right = right, left ^ (mixed(right ^ np.uint64(key)) & mask)
    return (left << shift) | right


def mixed(value: Array) -> Array:
    """Return 64 well mixed bits of each value: the finalizer of splitmix64 (Steele et al. 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Array = value ^ (value >> np.uint64(31))
    return result
