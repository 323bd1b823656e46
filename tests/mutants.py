"""What our parsers are fed: good bytes and values, changed in ways that depend on a seed alone."""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import shutil
import struct
import zlib
from collections import Counter
from pathlib import Path
from time import monotonic

import numpy as np
import strangers
from everything import everything

import archive
from archive import payload
from archive.block import Block
from archive.bounds import check_record
from archive.chunk import SIZE, Trailer, decode, encode
from archive.codec import CODECS
from archive.header import SIGNATURE, Header
from archive.record import Record
from archive.snapshot import entries

MOST_MEMORY = 4 << 30  # bytes of addresses
EDGES = [0, 1, 2, 7, 8, 127, 128, 255, 256, 1023, 1024, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63]
EDGES += [2**64 - 1]
ODD = [None, True, False, 0, -1, 1, 2**31, 2**40, 2**70, -(2**63), 0.5, 1e300, float("inf"), float("nan"), "", "x"]
ODD += [
    "\x00",
    "../x",
    "ä" * 300,
    "|O8",
    "<f8",
    "9" * 5000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"dict": {}},
    ["<f8", [2]],
]


def mutated(data, choice):
    """Return bytes with one to four changes: bits, bytes, numbers, pieces gone, doubled, moved."""
    data = bytearray(data)
    for _ in range(choice.randint(1, 4)):
        at, size = choice.randrange(len(data) + 1), choice.randint(1, 64)
        kind = choice.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << choice.randrange(8)
        elif kind == 1:
            data[at : at + 1] = bytes([choice.choice([0, 1, 127, 128, 255, choice.randrange(256)])])
        elif kind in (2, 3):
            form = choice.choice("HIQ")
            number = struct.pack(f"<{form}", choice.choice(EDGES) % (1 << 8 * struct.calcsize(form)))
            data[at : at + len(number)] = number
        elif kind == 4:
            del data[at : at + size]
        elif kind == 5:
            data[at:at] = data[at : at + size]
        elif kind == 6:
            data[at : at + size] = choice.randbytes(min(size, len(data) - at))
        else:
            other = choice.randrange(len(data) + 1)
            data[at : at + size] = data[other : other + size]
    return bytes(data)


def reshaped(values, choice):
    """Return JSON-like values of which one to three places, anywhere inside, hold something else."""
    values = copy.deepcopy(values)
    for _ in range(choice.randint(1, 3)):
        holder, key = pick(values, choice)
        if holder is None:
            continue
        other, place = pick(values, choice)
        kind = choice.randrange(4)
        if kind == 0:
            del holder[key]
        elif kind == 1 and other is not None:
            holder[key] = copy.deepcopy(other[place])
        elif kind == 2 and isinstance(holder, dict):
            holder[choice.choice(["", "x", "dict", "bytes", "../x", "shape", "\x1b", "reward"])] = holder[key]
        else:
            holder[key] = copy.deepcopy(choice.choice(ODD))
    return values


def pick(values, choice):
    """Return a list or dict somewhere inside, and one of its keys; (None, None) where all are empty."""
    found, left = [], [values]
    while left:
        value = left.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        found += [(value, key) for key in keys]
        left += [value[key] for key in keys]
    return choice.choice(found) if found else (None, None)


def checked(body):
    """Return bytes with the crc32 that belongs behind them."""
    return body + struct.pack("<I", zlib.crc32(body))


# --- the parsers: each is made from a folder with good files, and called with a source of chance


class Chunks:
    """Chunks of each codec, their trailers and checksums made right again half of the time."""

    def __init__(self, folder, codec):
        self.codec, rng = CODECS[codec], np.random.default_rng(0)
        self.rows = rng.integers(0, 5, 3000, "u1")
        self.trailer = Trailer(bytes(8), 1, 2, 3, 4, 0)
        self.good = encode(self.rows, 4, self.codec, self.trailer)

    def __call__(self, choice):
        data = mutated(self.good, choice)
        if choice.random() < 0.7:
            stream = mutated(self.good[: -SIZE - 4], choice)
            packed = CODECS["gzip"].__class__("", 0, "", lambda raw, after: stream, None)
            data = encode(self.rows, 1, packed, self.trailer)
        assert len(decode(data, 3000, self.codec, self.trailer.identity)) == 3000
        return "value"


