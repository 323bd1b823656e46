"""Files such as a stranger may send: each is a good one of ours, changed by h5py or byte by byte.

Checksums of ours are made right again, so that what is refused is what the bytes say.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import replace

import h5py
import numpy as np

import archive
from archive import payload
from archive.block import Block
from archive.chunk import encode
from archive.codec import CODECS, Codec
from archive.header import SIGNATURE, Header
from archive.snapshot import read_record

SCHEMA = {
    "observation/place": archive.Field("<f4", (3,)),
    "observation/pixels": archive.Field("|u1", (6, 6)),
    "action": archive.Field("<i8"),
    "word": archive.Text(16),
}


def record_good(path, envs=None, compression="gzip", checkpoints=True):
    """Record a good run: some episodes, a checkpoint with a replay's state."""
    kind = archive.Schema(SCHEMA, envs, "NextStep" if envs else None, episodes={"task": archive.Text(8)})
    lead, rng = (() if envs is None else (envs,)), np.random.default_rng(0)
    with archive.create(path, kind, compression=compression, commit_every=None, metadata={"by": "us"}) as run:
        run.reset(observation(rng, lead), seed=7, task="walk")
        for step in range(1500):
            ended = np.full(lead, step % 50 == 49) if lead else step % 50 == 49
            run.step(
                np.full(lead, step), observation(rng, lead), np.full(lead, 0.5), ended, ended & False, word=words(lead)
            )
            if step % 50 == 49 and not lead:
                run.reset(observation(rng, lead), task="run")
        if checkpoints:
            replay = run.replay(batch_size=4)
            replay.sample()
            for step in (1, 2):
                run.checkpoint(step=step, replay=replay.state_dict(), rng=np.random.default_rng(step))


def observation(rng, lead):
    return {"place": rng.normal(size=(*lead, 3)).astype("f4"), "pixels": rng.integers(0, 9, (*lead, 6, 6), "u1")}


def words(lead):
    return np.full(lead, b"word") if lead else "word"


# --- surgery


def header_of(path):
    with open(path, "rb") as file:
        return Header.read(file.fileno(), str(path))


def record_of(path):
    with open(path, "rb") as file:
        return read_record(file.fileno(), Header.read(file.fileno(), str(path)), str(path))[0]


