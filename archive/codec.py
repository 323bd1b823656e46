"""How the decoded bytes of a chunk become smaller ones: HDF5 filters, encoded and decoded outside HDF5.

Every codec leaves room for bytes behind its stream that HDF5's own filter ignores; the trailer stands there.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import lz4.block
import zstandard
from zlib_ng import zlib_ng

GZIP_LEVEL = 2  # zlib-ng: smaller than zlib's own level 1 at three times its speed
ZSTD_LEVEL = 3
SKIPPABLE = struct.Struct("<II")  # a zstd frame that decoders skip: magic, size of what follows
LZ4_HEAD = struct.Struct(">QII")  # HDF5's lz4 framing: size, size of a block, bytes of the (only) block
ERRORS: tuple[type[Exception], ...] = (
    cast(type[Exception], zlib_ng.error),
    zstandard.ZstdError,
    lz4.block.LZ4BlockError,
    ValueError,
    RuntimeError,
    struct.error,
)
MOST_EXPANSION = 1032  # of deflate: 258 bytes from 2 bits
MUCH = 1 << 26
OWN = threading.local()  # a zstandard object must not be shared between threads


@dataclass(frozen=True)
class Codec:
    """One codec by name: what its filters are called, and how it encodes and decodes.

    `encode(raw, after)` returns a stream behind which `after` more bytes will follow; `decode(stream, size)` at most
    size + 1 bytes.
    """

    name: str
    number: int  # HDF5's, of its filter
    filters: str
    encode: Callable[[Any, int], bytes]
    decode: Callable[[Any, int], bytes]


def encode_gzip(raw: Any, after: int) -> bytes:
    """Return a zlib stream, a stored one (level 0) where nothing is gained."""
    stream: bytes = zlib_ng.compress(raw, GZIP_LEVEL)
    return stream if len(stream) < len(raw) else zlib.compress(raw, 0)


def decode_gzip(stream: Any, size: int) -> bytes:
    """Undo `encode_gzip`. Bounded, but a short stream cannot become much, and is decoded faster without a bound."""
    if len(stream) * MOST_EXPANSION > MUCH + size:
        result: bytes = zlib_ng.decompressobj().decompress(stream, size + 1)
    else:
        result = zlib_ng.decompress(stream, bufsize=size + 1)  # without room left it would grow once more
    return result


def encode_zstd(raw: Any, after: int) -> bytes:
    """Return a zstd frame and the head of a skippable frame that holds what follows."""
    if not hasattr(OWN, "compressor"):
        OWN.compressor = zstandard.ZstdCompressor(ZSTD_LEVEL)
    frame: bytes = OWN.compressor.compress(raw)
    return frame + SKIPPABLE.pack(0x184D2A5E, after)


def decode_zstd(stream: Any, size: int) -> bytes:
    """Undo `encode_zstd`."""
    if not hasattr(OWN, "decompressor"):
        OWN.decompressor = zstandard.ZstdDecompressor()
    if zstandard.frame_content_size(bytes(stream[:18])) > size:
        raise ValueError("larger than declared")
    result: bytes = OWN.decompressor.decompress(stream[: -SKIPPABLE.size], max_output_size=size + 1)
    return result


def encode_lz4(raw: Any, after: int) -> bytes:
    """Return one lz4 block in HDF5's framing, stored where nothing is gained."""
    block: bytes = lz4.block.compress(raw, store_size=False)
    if len(block) >= len(raw):
        block = bytes(raw)
    return LZ4_HEAD.pack(len(raw), len(raw), len(block)) + block


def decode_lz4(stream: Any, size: int) -> bytes:
    """Undo `encode_lz4`."""
    declared, _, packed = LZ4_HEAD.unpack_from(stream)
    if declared != size or packed != len(stream) - LZ4_HEAD.size:
        raise ValueError(f"declares {declared} bytes")
    block = stream[LZ4_HEAD.size :]
    if packed == size:
        return bytes(block)
    result: bytes = lz4.block.decompress(block, uncompressed_size=size)
    return result


CODECS = {
    "gzip": Codec("gzip", 1, "gzip", encode_gzip, decode_gzip),
    "zstd": Codec("zstd", 32015, "zstd (32015)", encode_zstd, decode_zstd),
    "lz4": Codec("lz4", 32004, "lz4 (32004)", encode_lz4, decode_lz4),
    "none": Codec("none", 1, "gzip", lambda raw, after: zlib.compress(raw, 0), decode_gzip),
}
