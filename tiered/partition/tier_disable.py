"""Switching the remote tier of a topic off for good: `remote.storage.enable` from true to false (KIP-950).

Refused unless `remote.log.delete.on.disable=true`. The topic goes on as one that only the disk holds:

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | the registry has the topic's own ``remote.storage.enable=false`` | the wish; the next round goes on with step 2 |
| 2 | a head: log start at the disk's, no row counts, views gone | a tier that nobody reads; 3 comes with the open |
| 3 | the log-start checkpoint; readers are told | rows to take out |
| 4 | rows leave the index, pages whole, as many as a head has room for | fewer rows |
| 5 | after the grace time and the pins: their objects are deleted | objects on a list |
| 6 | the last row has left | a head without rows |

Before step 2 nothing is lost, and taking the wish back (enabling again) undoes it. The disk has durably all that counts
from then on: what is in the bucket was sealed, and a sealed segment is durable. After step 2 nothing in the bucket is
read any more, so a tier that is enabled again, even in the middle of 4, copies everything anew from the log start,
under new names, once step 6 is reached: `policies.tier_disabled`. The partition stays ours in the bucket for good, by
its heads: a disk that is lost later must not give the offsets again that were in the bucket (I3).

Only altering the topic begins this. A default that changes in the configuration makes the tier read-only, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from local.logdirs.log_dir import LogDirectory
from remote.manifest.manifest_changes import give_up_tier
from tiered.config.properties import parse
from tiered.config.tier_properties import DELETE_ON_DISABLE
from tiered.node.topic_registry import Topic
from tiered.partition.partition import Partition

ENABLE = "remote.storage.enable"


def is_given_up(topic: Topic, values: Mapping[str, str]) -> bool:
    """Whether this topic's tier is to be given up, by its own settings; `values` are the effective ones."""
    own = topic.properties.get(ENABLE)
    is_off = own is not None and not parse(ENABLE, own) and values[ENABLE] == "false"
    return topic.was_tiered and is_off and values[DELETE_ON_DISABLE] == "true"


def give_up(partition: Partition, where: Callable[[], LogDirectory], offset: int, *, now_ms: int) -> bool:
    """Steps 2 and 3; False where the world has moved. For the holder of `tier_lock`.

    The partition's lock is held before the commit and after it, and nobody waits for the store at it. Meanwhile its
    segments are marked as being copied: nothing leaves the disk that the new head counts on. `where` is asked inside
    the lock, for the partition may move.
    """
    metadata, log = partition.metadata, partition.log
    with partition.lock:
        if metadata is None or partition.is_deleted or not partition.is_owned or not partition.rules.gives_up_remote:
            return False
        if log.segments()[0].base_offset > offset or offset > log.next_offset:
            return False
        partition.copying = frozenset({offset})
        # An upload whose commit had no answer may be a row, which goes with the others, and its objects with it: the
        # tier, enabled again, must not take it for whole. Where it is none, it is an orphan of this epoch.
        kept = {segment: each for segment, each in partition.uploaded.items() if not each.is_tried}
        partition.forgot_tried |= len(kept) < len(partition.uploaded)  # before they go: it may be a row all the same
        partition.uploaded = kept
    try:
        given_up = give_up_tier(log_start_offset=offset, now_ms=now_ms)
        # Asked once more when its turn has come: another commit may have waited long, and the wish been taken back.
        head = metadata.commit(lambda head: given_up(head) if partition.rules.gives_up_remote else head, now_ms)
        with partition.lock:
            if log.log_start_offset < head.log_start_offset and not partition.is_deleted:
                where().write_log_starts({partition.name: head.log_start_offset})
                log.raise_log_start(head.log_start_offset)
    finally:
        partition.copying = frozenset()
    return head.given_up or not head.has_rows