def write(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def record(path, **claims):
    """Have the newest record claim something else, in both copies, with a journal that has been applied."""
    header, old = header_of(path), record_of(path)
    new = replace(old, **{k: v(getattr(old, k)) if callable(v) else v for k, v in claims.items()})
    for offset in header.region.copies(old.sequence):
        write(path, offset, new.pack())
    write(path, header.region.mark_offset, header.region.mark(new.sequence))


def edit(path, change):
    """Change the HDF5 file by h5py; it ends where HDF5 says then."""
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        change(file)
    record(path, end=os.path.getsize(path))


def schema(path, change):
    """Have the schema block say something else: the old one goes, the new one stands behind everything."""
    data = path.read_bytes()
    at = data.find(Block.MAGIC)
    values = json.loads(json.dumps(Block.parse(data, at).values))
    values = change(values) or values
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    body = Block.HEAD.pack(Block.MAGIC, Block.SCHEMA, len(text)) + text
    write(path, at, b"none")
    write(path, len(data), body + struct.pack("<I", zlib.crc32(body)))


def field(name, **values):
    """Return a change of a schema block: a field is described otherwise."""
    return lambda block: block["schema"]["steps"][name].update(values)


def checkpoint(path, data):
    """Put the payload `data` into the slot of the newest checkpoint, and forget the other."""
    slot = max(record_of(path).slots, key=lambda s: s.id)
    write(path, slot.offset + 8 * slot.chunks, data)
    slot = replace(slot, length=len(data), check=zlib.crc32(data))
    record(path, slots=(slot,))


def manifest(node, buffers=b""):
    """Return the payload of a checkpoint that holds the value of a node."""
    zeros = {"array": ["<i8", [1]]}
    run = dict.fromkeys(("rows", "states", "length", "return", "final"), zeros) | {"episodes": 1, "run_id": ""}
    text = node if isinstance(node, bytes) else json.dumps({"dict": {"run": {"dict": run}, "values": node}}).encode()
    return payload.HEAD.pack(payload.MAGIC, len(text)) + text + bytes(40) + buffers


def state(kind, **values):
    """Return the node of a generator with another state."""
    have = getattr(np.random, kind)(1).state
    inner = {k: v for k, v in have["state"].items() if not isinstance(v, np.ndarray)}
    arrays = [(k, v) for k, v in have["state"].items() if isinstance(v, np.ndarray)]
    nodes = {k: {"array": [v.dtype.str, list(v.shape)]} for k, v in arrays}
    node = {"bit_generator": kind, "state": {"dict": nodes | inner | {k: v for k, v in values.items() if k == "pos"}}}
    data = [v.tobytes() for _, v in arrays]
    if kind == "Philox":
        node |= {"buffer": {"array": ["<u8", [4]]}, "has_uint32": 0, "uinteger": 0} | values
        data.append(bytes(32))
    return {"dict": {"rng": {"generator": {"dict": node}}}}, b"".join(data)


def chunk(path, name, stream):
    """Make `stream` the first chunk of a field, with the trailer and the checksum that belong to it."""
    header = header_of(path)
    number, rows = header.fields.index(name), header.rows[name]
    raw = np.zeros(rows * header.row_bytes(name), np.uint8)
    data = encode(raw, 1, Codec("", 0, "", lambda raw, after: stream, None), header.trailer(number, 0, 0, rows, 1))
    edit(path, lambda file: file[f"steps/{name}"].id.write_direct_chunk((0,) * file[f"steps/{name}"].ndim, data))


def instead(file, name, **options):
    """Put another dataset in the place of one; by default it is like it."""
    old = file[name]
    like = {"shape": old.shape, "dtype": old.dtype, "chunks": old.chunks, "maxshape": old.maxshape}
    like |= {"shuffle": old.shuffle, "fletcher32": old.fletcher32, "compression": old.compression}
    like |= {"compression_opts": old.compression_opts}
    del file[name]
    return file.create_dataset(name, **{k: v for k, v in (like | options).items() if v is not None})


def virtual(file, name, other, limited=True):
    """Put a virtual dataset into another file in the place of a dataset."""
    shape, dtype = file[name].shape, file[name].dtype
    most = shape if limited else (None, *shape[1:])
    layout = h5py.VirtualLayout(shape, dtype, maxshape=most)
    if limited:
        layout[:] = h5py.VirtualSource(other, "secret", shape, dtype)
    else:
        source = h5py.VirtualSource(other, "secret", shape, dtype, maxshape=most)
        layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    del file[name]
    file.create_virtual_dataset(name, layout)


def external(file, name, other):
    """Let the values of a dataset lie in another file."""
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    file.create_dataset(name, shape, dtype, external=[(other, 0, h5py.h5f.UNLIMITED)])


def linked(file, name, link):
    """Put a link in the place of an object."""
    if name in file:
        del file[name]
    file[name] = link


def filtered(file, name, number):
    """Put a dataset with a filter that there is not in the place of one."""
    shape, chunks = file[name].shape, file[name].chunks
    kind, stored = file[name].id.get_type(), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    stored.set_chunk(chunks)
    stored.set_filter(number, h5py.h5z.FLAG_OPTIONAL, ())
    stored.set_fletcher32()
    del file[name]
    space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED, *shape[1:]))
    h5py.h5d.create(file.id, name.encode(), kind, space, stored)


def column(name, at, value):
    """Return a change of the table of episodes."""

    def change(file):
        values = file[f"episodes/{name}"][:]
        values[at] = value
        file[f"episodes/{name}"][:] = values

    return change


def text(values):
    """Return a change of the metadata: JSON as bytes."""

    def change(file):
        del file["meta/metadata_json"]
        kind = h5py.string_dtype("utf-8", len(values))
        file.create_dataset("meta/metadata_json", data=[values], dtype=kind, chunks=(1,), fletcher32=True)

    return change


