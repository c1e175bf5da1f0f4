"""Resolve topics of one name in a bucket: recreated after a deletion, or of several directories.

One manifest per partition of a deleted topic stays for good, so that its id is never reused. A request by name alone
means a living topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from remote.manifest.catalog import RemotePartitionName, partitions_of
from remote.manifest.commit_protocol import MetadataLog
from remote.store import ObjectStore


def without_deleted(store: ObjectStore, names: Sequence[RemotePartitionName]) -> list[RemotePartitionName]:
    """`names` without deleted topics that share their name with a living one.

    If all topics of a name are deleted, all stay, so that the caller can report it. Only a name with several topics
    costs requests: the newest manifest of each topic's first partition.
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
    """The ids of the topics not deleted, by the newest manifest of their first partition."""
    firsts = ((each, partitions_of(store, topic, each)[:1]) for each in topic_ids)
    return [each for each, first in firsts if not any(_is_deleted(store, name) for name in first)]


def _is_deleted(store: ObjectStore, name: RemotePartitionName) -> bool:
    manifest = MetadataLog(store, name.prefix).load()
    return manifest is not None and manifest.deleted_ms is not None
