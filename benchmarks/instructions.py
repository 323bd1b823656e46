"""python -m benchmarks.instructions: instructions per call of the kernels, which do not depend on the machine's load.

Needs valgrind. Counts what happens inside each kernel, from the arguments that Python hands over on, and writes
benchmarks/instructions.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from archive import _core, _pool, _rows
from archive.places import HIGH, PARTS, ROW, STOP

CALLS, BATCH, LEAVES = 100, 32, 1 << 20
PAGE = Path(__file__).with_name("instructions.md")
HEAD = f"""# Instructions

Written by `python -m benchmarks.instructions` (release kind, valgrind's callgrind): instructions per call, taking the
arguments included. Batches of {BATCH}; the tree has 2^20 leaves; stacks are four frames of 84x84.

| kernel | instructions |
| --- | ---: |
"""


def tree() -> _core.SumTree:
    """Return a tree of random leaves."""
    made = _core.SumTree(LEAVES)
    made.set(np.arange(LEAVES), np.random.default_rng(0).random(LEAVES))
    return made


def pool() -> tuple[_pool.Pool, np.ndarray, np.ndarray]:
    """Return a pool of 1,600 frames that are all there, and places of starts among them."""
    made = _pool.Pool(np.ones((1600, 7056), np.uint8), 1, 16)
    for chunk in range(100):
        made.claim(chunk)
    place = np.zeros((PARTS, BATCH), np.int64)
    place[ROW] = np.random.default_rng(0).integers(4, 1500, BATCH)
    place[STOP], place[HIGH] = 1600, 1599
    return made, place, place[ROW].copy()


def tree_draw() -> Callable[[], object]:
    """SumTree.draw"""
    leaves, leaf, share = tree(), np.empty(BATCH, np.int64), np.empty(BATCH)
    return lambda: leaves.draw(0, 1, True, 1.0, leaf, share)


def tree_set() -> Callable[[], object]:
    """SumTree.set"""
    leaves, rng = tree(), np.random.default_rng(0)
    leaf, value = rng.integers(0, LEAVES, BATCH), rng.random(BATCH)
    return lambda: leaves.set(leaf, value)


def ranks() -> Callable[[], object]:
    """ranks"""
    rank = np.empty(BATCH, np.int64)
    return lambda: _core.ranks(0, 1, 10**6, rank)


def returns() -> Callable[[], object]:
    """returns, three steps"""
    reward, steps, out = np.ones((BATCH, 3)), np.full(BATCH, 3), np.empty(BATCH, np.float32)
    return lambda: _core.returns(reward, steps, 1.0, 0.0, -1.0, 1.0, 0.99, out)


def look_ahead() -> Callable[[], object]:
    """look_ahead"""
    _, place, _ = pool()
    after, flags = np.empty((2, BATCH), np.int64), np.empty((2, BATCH), np.uint8)
    discounts, discount = np.ones(2, np.float32), np.empty(BATCH, np.float32)
    return lambda: _rows.look_ahead(place, 1, False, discounts, after, flags, discount)


def gather_stacks() -> Callable[[], object]:
    """Part.gather of stacks"""
    made, place, row = pool()
    part = _pool.Part(made, np.dtype(np.uint8), (4, 7056), -3, 4, False, False, False)
    out = np.empty((BATCH, 4, 7056), np.uint8)
    return lambda: part.gather(place, row, out)


def checksum() -> Callable[[], object]:
    """checksum of 2,048 bytes"""
    data = np.arange(2048).astype(np.uint8)
    return lambda: _core.checksum(data)


def unshuffle() -> Callable[[], object]:
    """unshuffle of 1,024 int64"""
    data, out = np.ones(8192, np.uint8), np.empty(8192, np.uint8)
    return lambda: _core.unshuffle(data, out, 8)


KERNELS = (tree_draw, tree_set, ranks, returns, look_ahead, gather_stacks, checksum, unshuffle)


def counted(kernel: Callable[[], object], calls: int) -> int:
    """Return the instructions of calls of a kernel, and of those that prepare them: all inside its wrapper in C."""
    words = re.findall(r"\w+", (kernel.__doc__ or "").split()[0])
    options = [
        "--collect-atstart=no",
        f"--toggle-collect=__pyx_pw_*{'_*'.join(words)}",
        "--callgrind-out-file=/dev/null",
    ]
    command = ["valgrind", "--tool=callgrind", *options, sys.executable, "-m", __spec__.name]
    done = subprocess.run([*command, kernel.__name__, str(calls)], capture_output=True, text=True, check=True)
    found = re.search(r"Collected : ([0-9]+)", done.stderr)
    if found is None:
        raise RuntimeError(f"valgrind counted nothing:\n{done.stderr}")
    return int(found[1])


def main(arguments: list[str]) -> None:
    """Count all kernels, or call one of them: its name, and how often."""
    if arguments:
        kernel = next(kernel for kernel in KERNELS if kernel.__name__ == arguments[0])()
        for _ in range(int(arguments[1])):
            kernel()
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed")
    lines = []
    for kernel in KERNELS:
        per_call = (counted(kernel, CALLS) - counted(kernel, 0)) / CALLS
        lines.append(f"| {kernel.__doc__} | {per_call:,.0f} |")
        print(lines[-1])
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