def lookup3(data):
    """Return Jenkins' checksum, as HDF5 has it over its metadata."""
    mask = 0xFFFFFFFF
    a = b = c = (0xDEADBEEF + len(data)) & mask
    turn = lambda x, k: ((x << k) | (x >> (32 - k))) & mask  # noqa: E731
    blocks = [data[k : k + 12].ljust(12, b"\0") for k in range(0, len(data), 12)]
    for number, block in enumerate(blocks):
        a, b, c = ((x + y) & mask for x, y in zip((a, b, c), struct.unpack("<III", block), strict=True))
        if number < len(blocks) - 1:
            for k, (x, y, z) in zip((4, 6, 8, 16, 19, 4), ("acb", "bac", "cba") * 2, strict=True):
                value = {"a": a, "b": b, "c": c}
                value[x] = ((value[x] - value[y]) & mask) ^ turn(value[y], k)
                value[y] = (value[y] + value[z]) & mask
                a, b, c = value["a"], value["b"], value["c"]
    for k, (x, y) in zip((14, 11, 25, 16, 4, 14, 24), ("cb", "ac", "ba", "cb", "ac", "ba", "cb"), strict=True):
        value = {"a": a, "b": b, "c": c}
        value[x] = ((value[x] ^ value[y]) - turn(value[y], k)) & mask
        a, b, c = value["a"], value["b"], value["c"]
    return c


def cut(path, keep):
    """Cut a file, and have HDF5 and the record believe that it ends there."""
    data = path.read_bytes()
    end = int(len(data) * keep)
    superblock = bytearray(data[:44])
    superblock[28:36] = struct.pack("<Q", end)
    path.write_bytes(bytes(superblock) + struct.pack("<I", lookup3(bytes(superblock))) + data[48:end])
    record(path, end=end)


def alone(path, block):
    """Leave nothing but a signature and this."""
    path.write_bytes(SIGNATURE + block)


def block(text):
    body = Block.HEAD.pack(Block.MAGIC, Block.SCHEMA, len(text)) + text
    return body + struct.pack("<I", zlib.crc32(body))


def fields(count):
    """Return a change of a schema block: so many more fields."""

    def change(values):
        for k in range(count):
            values["schema"]["steps"][f"x{k}"] = {"dtype": "|u1", "shape": []}
            values["rows"][f"x{k}"] = 1

    return change


# --- what a stranger sends: how the file is made, and what must be said; None: it is harmless and reads as before

PLAIN = {"shuffle": None, "fletcher32": None, "compression": None, "compression_opts": None}
E, LINK = "elsewhere", "only hard links are followed"
HUGE = 1 << 62


def deep(levels):
    return b'{"a":' * levels + b"1" + b"}" * levels


def at(values, where, what):
    values = np.array(values, np.int64)
    values[where] = what
    return values


