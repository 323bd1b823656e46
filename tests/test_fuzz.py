"""Our parsers are fed nonsense for a while: a value or an ArchiveError, nothing else, and the interpreter lives.

FUZZ: seconds for all of the slow ones together, ten minutes by default.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import struct
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import mutants
import pytest
import strangers

SECONDS = float(os.environ.get("FUZZ", "600"))
QUICK = {"files": 1.5, "objects of HDF5": 1.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with good files."""
    folder = tmp_path_factory.mktemp("good")
    strangers.record_good(folder / "gzip.h5")
    strangers.record_good(folder / "small.h5", checkpoints=False)
    return folder


@pytest.fixture(scope="module")
def pool():
    """Return a process that is fed."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def fuzz(pool, folder, name, first, seconds):
    """Feed a parser in a process of its own."""
    progress = folder / "progress"
    progress.write_bytes(bytes(8))
    try:
        call = pool.submit(mutants.feed, name, str(folder), first, seconds, str(progress))
        outcomes, wrong, seed = call.result(seconds + 120)
    except BrokenProcessPool:
        pytest.fail(f"the interpreter crashed: {name}, seed {struct.unpack('<Q', progress.read_bytes())[0]}")
    print(f"{name}: {seed - first} cases: {dict(outcomes)}")
    assert wrong == []


@pytest.mark.parametrize("name", mutants.PARSERS)
def test_fuzz(pool, folder, name):
    """A moment each, always the same cases."""
    fuzz(pool, folder, name, 0, QUICK.get(name, 0.3))


@pytest.mark.slow
@pytest.mark.parametrize("name", mutants.PARSERS)
def test_fuzz_for_long(pool, folder, name):
    """Ten minutes in all, other cases each time."""
    fuzz(pool, folder, name, random.SystemRandom().getrandbits(40), SECONDS / len(mutants.PARSERS))
