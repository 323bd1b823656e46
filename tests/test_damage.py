"""Flipped bits and lost ends: whatever is read of a damaged file is right, or refused by an error that says so."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import h5py
import numpy as np
import pytest
import strangers
from everything import REFUSED, everything

import archive

BATCH = 25  # damages that are tried in one call of the child
RIGHT, REFUSED_WHOLE, REFUSED_PART, OLDER = "right", "refused", "refused in part", "an older checkpoint"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with a closed and a killed run of one environment and of three."""
    folder = tmp_path_factory.mktemp("whole")
    for name, envs in (("one", None), ("three", 3)):
        record(folder / f"{name}-closed.h5", folder / f"{name}-killed.h5", envs)
    return folder


def record(path, killed, envs):
    """Record a run with all that a run may have; `killed` is what a kill before the close leaves."""
    strangers.record_good(path, envs)
    lead, rng = (() if envs is None else (envs,)), np.random.default_rng(1)
    with archive.open(path, "a", commit_every=None) as run:
        run.annotate(2, hidden=True, task="hide")
        flag = np.zeros(lead, "?") if lead else False
        run.reset(strangers.observation(rng, lead))
        for step in range(700):
            given = strangers.observation(rng, lead), np.full(lead, 0.25), flag, flag
            run.step(np.full(lead, step), *given, word=strangers.words(lead))
            if step == 300:
                run.rewind(run.last_checkpoint)
                run.reset(strangers.observation(rng, lead))
        replay = run.replay(batch_size=4, sampler=archive.Prioritized())
        replay.update_priorities(replay.sample().index, np.arange(4.0))
        run.checkpoint(replay=replay.state_dict(), rng=rng, agent=rng.bytes(5000))
        run.checkpoint(replay=replay.state_dict(), rng=rng, agent=rng.bytes(3000), step=np.arange(9))
        run.step(np.full(lead, 7), *given, word=strangers.words(lead))
        run.commit()
        shutil.copy(path, killed)


# --- what a damaged file says, beside what it said


def allowed(path, folder):
    """Return by name what may be read of a file: what it holds, or what it holds once a checkpoint is lost."""
    whole, without = everything(path), []
    for slot in sorted(strangers.record_of(path).slots, key=lambda s: -s.id):
        shutil.copy(path, folder / "older.h5")
        strangers.write(folder / "older.h5", slot.offset + 8 * slot.chunks + 10, b"damaged")
        without.append(everything(folder / "older.h5"))
        assert not [v for v in without[-1].values() if " " in v]
    newest, older = ({k for k in whole if whole[k] != lost[k]} for lost in without)
    assert (newest, older) == ({"checkpoint", "resumed", "info"}, {"info"})
    return {name: (whole[name], *(lost[name] for lost in without)) for name in whole}


def judge(found, may_be):
    """Return how a damaged file was read: one of four classes, or what is wrong."""
    wrong = [f"{k}: {v}" for k, v in found.items() if v not in may_be[k] and not v.startswith(REFUSED)]
    if wrong:
        return "; ".join(wrong)
    if found["open"]:
        return REFUSED_WHOLE
    if any(v.startswith(REFUSED) for v in found.values()):
        return REFUSED_PART
    return RIGHT if all(v == may_be[k][0] for k, v in found.items()) else OLDER


def judge_flips(path, flips, may_be):
    """Flip one bit after the other in a file, each back again; return the verdicts."""
    verdicts = []
    with open(path, "r+b", buffering=0) as file:
        for at, bit in flips:
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), at)
            verdicts.append(judge(everything(path), may_be))
            os.pwrite(file.fileno(), bytes([byte]), at)
    return verdicts


def judge_cuts(path, cuts, may_be):
    """Cut copies of a file; return the verdicts."""
    verdicts, copy = [], path.with_suffix(".cut")
    for size in sorted(cuts, reverse=True):
        if not verdicts:
            shutil.copy(path, copy)
        os.truncate(copy, size)
        verdicts.append(judge(everything(copy), may_be))
    return verdicts


def endure(judging, path, damages, folder):
    """Judge damages of a file in a process of its own, which must live; return the verdicts in order."""
    may_be, copy, verdicts = allowed(path, folder), folder / "damaged.h5", []
    shutil.copy(path, copy)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for k in range(0, len(damages), BATCH):
            some = damages[k : k + BATCH]
            try:
                verdicts += pool.submit(judging, copy, some, may_be).result()
            except BrokenProcessPool:
                pytest.fail(f"the interpreter crashed in one of {some}")
    assert copy.read_bytes() == path.read_bytes()  # reading has not written
    return verdicts