LINKED = """steps steps/action steps/observation episodes episodes/env meta meta/options_json meta/rewind_block_0
tail tail/observation checkpoints checkpoints/slot7 views preview"""
LEADING_OUT = {
    "virtual rows": (lambda p, o: edit(p, lambda f: virtual(f, "steps/reward", o)), E),
    "virtual rows without end": (lambda p, o: edit(p, lambda f: virtual(f, "steps/reward", o, False)), E),
    "virtual frames": (lambda p, o: edit(p, lambda f: virtual(f, "steps/observation/pixels", o)), E),
    "virtual episodes": (lambda p, o: edit(p, lambda f: virtual(f, "episodes/return", o)), E),
    "virtual text": (lambda p, o: edit(p, lambda f: virtual(f, "meta/metadata_json", o)), E),
    "rows outside": (lambda p, o: edit(p, lambda f: external(f, "steps/reward", o)), E),
    "episodes outside": (lambda p, o: edit(p, lambda f: external(f, "episodes/length", o)), E),
    "text outside": (lambda p, o: edit(p, lambda f: external(f, "meta/metadata_json", o)), E),
    "checkpoint outside": (lambda p, o: edit(p, lambda f: external(f, "checkpoints/slot0", o)), E),
} | {
    f"{kind} link for {name}": (
        lambda p, o, name=name, kind=kind: edit(
            p,
            lambda f: linked(f, name, h5py.SoftLink("/steps") if kind == "soft" else h5py.ExternalLink(o, "/secret")),
        ),
        LINK,
    )
    for name in LINKED.split()
    for kind in ("soft", "external")
    if (kind, name) != ("soft", "steps")
}
OBJECTS = {
    "field that is its own group": (lambda p, o: edit(p, lambda f: linked(f, "steps/action", f["steps"])), "dataset"),
    "groups in a circle": (lambda p, o: edit(p, lambda f: linked(f, "steps/loop", f["/"])), None),
    "field that is missing": (lambda p, o: edit(p, lambda f: f.__delitem__("steps/reward")), "found none"),
    "huge chunk": (lambda p, o: edit(p, lambda f: instead(f, "steps/reward", chunks=((1 << 30) - 8,))), "expected"),
    "unknown filter": (lambda p, o: edit(p, lambda f: filtered(f, "steps/reward", 40_000)), "40000"),
    "unknown filter of episodes": (lambda p, o: edit(p, lambda f: filtered(f, "episodes/return", 40_000)), "40000"),
    "other filter": (
        lambda p, o: edit(p, lambda f: instead(f, "steps/reward", compression="lzf", compression_opts=None)),
        "expected",
    ),
    "no filter": (
        lambda p, o: edit(p, lambda f: instead(f, "steps/reward", fletcher32=False)),
        "expected",
    ),
    "compressed episodes": (
        lambda p, o: edit(p, lambda f: instead(f, "episodes/return", compression="gzip")),
        "filters",
    ),
    "compressed text": (
        lambda p, o: edit(
            p,
            lambda f: instead(
                f, "meta/metadata_json", data=[b" " * (10 << 20)], dtype=f"S{10 << 20}", compression="gzip"
            ),
        ),
        "filters",
    ),
    "compressed picture that is huge": (
        lambda p, o: edit(
            p, lambda f: f.create_dataset("preview/contact_sheet2", (1 << 16, 1 << 16, 3), "u1", compression="gzip")
        ),
        None,
    ),
    "other dtype": (lambda p, o: edit(p, lambda f: instead(f, "steps/reward", dtype="f8")), "expected float32"),
    "other byte order": (lambda p, o: edit(p, lambda f: instead(f, "steps/action", dtype=">i8")), "expected int64"),
    "numbers for flags": (lambda p, o: edit(p, lambda f: instead(f, "steps/terminated", dtype="i1")), "expected bool"),
    "other shape": (
        lambda p, o: edit(
            p, lambda f: instead(f, "steps/observation/place", shape=(9, 4), maxshape=(None, 4), chunks=(1024, 4))
        ),
        "expected",
    ),
    "shape that grows": (
        lambda p, o: edit(p, lambda f: instead(f, "steps/observation/place", maxshape=(None, None))),
        "expected",
    ),
    "one value": (lambda p, o: edit(p, lambda f: linked(f, "steps/reward", np.float32(1))), "expected"),
    "no value": (lambda p, o: edit(p, lambda f: linked(f, "steps/reward", h5py.Empty("f4"))), "expected"),
    "texts of any length": (
        lambda p, o: edit(p, lambda f: instead(f, "steps/word", dtype=h5py.string_dtype(), **PLAIN)),
        "expected",
    ),
    "references": (
        lambda p, o: edit(p, lambda f: instead(f, "steps/action", dtype=h5py.ref_dtype, **PLAIN)),
        "expected|steps/action",
    ),
    "metadata of any length": (
        lambda p, o: edit(p, lambda f: linked(f, "meta/metadata_json", np.array(["{}"], h5py.string_dtype()))),
        "expected",
    ),
    "columns of compounds": (
        lambda p, o: edit(p, lambda f: instead(f, "episodes/env", dtype=[("a", "i4")])),
        "expected",
    ),
    "rows that are not there": (lambda p, o: edit(p, lambda f: instead(f, "steps/reward")), "chunks"),
    "episodes that are not there": (lambda p, o: edit(p, lambda f: instead(f, "episodes/env")), "episodes committed"),
    "rows without end": (lambda p, o: edit(p, lambda f: f["steps/reward"].id.set_extent((1 << 50,))), "more chunks"),
    "one chunk far away": (
        lambda p, o: edit(
            p,
            lambda f: [
                f["steps/reward"].id.set_extent((1 << 42,)),
                f["steps/reward"].id.write_direct_chunk(((1 << 42) - 1024,), b"x"),
            ],
        ),
        "more chunks",
    ),
    "large chunk": (
        lambda p, o: edit(p, lambda f: f["steps/reward"].id.write_direct_chunk((0,), bytes(10 << 20))),
        "a chunk of more than",
    ),
    "chunk whose filters were skipped": (
        lambda p, o: edit(p, lambda f: f["steps/reward"].id.write_direct_chunk((0,), bytes(4096), 7)),
        "not filtered",
    ),
    "huge attribute": (
        lambda p, o: edit(p, lambda f: f.attrs.__setitem__("total_steps", np.zeros(1 << 20, "i8"))),
        "attribute 'total_steps'",
    ),
    "huge attribute of somebody else": (
        lambda p, o: edit(p, lambda f: f.attrs.__setitem__("notes", np.zeros(1 << 20, "i8"))),
        None,
    ),
    "text as run id": (
        lambda p, o: edit(p, lambda f: f.attrs.__setitem__("run_id", f.attrs["run_id"].decode())),
        "attribute 'run_id'",
    ),
    "another run id": (
        lambda p, o: edit(p, lambda f: f.attrs.__setitem__("run_id", np.bytes_(b"0123456789abcdef"))),
        "attribute 'run_id'",
    ),
    "rewind block that is huge": (
        lambda p, o: edit(p, lambda f: f.create_dataset("meta/rewind_block_0", (1 << 60,), "u1")),
        "rewind_block_0",
    ),
    "rewind block of nonsense": (
        lambda p, o: edit(
            p,
            lambda f: linked(
                f,
                "meta/rewind_block_0",
                np.frombuffer(Block(2, {"first": -1, "last": [], "rows": {}, "back_to": ""}).pack(), "u1"),
            ),
        ),
        "rewind",
    ),
    "chunks behind the end": (lambda p, o: cut(p, 0.6), "inside the file|truncated|damaged|unable|Unable"),
}
RECORDS = {
    f"{name} {group}{'abc'[k]}": (lambda p, o, name=name, value=value: record(p, **{name: value}), message)
    for group, (name, values, message) in enumerate(
        (
            ("rows", (lambda v: v - v - 1, lambda v: at(v, 0, HUGE), lambda v: at(v, 0, -HUGE)), "rows that cannot be"),
            ("rows", (lambda v: v + 2000, lambda v: at(v, 0, 1 << 32)), "rows committed"),
            ("states", (lambda v: v + 7, lambda v: v + 250), "states that cannot be"),
            ("episodes", (HUGE, 100_000), "episodes that cannot be"),
            ("episodes", (40, 1000), "episodes"),
            ("tail_offset", (lambda v: v - HUGE, lambda v: v - v - 5, lambda v: v - v + HUGE), "tails that cannot be"),
            ("tail_slot", (lambda v: v - v + 2, lambda v: v - v + 255), "tail slots that cannot be"),
            ("end", ((1 << 64) - 1, 1 << 63), "places that cannot be"),
            ("end", (1 << 40,), "truncated"),
            ("end", (1000,), "tails|outside|inside|unable|Unable"),
            ("sequence", ((1 << 64) - 2,), "sequence"),
            ("epoch", ((1 << 32) - 1,), "sequence"),
            ("in_fields", (False,), None),
        )
    )
    for k, value in enumerate(values)
} | {
    f"checkpoint {name} {k}": (
        lambda p, o, name=name, value=value: record(p, slots=lambda v: tuple(replace(s, **{name: value}) for s in v)),
        "checkpoint",
    )
    for name in ("offset", "chunks", "length", "id", "check")
    for k, value in enumerate(((1 << 32) - 1,) if name in ("chunks", "check") else ((1 << 64) - 1, HUGE, 1 << 33))
    if (name, value) not in (("id", HUGE), ("id", 1 << 33))
}
EPISODES = {
    "negative environment": (lambda p, o: edit(p, column("env", 3, -1)), "environment that there is not"),
    "another environment": (lambda p, o: edit(p, column("env", 3, 9)), "environment that there is not"),
    "negative start": (lambda p, o: edit(p, column("start", 0, -1)), "cannot be"),
    "huge start": (lambda p, o: edit(p, column("start", -1, HUGE)), "cannot be"),
    "start behind the rows": (lambda p, o: edit(p, column("start", -1, 5000)), "beyond"),
    "negative length": (lambda p, o: edit(p, column("length", 2, -5)), "cannot be"),
    "length that overflows": (lambda p, o: edit(p, column("length", 2, (1 << 63) - 1)), "cannot be"),
    "long length": (lambda p, o: edit(p, column("length", -1, 4000)), "beyond"),
    "episodes on one another": (lambda p, o: edit(p, column("length", 2, 60)), "on one another"),
    "episodes in another order": (lambda p, o: edit(p, column("start", 1, 0)), "on one another"),
    "flags of two": (lambda p, o: edit(p, column("terminated", 1, np.array(2, "u1").view("?"))), "expected flags"),
}
TEXTS = {
    "deep metadata": (lambda p, o: edit(p, text(deep(50_000))), "nested"),
    "metadata nested a bit too deep": (lambda p, o: edit(p, text(deep(150))), "nested"),
    "long metadata": (lambda p, o: edit(p, text(b'{"a":"' + b"x" * (5 << 20) + b'"}')), "at most"),
    "many lists": (lambda p, o: edit(p, text(b'{"a":[' + b"[]," * 200_000 + b"1]}")), None),
    "metadata that is a list": (lambda p, o: edit(p, text(b"[1]")), "expected an object"),
    "metadata that is no JSON": (lambda p, o: edit(p, text(b"{'a': 1}")), "metadata|property name"),
    "metadata that is no UTF-8": (lambda p, o: edit(p, text(b'{"a": "\xff"}')), "utf-8|codec"),
    "number of many digits": (lambda p, o: edit(p, text(b'{"a": ' + b"9" * 100_000 + b"}")), "digits"),
    "metadata that is not there": (
        lambda p, o: edit(p, lambda f: instead(f, "meta/metadata_json", dtype=f"S{4 << 20}")),
        "not there",
    ),
    "deep schema": (lambda p, o: alone(p, block(b"[" * 500_000)), "nested"),
    "schema of many lists": (lambda p, o: alone(p, block(b"[" + b"[]," * 300_000 + b"1]")), "expected an object"),
    "schema that is a number": (lambda p, o: alone(p, block(b"1")), "expected an object"),
    "blocks without end": (lambda p, o: alone(p, struct.pack("<4sII", b"RLAB", 1, 1 << 19) * 40_000), "not a run"),
}
SCHEMAS = {
    name: (lambda p, o, change=change: schema(p, change), message)
    for name, change, message in (
        ("many fields", fields(10_000), "fields"),
        ("no fields", lambda v: v["schema"].update(steps={}), "observation"),
        ("fields in a list", lambda v: v["schema"].update(steps=[]), "no sense"),
        ("shape that overflows", field("action", shape=[1 << 31] * 3), "smaller than 4 GiB"),
        ("shape of nothing that is huge", field("action", shape=[0, 1 << 62]), "smaller than 4 GiB"),
        ("shape of many axes", field("action", shape=[1] * 10_000), "axes"),
        ("shape of floats", field("action", shape=[1.5]), "shape"),
        ("shape of true", field("action", shape=[True, 1e300]), "shape"),
        ("objects", field("action", dtype="|O8"), "cannot be stored"),
        ("structures", field("action", dtype="i4,i4"), "cannot be stored"),
        ("long dtype", field("action", dtype="i4," * 50_000), "short form"),
        ("dtype of a list", field("action", dtype=[["a", "i4"]]), "short form"),
        ("text of any length", field("word", dtype="|S2000000"), "cannot be stored"),
        ("another dtype", field("action", dtype="<f8"), "expected float64"),
        ("another shape", field("action", shape=[2]), "expected"),
        ("a large row", field("action", shape=[1 << 28]), "rows of|needs at least"),
        ("stack without end", field("observation/pixels", stacked=1 << 40), "stacked"),
        ("unknown codec", field("action", compression="lzf"), "lzf"),
        ("unknown codec of all", lambda v: v.update(compression="lzf"), "lzf"),
        ("another codec of all", lambda v: v.update(compression="zstd"), "filters"),
        ("description of numbers", field("action", description=5), "description"),
        ("unknown option", field("action", colour=5), "colour"),
        ("environments without end", lambda v: v["schema"].update(num_envs=1 << 40), "num_envs"),
        ("many environments", lambda v: v["schema"].update(num_envs=1 << 16), "records of|needs at least"),
        ("three environments", lambda v: v["schema"].update(num_envs=3), "does not fit"),
        ("rows of nothing", lambda v: v["rows"].update(action=0), "rows"),
        ("negative rows", lambda v: v["rows"].update(action=-1), "rows"),
        ("rows of a huge chunk", lambda v: v["rows"].update(action=1 << 29), "rows"),
        ("rows of a larger chunk", lambda v: v["rows"].update(action=2048), "expected"),
        ("rows of text", lambda v: v["rows"].update(action="many"), "rows"),
        ("rows in a list", lambda v: v.update(rows=[1]), "rows"),
        ("long run id", lambda v: v.update(run_id="ab" * 100_000), "run id"),
        ("run id that is none", lambda v: v.update(run_id="../../../../etc/"), "run id"),
        ("run id of a number", lambda v: v.update(run_id=7), "run id"),
        ("other run id", lambda v: v.update(run_id="0123456789abcdef"), "run_id"),
        ("records behind the end", lambda v: v.update(records=["0000ffffffffffff", v["records"][1]]), "no valid"),
        ("records without end", lambda v: v.update(records=["f" * 5000, v["records"][1]]), "records"),
        ("records of a huge size", lambda v: v.update(records=[v["records"][0], 1 << 50]), "records"),
        ("records of one number", lambda v: v.update(records=[1]), "no sense"),
        ("tuples of lists", lambda v: v["schema"].update(tuples=[["action"]]), "tuples"),
        ("name that leads up", lambda v: v["schema"]["steps"].update({"../x": {"dtype": "|u1", "shape": []}}), "name"),
        ("long name", lambda v: v["schema"]["steps"].update({"x" * 100_000: {"dtype": "|u1", "shape": []}}), "name"),
        (
            "name that rings",
            lambda v: v["schema"]["steps"].update({"\x1b[2J\a": {"dtype": "|u1", "shape": []}}),
            "name",
        ),
        ("version of text", lambda v: v.update(format_version="\x1b[2J"), "version"),
        ("column of a shape", lambda v: v["schema"]["episodes"]["task"].update(shape=[9]), "column"),
        ("column that is missing", lambda v: v["schema"]["episodes"].update(x={"dtype": "|u1", "shape": []}), "none"),
    )
}
CHECKPOINTS = {
    name: (lambda p, o, data=data: checkpoint(p, data), "checkpoint")
    for name, data in {
        "empty": b"",
        "no checkpoint": bytes(200),
        "long manifest": payload.HEAD.pack(payload.MAGIC, (1 << 32) - 1) + b"{}",
        "number": manifest(b"7"),
        "number for values": manifest(7),
        "without a place": payload.HEAD.pack(payload.MAGIC, 25) + b'{"dict":{"values":{"dict":{}}}}'[:25],
        "place of text": manifest(b'{"dict":{"run":{"dict":{"rows":"x","episodes":1}},"values":{"dict":{}}}}'),
        "deep": manifest(b'{"dict":{"a":' * 30_000 + b"1" + b"}}" * 30_000),
        "rather deep": manifest(json.loads('{"list":[' * 150 + "1" + "]}" * 150)),
        "unknown node": manifest({"pickle": "x"}),
        "two nodes": manifest({"list": [], "tuple": []}),
        "list of a number": manifest({"list": 5}),
        "dict of a list": manifest({"dict": [1]}),
        "bytes beyond": manifest({"dict": {"a": {"bytes": 1 << 40}}}),
        "negative bytes": manifest({"dict": {"a": {"bytes": -5}}}),
        "bytes of text": manifest({"dict": {"a": {"bytes": "5"}}}),
        "array beyond": manifest({"dict": {"a": {"array": ["<f8", [1 << 40]]}}}),
        "array that overflows": manifest({"dict": {"a": {"array": ["<f8", [1 << 62, 1 << 62]]}}}),
        "negative array": manifest({"dict": {"a": {"array": ["<f8", [-1, -1]]}}}),
        "infinite array": manifest(b'{"dict":{"values":{"dict":{"a":{"array":["<f8",[Infinity]]}}}}}'),
        "empty array that is huge": manifest({"dict": {"a": {"array": ["<f8", [0, 1 << 70]]}}}),
        "array of objects": manifest({"dict": {"a": {"array": ["|O", [1]]}}}, bytes(8)),
        "array of structures": manifest({"dict": {"a": {"array": ["i4,i4", [1]]}}}, bytes(8)),
        "array of nothing": manifest({"dict": {"a": {"array": ["|V0", [1 << 40]]}}}),
        "array of empty text": manifest({"dict": {"a": {"array": ["|S0", [1 << 40]]}}}),
        "complex of text": manifest({"dict": {"a": {"complex": ["x", 1]}}}),
        "unknown generator": manifest({"dict": {"a": {"generator": {"dict": {"bit_generator": "os"}}}}}),
        "generator of a number": manifest({"dict": {"a": {"generator": 5}}}),
        "generator that reads behind its numbers": manifest(*state("MT19937", pos=10**6)),
        "generator that reads before its numbers": manifest(*state("MT19937", pos=-(10**6))),
        "generator that reads behind its buffer": manifest(*state("Philox", buffer_pos=1 << 30)),
        "generator that reads before its buffer": manifest(*state("Philox", buffer_pos=-(1 << 20))),
        "random state of nothing": manifest({"dict": {"a": {"random_state": {"dict": {}}}}}),
    }.items()
}


