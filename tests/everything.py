"""Read everything that can be read of a file, piece by piece, so that a damaged one is compared with what it was."""

from __future__ import annotations

import hashlib
import json
import traceback

import numpy as np

import archive
from archive.info import summary

MEMORY = "64 MiB"
REFUSED = "refused: "


def everything(path):
    """Return by name the digest of each thing that can be read, or why it is refused, or what else went wrong."""
    found = {}
    run = piece(found, "open", lambda: archive.open(path, memory=MEMORY))
    if run is not None:
        with run:
            for name, read in pieces(run).items():
                value = piece(found, name, read)
                if found[name] == "":
                    found[name] = digest(value)
    return found


def piece(found, name, read):
    """Call `read` and return what it gives; note under `name` how it went: empty if well."""
    try:
        value = read()
        found[name] = ""
        return value
    except archive.ArchiveError as error:
        found[name] = REFUSED + str(error)
    except Exception:
        found[name] = "raised " + traceback.format_exc()
    return None


def pieces(run):
    """Return what reads each piece of a run."""
    parts = {
        "schema": lambda: json.dumps(run.schema.to_json()),
        "metadata": lambda: dict(run.metadata),
        "lengths": lambda: run.lengths,
        "counts": lambda: [run.num_rows, run.num_steps, run.num_episodes, run.num_envs],
        "columns": lambda: dict(run.episodes),
        "checkpoint": lambda: kept(run.last_checkpoint),
        "stats": run.stats,
        "info": lambda: summary(run) | {"file": "", "bytes": 0},
    }
    parts |= {f"field {name}": lambda name=name: run[name][:] for name in run.schema.steps}
    parts |= {f"episode {k}": lambda k=k: run.episode(k) for k in range(min(run.num_episodes, 10))}
    samplers = {"uniform": archive.Uniform, "prioritized": archive.Prioritized, "epoch": archive.Epoch}
    parts |= {k: lambda kind=kind: drawn(run.replay(sampler=kind(), n_step=2)) for k, kind in samplers.items()}
    parts["sequences"] = lambda: drawn(run.replay(sequence_length=3, pad="right"))
    parts["resumed"] = lambda: resumed(run)
    return parts


def drawn(replay):
    """Return two batches, None where there is too little to draw from."""
    try:
        return [replay.sample(4).asdict() for _ in range(2)]
    except archive.NotEnoughData:
        return None


def kept(checkpoint):
    """Return what a checkpoint holds."""
    return checkpoint and [checkpoint.id, dict(checkpoint), dict(checkpoint.position)]


def resumed(run):
    """Return batches of the replay that the checkpoint holds."""
    last = run.last_checkpoint
    return last and "replay" in last and [last.id, drawn(run.replay(state=last["replay"]))]


def digest(value):
    """Return a digest of values nested in one another, arrays by their bytes."""
    return hashlib.blake2b(b"".join(flat(value)), digest_size=8).hexdigest()


def flat(value):
    """Yield the bytes that tell a value from every other."""
    if isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}".encode()
        yield repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield f"{name}:".encode()
            yield from flat(inner)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__}{len(value)}".encode()
        for inner in value:
            yield from flat(inner)
    elif isinstance(value, np.random.Generator):
        yield from flat(value.bit_generator.state)
    else:
        yield f"{type(value).__name__}{value!r}".encode("utf-8", "surrogatepass")
