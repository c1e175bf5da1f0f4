"""Disable the remote tier of a topic for good: `remote.storage.enable` from true to false (KIP-950).

Refused unless `remote.log.delete.on.disable=true`. The topic continues on the disk alone:

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | the registry has the topic's own ``remote.storage.enable=false`` | the request; the next maintenance does step 2 |
| 2 | a manifest: log start = the disk's, no entry counts, no views | a tier that is not read; the open does step 3 |
| 3 | the log-start checkpoint; readers get the new log start | entries to unlink |
| 4 | entries are unlinked, pages whole, as many as a manifest has room for | fewer entries |
| 5 | after the grace period and the pins: their objects are deleted | pending deletes |
| 6 | the last entry was unlinked | a manifest without entries |

Before step 2 no record is lost, and enabling the tier again undoes the request. All records that count afterwards are
durable on the disk: the bucket holds closed segments only, and a closed segment is durable. After step 2 nothing in the
bucket is read any more. A tier that is enabled again, even during step 4, waits for step 6. Then it copies everything
from the log start under new names: `policies.plan`.
This writer keeps the writer role in the bucket for good, by its manifests. A disk that is lost later must not give the
offsets again that were in the bucket (I3).

Only an altered topic starts this. A changed default in the configuration makes the tier read-only, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from local.logdirs.log_dir import LogDirectory
from remote.manifest.manifest_changes import disable_tier
from tiered.config.properties import DELETE_ON_DISABLE, parse
from tiered.node.topic_registry import Topic
from tiered.partition.partition import Partition

ENABLE = "remote.storage.enable"


def is_tier_disabled(topic: Topic, values: Mapping[str, str]) -> bool:
    """Whether the topic's own settings disable its tier; `values` are the effective settings."""
    own = topic.properties.get(ENABLE)
    is_off = own is not None and not parse(ENABLE, own) and values[ENABLE] == "false"
    return topic.was_tiered and is_off and values[DELETE_ON_DISABLE] == "true"


def disable_tier_of(partition: Partition, where: Callable[[], LogDirectory], offset: int, *, now_ms: int) -> bool:
    """Steps 2 and 3; False if the request no longer applies. The caller holds `tier_lock`.

    The partition's `lock` is held before and after the commit, never during a wait for the store. During the commit
    `Uploads.copying` holds `offset`, so no local segment that ends above it is dropped. `where` is called under the
    lock, because the partition may move.
    """
    metadata, log = partition.metadata, partition.log
    with partition.lock:
        if metadata is None or partition.is_deleted or not partition.is_writer or not partition.rules.gives_up_remote:
            return False
        if log.segments()[0].base_offset > offset or offset > log.next_offset:
            return False
        partition.uploads.mark_copying({offset})
        # An upload whose commit is in doubt may be an entry. It is unlinked with the other entries, and its objects are
        # deleted: a tier that is enabled again must not treat it as complete. If it is no entry, it is an orphan of
        # this epoch.
        partition.uploads.remove_doubtful()
    try:
        tier_disabled = disable_tier(log_start_offset=offset, now_ms=now_ms)
        # Checked again when the commit runs: another commit may have waited long, and the request may have been undone.
        manifest = metadata.commit(
            lambda manifest: tier_disabled(manifest) if partition.rules.gives_up_remote else manifest, now_ms
        )
        with partition.lock:
            if log.log_start_offset < manifest.log_start_offset and not partition.is_deleted:
                where().write_log_starts({partition.name: manifest.log_start_offset})
                log.raise_log_start(manifest.log_start_offset)
    finally:
        partition.uploads.unmark_copying()
    return manifest.tier_disabled or not manifest.has_entries
