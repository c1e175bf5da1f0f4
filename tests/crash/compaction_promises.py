"""The promises of a compacted log after any crash, derived from a `log_script.Story`.

1. The newest value of a key stays.
2. A key whose newest record is a tombstone has this tombstone or, after the tombstone's retention, no record. It never
   has an older value.
3. Records of open transactions stay.
4. A `read_committed` reader sees no records of aborted transactions, and sees every other record that is left.
5. A record that one recovery did not find does not come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from log_script import Story

from local.log import Log
from local.records.isolation import Isolation


@dataclass
class Decided:
    """Offsets of decided records that count, and offsets of records of aborted transactions."""

    counting: set[int]
    aborted: set[int]
    markers: set[int]


def decided(story: Story, kept: dict[int, int], next_offset: int, stable: int) -> Decided:
    _, transactions = story.producers(kept, next_offset)
    found = Decided(set(), set(), set())
    offset = 0
    for offset in sorted(at for at in story.sent if at < next_offset):
        batch = story.batches.get(kept.get(offset, story.sent[offset][-1]))
        if batch is None:
            continue
        if batch.marker is not None:
            found.markers.add(offset)
        elif batch.producer.is_transactional:
            who = batch.producer.producer_id
            if any(each == who and first <= offset < last for each, first, last in transactions):
                found.aborted.update(range(offset, offset + batch.count))
    offsets = {at for at in story.sent if at < min(next_offset, stable)}
    found.counting = offsets - found.aborted - found.markers
    return found


def check_compacted(log: Log, kept: dict[int, int], story: Story) -> None:
    """Check the promises of the module docstring."""
    back = set(kept) & story.lost
    assert not back, f"records came back: {sorted(back)}"
    for offset, serial in kept.items():
        assert story.acked.get(offset, serial) == serial, f"acknowledged offset {offset} was given to another record"
    stable = log.last_stable_offset
    facts = decided(story, kept, log.next_offset, stable)
    for offset in story.acked:
        assert offset < stable or offset in kept, f"offset {offset} of an open transaction is lost"
    _check_newest(kept, story, facts.counting)
    isolation = Isolation.READ_COMMITTED
    shown = {record.offset for record in log.records(log.local_log_start_offset, isolation=isolation)}
    assert not shown & facts.aborted, f"aborted records are shown: {sorted(shown & facts.aborted)}"
    assert shown == {at for at in kept if at in facts.counting}, "committed records are not shown, or open ones are"


def _check_newest(kept: dict[int, int], story: Story, counting: set[int]) -> None:
    newest = {story.records[serial].key: at for at, serial in sorted(story.acked.items()) if at in counting}
    found = {story.records[serial].key: at for at, serial in sorted(kept.items()) if at in counting}
    for key, offset in newest.items():
        if found.get(key, -1) >= offset:
            continue
        assert story.records[story.acked[offset]].value is None, f"the newest record of {key!r}, at {offset}, is lost"
        assert story.may_have_left(offset), f"the tombstone at {offset} of {key!r} was removed too early"
        assert key not in found, f"a deleted value of {key!r} has returned, at {found.get(key)}"
