"""The compiled kernels against plain Python: random numbers, sum tree, returns, shuffles, checksum."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model import philox, uniforms

from archive import _core, chunk, samplers
from archive._core import SumTree
from archive.codec import CODECS
from archive.errors import DamagedError

Array = np.ndarray[Any, Any]
SIZES = [*range(1, 71), 511, 512, 513, 10_000]


def ints(values: Any) -> Array:
    return np.array(values, np.int64)


# --- random numbers


def test_philox_of_the_model_has_the_published_answer() -> None:
    """Known answer of Random123 for Philox4x64-10 with counter and key 0."""
    assert philox((0, 0), 0) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]


@pytest.mark.parametrize(("seed", "batch"), [(0, 0), (0, 1), (1, 0), (12345, 678), ((1 << 64) - 1, 1 << 40)])
def test_uniforms_are_the_top_bits_of_philox(seed: int, batch: int) -> None:
    found = samplers.uniforms(seed, batch, 11)
    assert found.tolist() == uniforms(seed, batch, 11)
    assert found.tolist()[:5] == samplers.uniforms(seed, batch, 5).tolist()


def test_uniforms_of_neighbouring_batches_and_seeds_differ() -> None:
    streams = {tuple(samplers.uniforms(seed, batch, 4)) for seed in range(20) for batch in range(20)}
    assert len(streams) == 400


# --- sum tree


def sum8(values: list[float]) -> float:
    """Add eight numbers in the order that the draw rule fixes."""
    a, b, c, d, e, f, g, h = values
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


def total_of(leaves: list[float]) -> float:
    """Return the root of a tree of fan-out eight over these leaves."""
    level = leaves + [0.0] * (max(8, -(-len(leaves) // 8) * 8) - len(leaves))
    while len(level) > 8:
        level = [sum8(level[k : k + 8]) for k in range(0, len(level), 8)]
        level += [0.0] * (-len(level) % 8)
    return sum8(level)


def tree_of(leaves: Any) -> SumTree:
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), np.array(leaves, np.float64))
    return tree


def leaves_of(tree: SumTree) -> Array:
    out = np.empty(tree.size)
    tree.get(np.arange(tree.size), out)
    return out


def find(tree: SumTree, mass: Any) -> Array:
    out = np.full(len(mass), -1, np.int64)
    tree.find(np.array(mass, np.float64), out)
    return out


@pytest.mark.parametrize("size", SIZES)
def test_tree_keeps_what_was_set_and_its_sums_are_recomputed(size: int) -> None:
    """Whatever the history, total and owners equal those of a tree built anew from the leaves, to the last bit."""
    rng = np.random.default_rng(size)
    tree, leaves = SumTree(size), np.zeros(size)
    for _ in range(12):
        where = rng.integers(0, size, rng.integers(1, 2 * min(size, 300)))
        values = rng.random(len(where)) ** 8 * 10.0 ** rng.integers(-9, 9, len(where)) * (rng.random(len(where)) < 0.8)
        tree.set(where, values)
        for leaf, value in zip(where.tolist(), values.tolist(), strict=True):  # the last of duplicates wins
            leaves[leaf] = value
        np.testing.assert_array_equal(leaves_of(tree), leaves)
        assert tree.total == total_of(leaves.tolist())
    fresh = tree_of(leaves)
    assert fresh.total == tree.total
    if tree.total > 0:
        mass = rng.random(500) * tree.total
        np.testing.assert_array_equal(find(tree, mass), find(fresh, mass))


@pytest.mark.parametrize("size", SIZES)
def test_leaf_owns_the_mass_from_the_sum_before_it_on(size: int) -> None:
    """Leaf i owns [c_i, c_i+1); with whole numbers there is no rounding, so every bound can be tried."""
    rng = np.random.default_rng(size)
    leaves = rng.integers(0, 4, size).astype(float)
    leaves[rng.integers(size)] = 3.0
    tree, ends = tree_of(leaves), np.cumsum(leaves)
    mass = np.concatenate([np.arange(ends[-1]), np.arange(ends[-1]) + 0.5])
    assert tree.total == ends[-1]
    np.testing.assert_array_equal(find(tree, mass), np.searchsorted(ends, mass, "right"))


@given(
    leaves=st.lists(st.floats(0, 1e300) | st.sampled_from([0.0, 0.0, 5e-324, 1e-310, 1.0]), min_size=1, max_size=600),
    share=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
@example(leaves=[0.0] * 9 + [5e-324] + [0.0] * 9, share=[0.5])
@example(leaves=[1.0, 0.0, 1e300, 0.0, 1.0] + [0.0] * 100, share=[1.0])
def test_leaf_of_zero_is_never_found(leaves: list[float], share: list[float]) -> None:
    """Not at any mass, that of the total included, whatever is lost in rounding."""
    tree = tree_of(leaves)
    if tree.total == 0:
        with pytest.raises(ValueError, match="total 0"):
            find(tree, [0.0])
        return
    ends = np.cumsum(leaves)
    mass = [0.0, tree.total, math.nextafter(tree.total, 0.0), *(s * tree.total for s in share)]
    found = find(tree, mass + np.minimum(ends, tree.total).tolist())
    assert ((found >= 0) & (found < len(leaves))).all()
    assert (np.array(leaves)[found] > 0).all()


@given(
    leaves=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1e-9, 7.0]), min_size=1, max_size=100).filter(any),
    spare=st.integers(1, 5000),
)
def test_depth_of_the_tree_changes_nothing(leaves: list[float], spare: int) -> None:
    """Leaves of 0 behind the others, and levels above, must not matter: at no bound of a leaf and not at the total."""
    small, large = tree_of(leaves), tree_of(leaves + [0.0] * spare)
    assert large.total == small.total
    ends = np.minimum(np.cumsum(leaves), small.total)
    mass = np.concatenate([ends, np.nextafter(ends, 0.0), [small.total]])
    np.testing.assert_array_equal(find(large, mass), find(small, mass))


@given(leaves=st.lists(st.floats(0, 1e6), min_size=1, max_size=300), share=st.floats(0, 1))
def test_owner_contains_the_mass_up_to_rounding(leaves: list[float], share: float) -> None:
    tree = tree_of(leaves)
    if tree.total > 0:
        mass = share * tree.total
        (leaf,) = find(tree, [mass]).tolist()
        below = math.fsum(leaves[:leaf])
        assert below - 1e-12 * tree.total <= mass <= below + leaves[leaf] + 1e-12 * tree.total


@given(leaves=st.lists(st.floats(0, 1e300) | st.sampled_from([0.0, 0.0, 5e-324, 1e-310]), min_size=1, max_size=600))
@example(leaves=[0.0])
@example(leaves=[0.0] * 70 + [3.0])
@example(leaves=[3.0, 0.0, 5e-324])
def test_smallest_leaf_above_zero(leaves: list[float]) -> None:
    assert tree_of(leaves).smallest == min((leaf for leaf in leaves if leaf > 0), default=0.0)


def test_smallest_leaf_follows_changes_and_never_is_a_sum() -> None:
    """Only leaves count: sums of one leaf, and leaves that the size rounds up to, do not."""
    tree = SumTree(9)
    assert tree.smallest == 0
    tree.set(ints([0, 8]), np.array([4.0, 2.0]))
    assert tree.smallest == 2
    tree.set(ints([8]), np.array([0.0]))
    assert tree.smallest == 4
    tree.set(ints([3]), np.array([1.0]))
    assert tree.smallest == 1


def test_tree_copied_into_a_larger_one_draws_the_same() -> None:
    rng = np.random.default_rng(0)
    small, large = tree_of(rng.random(100)), SumTree(1000)
    small.copy_to(large)
    np.testing.assert_array_equal(leaves_of(large)[:100], leaves_of(small))
    assert not leaves_of(large)[100:].any()
    mass = rng.random(300) * small.total * (1 - 1e-12)
    np.testing.assert_array_equal(find(large, mass), find(small, mass))


@pytest.mark.parametrize("leaf", [-1, 5, 7, 8, 1 << 40])
def test_tree_refuses_leaves_it_does_not_have(leaf: int) -> None:
    tree = tree_of([1.0, 2.0, 3.0, 4.0, 5.0])
    with pytest.raises(IndexError, match=str(leaf)):
        tree.set(ints([0, leaf]), np.array([9.0, 9.0]))
    with pytest.raises(IndexError, match=str(leaf)):
        tree.get(ints([leaf]), np.empty(1))
    assert leaves_of(tree).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("size", [1, 7, 64, 513, 10_000])
def test_draw_finds_what_find_finds(size: int, stratified: bool) -> None:
    """More at once than go down together, from leaves of which many are 0."""
    rng = np.random.default_rng(size)
    leaves = rng.random(size) * (rng.random(size) < 0.5)
    leaves[rng.integers(size)] = 0.3
    tree, count = tree_of(leaves), 150
    leaf, probability = np.empty(count, np.int64), np.empty(count)
    tree.draw(7, 3, stratified, 3.0, leaf, probability)
    share = np.array(uniforms(7, 3, count))
    mass = ((np.arange(count) + share) / count if stratified else share) * tree.total
    assert leaf.tolist() == find(tree, np.minimum(mass, np.nextafter(tree.total, 0))).tolist()
    assert probability.tolist() == (3.0 * (leaves[leaf] / tree.total)).tolist()


def test_draw_refuses_a_tree_of_zeros() -> None:
    leaf, probability = np.full(2, -9), np.full(2, -9.0)
    with pytest.raises(ValueError, match="total 0"):
        tree_of([0.0, 0.0]).draw(0, 0, True, 1.0, leaf, probability)
    with pytest.raises(ValueError, match="disagree"):
        tree_of([1.0]).draw(0, 0, True, 1.0, leaf, probability[:1])
    assert (leaf == -9).all()
    assert (probability == -9).all()


@pytest.mark.parametrize("count", [1, 2, 70, 10**12])
def test_ranks_are_those_of_the_uniform_numbers(count: int) -> None:
    out = np.empty(37, np.int64)
    _core.ranks(11, 5, count, out)
    assert out.tolist() == [min(int(u * count), count - 1) for u in uniforms(11, 5, 37)]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_largest_of_numbers_that_are_not_negative(values: list[float]) -> None:
    found = _core.largest(np.array(values, np.float64))
    if all(value >= 0 for value in values):
        assert found == max(values, default=0.0)
    else:
        assert math.isnan(found)


def test_weights_are_divided_by_the_largest_or_by_what_is_given() -> None:
    out = np.empty(3, np.float32)
    _core.weigh(np.array([1.0, 4.0, 2.0]), -1.0, out)
    assert out.tolist() == [0.25, 1.0, 0.5]
    _core.weigh(np.array([1.0, 4.0, 2.0]), 8.0, out)
    assert out.tolist() == [0.125, 0.5, 0.25]
    with pytest.raises(ValueError, match="disagree"):
        _core.weigh(np.ones(2), 1.0, out)


def test_tree_refuses_arrays_that_do_not_fit() -> None:
    tree = tree_of([1.0, 2.0])
    room = np.full(3, -1, np.int64)
    with pytest.raises(ValueError, match="lengths disagree: 2, 1"):
        tree.set(ints([0, 1]), np.array([9.0]))
    with pytest.raises(ValueError, match="lengths disagree: 1, 3"):
        tree.get(ints([0]), np.empty(3))
    with pytest.raises(ValueError, match="lengths disagree: 3, 1"):
        tree.find(np.array([0.5, 0.5, 0.5]), room[:1])
    with pytest.raises(ValueError, match="dtype"):
        tree.set(np.array([0], np.int32), np.array([9.0]))
    with pytest.raises(ValueError, match="contiguous"):
        tree.set(np.arange(2)[::-1], np.array([8.0, 9.0]))
    with pytest.raises(TypeError):
        tree.set(None, np.array([9.0]))
    assert room.tolist() == [-1, -1, -1]
    assert leaves_of(tree).tolist() == [1.0, 2.0]


# --- returns


@given(
    rewards=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=8),
    steps=st.lists(st.integers(0, 6), min_size=8, max_size=8),
    gamma=st.floats(0, 1),
)
def test_returns_sum_the_steps_taken(rewards: list[list[float]], steps: list[int], gamma: float) -> None:
    out = np.empty(len(rewards), np.float32)
    clip = (-1e5, 2e5)
    _core.returns(np.array(rewards), ints(steps[: len(rewards)]), 0.5, -3.0, *clip, gamma, out)
    for i, row in enumerate(rewards):
        terms = [gamma**k * min(max(row[k] * 0.5 - 3.0, clip[0]), clip[1]) for k in range(min(steps[i], 4))]
        assert out[i] == pytest.approx(math.fsum(terms), rel=1e-6, abs=1e-6 * sum(map(abs, terms)))


def test_returns_keep_what_is_no_number_and_overflow_to_infinity() -> None:
    out = np.empty(3, np.float32)
    _core.returns(np.array([[np.nan], [1e300], [-np.inf]]), ints([1, 1, 1]), 1.0, 0.0, -np.inf, np.inf, 1.0, out)
    np.testing.assert_array_equal(out, np.array([np.nan, np.inf, -np.inf], np.float32))
    _core.returns(np.array([[np.nan], [1e300], [-np.inf]]), ints([1, 1, 0]), 1.0, 0.0, -2.0, 2.0, 1.0, out)
    np.testing.assert_array_equal(out, np.array([np.nan, 2, 0], np.float32))


def test_returns_refuse_lengths_that_disagree() -> None:
    for rewards, steps, out in ((2, 3, 2), (2, 2, 3), (3, 2, 2)):
        room = np.full(out, 7, np.float32)
        with pytest.raises(ValueError, match="disagree"):
            _core.returns(np.ones((rewards, 2)), ints([1] * steps), 1.0, 0.0, -1.0, 1.0, 0.9, room)
        assert (room == 7).all()


# --- bytes of chunks


def stored_by_hdf5(data: Array, **filters: bool) -> bytes:
    """Return the bytes of one chunk as HDF5 itself encodes it."""
    with h5py.File.in_memory() as file:
        dataset = file.create_dataset("d", data=data, chunks=data.shape, **filters)
        mask, chunk = dataset.id.read_direct_chunk((0,) * data.ndim)
        assert mask == 0
        return bytes(chunk)


@pytest.mark.parametrize("dtype", ["<i2", "<f4", "<i8", "<c16", ">f8"])
@pytest.mark.parametrize("items", [1, 2, 7, 1000])
def test_shuffle_is_that_of_hdf5_and_is_undone(dtype: str, items: int) -> None:
    data = np.random.default_rng(items).integers(0, 256, items * np.dtype(dtype).itemsize, np.uint8)
    mixed, back = np.empty_like(data), np.empty_like(data)
    _core.shuffle(data, mixed, np.dtype(dtype).itemsize)
    _core.unshuffle(mixed, back, np.dtype(dtype).itemsize)
    assert mixed.tobytes() == stored_by_hdf5(data.view(dtype), shuffle=True)
    np.testing.assert_array_equal(back, data)


@pytest.mark.parametrize("kernel", [_core.shuffle, _core.unshuffle])
def test_shuffle_refuses_sizes_that_do_not_fit(kernel: Any) -> None:
    for size, room, itemsize in ((8, 7, 4), (8, 9, 4), (7, 7, 4), (8, 16, 2)):
        out = np.full(room, 77, np.uint8)
        with pytest.raises(ValueError, match=str(itemsize)):
            kernel(np.ones(size, np.uint8), out, itemsize)
        assert (out == 77).all()


def check_checksum(data: Array) -> None:
    expected = int.from_bytes(stored_by_hdf5(data, fletcher32=True)[-4:], "little")
    assert _core.checksum(data) == expected


@given(data=st.binary(min_size=1, max_size=400))
@example(data=bytes(1))
@example(data=bytes(17))
@example(data=b"\xff" * 2)
@example(data=b"\xff" * 33)
@example(data=b"\x00\x01\xff\xfe")
def test_checksum_is_that_of_hdf5(data: bytes) -> None:
    check_checksum(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("size", [359, 360, 361, 720, 65_535, 65_536, 131_071, 131_072, 131_073, 131_074, 400_001])
@pytest.mark.parametrize("kind", ["random", "ones", "zeros", "last"])
def test_checksum_of_large_chunks(size: int, kind: str) -> None:
    """Around HDF5's blocks of 360 words and ours of 65,536; sums whose residue is zero among them."""
    data = np.full(size, 255 if kind == "ones" else 0, np.uint8)
    if kind == "random":
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    if kind == "last":
        data[-1] = 1
    check_checksum(data)


