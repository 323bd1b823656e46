"""Runs that are resumed again and again, each time in a new process, draw to the bit what one draws that never stopped.

Several replays look at one run; random numbers of every kind decide what is recorded, and go on from the checkpoint.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_replay import same

import archive

Fresh = Callable[..., list[str]]
BITS = ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"]


def begin(path: str) -> tuple[archive.Run, list[archive.Replay], dict[str, Any]]:
    """Create a run with six replays, and a source of random numbers of every kind."""
    import random

    steps = {"observation": archive.Field("uint8", (6,)), "action": archive.Field("int64")}
    run = archive.create(path, archive.Schema(steps), commit_every=None)
    beta = archive.Linear(0.4, 1.0, steps=1700)  # ends in the last of four sessions
    samplers = [archive.Uniform(), archive.Epoch(), archive.Prioritized(beta=beta)]
    options: list[dict[str, Any]] = [
        {"n_step": 3, "stack": 2},
        {"capacity": 300, "prefetch": 3},
        {"capacity": 500, "prefetch": 2, "n_step": 2},
    ]
    replays = [run.replay(sampler=s, batch_size=7, seed=5, **o) for s, o in zip(samplers, options, strict=True)]
    windows: dict[str, Any] = {"sequence_length": 4, "burn_in": 1, "batch_size": 3, "pad": "right"}
    replays += [run.replay(sampler=sampler, prefetch=1, **windows) for sampler in samplers]
    rngs: dict[str, Any] = {
        name: np.random.Generator(getattr(np.random, name)(7))
        for name in ("PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937")
    }
    rngs |= {"legacy": np.random.RandomState(7), "of_bits": np.random.RandomState(np.random.SFC64(7))}
    return run, replays, rngs | {"python": random.Random(7)}


def number_of(rngs: dict[str, Any]) -> int:
    """Draw from every source, in every way that keeps something between two draws."""
    found = 0
    for name, rng in rngs.items():
        if name == "python":
            found += rng.getrandbits(31) + int(1e6 * rng.gauss(0, 1))
        elif name in ("legacy", "of_bits"):
            found += rng.randint(1 << 30) + int(1e6 * rng.standard_normal())
        else:
            found += int(rng.integers(1 << 30, dtype=np.uint32)) + int(1e6 * rng.standard_normal())
            found += int(rng.spawn(1)[0].integers(1 << 30))
    return found


def session(run: archive.Run, replays: list[archive.Replay], rngs: dict[str, Any], batches: int) -> str:
    """Append rows and draw batches from each replay; return a digest of all that was drawn but ids."""
    import hashlib

    digest = hashlib.sha256()
    rng = np.random.default_rng(number_of(rngs) % (1 << 63))
    run.reset(rng.integers(0, 256, 6, np.uint8))
    for k in range(batches):
        for _ in range(40 if k == 0 else 3 if k % 5 == 0 else 0):
            ended = rng.random() < 0.1
            run.step(rng.integers(3), rng.integers(0, 256, 6, np.uint8), rng.normal(), ended, False)
            if ended:
                run.reset(rng.integers(0, 256, 6, np.uint8))
        for replay in replays:
            batch = replay.sample()
            for name, array in sorted(batch.asdict().items()):
                digest.update(b"" if name == "index" else array.tobytes())
            if isinstance(replay.sampler, archive.Prioritized):
                replay.update_priorities(batch.index, np.abs(batch.reward).reshape(len(batch.index), -1)[:, 0])
    digest.update(b"%d" % number_of(rngs))
    return digest.hexdigest()


def save(run: archive.Run, replays: list[archive.Replay], rngs: dict[str, Any]) -> None:
    """Make a checkpoint of everything."""
    values = rngs | {"python": rngs["python"].getstate()}
    run.checkpoint(replays=[replay.state_dict() for replay in replays], rngs=values, agent=bytes(range(256)))


def first_session(path: str, batches: str) -> list[str]:
    run, replays, rngs = begin(path)
    found = session(run, replays, rngs, int(batches))
    save(run, replays, rngs)
    run.close()
    return [found]


def resume(path: str, how: str, batches: str) -> list[str]:
    """Go on from the checkpoint for a session, make another, then leave rows behind it as `how` says."""
    import os
    import random
    import signal

    if how == "fork":
        archive.fork(path, path + ".fork")
        os.replace(path + ".fork", path)
    run = archive.open(path, "a", commit_every=None)
    last = run.last_checkpoint
    if how == "rewind":
        run.rewind(last)
    assert last["agent"] == bytes(range(256))
    rngs = dict(last["rngs"])
    state, rngs["python"] = rngs["python"], random.Random()
    rngs["python"].setstate(state)
    replays = [run.replay(state=state) for state in last["replays"]]
    found = session(run, replays, rngs, int(batches))
    save(run, replays, rngs)
    session(run, replays, rngs, 7)
    if how != "kill":
        run.commit()
    print(found, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def first_and_resumed(path: Path, fresh_process: Fresh, how: str, batches: int) -> list[str]:
    """Return digests of four sessions in four processes."""
    found = fresh_process(first_session, path, batches, uses=(begin, number_of, session, save))
    for _ in range(3):
        found += fresh_process(resume, path, how, batches, uses=(number_of, session, save), status=-9)
    return found


def never_stopped(path: Path, batches: int) -> list[str]:
    """Return digests of four sessions of one run."""
    run, replays, rngs = begin(str(path))
    found = [session(run, replays, rngs, batches) for _ in range(4)]
    run.close()
    return found


@pytest.mark.parametrize("how", ["kill", "rewind", "fork"])
def test_resumed_again_and_again(path: Path, fresh_process: Fresh, how: str) -> None:
    """What came behind the checkpoint is lost in the kill, given up, or left behind in another file."""
    found = first_and_resumed(path, fresh_process, how, 100)
    assert len(set(found)) == 4
    assert found == never_stopped(path.with_name("reference.h5"), 100)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "rewind", "fork"])
def test_resumed_again_and_again_for_long(path: Path, fresh_process: Fresh, how: str) -> None:
    assert first_and_resumed(path, fresh_process, how, 500) == never_stopped(path.with_name("reference.h5"), 500)


# --- values


def back(path: Path, value: Any) -> Any:
    """Return what becomes of a value in a checkpoint that another opening reads."""
    schema = archive.Schema({"observation": archive.Field("float32"), "action": archive.Field("int64")})
    with archive.create(path, schema) as run:
        run.checkpoint(value=value)
    with archive.open(path) as run:
        last = run.last_checkpoint
        assert last is not None
        return last["value"]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("draws", [0, 1, 3])
def test_generators_go_on(path: Path, bits: str, draws: int) -> None:
    rng = np.random.Generator(getattr(np.random, bits)(np.random.SeedSequence([5, 1 << 70], spawn_key=(3,))))
    rng.integers(10, size=draws, dtype=np.uint32)  # an odd number leaves half a word behind
    rng.spawn(draws)
    found = back(path, rng)
    assert type(found.bit_generator) is type(rng.bit_generator)
    for _ in range(3):
        assert same(found.integers(1 << 30, size=5, dtype=np.uint32), rng.integers(1 << 30, size=5, dtype=np.uint32))
        assert same(found.normal(size=5), rng.normal(size=5))
        for a, b in zip(found.spawn(2), rng.spawn(2), strict=True):
            assert same(a.random(5), b.random(5))


@pytest.mark.parametrize("bits", BITS)
def test_random_states_go_on(path: Path, bits: str) -> None:
    rng = np.random.RandomState(getattr(np.random, bits)(5))
    rng.standard_normal(3)  # an odd number leaves one behind
    found = back(path, rng)
    for _ in range(3):
        assert same(found.standard_normal(3), rng.standard_normal(3))
        assert same(found.randint(1 << 30, size=3), rng.randint(1 << 30, size=3))


def test_generators_that_could_not_be_made_again_are_refused(path: Path) -> None:
    class Mine(np.random.PCG64):
        pass

    for rng in (np.random.Generator(Mine(1)), np.random.RandomState(Mine(1))):
        with pytest.raises(archive.FieldTypeError, match="value: bit generator 'Mine' is not one of"):
            back(path, rng)
        path.unlink()


def test_states_of_random_number_generators_come_back_equal(path: Path) -> None:
    rng, legacy = random.Random(5), np.random.RandomState(5)
    rng.gauss(0, 1)
    found = back(path, {"python": rng.getstate(), "legacy": legacy.get_state(), "bits": legacy.get_state(legacy=False)})
    assert found["python"] == rng.getstate()
    assert type(found["legacy"]) is tuple
    for a, b in zip(found["legacy"], legacy.get_state(), strict=True):
        assert same(a, b) or a == b
    again = random.Random()
    again.setstate(found["python"])
    assert [again.gauss(0, 1) for _ in range(5)] == [rng.gauss(0, 1) for _ in range(5)]
    for state in (found["legacy"], found["bits"]):
        other = np.random.RandomState()
        other.set_state(state)
        np.testing.assert_array_equal(other.random(5), np.random.RandomState(5).random(5))


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 9, (1 << 20) - 8, (1 << 20) - 7, 3_000_001])
def test_opaque_bytes_come_back(path: Path, size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    assert back(path, {"a": data, "b": [data[:7], b""]}) == {"a": data, "b": [data[:7], b""]}


def test_what_torch_saves_comes_back(path: Path, torch: Any) -> None:
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    found = back(path, {"agent": buffer.getvalue(), "rng": torch.get_rng_state().numpy()})
    expected = torch.rand(5)
    torch.set_rng_state(torch.from_numpy(found["rng"]))
    assert torch.equal(torch.rand(5), expected)
    loaded = torch.load(io.BytesIO(found["agent"]), weights_only=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded["model"][name], tensor)
    assert loaded["optimizer"]["state"].keys() == optimizer.state_dict()["state"].keys()
