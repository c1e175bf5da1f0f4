"""`tiered` with promises to Kafka clients broken by hand: the race of clients must detect each of them.

    python tests/crash/serve_plants.py run --kafka :9092 ...

| broken promise | what the race reports |
|---|---|
| an acknowledged batch of `append` is in the log | `lines: append 0 of 1069 lines has ...` |
| a committed offset of a group is in the log | `the committed offset of ('readers', ...) is -1, ... was acknowledged` |
| acknowledged DeleteRecords raises the log start offset | `trimmed-0 begins at 0, not in ...` |
| an aborted transaction is hidden | `out-...: ... records, ... are consumed by committed transactions` |

The first effect of each is a line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from racing_clients import GROUP

from local.names import TopicPartition
from tiered.cli.main import run
from tiered.maintenance import maintenance
from tiered.maintenance.delete_records import DeletedRecords, plan_deletion
from tiered.partition.partition import Partition
from tiered.serve.groups.offsets_log import LogRecord, TopicOffsetsLog
from tiered.serve.groups.offsets_records import OffsetKey, decode_key
from tiered.serve.node.node_sink import NodeSink
from tiered.serve.record_sink import Appended

EACH = 3  # of these batches one is not written
# The line of a plant, and how the report of the race begins.
REPORTS = {
    "planted: an append without a write": "lines: append ",
    "planted: a commit in memory": f"the committed offset of ('{GROUP}'",
    "planted: a deletion without an effect": "trimmed-0 begins at 0,",
    "planted: a commit of an aborted transaction": "out-",
}


_said: set[str] = set()


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(text, file=sys.stderr, flush=True)


def _acknowledge_without_a_write() -> None:
    """Every third batch of the topic `lines` gets its offset, and is in no log."""
    append, count = NodeSink._append, 0

    def lossy(self: NodeSink, held: Partition, batches: memoryview, *, is_client: bool = True) -> Appended:
        nonlocal count
        count += held.name.topic == "lines"
        if held.name.topic != "lines" or count % EACH:
            return append(self, held, batches, is_client=is_client)
        _say("planted: an append without a write")
        end = held.log.next_offset
        return Appended(base_offset=end, next_offset=end, log_start_offset=held.log.log_start_offset)

    NodeSink._append = lossy  # type: ignore[method-assign]


def _keep_offsets_in_memory() -> None:
    """The offsets of the group of all members are in no log, so the next node does not know them."""
    append = TopicOffsetsLog.append

    def forgetful(self: TopicOffsetsLog, partition: int, records: Sequence[LogRecord], **more: Any) -> int:
        kept = [each for each in records if not _is_offset(each[0])]
        if len(kept) < len(records):
            _say("planted: a commit in memory")
        return append(self, partition, kept, **more) if kept else 0

    TopicOffsetsLog.append = forgetful  # type: ignore[method-assign]


def _is_offset(data: bytes) -> bool:
    key = decode_key(data)
    return isinstance(key, OffsetKey) and key.group == GROUP


def _delete_no_records() -> None:
    def plan(partitions: Mapping[Partition, int], *_: object, **more: object) -> dict[TopicPartition, DeletedRecords]:
        planned = {held.name: plan_deletion(held, offset) for held, offset in partitions.items()}
        if any(each.low_watermark > each.before for each in planned.values()):
            _say("planted: a deletion without an effect")
        return planned

    maintenance.delete_records = plan


def _commit_every_transaction() -> None:
    append_marker = NodeSink.append_marker

    def commit(self: NodeSink, *place: Any, is_commit: bool, **more: Any) -> Appended:
        if not is_commit:
            _say("planted: a commit of an aborted transaction")
        return append_marker(self, *place, is_commit=True, **more)

    NodeSink.append_marker = commit  # type: ignore[method-assign]


if __name__ == "__main__":
    for plant in (
        _acknowledge_without_a_write,
        _keep_offsets_in_memory,
        _delete_no_records,
        _commit_every_transaction,
    ):
        plant()
    run(sys.argv[1:])
