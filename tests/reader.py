"""A reader written from docs/format.md alone: neither this package nor an HDF5 library.

It shows that the document is enough, and that rows can be had from a file whose HDF5 metadata is lost: chunks are
found by their trailers in the byte stream, the rest by the commit record. For zstd and lz4 it needs their decoders.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TRAILER = struct.Struct("<4s8sIHHIIQIII")
RECORD = struct.Struct("<4sIQIIIIQIQQQI")
SLOT = struct.Struct("<QQIQI")
MIB = 1 << 20


def fletcher32(data: bytes) -> int:
    """Return the checksum of HDF5's fletcher32 filter."""
    if not any(data):
        return 0
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2").astype(object)
    low, high = int(words.sum()), int(np.cumsum(words).sum())
    return ((high - 1) % 65535 + 1) << 16 | ((low - 1) % 65535 + 1)


def blocks(data: bytes, kind: int) -> Iterator[dict[str, Any]]:
    """Yield the JSON of every whole block of a kind."""
    at = data.find(b"RLAB")
    while at >= 0:
        found, length = struct.unpack_from("<II", data, at + 4)
        stop = at + 12 + length
        if found == kind and data[stop : stop + 4] == struct.pack("<I", zlib.crc32(data[at:stop])):
            yield json.loads(data[at + 12 : stop])
        at = data.find(b"RLAB", at + 1)


