"""JSON from a file that may come from a stranger: bounded before it is parsed, and in how deep it is nested."""

from __future__ import annotations

import json
from typing import Any

MOST_TEXT = 5 << 20  # bytes of JSON in one text or block: parsed it may take twenty times as much
MOST_NESTED = 100  # lists and objects in one another; whoever prints or walks them recurses


def parse(data: bytes, most: int = MOST_TEXT, nested: int = MOST_NESTED) -> Any:
    """Return the values of UTF-8 JSON of at most `most` bytes, nested at most `nested` deep; ValueError otherwise.

    >>> parse(b'{"rows": [1, 2]}')
    {'rows': [1, 2]}
    """
    if len(data) > most:
        raise ValueError(f"JSON of {len(data)} bytes; at most {most} are read")
    try:
        values = json.loads(data)
    except RecursionError:
        raise ValueError(f"JSON nested more than {nested} deep") from None
    level = [values]
    for _ in range(nested + 1):
        if not level:
            return values
        level = [inner for value in level for inner in inside(value)]
    raise ValueError(f"JSON nested more than {nested} deep")


def inside(value: Any) -> Any:
    """Return what a list or an object holds."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
