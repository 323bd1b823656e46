"""python -m benchmarks.curves: what chunks of several sizes cost by codec and level, for docs/performance.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import lz4.block
import numpy as np
import zstandard
from zlib_ng import zlib_ng

from .frames import SOURCES, frames

ROWS, REPEATS = 4000, 3
Array = np.ndarray[Any, Any]
Codec = tuple[Callable[[Any], bytes], Callable[[bytes], bytes]]


def codecs(size: int) -> dict[str, Codec]:
    """Return encoder and decoder of chunks of `size` bytes by name."""
    found: dict[str, Codec] = {f"gzip {k}": (partial(zlib_ng.compress, level=k), unzipper(size)) for k in (1, 2, 3, 6)}
    found["zstd 3"] = zstandard.ZstdCompressor(3).compress, zstandard.ZstdDecompressor().decompress
    found["lz4"] = lz4.block.compress, lz4.block.decompress
    return found


def unzipper(size: int) -> Callable[[bytes], bytes]:
    """Return a decoder that knows how much will come."""
    return lambda stream: zlib_ng.decompress(stream, bufsize=size + 1)


def seconds(work: Callable[[Any], object], values: Iterable[Any]) -> float:
    """Return the least time of a few to work on all values, their results let go of at once."""
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for value in values:
            work(value)
        found.append(time.perf_counter() - start)
    return min(found)


def line(game: str, images: Array, rows: int, name: str) -> str:
    """Return a row of the table: what a codec makes of chunks of `rows` frames."""
    chunks = list(images[: len(images) // rows * rows].reshape(-1, rows * images[0].size))
    encode, decode = codecs(chunks[0].nbytes)[name]
    packed = [encode(chunk) for chunk in chunks]
    encoding, decoding = seconds(encode, chunks) / len(chunks) / rows, seconds(decode, packed) / len(chunks)
    bytes_a_row = sum(map(len, packed)) / len(chunks) / rows
    return f"| {game} | {rows} | {name} | {bytes_a_row:,.0f} | {encoding * 1e6:.1f} | {decoding * 1e6:.0f} |"


def main() -> None:
    """Print the table."""
    print("| frames | rows a chunk | codec | bytes a row | encoding, us a row | decoding, us a chunk |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for game, source in SOURCES.items():
        images = np.array(frames(ROWS, source))
        for rows in (8, 16, 32):
            for name in codecs(1):
                print(line(game, images, rows, name))


if __name__ == "__main__":
    main()