def parse_record(data: bytes) -> dict[str, Any] | None:
    """Return a record by the names of the document, None if it is not valid."""
    names = ["magic", "size", "sequence", "epoch", "envs", "fields", "slots", "episodes", "flags", "end"]
    names += ["journal offset", "journal length", "journal check"]
    record = dict(zip(names, RECORD.unpack_from(data), strict=True))
    n, f, s, size = record["envs"], record["fields"], record["slots"], record["size"]
    if record["magic"] != b"RLAR" or size > len(data) or size != 76 + 9 * n + 8 * f + 5 * f * n + 32 * s:
        return None
    if struct.unpack_from("<I", data, size - 4)[0] != zlib.crc32(data[: size - 4]):
        return None
    at = 72
    shapes = {"rows": ("<i8", (n,)), "states": ("u1", (n,)), "tail offset": ("<i8", (f,))}
    shapes |= {"tail slot": ("u1", (f, n)), "tail check": ("<u4", (f, n))}
    for name, (dtype, shape) in shapes.items():
        count = int(np.prod(shape))
        record[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += count * np.dtype(dtype).itemsize
    record["slots"] = [SLOT.unpack_from(data, at + 32 * k) for k in range(s)]
    return record


def decompress(codec: str, stream: bytes) -> bytes:
    """Undo a codec."""
    if codec == "zstd":
        import zstandard

        assert struct.unpack("<II", stream[-8:]) == (0x184D2A5E, 48)
        return zstandard.ZstdDecompressor().decompress(stream[:-8])
    if codec == "lz4":
        import lz4.block

        size, largest, packed = struct.unpack_from(">QII", stream)
        assert (largest, packed) == (size, len(stream) - 16)
        block = stream[16:]
        return block if packed == size else lz4.block.decompress(block, uncompressed_size=size)
    assert codec in ("gzip", "none")
    return zlib.decompress(stream)


class File:
    """The newest commit of a file."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        self.block = next(blocks(data[:MIB], 1))
        self.fields = list(self.block["schema"]["steps"])
        offset, room = int(self.block["records"][0], 16), self.block["records"][1]
        found = [parse_record(data[offset + k * room :][:room]) for k in range(4)]
        valid = [record for record in found if record is not None]
        self.record = max(valid, key=lambda record: (record["epoch"], record["sequence"]))
        self.copies = [k for k, record in enumerate(found) if record and record["sequence"] == self.record["sequence"]]
        mark = data[offset + 4 * room :][:16]
        assert mark[:4] == b"RLAM"
        assert struct.unpack("<I", mark[12:])[0] == zlib.crc32(mark[:12])
        self.applied = struct.unpack_from("<Q", mark, 4)[0] == self.record["sequence"]
        self.data = data if self.applied else self.redo(data)

    def redo(self, data: bytes) -> bytes:
        """Return the bytes of the file with the journal laid over them."""
        start, size = self.record["journal offset"], self.record["journal length"]
        journal, result, at = data[start : start + size], bytearray(data), 0
        assert zlib.crc32(journal) == self.record["journal check"]
        while at < len(journal):
            offset, length = struct.unpack_from("<QI", journal, at)
            result[offset : offset + length] = journal[at + 12 : at + 12 + length]
            at += 12 + length
        return bytes(result)

    def kind(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return dtype and shape of one row of a field."""
        field = self.block["schema"]["steps"][name]
        return np.dtype(field["dtype"]), tuple(field["shape"])

    @cached_property
    def chunks(self) -> dict[tuple[int, int, int], Array]:
        """Return the rows of every chunk in the byte stream by (field, environment, first row); the newest wins."""
        best: dict[tuple[int, int, int], tuple[int, Array]] = {}
        at = self.data.find(b"RLAT", 0, self.record["end"])
        while at >= 0:
            trailer = self.data[at : at + 48]
            _, run_id, epoch, field, _, env, rows, first, raw, packed, check = TRAILER.unpack(trailer)
            stream = self.data[at - packed : at] if packed <= at else b""
            whole = zlib.crc32(trailer[:44], zlib.crc32(stream)) == check and run_id.hex() == self.block["run_id"]
            if whole:
                assert self.data[at + 48 : at + 52] == struct.pack("<I", fletcher32(stream + trailer))
                key = (field, env, first)
                if key not in best or best[key][0] <= epoch:
                    best[key] = epoch, self.decode(self.fields[field], stream, raw)[:rows]
            at = self.data.find(b"RLAT", at + 1, self.record["end"])
        return {key: rows for key, (_, rows) in best.items()}

    def decode(self, name: str, stream: bytes, raw: int) -> Array:
        """Undo codec and shuffle of a chunk."""
        dtype, shape = self.kind(name)
        codec = self.block["schema"]["steps"][name]["compression"] or self.block.get("compression", "gzip")
        shuffled = decompress(codec, stream)
        assert len(shuffled) == raw
        items = np.frombuffer(shuffled, np.uint8).reshape(dtype.itemsize, -1).T
        return np.frombuffer(items.tobytes(), dtype).reshape(-1, *shape)

    def tail(self, name: str, env: int, base: int, known: int) -> Array | None:
        """Return rows base .. known - 1 from the tail, None if they fail their check."""
        (dtype, shape), record = self.kind(name), self.record
        field, envs, rows = self.fields.index(name), record["envs"], self.block["rows"][name]
        size = dtype.itemsize * int(np.prod(shape))
        slot = int(record["tail slot"][field, env]) * envs + env
        at = int(record["tail offset"][field]) + slot * (rows + 1) * size
        data = self.data[at : at + (known - base) * size]
        if zlib.crc32(data) != record["tail check"][field, env]:
            return None
        return np.frombuffer(data, dtype).reshape(-1, *shape)

    def rows(self, name: str, env: int = 0) -> Array:
        """Return every row of a field that is known, a head's missing values not among them."""
        field, record = self.fields.index(name), self.record
        rows, state, per_chunk = int(record["rows"][env]), int(record["states"][env]), self.block["rows"][name]
        known, stop = rows - (state == 1 and name.split("/")[0] != "observation"), rows
        dtype, shape = self.kind(name)
        tail: Array | None = np.zeros((0, *shape), dtype)
        if 0 in shape:
            return np.zeros((known, *shape), dtype)
        if not record["flags"] & 1:
            for settled in {0: [rows], 1: [rows - 1, max(rows - 2, 0)], 2: [rows - 1]}[state]:
                stop = settled // per_chunk * per_chunk
                tail = self.tail(name, env, stop, known)
                if tail is not None:
                    break
        assert tail is not None
        parts = [self.chunks[field, env, first] for first in range(0, min(stop, known), per_chunk)]
        return np.concatenate([*parts, tail], dtype=dtype)[:known]

    def checkpoints(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield id and content of every checkpoint that is whole, newest first."""
        for number, offset, chunks, size, check in sorted(self.record["slots"], reverse=True):
            if number:
                places = struct.unpack_from(f"<{chunks}Q", self.data, offset)
                payload = b"".join(self.data[at : at + MIB] for at in places)[8 * chunks :][:size]
                if zlib.crc32(payload) == check:
                    yield number, unpack(payload)


def unpack(payload: bytes) -> dict[str, Any]:
    """Return the values of a checkpoint's payload; generators as their states."""
    magic, length = struct.unpack_from("<4sI", payload)
    assert magic == b"RLAC"
    at = 8 + length

    def build(node: Any) -> Any:
        nonlocal at
        if not isinstance(node, dict):
            return node
        ((kind, body),) = node.items()
        if kind == "dict":
            return {name: build(value) for name, value in body.items()}
        if kind in ("list", "tuple"):
            return [build(value) for value in body]
        if kind == "complex":
            return complex(*body)
        if kind in ("generator", "random_state"):
            return build(body)
        dtype, shape = (np.dtype("S1"), (body,)) if kind == "bytes" else (np.dtype(body[0]), tuple(body[1]))
        size = dtype.itemsize * int(np.prod(shape))
        data = payload[at : at + size]
        at += size
        return data if kind == "bytes" else np.frombuffer(data, dtype).reshape(shape)

    values = build(json.loads(payload[8 : 8 + length]))
    assert isinstance(values, dict)
    return values
