"""One chunk of rows of one field of one environment as bytes in the file: shuffle, codec, trailer, checksum.

HDF5 sees an ordinary chunk of its filters. Between the codec's stream and the checksum stands a trailer that readers
ignore, since the stream knows its own end; by the trailers alone a file can be rebuilt.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, NoReturn

import numpy as np
from zlib_ng import zlib_ng

from . import _core
from .codec import ERRORS as CODEC_ERRORS
from .codec import Codec
from .errors import DamagedError

MAGIC = b"RLAT"
FORM = struct.Struct("<4s8sIHHIIQIII")
SIZE = 48  # bytes of a trailer
Identity = tuple[bytes, int, int, int]


class Trailer(NamedTuple):
    """Say which rows of which run a chunk holds."""

    run_id: bytes
    epoch: int
    field: int
    env: int
    rows: int
    first: int
    raw: int = 0  # decoded bytes
    packed: int = 0  # bytes of the codec's stream in front of the trailer
    check: int = 0  # crc32 of stream and trailer

    @property
    def identity(self) -> Identity:
        """What must agree between the chunk wanted and the chunk found: run, field, environment, first row."""
        return self.run_id, self.field, self.env, self.first

    def pack(self, stream: bytes, raw: int) -> bytes:
        """Return the trailer's bytes behind a `stream` of `raw` decoded bytes, checksum over both included."""
        values = (MAGIC, self.run_id, self.epoch, self.field, 0, self.env, self.rows, self.first)
        body = FORM.pack(*values, raw, len(stream), 0)[:-4]
        return body + struct.pack("<I", zlib_ng.crc32(body, zlib_ng.crc32(stream)))

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Trailer | None:
        """Return the trailer in these 48 bytes, or None."""
        magic, run_id, epoch, field, _, env, rows, first, raw, packed, check = FORM.unpack(data)
        return cls(run_id, epoch, field, env, rows, first, raw, packed, check) if magic == MAGIC else None


def encode(rows: np.ndarray[Any, Any], itemsize: int, codec: Codec, trailer: Trailer) -> bytes:
    """Return the bytes of a chunk: `rows` are its decoded bytes (uint8, contiguous)."""
    if itemsize > 1:
        mixed = np.empty_like(rows)
        _core.shuffle(rows, mixed, itemsize)
        rows = mixed
    return closed(codec.encode(rows, SIZE), len(rows), trailer)


def closed(stream: bytes, raw: int, trailer: Trailer) -> bytes:
    """Return a stream of `raw` decoded bytes with trailer and checksum behind it."""
    return checked(stream + trailer.pack(stream, raw))


def checked(body: bytes) -> bytes:
    """Return bytes with the checksum of HDF5's fletcher32 filter behind them."""
    return body + struct.pack("<I", _core.checksum(np.frombuffer(body, np.uint8)))


def relabel(data: bytes, size: int, expected: Identity, trailer: Trailer) -> bytes:
    """Return a chunk of `size` decoded bytes under another trailer, its stream as it is; DamagedError as `decode`."""
    return closed(data[: stream_length(data, expected)], size, trailer)


def decode(data: bytes, size: int, codec: Codec, expected: Identity) -> bytes:
    """Return the `size` bytes of a chunk, still shuffled, or raise DamagedError.

    Checked: the checksum, and that the trailer names what is `expected`.
    """
    packed = stream_length(data, expected)
    try:
        raw = codec.decode(memoryview(data)[:packed], size)
    except CODEC_ERRORS as error:
        raise DamagedError(str(error)) from error
    if len(raw) != size:
        raise DamagedError(f"expected {size} bytes, found {len(raw)}")
    return raw


def stream_length(data: bytes, expected: Identity) -> int:
    """Return how many bytes of a chunk are the codec's stream; DamagedError unless checksum and trailer are right."""
    packed: int = _core.stream_length(data, *expected)
    if packed < 0:
        refuse(data, expected)
    return packed


def refuse(data: bytes, expected: Identity) -> NoReturn:
    """Say what is wrong with the end of a chunk."""
    body = data[:-4]
    if len(body) < SIZE or data != checked(body):
        raise DamagedError("checksum differs")
    trailer = Trailer.parse(body[-SIZE:])
    raise DamagedError(f"expected {expected}, found {trailer and trailer.identity}")


def spread(decoded: bytes, itemsize: int, out: np.ndarray[Any, Any]) -> None:
    """Write the rows of a decoded chunk into `out` (uint8, of the same size)."""
    shuffled = np.frombuffer(decoded, np.uint8)
    if itemsize > 1:
        _core.unshuffle(shuffled, out, itemsize)
    else:
        out[:] = shuffled


def most_stored(size: int) -> int:
    """Return the most bytes that a chunk of `size` decoded ones may take, trailer and checksum included."""
    return size + size // 128 + 1024
