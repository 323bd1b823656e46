"""How rows are laid out in chunks: sizes chosen once, when a run is created, and written into its schema block."""

from __future__ import annotations

from collections.abc import Mapping

from .schema import Field

FORMAT = "rl-archive"
FORMAT_VERSION = 1

MAX_CHUNK = 128 << 10  # decoded bytes; stock readers cache 1 MiB, and 16 Atari frames compress nearly as well as 64
MAX_ROWS = 1024  # of a scalar: more would only make tails larger and hide more rows of a killed file from plain readers
OPEN_BYTES = 64 << 20  # what all chunks still open may take together, in memory and in both slots of the tail
SPARE_ROWS = 2  # rows behind a chunk that must be known before it is written: the next one, and a head


def chunk_rows(fields: Mapping[str, Field], envs: int) -> dict[str, int]:
    """Return the rows of one chunk of each field: a power of two, fewer as environments and rows grow.

    >>> chunk_rows({"observation": Field("uint8", (84, 84)), "reward": Field("float32")}, 1)
    {'observation': 16, 'reward': 1024}
    """
    rows = {name: largest_power(min(MAX_ROWS, MAX_CHUNK // max(field.nbytes, 1))) for name, field in fields.items()}
    while True:
        open_bytes = {name: envs * open_rows(rows[name]) * field.nbytes for name, field in fields.items()}
        name = max(open_bytes, key=lambda k: (rows[k] > 1, open_bytes[k]))
        if sum(open_bytes.values()) <= OPEN_BYTES or rows[name] == 1:
            return rows
        rows[name] //= 2


def open_rows(chunk_rows: int) -> int:
    """Return the rows of an open chunk and those behind it, in memory and in two tail slots."""
    return chunk_rows + SPARE_ROWS + 2 * (chunk_rows + SPARE_ROWS - 1)


def largest_power(limit: int) -> int:
    """Return the largest power of two that is at most `limit`, at least 1."""
    return 1 << max(limit.bit_length() - 1, 0) if limit > 0 else 1
