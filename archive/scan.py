"""What of a run is in the bytes of a file, found without HDF5 by the first four bytes of its pieces."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from zlib_ng import zlib_ng

from . import chunk, disk
from .block import Block
from .chunk import SIZE, Trailer, most_stored
from .errors import DamagedError, NotARunError
from .finding import FAILURES, Progress
from .header import Header
from .layout import FORMAT
from .lost import Lost
from .rewind import Rewind
from .workers import in_threads

Read = Callable[[int, int], bytes]
Value = TypeVar("Value")
WINDOW = 8 << 20
LARGEST_BLOCK = 64 << 20
AT_ONCE = 16  # trailers that a thread looks at


class Found(NamedTuple):
    """A whole chunk in the bytes: rows `first` .. `first + rows - 1`; stream and trailer: `size` bytes at `offset`."""

    field: int
    env: int
    first: int
    rows: int
    epoch: int
    offset: int
    size: int

    @property
    def stop(self) -> int:
        """The row behind its last one."""
        return self.first + self.rows


@dataclass(frozen=True)
class Scan:
    """Where trailers may be, and the blocks that are whole."""

    header: Header
    trailers: Iterable[int]
    rewinds: list[Rewind]
    lost: list[Lost]


def scan(fd: int, path: str, progress: Progress) -> Scan:
    """Look through all bytes once, in windows; NotARunError if no schema block is there."""
    places = {Block.MAGIC: array("q"), chunk.MAGIC: array("q")}
    size = os.fstat(fd).st_size
    for start in range(0, size, WINDOW):
        data = disk.read_at(fd, WINDOW + 3, start)
        for magic, found in places.items():
            found.extend(start + at for at in positions(data, magic))
        progress(min(start + WINDOW, size), 2 * size)
    blocks = [block for at in places[Block.MAGIC] if (block := block_at(fd, at)) is not None]
    header = header_of(blocks, path)
    ours = [block for block in blocks if block.values.get("run_id") == header.run_id]
    return Scan(
        header,
        places[chunk.MAGIC],
        parsed(ours, Block.REWIND, Rewind.from_json),
        parsed(ours, Block.LOST, Lost.from_json),
    )


def positions(data: bytes, magic: bytes) -> Iterator[int]:
    """Yield where four bytes begin in the first window of `data`."""
    at = data.find(magic)
    while 0 <= at < WINDOW:
        yield at
        at = data.find(magic, at + 1)


def block_at(fd: int, at: int) -> Block | None:
    """Return the whole block at byte `at`, None without one."""
    head = disk.read_at(fd, Block.HEAD.size, at)
    if len(head) < Block.HEAD.size or Block.HEAD.unpack(head)[2] > LARGEST_BLOCK:
        return None
    try:
        return Block.parse(disk.read_at(fd, Block.HEAD.size + Block.HEAD.unpack(head)[2] + 4, at))
    except DamagedError:
        return None


def header_of(blocks: list[Block], path: str) -> Header:
    """Return what the schema block says of which most copies are there."""
    schemas = [block for block in blocks if block.kind == Block.SCHEMA and block.values.get("format") == FORMAT]
    runs = Counter(str(block.values.get("run_id")) for block in schemas)
    if not runs:
        raise NotARunError(f"{path}: no schema block of {FORMAT} in any of its bytes")
    chosen = runs.most_common(1)[0][0]
    return Header.of(next(block for block in schemas if str(block.values.get("run_id")) == chosen), path)


def parsed(blocks: list[Block], kind: int, form: Callable[[Mapping[str, Any]], Value]) -> list[Value]:
    """Return the values of all blocks of a kind, in the order of the file, each once."""
    result: list[Value] = []
    for block in blocks:
        with suppress(*FAILURES):
            if block.kind == kind and (value := form(block.values)) not in result:
                result.append(value)
    return result


def whole_chunks(header: Header, places: list[int], read: Read, progress: Progress) -> list[Found]:
    """Return the chunks at these places of trailers whose checksum is right; `read` returns bytes of the file."""
    groups = [places[k : k + AT_ONCE] for k in range(0, len(places), AT_ONCE)]
    run_id, result, done = bytes.fromhex(header.run_id), list[Found](), 0
    for group, chunks in in_threads(groups, lambda group: [chunk_at(header, run_id, read, at) for at in group]):
        result += [one for one in chunks if one is not None]
        done += len(group)
        progress(len(places) + done, 2 * len(places))
    return result


def chunk_at(header: Header, run_id: bytes, read: Read, at: int) -> Found | None:
    """Return the chunk whose trailer stands at byte `at`, None if it is not a whole one of this run."""
    trailer = Trailer.parse(read(at, SIZE))
    if trailer is None or trailer.run_id != run_id or not trailer.field < len(header.fields):
        return None
    name = header.fields[trailer.field]
    rows, raw = header.rows[name], header.rows[name] * header.row_bytes(name)
    fits = trailer.raw == raw and 0 < trailer.rows <= rows and trailer.first % rows == 0
    if not fits or trailer.env >= header.schema.envs or not 0 < trailer.packed <= min(at, most_stored(raw)):
        return None
    data = read(at - trailer.packed, trailer.packed + SIZE)
    if zlib_ng.crc32(memoryview(data)[:-4]) != trailer.check:
        return None
    place = (at - trailer.packed, trailer.packed + SIZE)
    return Found(trailer.field, trailer.env, trailer.first, trailer.rows, trailer.epoch, *place)


def newest(chunks: list[Found]) -> dict[tuple[int, int, int], Found]:
    """Return the chunks that count by (field, environment, first row).

    Of two for the same rows the higher epoch counts. A chunk is stale if an earlier row of its environment was
    written in a later epoch: its writer was killed before it could commit, and its rows were recorded anew.
    """
    best: dict[tuple[int, int, int], Found] = {}
    for one in chunks:
        key = (one.field, one.env, one.first)
        if key not in best or (one.epoch, one.rows, one.offset) > (best[key].epoch, best[key].rows, best[key].offset):
            best[key] = one
    latest = Counter[int]()
    result = {}
    for key, one in sorted(best.items(), key=lambda item: (item[1].stop, -item[1].epoch)):
        if one.epoch >= latest[one.env]:
            latest[one.env] = one.epoch
            result[key] = one
    return result
