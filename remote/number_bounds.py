"""The bounds of every number in a manifest and a manifest page, as types checked by the decoder.

`msgspec` rejects a number outside its bounds and names its place, such as ``$.segments[3].base_offset``. Numbers of the
log have Kafka's widths: offsets and times are int64, leader epochs int32. A writer epoch begins above a leader epoch
and becomes one at a takeover, so it is an int32 too.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MAX = 2**31 - 1
OBJECT_BYTES_MAX = 5 << 40  # the largest object of S3; no other store here has a larger one

Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
ByteCount = Annotated[int, Meta(ge=0, le=INT64_MAX)]  # a sum over any number of objects
ObjectBytes = Annotated[int, Meta(ge=0, le=OBJECT_BYTES_MAX)]
StoredSize = Annotated[int, Meta(ge=1, le=OBJECT_BYTES_MAX)]  # an object is never empty
Crc32c = Annotated[int, Meta(ge=0, le=2**32 - 1)]
LeaderEpoch = Annotated[int, Meta(ge=-1, le=INT32_MAX)]  # -1: a batch without one, as Kafka writes it
WriterEpoch = Annotated[int, Meta(ge=1, le=INT32_MAX)]
Sequence = Annotated[int, Meta(ge=1, le=INT64_MAX)]
SequenceOrNone = Annotated[int, Meta(ge=0, le=INT64_MAX)]  # 0: none yet
PartitionNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
TimestampMs = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]  # of a record: any value its producer wrote
ClockMs = Annotated[int, Meta(ge=0, le=INT64_MAX)]  # of a clock
Turn = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
