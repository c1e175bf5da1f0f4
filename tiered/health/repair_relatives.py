"""Forks in a repair: partitions that name one object share its damage.

One of them may have a good copy for the others.

A repaired segment has a new name, which only one partition's entry gets. The entries of a fork still name the damaged
object, and so do the source's if the fork was repaired. So a finding about one partition counts for all partitions that
name the object: its home, and the forks named in the home's pins. Each is repaired separately, an entry at a time.

If neither the disk nor the bucket has the bytes under the partition's own name, its relatives are searched. First their
logs on this machine's disk, then their entries with the same offsets, size and checksum and another, undamaged object.

The module only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from local.errors import Corrupt, NotFound
from remote.gc.fork_references import forks_of
from remote.gc.pins import list_pins
from remote.keys import home_of, key_in_other_topic, parse_partition, parse_topic_directory
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore

IsWhole = Callable[[RemotePartitionName, SegmentEntry], bool]


class Relatives:
    """Partitions of a bucket that share objects; each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._forks: dict[str, tuple[RemotePartitionName, ...]] = {}
        self._entries: dict[RemotePartitionName, tuple[SegmentEntry, ...]] = {}

    def naming(self, name: RemotePartitionName, entry: SegmentEntry) -> Iterator[tuple[RemotePartitionName, str]]:
        """Yield other partitions with an entry that names an object of this one, and its ULID.

        Only the newest manifests count.
        """
        objects = self._objects(name, entry)
        for other in self._of(name, entry):
            for each in self.entries(other):
                if objects & self._objects(other, each):
                    yield other, each.ulid

    def same_bytes(
        self, name: RemotePartitionName, entry: SegmentEntry, is_whole: IsWhole
    ) -> tuple[RemotePartitionName, SegmentEntry] | None:
        """Return a relative's entry with the same bytes in undamaged objects of its own."""
        objects = self._objects(name, entry)
        for other in self._of(name, entry):
            for each in self.entries(other):
                if _is_same(each, entry) and not objects & self._objects(other, each) and is_whole(other, each):
                    return other, each
        return None

    def on_disk(self, name: RemotePartitionName, entry: SegmentEntry, copies: IsWhole) -> RemotePartitionName | None:
        """Return the relative with the entry's bytes in its log on this machine's disk."""
        return next((other for other in self._of(name, entry) if copies(other, entry)), None)

    def entries(self, name: RemotePartitionName) -> Sequence[SegmentEntry]:
        """Return the newest manifest's entries; none if the partition is unreadable or deleted."""
        if name not in self._entries:
            self._entries[name] = ()
            log = MetadataLog(self._store, name.prefix)
            try:
                manifest = log.load(exact=True)
                if manifest is not None and manifest.deleted_ms is None:
                    self._entries[name] = tuple(log.ask(manifest, lambda index: list(index.entries())))
            except (Corrupt, NotFound):
                pass  # its own repair reports the error
        return self._entries[name]

    def _of(self, name: RemotePartitionName, entry: SegmentEntry) -> Iterable[RemotePartitionName]:
        homes = {home_of(key) for key in self._objects(name, entry)}
        found = [_named(home) for home in sorted(homes)]
        found += [fork for home in sorted(homes) for fork in self._forks_of(home)]
        return [each for each in dict.fromkeys(found) if each is not None and each != name]

    def _forks_of(self, home: str) -> tuple[RemotePartitionName, ...]:
        if home not in self._forks:
            prefixes = sorted(forks_of(list_pins(self._store, home)))
            self._forks[home] = tuple(name for each in prefixes if (name := _named(each)) is not None)
        return self._forks[home]

    def _objects(self, name: RemotePartitionName, entry: SegmentEntry) -> set[str]:
        return {key_in_other_topic(name.prefix, key) for key in (entry.data_key, entry.indexes_key)}


def _is_same(one: SegmentEntry, other: SegmentEntry) -> bool:
    facts = [(entry.base_offset, entry.next_offset, entry.size_bytes, entry.content_crc32c) for entry in (one, other)]
    return facts[0] == facts[1]


def _named(prefix: str) -> RemotePartitionName | None:
    directory, _, number = prefix.rstrip("/").partition("/")
    topic, partition = parse_topic_directory(directory), parse_partition(number)
    return RemotePartitionName(*topic, partition) if topic is not None and partition is not None else None
