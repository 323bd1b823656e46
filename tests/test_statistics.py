"""Many draws and many updates: the distributions that are claimed, and sums that stay exact to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from archive import _core
from archive._core import SumTree

Array = np.ndarray[Any, Any]
SIZES = range(1, 71)
FEW = pytest.param(100_000, id="quick")
MANY = pytest.param(1_000_000, id="slow", marks=pytest.mark.slow)


def tree_of(leaves: Array) -> SumTree:
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), leaves)
    return tree


def deviations(found: Array, share: Array) -> float:
    """Return by how many standard deviations Pearson's statistic is above its mean; cells of share 0 must be empty."""
    draws, known = int(found.sum()), share > 0
    assert not found[~known].any()
    expected = draws * share[known]
    statistic = ((found[known] - expected) ** 2 / expected).sum()
    degrees = max(int(known.sum()) - 1, 1)
    variance = 2 * degrees + (1 / expected).sum() - (degrees + 1) ** 2 / draws  # of a multinomial, few a cell or many
    return float((statistic - degrees) / np.sqrt(max(variance, 1.0)))


def drawn(tree: SumTree, leaves: int, draws: int, stratified: bool) -> Array:
    """Return how often each leaf was drawn, a thousand a batch."""
    found, leaf, share = np.zeros(leaves, np.int64), np.empty(1000, np.int64), np.empty(1000)
    for batch in range(draws // 1000):
        tree.draw(leaves, batch, stratified, 1.0, leaf, share)
        found += np.bincount(leaf, minlength=leaves)
    return found


@pytest.mark.parametrize("draws", [FEW, MANY])
def test_uniform_draws_are_uniform(draws: int) -> None:
    worst = 0.0
    for size in (*SIZES, 1_000_000):
        found, rank = np.zeros(size, np.int64), np.empty(1000, np.int64)
        for batch in range(draws // 1000):
            _core.ranks(size, batch, size, rank)
            found += np.bincount(rank, minlength=size) if size < 1000 else 0
            if size >= 1000:
                np.add.at(found, rank, 1)
        worst = max(worst, deviations(found, np.full(size, 1 / size)))
    assert worst < 5


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("draws", [FEW, MANY])
def test_prioritised_draws_follow_the_leaves(draws: int, stratified: bool) -> None:
    """A third of the leaves are 0, the others over three orders of magnitude."""
    worst = 0.0
    for size in SIZES:
        rng = np.random.default_rng(size)
        leaves = 10 ** rng.uniform(-1.5, 1.5, size) * (rng.random(size) > 1 / 3)
        leaves[rng.integers(size)] = 1.0
        worst = max(worst, deviations(drawn(tree_of(leaves), size, draws, stratified), leaves / leaves.sum()))
    assert worst < 5


@pytest.mark.parametrize("draws", [FEW, MANY])
def test_prioritised_draws_of_a_large_tree(draws: int) -> None:
    size, tree_leaves = 1_000_000, np.random.default_rng(0).uniform(0.5, 1.5, 1_000_000)
    found, leaf, share, tree = np.zeros(size, np.int64), np.empty(1000, np.int64), np.empty(1000), tree_of(tree_leaves)
    for batch in range(draws // 1000):
        tree.draw(0, batch, False, 1.0, leaf, share)
        np.add.at(found, leaf, 1)
    assert deviations(found, tree_leaves / tree_leaves.sum()) < 5


@pytest.mark.parametrize("draws", [FEW, pytest.param(10_000_000, id="slow", marks=pytest.mark.slow)])
def test_leaves_of_zero_are_not_drawn_at_the_ends_of_the_mass(draws: int) -> None:
    """Masses at 0, at the total, and one step around every border between leaves."""
    count, rng = 0, np.random.default_rng(0)
    while count < draws:
        size = int(rng.integers(1, 5000))
        leaves = 10 ** rng.uniform(-12, 12, size) * (rng.random(size) < rng.choice([0.01, 0.5, 0.99]))
        leaves[rng.integers(size)] = 10 ** rng.uniform(-12, 12)
        tree = tree_of(leaves)
        borders = np.minimum(np.cumsum(leaves), tree.total)
        mass = np.concatenate([borders, np.nextafter(borders, 0), np.nextafter(borders, np.inf), np.zeros(9)])
        mass = np.minimum(
            np.concatenate([mass, np.full(9, tree.total), np.full(9, np.nextafter(tree.total, 0))]), tree.total
        )
        leaf = np.empty(len(mass), np.int64)
        tree.find(mass, leaf)
        assert (leaves[leaf] > 0).all()
        count += len(mass)


@pytest.mark.parametrize("updates", [FEW, MANY])
@pytest.mark.parametrize("size", [1, 8, 70, 4097, 1 << 20])
def test_sums_stay_those_of_a_fresh_tree(size: int, updates: int) -> None:
    tree, leaves, rng = SumTree(size), np.zeros(size), np.random.default_rng(size)
    for _ in range(updates // 1000):
        leaf = rng.integers(0, size, 1000)
        value = 10 ** rng.uniform(-9, 9, 1000) * (rng.random(1000) < 0.9)
        tree.set(leaf, value)
        leaves[leaf] = value
    assert tree.total == tree_of(leaves).total
    kept = np.empty(size)
    tree.get(np.arange(size), kept)
    np.testing.assert_array_equal(kept, leaves)