# --- where things are


def regions(path):
    """Return where each kind of thing is in a file: (first byte, byte behind the last, kind)."""
    found = [(0, 48, "superblock")]

    def visit(name, item):
        kind = name if name.startswith(("meta/schema_block", "commits")) else name.split("/")[0]
        if isinstance(item, h5py.Dataset) and not item.is_virtual:
            if item.chunks:
                item.id.chunk_iter(lambda c: found.append((c.byte_offset, c.byte_offset + c.size, kind)))
            elif item.id.get_offset() is not None:
                found.append((item.id.get_offset(), item.id.get_offset() + item.size, kind))

    with h5py.File(path) as file:
        file.visititems(visit)
    return sorted(found)


def kinds_of(path):
    """Return by kind the bytes of a file that are in a block of 512 which is not all zeros."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    kind = np.full(len(data), "metadata of HDF5", "U30")
    for first, stop, name in regions(path):
        kind[first:stop] = name
    whole = len(data) // 512 * 512
    used = np.append(np.repeat(data[:whole].reshape(-1, 512).any(1), 512), np.ones(len(data) - whole, "?"))
    return {str(name): np.flatnonzero((kind == name) & used) for name in np.unique(kind)}


FILES = pytest.mark.parametrize("name", ["one-closed", "three-closed", "one-killed", "three-killed"])
KINDS = {"superblock", "meta/schema_block", "commits", "metadata of HDF5", "steps", "episodes", "meta", "checkpoints"}


def report(name, verdicts):
    """Print how many damages there were of each class, and see that none was read wrong."""
    count = Counter(verdicts)
    print(f"{name}: {len(verdicts)} damages: {dict(count)}")
    assert not set(count) - {RIGHT, REFUSED_WHOLE, REFUSED_PART, OLDER}


def flip_each_kind(path, folder, count, choice):
    """Flip bits of every kind of thing, as many of each."""
    kinds = kinds_of(path)
    assert set(kinds) >= KINDS
    flips, names = [], []
    for kind, places in kinds.items():
        flips += [(int(choice.choice(places)), choice.randrange(8)) for _ in range(count)]
        names += [kind] * count
    verdicts = endure(judge_flips, path, flips, folder)
    for kind in kinds:
        report(f"{path.stem}, {kind}", [v for v, k in zip(verdicts, names, strict=True) if k == kind])
    return Counter(verdicts)


@FILES
def test_flips(files, tmp_path, name):
    """Four bits of every kind of thing in a file: read right or refused."""
    found = flip_each_kind(files / f"{name}.h5", tmp_path, 4, random.Random(name))
    assert {RIGHT, REFUSED_WHOLE, REFUSED_PART} <= set(found)


@pytest.mark.slow
@FILES
def test_many_flips(files, tmp_path, name):
    """Of each file 2,500 bits: half of them anywhere, half of them as many of every kind."""
    path, choice = files / f"{name}.h5", random.Random(f"many {name}")
    kinds = kinds_of(path)
    flip_each_kind(path, tmp_path, 1250 // len(kinds), choice)
    places = np.concatenate(list(kinds.values()))
    flips = [(int(choice.choice(places)), choice.randrange(8)) for _ in range(1250)]
    report(f"{name}, anywhere", endure(judge_flips, path, flips, tmp_path))


@FILES
def test_cuts(files, tmp_path, name):
    """A file that lost its end, anywhere: it opens with what was committed, or is refused."""
    cut_everywhere(files / f"{name}.h5", tmp_path, 15, random.Random(name))


@pytest.mark.slow
@FILES
def test_many_cuts(files, tmp_path, name):
    """The same at 250 places of each file."""
    cut_everywhere(files / f"{name}.h5", tmp_path, 250, random.Random(f"many {name}"))


def cut_everywhere(path, folder, count, choice):
    """Cut a file at random places, and around its committed end."""
    size, end = path.stat().st_size, strangers.record_of(path).end
    cuts = [choice.randrange(size) for _ in range(count - 5)] + [0, end - 1, end, size - 1, 9]
    verdicts = endure(judge_cuts, path, cuts, folder)
    report(f"{path.stem}, cut", verdicts)
    fits = [cut for cut in cuts if cut >= end]
    assert len(fits) == verdicts.count(RIGHT)
