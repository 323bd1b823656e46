"""Checkpoint slots: payloads written in place, each over the oldest one, in chunks that stay where they are."""

from __future__ import annotations

import struct
from collections.abc import Callable

from zlib_ng.zlib_ng import crc32

from .errors import DamagedError
from .record import Slot
from .store import Store

SLOT_CHUNK = 1 << 20  # bytes; each chunk holds 8 bytes of the list of all of them, which stands in front


def write_payload(store: Store, number: int, checkpoint: int, payload: bytes) -> Slot:
    """Write a payload in place into slot `number`, which no committed record relies on; return what is there."""
    offsets = chunks_of(store, number, -(-len(payload) // (SLOT_CHUNK - 8)))
    image = struct.pack(f"<{len(offsets)}Q", *offsets) + payload
    for at, offset in enumerate(offsets):
        store.write_at(offset, image[at * SLOT_CHUNK : (at + 1) * SLOT_CHUNK])
    return Slot(checkpoint, offsets[0], len(offsets), len(payload), crc32(payload))


def chunks_of(store: Store, number: int, least: int) -> list[int]:
    """Return where the chunks of a slot are, adding those it lacks to have at least so many."""
    with store.hdf5():
        name = f"checkpoints/slot{number}"
        if name not in store.handle:
            store.handle.create_dataset(name, (0,), "u1", chunks=(SLOT_CHUNK,), maxshape=(None,))
        dataset = store.handle[name]
        have = dataset.shape[0] // SLOT_CHUNK
        if have < least:
            dataset.id.set_extent((least * SLOT_CHUNK,))
            for k in range(have, least):
                dataset.id.write_direct_chunk((k * SLOT_CHUNK,), bytes(SLOT_CHUNK))
        return [dataset.id.get_chunk_info_by_coord((k * SLOT_CHUNK,)).byte_offset for k in range(max(have, least))]


def read_payload(read: Callable[[int, int], bytes], size: int, slot: Slot) -> bytes:
    """Return the payload of a slot in a file of `size` bytes, or raise DamagedError."""
    room = slot.chunks * (SLOT_CHUNK - 8)
    if slot.length <= room and slot.chunks * SLOT_CHUNK <= size and slot.offset <= size:
        offsets = struct.unpack(f"<{slot.chunks}Q", read(slot.offset, 8 * slot.chunks))
        if all(0 < offset < size for offset in offsets):
            image = b"".join(read(offset, SLOT_CHUNK) for offset in offsets)
            payload = image[8 * slot.chunks :][: slot.length]
            if crc32(payload) == slot.check:
                return payload
    raise DamagedError(f"checkpoint {slot.id} is damaged")