def test_permute_refuses_what_is_outside() -> None:
    out = np.empty(1, np.int64)
    for index in (-1, 10):
        with pytest.raises(IndexError, match="of 10"):
            _core.permute(np.array([index]), 10, 0, 0, out)
    with pytest.raises(ValueError, match="lengths"):
        _core.permute(np.zeros(2, np.int64), 10, 0, 0, out)


# --- the end of a chunk


IDENTITY = (b"run-name", 3, 2, 4096)


def encoded(rows: Array) -> bytes:
    run_id, field, env, first = IDENTITY
    return chunk.encode(rows, 1, CODECS["gzip"], chunk.Trailer(run_id, 7, field, env, 16, first))


@given(st.binary(max_size=300))
def test_stream_of_a_chunk_is_found(raw: bytes) -> None:
    data = encoded(np.frombuffer(raw, np.uint8))
    assert _core.stream_length(data, *IDENTITY) == len(data) - chunk.SIZE - 4
    assert chunk.decode(data, len(raw), CODECS["gzip"], IDENTITY) == raw


def test_chunks_of_other_rows_and_damaged_ones_are_refused() -> None:
    """Every single bit, every other identity, every length."""
    data = encoded(np.arange(100, dtype=np.uint8))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert _core.stream_length(bytes(damaged), *IDENTITY) == -1
    others = [(b"run-namd", 3, 2, 4096), (b"run-name", 4, 2, 4096), (b"run-name", 3, 1, 4096), (b"run-name", 3, 2, 0)]
    for other in (*others, (b"short", 3, 2, 4096), (b"run-name", 3 + (1 << 16), 2, 4096), (b"run-name", 3, -2, 4096)):
        assert _core.stream_length(data, *other) == -1
        with pytest.raises(DamagedError, match=r"expected .* found"):
            chunk.decode(data, 100, CODECS["gzip"], other)
    for stop in range(len(data)):
        assert _core.stream_length(data[:stop], *IDENTITY) == -1
    with pytest.raises(DamagedError, match="checksum differs"):
        chunk.decode(data[:-1], 100, CODECS["gzip"], IDENTITY)


@pytest.mark.parametrize("size", [99, 101])
def test_chunks_of_another_size_are_refused(size: int) -> None:
    data = encoded(np.arange(100, dtype=np.uint8))
    with pytest.raises(DamagedError, match=f"expected {size} bytes, found 100"):
        chunk.decode(data, size, CODECS["gzip"], IDENTITY)


@pytest.mark.parametrize("megabytes", [1, 100])
def test_a_stream_that_becomes_too_much_is_refused(megabytes: int) -> None:
    """Before it has become more than 64 MiB."""
    data = encoded(np.zeros(megabytes << 20, np.uint8))
    tracemalloc.start()
    with pytest.raises(DamagedError, match="expected 1000 bytes, found"):
        chunk.decode(data, 1000, CODECS["gzip"], IDENTITY)
    assert tracemalloc.get_traced_memory()[1] < 70 << 20
    tracemalloc.stop()