class Trailers:
    """Trailers."""

    def __init__(self, folder):
        self.good = Trailer(bytes(8), 1, 2, 3, 4, 0).pack(b"stream", 9)

    def __call__(self, choice):
        found = Trailer.parse(mutated(self.good, choice)[:SIZE].ljust(SIZE, b"\0"))
        return "none" if found is None else "value"


class Records:
    """Records with a right checksum: what is taken for one is written as the same bytes, or is refused."""

    def __init__(self, folder):
        path = folder / "gzip.h5"
        self.header, self.good = strangers.header_of(path), strangers.record_of(path).pack()

    def __call__(self, choice):
        size = len(self.good) - 4
        body = mutated(self.good[:-4], choice)[:size].ljust(size, b"\0")
        data = checked(self.good[:8] + body[8:])
        found = Record.parse(data)
        if (
            found is None
            or len(found.rows) != self.header.schema.envs
            or len(found.tail_offset) != len(self.header.fields)
        ):
            return "none"
        check_record(found, self.header, "file")
        assert found.pack()[:40] == data[:40]
        return "value"


class Blocks:
    """Schema blocks of mutated JSON with a right checksum, in a file of their own."""

    def __init__(self, folder):
        self.values = Block.find((folder / "gzip.h5").read_bytes(), Block.SCHEMA).values
        self.path = folder / "block.h5"

    def __call__(self, choice):
        if choice.random() < 0.5:
            text = json.dumps(reshaped(self.values, choice)).encode()
        else:
            text = mutated(json.dumps(self.values).encode(), choice)
        self.path.write_bytes(SIGNATURE + checked(Block.HEAD.pack(Block.MAGIC, Block.SCHEMA, len(text)) + text))
        with open(self.path, "rb") as file:
            Header.read(file.fileno(), "file")
        return "value"


class Journals:
    """Journals."""

    def __init__(self, folder):
        self.good = b"".join(struct.pack("<QI", k << 9, 512) + bytes([k]) * 512 for k in range(1, 5))

    def __call__(self, choice):
        found = entries(mutated(self.good, choice), 5 << 9)
        assert all(0 <= at <= (5 << 9) - len(data) for at, data in found or ())
        return "none" if found is None else "value"


class Payloads:
    """Checkpoints: bytes, or a manifest whose nodes were changed."""

    def __init__(self, folder):
        kinds = ("PCG64", "MT19937", "Philox", "SFC64")
        rngs = {k: np.random.Generator(getattr(np.random, k)(1)) for k in kinds} | {"old": np.random.RandomState(1)}
        values = {"a": [1, (2.5, None)], "b": b"bytes", "c": np.arange(6.0).reshape(2, 3), "d": 1j, "e": np.int8(3)}
        self.good = payload.pack({**values, **rngs, "f": {"g": {"h": "text"}}, "i": np.array(["x"])})
        self.length = payload.HEAD.unpack_from(self.good)[1]

    def __call__(self, choice):
        data = mutated(self.good, choice)
        if choice.random() < 0.7:
            manifest, buffers = self.good[8 : 8 + self.length], self.good[8 + self.length :]
            text = json.dumps(reshaped(json.loads(manifest), choice)).encode()
            data = payload.HEAD.pack(payload.MAGIC, len(text)) + text + buffers
        for value in payload.unpack(data).values():
            if isinstance(value, np.random.Generator | np.random.RandomState):
                value.random(3) if hasattr(value, "random") else value.random_sample(3)
        return "value"