def bomb(codec):
    """Return a stream that a codec makes 200 MB of, or as much as fits into a chunk."""
    if codec == "zstd":
        import zstandard

        frame = zstandard.ZstdCompressor().compress(bytes(200 << 20))
        return frame + struct.pack("<II", 0x184D2A5E, 48)
    if codec == "lz4":
        import lz4.block

        packed = lz4.block.compress(bytes(1 << 20), store_size=False)
        return struct.pack(">QII", 1 << 40, 1 << 31, len(packed)) + packed
    return zlib.compress(bytes(7 << 20), 9)


BOMBS = {
    f"{codec} that swells": (codec, lambda p, o, codec=codec: chunk(p, "reward", bomb(codec)), "'reward'")
    for codec in ("gzip", "zstd", "lz4", "none")
} | {
    f"{codec} that shrinks": (
        codec,
        lambda p, o, codec=codec: chunk(p, "reward", CODECS[codec].encode(bytes(9), 48)),
        "'reward'",
    )
    for codec in ("gzip", "zstd", "lz4", "none")
}


def sparse(path, other):
    """Claim a journal of gigabytes that are holes."""
    os.truncate(path, 8 << 30)
    header, old = header_of(path), record_of(path)
    new = replace(old, journal_offset=1 << 30, journal_length=6 << 30, journal_check=0)
    for offset in header.region.copies(old.sequence):
        write(path, offset, new.pack())
    write(path, header.region.mark_offset, bytes(16))


JOURNALS = {"journal of holes": (sparse, "journal")}
CASES = LEADING_OUT | OBJECTS | RECORDS | EPISODES | TEXTS | SCHEMAS | CHECKPOINTS | JOURNALS
