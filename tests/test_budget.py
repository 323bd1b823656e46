"""The memory budget while rows are read and written in turns."""

import re

import numpy as np
import pytest

import archive


@pytest.mark.parametrize("spare", [0, 3_000_000])
def test_steps_find_room_after_a_read_that_filled_the_pool(path, spare):
    """Chunks that the last read touched may be dropped for one that begins."""
    schema = archive.Schema({"observation": archive.Field("uint8", (84, 84)), "action": archive.Field("int64")})
    with pytest.raises(archive.MemoryBudgetError) as caught:
        archive.create(path, schema, memory=0)
    floor = int(re.search(r"needs at least (\d+)", str(caught.value)).group(1))
    frame = np.zeros((84, 84), np.uint8)
    with archive.create(path, schema, commit_every=None, memory=floor + spare) as run:
        run.reset(frame)
        for t in range(1500):
            run.step(t % 4, np.full_like(frame, t % 251), float(t), False, False)
            if t % 100 == 99:
                rows = np.arange(0, t, 16)
                assert (run["observation"][rows[1:]][:, 0, 0] == (rows[1:] - 1) % 251).all()
        assert (run["reward"][:1500] == np.arange(1500)).all()