class States:
    """States of a replay whose values were changed: batches, or a refusal."""

    def __init__(self, folder):
        self.run = archive.open(folder / "gzip.h5", memory="64 MiB")
        self.states = []
        for sampler in (
            archive.Uniform(),
            archive.Prioritized(beta=archive.Linear(0.4, 1.0, steps=9)),
            archive.Epoch(),
        ):
            replay = self.run.replay(batch_size=4, sampler=sampler, prefetch=2)
            replay.sample()
            self.states.append(replay.state_dict())

    def __call__(self, choice):
        state = reshaped(choice.choice(self.states), choice)
        try:
            with np.errstate(all="ignore"):
                self.run.replay(state=state, batch_size=4).sample()
        except MemoryError:
            return "too large"  # options may ask for large batches
        return "value"


class Files:
    """Whole files with changed bytes in what is no payload."""

    def __init__(self, folder):
        self.path = folder / "mutant.h5"
        self.good = (folder / "small.h5").read_bytes()
        used = np.frombuffer(self.good[: len(self.good) // 512 * 512], np.uint8).reshape(-1, 512).any(1)
        self.blocks = np.flatnonzero(used).tolist()

    def __call__(self, choice):
        data = bytearray(self.good)
        for _ in range(choice.randint(1, 5)):
            at = choice.choice(self.blocks) * 512
            data[at : at + 512] = mutated(data[at : at + 512], choice)[:512].ljust(512, b"\0")
        return self.read(data)

    def read(self, data):
        """Read everything of a file with these bytes."""
        self.path.write_bytes(data)
        found = everything(self.path)
        assert not [how for how in found.values() if how.startswith("raised")], found
        return "refused" if found["open"] else "value"


class Objects(Files):
    """Whole files in which an object header of HDF5 was changed, its checksum made right again."""

    def __init__(self, folder):
        super().__init__(folder)
        self.headers = []
        at = self.good.find(b"OHDR\x02")
        while at >= 0:
            flags = self.good[at + 5]
            start = at + 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
            width = 1 << (flags & 3)
            stop = start + width + int.from_bytes(self.good[start : start + width], "little")
            assert struct.unpack_from("<I", self.good, stop)[0] == strangers.lookup3(self.good[at:stop])
            self.headers.append((at, start + width, stop))
            at = self.good.find(b"OHDR\x02", at + 1)

    def __call__(self, choice):
        data = bytearray(self.good)
        at, start, stop = choice.choice(self.headers)
        body = mutated(data[start:stop], choice)[: stop - start].ljust(stop - start, b"\0")
        data[start:stop] = body
        data[stop : stop + 4] = struct.pack("<I", strangers.lookup3(bytes(data[at:stop])))
        return self.read(data)


PARSERS = {f"chunks of {codec}": lambda folder, codec=codec: Chunks(folder, codec) for codec in CODECS} | {
    "trailers": Trailers,
    "records": Records,
    "blocks": Blocks,
    "journals": Journals,
    "checkpoints": Payloads,
    "states": States,
    "files": Files,
    "objects of HDF5": Objects,
}


def feed(name, folder, first, seconds, progress):
    """Feed a parser for a time, from seed `first` on; return how often it did what, and what went wrong."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    private = Path(folder) / str(os.getpid())
    private.mkdir(exist_ok=True)
    for good in ("gzip.h5", "small.h5"):
        shutil.copy(Path(folder) / good, private / good)
    parser, outcomes, wrong, seed, end = PARSERS[name](private), Counter(), [], first, monotonic() + seconds
    with open(progress, "r+b", buffering=0) as noted:
        while monotonic() < end:
            os.pwrite(noted.fileno(), struct.pack("<Q", seed), 0)
            try:
                outcomes[parser(random.Random(f"{name} {seed}"))] += 1
            except archive.ArchiveError:
                outcomes["refused"] += 1
            except Exception as error:
                wrong.append(f"{name}, seed {seed}: {type(error).__name__}: {str(error)[:1500]}")
            seed += 1
    return outcomes, wrong, seed
