"""A consistency check of everything in the bucket below one partition's prefix.

The order of reads is: the listing, the manifests, the objects that the newest manifest names. So a concurrent writer
causes no finding.

| subject | checks |
|---|---|
| manifests | each decodes, has its own name, belongs to this partition and follows its parent; none is missing |
| manifest chain | none drops an object that its parent listed; none names an unlinked object again |
| entries of the newest manifest, of log and views | their objects exist, with the sizes and names of the entry |
| pages | the manifest's summary of a page agrees with its entries |
| pending deletes | no entry names them; a deleted one is no finding |

`check_partition` also reads inside segments (`remote.fetch.segment_check`): indexes decode, every chunk has its CRC,
and the caller's `LookInside` checks the bytes. `survey_partition` does not: other callers may check entries one by one,
anywhere.

Severities:

- CORRUPT: every failed check above.
- WARNING: a hole between two entries above the log start, or an object with an unknown name. It belongs to other
  software and is never touched.
- INFO: objects that no manifest names, with their bytes. Uploads of an older epoch can never be named. The writer of
  the present epoch may be about to name its uploads.

Memory: the entries of the manifests, one name for each object, one range of a segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import islice, pairwise
from typing import TypeVar

from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError, NotFound, Unavailable
from local.verify.findings import Finding, Severity, damaged, told
from remote.check.manifest_salvage import salvage_manifest
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.fetch.segment_check import LookInside, check_segment, only_read, unreadable, wrong
from remote.gc.fork_references import kept_by_forks
from remote.keys import (
    DATA_SUFFIX,
    HEADS,
    INDEXES_SUFFIX,
    PROBES,
    full_key,
    parse_boundary_key,
    parse_epoch,
    parse_manifest_key,
    parse_pin_key,
)
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head, PageEntry, decode_manifest, lacks_seal
from remote.manifest.manifest_chain import decode_boundary
from remote.manifest.manifest_changes import loses_objects
from remote.manifest.manifest_lookup import Pages
from remote.manifest.manifest_page import summary_contradiction
from remote.manifest.manifest_validation import Part
from remote.manifest.page_entries import PageEntries
from remote.manifest.page_spill import waiting_keys
from remote.manifest.sealing import is_sealed, keyed
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectInfo, ObjectStore

T = TypeVar("T")
OTHERS_MAX = 3  # objects read to distinguish one refused object from a store that refuses all
# Errors that a store may raise for one object while it serves others.
UNREADABLE = (AccessDenied, InvalidRequest, NotFound, Unavailable)


class ObjectKind(Enum):
    """The kind of an object below the prefix, by its name and the newest manifest."""

    HEAD = "head"
    SEGMENT = "segment"
    INDEXES = "indexes"
    UNLINKED = "unlinked"
    FORKED = "let go of, and named by a fork"
    ORPHAN = "orphan of an older epoch"
    IN_FLIGHT = "not named, of the present epoch"
    PAGE = "page of rows"
    BOUNDARY = "boundary of collected heads"
    PIN = "pin of a reader"
    PROBE = "probe"
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class BucketReport:
    """The result of a check.

    | field | content |
    |---|---|
    | `objects` | kinds by full key |
    | `head` | the newest manifest that decodes |
    | `rows` | entries with objects of the right size: their content can be checked |
    | `suspects` | all other entries |
    """

    prefix: str
    findings: list[Finding] = field(default_factory=list)
    objects: dict[str, ObjectKind] = field(default_factory=dict)
    head: Head | None = None
    rows: list[SegmentEntry] = field(default_factory=list)
    suspects: list[SegmentEntry] = field(default_factory=list)
    size_bytes: int = 0
    is_unread: bool = False  # manifests are encrypted or authenticated, and the ring lacks their key

    def counts(self) -> dict[ObjectKind, int]:
        return dict(Counter(self.objects.values()))


def check_partition(
    store: ObjectStore, prefix: str, look_inside: LookInside | None = None, *, keys: KeyRing = NO_KEYS
) -> BucketReport:
    """Check one partition, see the module text.

    Without `look_inside` only the chunks' CRCs are checked. Raises the store's errors if it cannot be reached. All
    damage of bytes is a finding, and so is an object that the store refuses while it serves others.
    """
    store = keyed(store, keys)
    report = survey_partition(store, prefix)
    remote = RemotePartition(store, prefix, ChunkCache(0), read_ahead_chunks=0, keys=keys)
    for row in report.rows:
        found = check_segment(store, remote, row, look_inside or only_read)
        if found and is_still_named(store, prefix, row):
            report.findings += found
    return report


def survey_partition(store: ObjectStore, prefix: str) -> BucketReport:
    """Check everything but the content of segments and indexes, see the module text.

    Raises as `check_partition`.
    """
    return _Check(store, prefix).run()


def serves(store: ObjectStore, prefix: str) -> bool:
    """Whether the store can list the prefix, so that it is not wholly out of reach."""
    try:
        return any(True for _ in islice(store.list(prefix), 1))
    except LogError:
        return False


def is_still_named(store: ObjectStore, prefix: str, row: SegmentEntry) -> bool:
    """Whether the newest manifest still names the entry: it may have expired, or been replaced.

    True if the manifest cannot be read, so that the finding stays.
    """
    metadata = MetadataLog(store, prefix)
    try:
        newest = metadata.refresh()
        is_of_view = any(each.ulid == row.ulid for each in newest.view_entries)
        return is_of_view or metadata.ask(newest, lambda index: index.holds(row))
    except (Corrupt, *UNREADABLE):
        return True


class _Check:
    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._pages = Pages(store, prefix)
        self._has_read = False  # whether any object of the partition was read
        self._others: list[str] = []  # objects to read if the first one is refused
        self._salvaged_sequences: set[int] = set()
        self._doubtful: set[str] = set()  # objects that a rejected entry names
        self._report = BucketReport(prefix=prefix)

    def run(self) -> BucketReport:
        report = self._report
        listed = {info.key.removeprefix(self._prefix): info for info in self._store.list(self._prefix)}
        self._others = [key for key, info in listed.items() if info.size_bytes][-OTHERS_MAX:]
        report.size_bytes = sum(info.size_bytes for info in listed.values())
        try:
            heads = list(self._heads(listed))
        except AccessDenied as error:
            if "key_id" not in error.facts:
                raise
            # Without the key nothing is known of this partition, so nothing of it can be wrong.
            report.findings.append(replace(told(Severity.WARNING, self._prefix, str(error)), is_unread=True))
            report.is_unread = True
            return report
        self._check_chain(heads)
        report.head = heads[-1] if heads else None
        if report.head is not None and lacks_seal(report.head):
            what = "manifests of an encrypted topic are not sealed: not authenticated, and they tell checksums"
            step = f"upgrade all readers, then: tiered rotate-keys {report.head.topic}"
            report.findings.append(told(Severity.WARNING, self._prefix + HEADS, f"{what} ({step})"))
        self._classify(listed)
        if report.head is not None:
            self._check_unlinked(report.head)
            self._check_pages(report.head)
            self._check_rows(report.head, listed)
        elif listed:
            self._wrong("", f"segments, and no head: objects={len(listed)}")
        return report

    # --- heads -------------------------------------------------------------------------------------------------------

    def _heads(self, listed: dict[str, ObjectInfo]) -> Iterator[Head]:
        """Yield the manifests that decode, ascending: the listed ones and later commits."""
        void_upto = self._void_upto(listed)
        names = sorted(sequence for key in listed if (sequence := parse_manifest_key(key)) is not None)
        names = [sequence for sequence in names if sequence > void_upto]
        for before, after in pairwise(names):
            if after != before + 1:
                self._wrong(HEADS, f"heads are missing: from_sequence={before + 1} to_sequence={after}")
        if names and names[0] != void_upto + 1:
            self._wrong(HEADS, f"heads are missing: from_sequence={void_upto + 1} to_sequence={names[0]}")
        for sequence in names:
            head = self._head(sequence)
            if head is not None:
                yield head
        following = names[-1] + 1 if names else 1
        while (head := self._head(following, is_listed=False)) is not None:
            yield head
            following += 1

    def _void_upto(self, listed: dict[str, ObjectInfo]) -> int:
        """Return the newest GC boundary: manifests up to it are void, whether they exist or not."""
        reached = 0
        for key in sorted(key for key in listed if parse_boundary_key(key) is not None):
            try:
                body = self._asked(key, partial(self._store.get, self._prefix + key))
                upto = decode_boundary(body) if body is not None else None
            except NotFound:
                continue  # deleted since the listing
            except Corrupt as error:
                self._report.findings.append(damaged(error, self._prefix + key))
                continue
            if upto is None:
                continue
            if upto < reached:
                self._wrong(key, f"a boundary goes back: upto={upto} before={reached}")
            reached = max(reached, upto)
        return reached

    def _head(self, sequence: int, *, is_listed: bool = True) -> Head | None:
        key = f"{HEADS}{sequence:020d}"
        try:
            body = self._asked(key, lambda: self._store.get(self._prefix + key))
        except NotFound:
            if is_listed:
                self._wrong(key, "a head was listed and is not there")
            return None
        if body is None:
            return None
        try:
            head: Head | None = decode_manifest(body, self._prefix, sealer=self._pages.sealer)
        except Corrupt as error:
            head = self._salvaged(sequence, body, error)
        if head is not None and head.sequence != sequence:
            self._wrong(key, f"a head has another's name: sequence={head.sequence}")
        return head

    def _salvaged(self, sequence: int, body: bytes, error: Corrupt) -> Head | None:
        """Report each contradiction of a rejected manifest; return a manifest of the sound entries."""
        key = f"{HEADS}{sequence:020d}"
        try:
            if is_sealed(body) or self._pages.sealer.is_required:
                raise error  # forged: nothing in it is used
            salvage = salvage_manifest(body, self._prefix)
        except Corrupt:
            self._report.findings.append(damaged(error, self._prefix + key))
            return None
        self._salvaged_sequences.add(sequence)
        for each in salvage.found:
            path = self._prefix + key if each.key is None else full_key(self._prefix, each.key)
            what = f"readers refuse this head, {each.what}: sequence={sequence} place={each.place}"
            self._report.findings.append(Finding(severity=Severity.CORRUPT, path=path, what=what, offsets=each.offsets))
            if each.key is not None and each.part in (Part.SEGMENTS, Part.VIEWS):
                self._doubtful |= {each.key, each.key.partition(DATA_SUFFIX)[0] + INDEXES_SUFFIX}
        return salvage.head

    def _check_chain(self, heads: list[Head]) -> None:
        given_up: set[str] = set()
        before: Head | None = None
        for head in heads:
            key = f"{HEADS}{head.sequence:020d}"
            if before is not None and before.sequence + 1 == head.sequence:
                if before.seal_key_id is not None and head.seal_key_id is None:
                    self._wrong(key, "a head is not sealed, and an older one is: forged")
                if head.parent_id != before.commit_id:
                    self._wrong(key, f"a head does not follow its parent: parent_id={head.parent_id}")
                if not before.epoch <= head.epoch <= before.epoch + 1:
                    self._wrong(key, f"the epoch jumps: epoch={head.epoch} before={before.epoch}")
                if head.epoch == before.epoch and head.writer_id != before.writer_id:
                    self._wrong(key, f"two writers in one epoch: writer={head.writer_id} before={before.writer_id}")
                if (lost := self._lost(before, head)) is not None:
                    self._wrong(key, lost)
            again = given_up & {name for row in self._named_rows(head) for name in (row.data_key, row.indexes_key)}
            again |= given_up & {spill.key for spill in head.spills}
            for name in sorted(again):
                self._wrong(name, f"named again after it was given up for deletion: sequence={head.sequence}")
            given_up |= self._waiting(head)
            before = head

    def _lost(self, before: Head, head: Head) -> str | None:
        """Return how `head` loses objects or offsets of its parent, as text.

        None without a loss, and also if a page that it unlinked is already deleted. A salvaged manifest lacks entries,
        so it is not compared.
        """
        if self._salvaged_sequences & {before.sequence, head.sequence}:
            return None
        try:
            return loses_objects(before, head, self._pages.rows)
        except (Corrupt, *UNREADABLE):
            return None

    def _rows(self, head: Head, *, tells: bool = False) -> list[SegmentEntry]:
        """Return all entries of a manifest, ascending, with the entries of its pages.

        A page that cannot be read is reported if `tells`.
        """
        rows: list[SegmentEntry] = []
        for spill in head.spills:
            try:
                rows += self._page_rows(spill, tells=tells)
            except NotFound:
                if tells:
                    self._wrong(spill.key, "a head names a page of rows that is not there")
            except Corrupt as error:
                if tells:
                    self._report.findings.append(damaged(error, self._prefix + spill.key))
        return [*rows, *head.segments]

    def _page_rows(self, spill: PageEntry, *, tells: bool) -> Sequence[SegmentEntry]:
        """Return the sound entries of a page; report the others if requested."""
        found = self._asked(spill.key, lambda: self._pages.rows(spill), tells=tells)
        if found is None:
            return ()
        if not isinstance(found, PageEntries):
            return found
        rows, refused = found.salvaged()
        for each in refused if tells else ():
            finding = damaged(each.error, self._prefix + spill.key)
            self._report.findings.append(replace(finding, offsets=each.offsets))
        return rows

    def _waiting(self, head: Head) -> set[str]:
        """Return the pending deletes; of a page that cannot be read only the page."""
        try:
            return set(waiting_keys(head, self._pages.rows))
        except (Corrupt, *UNREADABLE):
            return {*(each.key for each in head.unlinked), *(each.spill.key for each in head.unlinked_pages)}

    def _named_rows(self, head: Head) -> list[SegmentEntry]:
        """Return all entries with objects: the log's, then its compacted views'."""
        return [*self._rows(head), *head.view_entries]

    # --- other objects -----------------------------------------------------------------------------------------------

    def _classify(self, listed: dict[str, ObjectInfo]) -> None:
        head, report = self._report.head, self._report
        kinds: dict[str, ObjectKind] = {}
        if head is not None:
            kinds |= dict.fromkeys(self._waiting(head), ObjectKind.UNLINKED)
            kinds |= {row.data_key: ObjectKind.SEGMENT for row in self._named_rows(head)}
            kinds |= {row.indexes_key: ObjectKind.INDEXES for row in self._named_rows(head)}
            kinds |= {spill.key: ObjectKind.PAGE for spill in head.spills}
        for key in self._doubtful:
            kinds.setdefault(key, ObjectKind.INDEXES if key.endswith(INDEXES_SUFFIX) else ObjectKind.SEGMENT)
        kinds = dict.fromkeys(self._of_forks(listed), ObjectKind.FORKED) | kinds
        unnamed: Counter[ObjectKind] = Counter()
        for key, info in listed.items():
            kind = kinds.get(key) or self._kind_by_name(key, head.epoch if head is not None else 0)
            report.objects[self._prefix + key] = kind
            if kind in (ObjectKind.FORKED, ObjectKind.ORPHAN, ObjectKind.IN_FLIGHT):
                unnamed[kind] += info.size_bytes
            elif kind is ObjectKind.UNKNOWN:
                what = f"an object that is not ours: bytes={info.size_bytes}"
                report.findings.append(told(Severity.WARNING, self._prefix + key, what))
        for kind, size in sorted(unnamed.items(), key=lambda each: each[0].value):
            count = sum(each is kind for each in report.objects.values())
            report.findings.append(told(Severity.INFO, self._prefix, f"{kind.value}: objects={count} bytes={size}"))

    def _of_forks(self, listed: dict[str, ObjectInfo]) -> Collection[str]:
        """Return the objects that forks of this partition name.

        Nothing if a fork cannot be read; the fork's own check reports it.
        """
        if not any(parse_pin_key(key) is not None for key in listed):
            return ()
        try:
            return kept_by_forks(self._store, self._prefix)
        except (Corrupt, *UNREADABLE):
            return ()

    def _kind_by_name(self, key: str, epoch: int) -> ObjectKind:
        if parse_manifest_key(key) is not None:
            return ObjectKind.HEAD
        if key.startswith(PROBES):
            return ObjectKind.PROBE
        if parse_boundary_key(key) is not None:
            return ObjectKind.BOUNDARY
        if parse_pin_key(key) is not None:
            return ObjectKind.PIN
        made_in = parse_epoch(key)
        if made_in is None:
            return ObjectKind.UNKNOWN
        if made_in > epoch:
            self._wrong(key, f"an object of an epoch that no head has: epoch={made_in} newest={epoch}")
        return ObjectKind.ORPHAN if made_in < epoch else ObjectKind.IN_FLIGHT

    # --- the newest manifest's entries --------------------------------------------------------------------------------

    def _check_unlinked(self, head: Head) -> None:
        named = {key for row in self._named_rows(head) for key in (row.data_key, row.indexes_key)}
        named |= {spill.key for spill in head.spills}
        for key in sorted(self._waiting(head) & named):
            self._wrong(key, "given up for deletion and still named by a row")

    def _check_pages(self, head: Head) -> None:
        for spill in head.spills:
            try:
                wrong_field = summary_contradiction(spill, self._pages.rows(spill))
            except (Corrupt, *UNREADABLE):
                continue  # reported with the entries
            if wrong_field is not None:
                self._wrong(spill.key, f"a head says something else of a page than its rows: {wrong_field}")

    def _check_rows(self, head: Head, listed: dict[str, ObjectInfo]) -> None:
        reached = None
        for row in self._rows(head, tells=True):
            if reached is not None and row.base_offset > max(reached, head.log_start_offset):
                # Cleaning may remove whole segments: the entry after them was cleaned, or the topic is compacted.
                is_cleaned = row.cleaned_through is not None or "compact" in head.properties.get("cleanup.policy", "")
                severity = Severity.INFO if is_cleaned else Severity.WARNING
                what = f"no row holds these offsets: from_offset={reached} to_offset={row.base_offset}"
                self._report.findings.append(told(severity, self._prefix, what))
            reached = row.next_offset
        for row in self._named_rows(head):
            before = len(self._report.findings)
            sizes = ((row.data_key, row.stored_bytes), (row.indexes_key, row.indexes_bytes))
            present = [self._check_size(key, size, listed, row) for key, size in sizes]
            (self._report.rows if all(present) else self._report.suspects).append(row)
            if len(self._report.findings) > before and not is_still_named(self._store, self._prefix, row):
                del self._report.findings[before:]

    def _check_size(self, key: str, size_bytes: int, listed: dict[str, ObjectInfo], row: SegmentEntry) -> bool:
        info = listed.get(key)
        try:
            info = info or self._asked(key, lambda: self._store.head(full_key(self._prefix, key)))
        except NotFound:
            self._wrong(key, "a row names an object that is not there", row)
            return False
        if info is None:
            return False
        if info.size_bytes != size_bytes:
            self._wrong(key, f"an object's size differs: expected_bytes={size_bytes} found={info.size_bytes}", row)
        return info.size_bytes == size_bytes

    def _asked(self, key: str, ask: Callable[[], T], *, tells: bool = True) -> T | None:
        """Return the store's answer for one object.

        None, with a finding, if the store refuses this object and serves others.
        """
        try:
            found = ask()
        except UNREADABLE as error:
            if isinstance(error, NotFound) or not self._serves_others():
                raise
            if tells:
                self._report.findings.append(unreadable(error, full_key(self._prefix, key)))
            return None
        self._has_read = True
        return found

    def _serves_others(self) -> bool:
        """Whether the store serves other objects of the partition: then it refuses only one object."""
        if self._has_read:
            return serves(self._store, self._prefix)
        for key in self._others:
            with suppress(LogError):
                self._store.get_range(self._prefix + key, 0, 1)
                self._has_read = True
                return True
        return False

    def _wrong(self, key: str, what: str, row: SegmentEntry | None = None) -> None:
        self._report.findings.append(wrong(full_key(self._prefix, key), what, row))
