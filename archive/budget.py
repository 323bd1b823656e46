"""How a memory budget is divided among the fields of a run."""

from __future__ import annotations

from .errors import MemoryBudgetError
from .header import Header

SMALL = 64  # times smaller than the largest field
ENCODING = 4  # chunks that are encoded in the background at a time
MODEST = 64 << 20  # bytes
SPARE_SLOTS = 16  # what one item of a batch may touch, and full chunks that wait to be written


def waiting(envs: int) -> int:
    """Return how many full chunks of each environment may wait to be written together with the next."""
    return max(4 // envs - 1, 0)


def slots_for(header: Header, memory: int) -> dict[str, int]:
    """Divide a budget in bytes among the fields.

    Refuses a budget below the floor: the chunks being written and what one item of a batch touches.
    """
    floors = dict.fromkeys(header.fields, least_slots(header))
    floor = least_memory(header)
    if memory < floor:
        raise MemoryBudgetError(
            f"memory: {max(memory, 0)} bytes are left for decoded chunks, but this run needs at least {floor} for them"
        )
    rows = rows_kept(header, memory - floor)
    return {name: floors[name] + rows[name] // header.rows[name] for name in header.fields}


def least_slots(header: Header) -> int:
    """Return how many chunks of a field must have room."""
    return 2 * header.schema.envs + SPARE_SLOTS


def least_memory(header: Header) -> int:
    """Return the smallest budget in bytes that is accepted."""
    return least_slots(header) * sum(header.rows[name] * header.row_bytes(name) for name in header.fields)


def modest_memory(header: Header) -> int:
    """Return a budget for those who look at a run once: 64 MiB, or what is accepted at least."""
    return max(MODEST, least_memory(header))


def rows_kept(header: Header, memory: int) -> dict[str, int]:
    """Return how many rows of each field fit into `memory` together.

    All fields alike, but where some are small beside the others, those may take an eighth of the memory: whatever is
    not there costs about the same to load, a flag or a frame.
    """
    size = {name: header.row_bytes(name) for name in header.fields}
    small = {name for name in size if size[name] * SMALL < max(size.values())}
    alike = memory // max(sum(size.values()), 1)
    if not small:
        return dict.fromkeys(size, alike)
    of_small = sum(size[name] for name in small)
    more = max(alike, memory // 8 // max(of_small, 1))
    rest = (memory - more * of_small) // (sum(size.values()) - of_small)
    return {name: more if name in small else rest for name in size}


def parse_bytes(memory: int | str) -> int:
    """Return a number of bytes from "1 GiB", "500 MB" or an int.

    >>> parse_bytes("1 GiB")
    1073741824
    """
    if isinstance(memory, str):
        units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
        units |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
        number = memory.strip().rstrip("BKMGTibkmgt ")
        unit = memory.strip()[len(number) :].strip().upper() or "B"
        try:
            return int(float(number) * units[unit])
        except (ValueError, KeyError):
            raise MemoryBudgetError(f"memory {memory!r}: expected bytes, or text such as '1 GiB'") from None
    if not isinstance(memory, (int, float)):
        raise MemoryBudgetError(f"memory {memory!r}: expected bytes, or text such as '1 GiB'")
    return int(memory)
