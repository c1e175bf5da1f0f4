"""A consistency check of everything below one partition's prefix, without the content of segments.

The listing is read before the manifests, and the manifests before the objects: a concurrent writer causes no finding.

docs/reference/findings.md lists the checks. A failed check is CORRUPT. A hole between two entries above the log start,
and an object with an unknown name, which is never touched, are WARNINGs. Objects that no manifest names are INFO;
uploads of the present epoch may still be named.

Memory: the entries of the manifests, one name for each object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import islice, pairwise
from typing import Any, TypeVar

import msgspec

from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError, NotFound, Unavailable
from local.verify.findings import Finding, Severity, damaged, finding, message
from remote.fetch.segment_check import unreadable
from remote.gc.fork_references import named_by_forks
from remote.keys import (
    DATA_SUFFIX,
    INDEXES_SUFFIX,
    MANIFESTS,
    PROBES,
    full_key,
    parse_boundary_key,
    parse_epoch,
    parse_manifest_key,
    parse_pin_key,
)
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import (
    STORED_MANIFEST,
    STORED_PAGE_DELETE,
    AppliedJob,
    Manifest,
    PageEntry,
    PendingDelete,
    contradiction,
    decode_line,
    decode_manifest,
    lacks_seal,
)
from remote.manifest.manifest_chain import decode_boundary
from remote.manifest.manifest_changes import loses_objects
from remote.manifest.manifest_lookup import Pages
from remote.manifest.manifest_page import DecodedPage, summary_contradiction
from remote.manifest.manifest_validation import Contradiction, Part, contradictions
from remote.manifest.page_out import keys_of, waiting_keys
from remote.manifest.sealing import is_sealed
from remote.manifest.view import STORED_VIEW
from remote.segment_entry import SegmentEntry, SegmentState
from remote.store import Body, ObjectInfo, ObjectStore

T = TypeVar("T")
OTHERS_MAX = 3  # objects read to distinguish one refused object from a store that refuses all
# Errors that a store may raise for one object while it serves others.
UNREADABLE = (AccessDenied, InvalidRequest, NotFound, Unavailable)
# Created at import: creation in two threads at once ends the process (msgspec 0.22).
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
# The lists of a manifest: the field, and the decoder of one element.
_LISTS: dict[Part, tuple[str, Callable[[msgspec.Raw], Any]]] = {
    Part.SEGMENTS: ("segments", msgspec.json.Decoder(SegmentEntry).decode),
    Part.PAGES: ("pages", msgspec.json.Decoder(PageEntry).decode),
    Part.VIEWS: ("views", STORED_VIEW.decode),
    Part.PENDING_DELETES: ("pending_deletes", msgspec.json.Decoder(PendingDelete).decode),
    Part.PENDING_PAGE_DELETES: ("pending_page_deletes", STORED_PAGE_DELETE.decode),
    Part.JOBS: ("jobs", msgspec.json.Decoder(AppliedJob).decode),
}


class ObjectKind(Enum):
    MANIFEST = "head"
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
    prefix: str
    findings: list[Finding] = field(default_factory=list)
    objects: dict[str, ObjectKind] = field(default_factory=dict)  # kinds by full key
    manifest: Manifest | None = None  # the newest one that decodes
    entries: list[SegmentEntry] = field(default_factory=list)  # with objects of the right size
    suspects: list[SegmentEntry] = field(default_factory=list)  # all other entries
    size_bytes: int = 0
    is_unread: bool = False  # manifests are encrypted or authenticated, and the ring lacks their key

    def counts(self) -> dict[ObjectKind, int]:
        return dict(Counter(self.objects.values()))


def survey_partition(store: ObjectStore, prefix: str) -> BucketReport:
    """Check one partition. Damage, and an object that the store alone refuses, is a finding. Raises other errors."""
    return _Check(store, prefix).run()


def can_list(store: ObjectStore, prefix: str) -> bool:
    try:
        return any(True for _ in islice(store.list(prefix), 1))
    except LogError:
        return False


def is_still_named(store: ObjectStore, prefix: str, entry: SegmentEntry) -> bool:
    """Whether the newest manifest still names the entry. True if it cannot be read, so that the finding stays."""
    metadata = MetadataLog(store, prefix)
    try:
        newest = metadata.refresh()
        is_of_view = any(each.ulid == entry.ulid for each in newest.view_entries)
        return is_of_view or metadata.ask(newest, lambda index: index.holds(entry))
    except (Corrupt, *UNREADABLE):
        return True


def _unless_unreadable(read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except (Corrupt, *UNREADABLE):
        return otherwise


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
            manifests = list(self._manifests(listed))
        except AccessDenied as error:
            if "key_id" not in error.facts:
                raise
            # Without the key no check of this partition is possible.
            report.findings.append(finding("manifest.no-key", self._prefix, what=str(error), is_unread=True))
            report.is_unread = True
            return report
        self._check_chain(manifests)
        report.manifest = manifests[-1] if manifests else None
        if report.manifest is not None and lacks_seal(report.manifest):
            step = f"upgrade all readers, then: tiered rotate-keys {report.manifest.topic}"
            report.findings.append(finding("manifest.unsealed", self._prefix + MANIFESTS, next_step=step))
        self._classify(listed)
        if report.manifest is not None:
            for key in sorted(self._waiting(report.manifest) & self._named_keys(report.manifest)):
                self._wrong(key, "object.pending-delete")
            self._check_pages(report.manifest)
            self._check_rows(report.manifest, listed)
        elif listed:
            self._wrong("", "manifest.missing", objects=len(listed))
        return report

    def _manifests(self, listed: dict[str, ObjectInfo]) -> Iterator[Manifest]:
        gc_boundary = self._gc_boundary(listed)
        names = sorted(sequence for key in listed if (sequence := parse_manifest_key(key)) is not None)
        names = [sequence for sequence in names if sequence > gc_boundary]
        for before, after in pairwise(names):
            if after != before + 1:
                self._wrong(MANIFESTS, "manifest.gap", from_sequence=before + 1, to_sequence=after)
        if names and names[0] != gc_boundary + 1:
            self._wrong(MANIFESTS, "manifest.gap", from_sequence=gc_boundary + 1, to_sequence=names[0])
        for sequence in names:
            manifest = self._manifest(sequence)
            if manifest is not None:
                yield manifest
        following = names[-1] + 1 if names else 1
        while (manifest := self._manifest(following, is_listed=False)) is not None:
            yield manifest
            following += 1

    def _gc_boundary(self, listed: dict[str, ObjectInfo]) -> int:
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
                self._wrong(key, "manifest.gc-boundary", upto=upto, before=reached)
            reached = max(reached, upto)
        return reached

    def _manifest(self, sequence: int, *, is_listed: bool = True) -> Manifest | None:
        key = f"{MANIFESTS}{sequence:020d}"
        try:
            body = self._asked(key, lambda: self._store.get(self._prefix + key))
        except NotFound:
            if is_listed:
                self._wrong(key, "manifest.listed")
            return None
        if body is None:
            return None
        try:
            manifest: Manifest | None = decode_manifest(body, self._prefix, sealer=self._pages.sealer)
        except Corrupt as error:
            manifest = self._salvaged(sequence, body, error)
        if manifest is not None and manifest.sequence != sequence:
            self._wrong(key, "manifest.name", sequence=manifest.sequence)
        return manifest

    def _salvaged(self, sequence: int, body: bytes, error: Corrupt) -> Manifest | None:
        key = f"{MANIFESTS}{sequence:020d}"
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
            what = f"readers refuse this manifest, {each.what}: sequence={sequence} place={each.place}"
            self._report.findings.append(finding("manifest.refused", path, what=what, offsets=each.offsets))
            if each.key is not None and each.part in (Part.SEGMENTS, Part.VIEWS):
                self._doubtful |= {each.key, each.key.partition(DATA_SUFFIX)[0] + INDEXES_SUFFIX}
        return salvage.manifest

    def _check_chain(self, manifests: list[Manifest]) -> None:
        unlinked: set[str] = set()
        before: Manifest | None = None
        for manifest in manifests:
            key = f"{MANIFESTS}{manifest.sequence:020d}"
            if before is not None and before.sequence + 1 == manifest.sequence:
                if before.seal_key_id is not None and manifest.seal_key_id is None:
                    self._wrong(key, "manifest.seal-lost")
                if manifest.parent_id != before.commit_id:
                    self._wrong(key, "manifest.parent", parent_id=manifest.parent_id)
                if not before.epoch <= manifest.epoch <= before.epoch + 1:
                    self._wrong(key, "manifest.epoch", epoch=manifest.epoch, before=before.epoch)
                if manifest.epoch == before.epoch and manifest.writer_id != before.writer_id:
                    self._wrong(key, "manifest.two-writers", writer=manifest.writer_id, before=before.writer_id)
                if (loss := self._loss(before, manifest)) is not None:
                    self._report.findings.append(finding("manifest.loses-objects", self._prefix + key, what=loss))
            for name in sorted(unlinked & self._named_keys(manifest)):
                self._wrong(name, "manifest.named-again", sequence=manifest.sequence)
            unlinked |= self._waiting(manifest)
            before = manifest

    def _loss(self, before: Manifest, manifest: Manifest) -> str | None:
        """How `manifest` loses objects or offsets of its parent; None without a loss, or if a page is deleted."""
        if self._salvaged_sequences & {before.sequence, manifest.sequence}:
            return None
        return _unless_unreadable(lambda: loses_objects(before, manifest, self._pages.entries), None)

    def _entries(self, manifest: Manifest, *, reports_errors: bool = False) -> list[SegmentEntry]:
        entries: list[SegmentEntry] = []
        for page in manifest.pages:
            try:
                entries += self._page_rows(page, reports_errors=reports_errors)
            except NotFound:
                if reports_errors:
                    self._wrong(page.key, "page.missing")
            except Corrupt as error:
                if reports_errors:
                    self._report.findings.append(damaged(error, self._prefix + page.key))
        return [*entries, *manifest.segments]

    def _page_rows(self, page: PageEntry, *, reports_errors: bool) -> Sequence[SegmentEntry]:
        found = self._asked(page.key, lambda: self._pages.entries(page), reports_errors=reports_errors)
        if found is None:
            return ()
        if not isinstance(found, DecodedPage):
            return found
        entries, refused = found.salvaged()
        for each in refused if reports_errors else ():
            self._report.findings.append(damaged(each.error, self._prefix + page.key, offsets=each.offsets))
        return entries

    def _waiting(self, manifest: Manifest) -> set[str]:
        """The pending deletes, with the objects of unlinked pages; without these objects if a page cannot be read."""
        listed = {each.key for each in manifest.pending}
        return _unless_unreadable(lambda: set(waiting_keys(manifest, self._pages.entries)), listed)

    def _named_rows(self, manifest: Manifest) -> list[SegmentEntry]:
        return [*self._entries(manifest), *manifest.view_entries]

    def _named_keys(self, manifest: Manifest) -> set[str]:
        return {*keys_of(self._named_rows(manifest)), *(page.key for page in manifest.pages)}

    def _classify(self, listed: dict[str, ObjectInfo]) -> None:
        manifest, report = self._report.manifest, self._report
        kinds: dict[str, ObjectKind] = {}
        if manifest is not None:
            kinds |= dict.fromkeys(self._waiting(manifest), ObjectKind.UNLINKED)
            kinds |= {entry.data_key: ObjectKind.SEGMENT for entry in self._named_rows(manifest)}
            kinds |= {entry.indexes_key: ObjectKind.INDEXES for entry in self._named_rows(manifest)}
            kinds |= {page.key: ObjectKind.PAGE for page in manifest.pages}
        for key in self._doubtful:
            kinds.setdefault(key, ObjectKind.INDEXES if key.endswith(INDEXES_SUFFIX) else ObjectKind.SEGMENT)
        kinds = dict.fromkeys(self._of_forks(listed), ObjectKind.FORKED) | kinds
        unnamed: Counter[ObjectKind] = Counter()
        for key, facts in listed.items():
            kind = kinds.get(key) or self._kind_by_name(key, manifest.epoch if manifest is not None else 0)
            report.objects[self._prefix + key] = kind
            if kind in (ObjectKind.FORKED, ObjectKind.ORPHAN, ObjectKind.IN_FLIGHT):
                unnamed[kind] += facts.size_bytes
            elif kind is ObjectKind.UNKNOWN:
                report.findings.append(finding("object.unknown", self._prefix + key, bytes=facts.size_bytes))
        for kind, size in sorted(unnamed.items(), key=lambda each: each[0].value):
            count = sum(each is kind for each in report.objects.values())
            report.findings.append(finding("object.unnamed", self._prefix, kind=kind.value, objects=count, bytes=size))

    def _of_forks(self, listed: dict[str, ObjectInfo]) -> Collection[str]:
        """Return the objects that forks name; nothing if a fork cannot be read: its own check reports it."""
        if not any(parse_pin_key(key) is not None for key in listed):
            return ()
        return _unless_unreadable(lambda: named_by_forks(self._store, self._prefix), frozenset())

    def _kind_by_name(self, key: str, epoch: int) -> ObjectKind:
        if parse_manifest_key(key) is not None:
            return ObjectKind.MANIFEST
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
            self._wrong(key, "object.epoch", epoch=made_in, newest=epoch)
        return ObjectKind.ORPHAN if made_in < epoch else ObjectKind.IN_FLIGHT

    def _check_pages(self, manifest: Manifest) -> None:
        for page in manifest.pages:
            try:
                wrong_field = summary_contradiction(page, self._pages.entries(page))
            except (Corrupt, *UNREADABLE):
                continue  # reported with the entries
            if wrong_field is not None:
                self._wrong(page.key, "page.summary", field=wrong_field)

    def _check_rows(self, manifest: Manifest, listed: dict[str, ObjectInfo]) -> None:
        reached = None
        for entry in self._entries(manifest, reports_errors=True):
            if reached is not None and entry.base_offset > max(reached, manifest.log_start_offset):
                # Cleaning may remove whole segments. Then the next entry was cleaned, or the topic is compacted.
                is_compacted = "compact" in manifest.properties.get("cleanup.policy", "")
                is_cleaned = is_compacted or entry.cleaned_through is not None
                severity = Severity.INFO if is_cleaned else Severity.WARNING
                end = entry.base_offset
                hole = finding("segment.hole", self._prefix, severity=severity, from_offset=reached, to_offset=end)
                self._report.findings.append(hole)
            reached = entry.next_offset
        for entry in self._named_rows(manifest):
            before = len(self._report.findings)
            sizes = ((entry.data_key, entry.stored_bytes), (entry.indexes_key, entry.indexes_bytes))
            present = [self._check_size(key, size, listed, entry) for key, size in sizes]
            (self._report.entries if all(present) else self._report.suspects).append(entry)
            if len(self._report.findings) > before and not is_still_named(self._store, self._prefix, entry):
                del self._report.findings[before:]

    def _check_size(self, key: str, size_bytes: int, listed: dict[str, ObjectInfo], entry: SegmentEntry) -> bool:
        facts = listed.get(key)
        try:
            facts = facts or self._asked(key, lambda: self._store.head(full_key(self._prefix, key)))
        except NotFound:
            self._wrong(key, "object.missing", entry)
            return False
        if facts is None:
            return False
        if facts.size_bytes != size_bytes:
            self._wrong(key, "object.size", entry, expected_bytes=size_bytes, found=facts.size_bytes)
        return facts.size_bytes == size_bytes

    def _asked(self, key: str, ask: Callable[[], T], *, reports_errors: bool = True) -> T | None:
        """Return the store's answer; None, with a finding, if it refuses this object and serves others."""
        try:
            found = ask()
        except UNREADABLE as error:
            if isinstance(error, NotFound) or not self._has_other_objects():
                raise
            if reports_errors:
                self._report.findings.append(unreadable(error, full_key(self._prefix, key)))
            return None
        self._has_read = True
        return found

    def _has_other_objects(self) -> bool:
        if self._has_read:
            return can_list(self._store, self._prefix)
        for key in self._others:
            with suppress(LogError):
                self._store.get_range(self._prefix + key, 0, 1)
                self._has_read = True
                return True
        return False

    def _wrong(self, key: str, code: str, entry: SegmentEntry | None = None, **facts: object) -> None:
        offsets = entry.offsets if entry is not None else None
        found = finding(code, full_key(self._prefix, key), offsets=offsets, what=message(code, **facts))
        self._report.findings.append(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The sound entries of a manifest that readers reject (`manifest`), and the others (`found`).

    It never serves reads, writes or deletes. `manifest` is None if its own identity or numbers are not sound.
    """

    manifest: Manifest | None
    found: tuple[Contradiction, ...]


def salvage_manifest(data: Body, prefix: str) -> Salvage:
    """Salvage a manifest. Raises Corrupt if not even the JSON can be read."""
    found: list[Contradiction] = []
    try:
        fields = _FIELDS.decode(decode_line(data))
        lists = {part: _entries(part, fields.pop(part.value, msgspec.Raw(b"[]")), found) for part in _LISTS}
        manifest = STORED_MANIFEST.decode(msgspec.json.encode({**fields, Part.SEGMENTS.value: []}))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Salvage(
            manifest=None, found=(*found, Contradiction(part=Part.WHOLE, what=f"the manifest is unusable: {error}"))
        )
    if manifest.seal_key_id is not None:
        raise Corrupt("the manifest names a seal key and is not sealed: it may be forged", prefix=prefix)
    lists[Part.PAGES], reached = _ascending(Part.PAGES, lists[Part.PAGES], 0, found)
    lists[Part.SEGMENTS], _ = _ascending(Part.SEGMENTS, lists[Part.SEGMENTS], reached, found)
    sound: dict[str, Any] = {_LISTS[part][0]: tuple(entries) for part, entries in lists.items()}
    manifest = replace(manifest, **sound)
    wrong = list(contradictions(manifest, prefix))
    manifest = _without(manifest, wrong)
    # After an entry was left out, a view or a cleaner mark that depends on it is no further contradiction.
    if not found and not wrong and (remaining := contradiction(manifest)) is not None:
        wrong.append(Contradiction(part=Part.WHOLE, what=remaining))
    is_sound = all(each.part not in (Part.TOPIC, Part.WHOLE) for each in wrong)
    return Salvage(manifest=manifest if is_sound else None, found=(*found, *wrong))


def _entries(part: Part, raw: msgspec.Raw, found: list[Contradiction]) -> list[Any]:
    entries = []
    for at, each in enumerate(_LIST.decode(raw)):
        try:
            entries.append(_LISTS[part][1](each))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found.append(Contradiction(part=part, index=at, what=f"invalid entry: {error}", key=_key(each)))
    return entries


def _key(raw: msgspec.Raw) -> str | None:
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    named = fields.get("data_key") or fields.get("key") if isinstance(fields, dict) else None
    return named if isinstance(named, str) else None


def _ascending(part: Part, entries: Iterable[Any], reached: int, found: list[Contradiction]) -> tuple[list[Any], int]:
    """Return the entries that ascend without overlap from `reached` on, and the end of the last one."""
    ascending = []
    for each in entries:
        is_finished = not isinstance(each, SegmentEntry) or each.state is SegmentState.COPY_FINISHED
        if is_finished and reached <= each.base_offset < each.next_offset:
            ascending.append(each)
            reached = each.next_offset
            continue
        what = "segments overlap or are out of order" if is_finished else "a segment is unfinished"
        key = each.data_key if isinstance(each, SegmentEntry) else each.key
        found.append(Contradiction(part=part, what=what, key=key, offsets=(each.base_offset, each.next_offset)))
    return ascending, reached


def _without(manifest: Manifest, wrong: Iterable[Contradiction]) -> Manifest:
    unsound = {(each.part, each.index) for each in wrong if each.index is not None}
    sound: dict[str, Any] = {
        name: tuple(each for at, each in enumerate(getattr(manifest, name)) if (part, at) not in unsound)
        for part, (name, _) in _LISTS.items()
    }
    return replace(manifest, **sound)
