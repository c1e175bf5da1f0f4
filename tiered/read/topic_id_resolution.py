"""Several topics of one name in a bucket: made anew after a deletion, or by several directories.

Of a deleted topic a head per partition stays for good, so that nobody takes its id again. Whoever asks for a topic by
its name alone means one that lives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from remote.manifest.catalog import RemotePartitionName, partitions_of
from remote.manifest.commit_protocol import MetadataLog
from remote.store import ObjectStore


def without_deleted(store: ObjectStore, names: Sequence[RemotePartitionName]) -> list[RemotePartitionName]:
    """`names` without those of deleted topics that share their name with one that lives.

    Where all of a name are deleted all stay, for the caller to say so. Only of names that several topics have is
    anything asked: of each topic its first partition's newest head.
    """
    firsts: dict[str, dict[str, RemotePartitionName]] = defaultdict(dict)
    for name in names:
        firsts[name.topic].setdefault(name.topic_id, name)
    dead: set[str] = set()
    for of_the_name in firsts.values():
        if len(of_the_name) > 1:
            gone = {topic_id for topic_id, first in of_the_name.items() if _is_deleted(store, first)}
            dead |= gone if len(gone) < len(of_the_name) else set()
    return [name for name in names if name.topic_id not in dead]


def living_ids(store: ObjectStore, topic: str, topic_ids: Iterable[str]) -> list[str]:
    """Those of the topics of that name that were not deleted, by their first partition's newest head."""
    firsts = ((each, partitions_of(store, topic, each)[:1]) for each in topic_ids)
    return [each for each, first in firsts if not any(_is_deleted(store, name) for name in first)]


def _is_deleted(store: ObjectStore, name: RemotePartitionName) -> bool:
    head = MetadataLog(store, name.prefix).load()
    return head is not None and head.deleted_ms is not None
