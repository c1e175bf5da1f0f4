"""The ``.snapshot`` file: the producers of a log just before the offset in the file's name.

| off | size | field | note |
|---|---|---|---|
| 0 | 2 | int16 version | 1 |
| 2 | 4 | uint32 crc | CRC-32C of byte 6 to the end |
| 6 | 4 | int32 entry count | |
| 10 | 46 each | entries | |

An entry, 46 bytes: producerId int64, producerEpoch int16, lastSequence int32 (-1 none), lastOffset int64 (-1 none),
offsetDelta int32 (of the last batch: its last minus its first offset), timestamp int64, coordinatorEpoch int32,
currentTxnFirstOffset int64 (-1 none). Big-endian. The file holds only the last batch of each producer. Source: kafka
`ProducerStateManager`, `ProducerSnapshot.json`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt
from local.format.crc32c import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
HEAD_BYTES, ENTRY_BYTES = _HEAD.size, _ENTRY.size
_CRC_START = 6


class ProducerEntry(NamedTuple):
    """One producer: its fields in the order of the file. -1 stands for none. `last_offset` is inclusive."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


def encode(producers: Sequence[ProducerEntry]) -> bytes:
    rows = b"".join(_ENTRY.pack(*each) for each in producers)
    body = struct.pack(">i", len(producers)) + rows
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def decode(data: Buffer, *, path: str = "") -> list[ProducerEntry]:
    """Decode a snapshot. Raises Corrupt for another version, a wrong checksum or a wrong size."""
    view = memoryview(data).cast("B")
    if len(view) < HEAD_BYTES:
        raise Corrupt("cannot read a producer snapshot, it is shorter than its header", path=path, size_bytes=len(view))
    version, crc, count = _HEAD.unpack_from(view)
    if version != VERSION:
        raise Corrupt("cannot read a producer snapshot, its version is unknown", path=path, version=version)
    found = crc32c(view[_CRC_START:])
    if found != crc:
        raise Corrupt(
            "cannot read a producer snapshot, its CRC differs", path=path, expected=f"{crc:08x}", found=f"{found:08x}"
        )
    if count < 0 or len(view) != HEAD_BYTES + count * ENTRY_BYTES:
        raise Corrupt(
            "cannot read a producer snapshot, its size does not match its entry count",
            path=path,
            size_bytes=len(view),
            count=count,
        )
    return [ProducerEntry._make(fields) for fields in _ENTRY.iter_unpack(view[HEAD_BYTES:])]
