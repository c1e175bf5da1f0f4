"""Validation of a manifest: contradictions to its bounds, its names or its own entries. Pure.

The decoder checks the bounds of every number (`remote.segment_entry`). This module checks the relations between fields:

| part | rule |
|---|---|
| identity | topic, topic id and partition are legal, and match the prefix of the manifest's object |
| segment entry | its two keys are one object name of this form: offsets, ULID, codec and encryption as in the entry |
| leader epochs, indexes, gaps | inside the offsets, or the object, of their entry; ascending |
| entries among themselves | no object is named twice; ranges ascend and never overlap (`remote.manifest.manifest`) |
| manifest page | its key has its offsets; it holds no more entries than offsets |
| pending delete | its key names a segment object or a page of this form, and no entry names the object |
| compacted view | a legal name; its entries' objects are in its own folder |

Runs on every load and before every write. A manifest that breaks a rule is Corrupt as a whole: nothing of it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from local.errors import InvalidRequest
from remote import keys
from remote.segment_entry import SegmentEntry, SegmentState
from remote.segments.stored_segment import CODECS, RAW, ZSTD

if TYPE_CHECKING:
    from remote.manifest.manifest import Manifest, PageEntry
    from remote.manifest.view import CompactedView

_STEM = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9]{10})-([0-9A-HJKMNP-TV-Z]{26})", re.ASCII)
_SUFFIXES = {  # of a data object, by (codec, whether it is encrypted)
    (CODECS[RAW], False): keys.DATA_SUFFIX,
    (CODECS[ZSTD], False): keys.DATA_SUFFIX + keys.ZSTD_SUFFIX,
    (CODECS[RAW], True): keys.DATA_SUFFIX + keys.ENCRYPTED_SUFFIX,
    (CODECS[ZSTD], True): keys.DATA_SUFFIX + keys.ZSTD_SUFFIX + keys.ENCRYPTED_SUFFIX,
}


class Part(Enum):
    TOPIC = "topic"
    SEGMENTS = "segments"
    PAGES = "spills"
    VIEWS = "views"
    PENDING_DELETES = "unlinked"
    PENDING_PAGE_DELETES = "unlinked_pages"
    JOBS = "jobs"
    WHOLE = "$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A broken rule. `part` and `index` are its place, `key` its object; None if it has none."""

    part: Part
    what: str
    index: int | None = None
    key: str | None = None
    offsets: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        return self.part.value if self.index is None else f"{self.part.value}[{self.index}]"

    def facts(self) -> dict[str, object]:
        base, following = self.offsets if self.offsets is not None else (None, None)
        return {"place": self.place, "object": self.key, "base_offset": base, "next_offset": following}


def contradictions(manifest: Manifest, prefix: str | None = None) -> Iterator[Contradiction]:
    """Every rule of the module text that `manifest` breaks; `prefix` is its partition prefix, None if unknown."""
    if (wrong := identity_contradiction(manifest.topic, manifest.topic_id, manifest.partition, prefix)) is not None:
        yield Contradiction(part=Part.TOPIC, what=wrong)
    named: set[str] = set()
    for at, entry in enumerate(manifest.segments):
        wrong = entry_contradiction(entry, epoch_max=manifest.epoch) or _named_twice(entry, named)
        if wrong is not None:
            yield _about(Part.SEGMENTS, at, entry.data_key, entry, wrong)
    for at, page in enumerate(manifest.pages):
        if (wrong := page_contradiction(page)) is not None:
            yield _about(Part.PAGES, at, page.key, page, wrong)
        named.add(page.key)
    for at, view in enumerate(manifest.views):
        yield from _of_view(at, view, named, manifest.epoch)
    yield from _of_pending_deletes(manifest, named)


def identity_contradiction(topic: str, topic_id: str, partition: int, prefix: str | None) -> str | None:
    try:
        expected = keys.partition_prefix(topic, topic_id, partition)
    except InvalidRequest as error:
        return f"the name of its partition is invalid: {error}"
    if prefix is not None and prefix != expected:
        return f"manifest of another partition: found={expected} expected={prefix}"
    return None


def entry_contradiction(entry: SegmentEntry, *, view: str | None = None, epoch_max: int | None = None) -> str | None:
    """The first contradiction of an entry of `view` or the log, in a manifest of epoch `epoch_max`."""
    if entry.state is not SegmentState.COPY_FINISHED or not entry.base_offset < entry.next_offset:
        return f"a segment is unfinished or empty: state={entry.state.name}"
    suffix = _SUFFIXES.get((entry.codec, entry.key_id is not None))
    if suffix is None:
        return f"an unknown codec: codec={entry.codec!r}"
    if (entry.key_id is None) != (entry.wrapped_key is None):
        return "a segment entry has a data key without a key id, or a key id without a data key"
    folder = keys.DATA if view is None else f"{keys.VIEWS}{view}/"
    if (wrong := _name_contradiction(entry, suffix, folder, epoch_max)) is not None:
        return wrong
    for name, where in entry.indexes.items():
        if where.start + where.length > entry.indexes_bytes:
            return f"an index is outside its object: section={name!r}"
    return _epochs_contradiction(entry.epochs, entry.base_offset, entry.next_offset)


def page_contradiction(page: PageEntry) -> str | None:
    name = keys.parse_page_key(page.key)
    if name is None:
        return "its key is not the key of a manifest page"
    if (name.base_offset, name.next_offset) != (page.base_offset, page.next_offset):
        return "its key has other offsets"
    if not 1 <= page.segment_count <= page.next_offset - page.base_offset:
        return f"the segment count is zero or larger than the number of offsets: segment_count={page.segment_count}"
    reached = page.base_offset
    for start, end in page.gaps:
        if not reached < start < end < page.next_offset:
            return f"a gap is outside the page or out of order: gap={start}..{end}"
        reached = end
    for epoch, start in page.epochs:
        if not page.base_offset <= start < page.next_offset:
            return f"a leader epoch begins outside the page: epoch={epoch} start={start}"
    return None


def pending_delete_contradiction(key: str) -> str | None:
    own = keys.own_part(key)
    if keys.is_in_other_topic(key) and not _is_home(key):
        return "its key is not the key of an object of another partition"
    if keys.parse_data_key(own) is None and keys.parse_view_key(own) is None and keys.parse_page_key(own) is None:
        return "its key is neither a segment object nor a manifest page"
    return None


def _name_contradiction(entry: SegmentEntry, suffix: str, folder: str, epoch_max: int | None) -> str | None:
    stem, dot, ending = entry.data_key.partition(keys.DATA_SUFFIX)
    name = stem
    if stem.startswith("/"):
        if folder != keys.DATA or not _is_home(stem):
            return "a segment entry names a key that is not a data object of another partition"
        name = keys.own_part(stem)
    found = _STEM.fullmatch(name, len(folder)) if name.startswith(folder) else None
    if found is None:
        return "a segment entry names a key that is not a data object"
    if dot + ending != suffix:
        return f"the object name has another encoding: codec={entry.codec}"
    if not entry.is_named(int(found[1]), int(found[2]), found[4]):
        return "the object name has another segment than its entry"
    if epoch_max is not None and name is stem and int(found[3]) > epoch_max:
        return f"a segment entry has a later epoch than its manifest: epoch={found[3]}"
    if entry.indexes_key != stem + keys.INDEXES_SUFFIX:
        return f"the object name has another segment than its entry: indexes_key={entry.indexes_key!r}"
    return None


def _epochs_contradiction(epochs: tuple[tuple[int, int], ...], base_offset: int, next_offset: int) -> str | None:
    reached = base_offset
    for epoch, start in epochs:
        if not reached <= start < next_offset:
            return f"a leader epoch begins outside the segment or is out of order: epoch={epoch} start={start}"
        reached = start
    return None


def _named_twice(entry: SegmentEntry, named: set[str]) -> str | None:
    """The contradiction if `named` has the data key (it stands for both keys); else None, and both are added."""
    if entry.data_key in named:
        return "another entry names the same object"
    named.add(entry.data_key)
    named.add(entry.indexes_key)
    return None


def _of_view(at: int, view: CompactedView, named: set[str], epoch_max: int) -> Iterator[Contradiction]:
    """The first contradiction of a view. A view is one unit: one contradiction voids all its entries."""
    try:
        keys.check_view(view.name)
    except InvalidRequest as error:
        yield Contradiction(part=Part.VIEWS, index=at, what=str(error))
        return
    for entry in view.entries:
        wrong = entry_contradiction(entry, view=view.name, epoch_max=epoch_max) or _named_twice(entry, named)
        if wrong is not None:
            yield _about(Part.VIEWS, at, entry.data_key, entry, wrong)
            return
    for start, end in view.lost:
        if not start < end:
            yield Contradiction(part=Part.VIEWS, index=at, what=f"an empty range is missing: {start}..{end}")
            return


def _of_pending_deletes(manifest: Manifest, named: set[str]) -> Iterator[Contradiction]:
    for at, each in enumerate(manifest.pending_deletes):
        wrong = pending_delete_contradiction(each.key)
        wrong = wrong or _still_named(each.key, named) or _from_later(manifest, each.epoch, each.unlinked_sequence)
        if wrong is not None:
            yield Contradiction(part=Part.PENDING_DELETES, index=at, what=wrong, key=each.key)
    for at, page in enumerate(manifest.pending_page_deletes):
        wrong = page_contradiction(page.page)
        wrong = wrong or _still_named(page.page.key, named) or _from_later(manifest, page.epoch, page.unlinked_sequence)
        if wrong is not None:
            yield _about(Part.PENDING_PAGE_DELETES, at, page.page.key, page.page, wrong)


def _still_named(key: str, named: set[str]) -> str | None:
    return "the object is a pending delete and a segment entry still names it" if key in named else None


def _from_later(manifest: Manifest, epoch: int, sequence: int) -> str | None:
    if epoch > manifest.epoch or sequence > manifest.sequence:
        return f"a pending delete of a later manifest: epoch={epoch} unlinked_sequence={sequence}"
    return None


def _is_home(key: str) -> bool:
    return key.count("/") > 3 and keys.parse_prefix(keys.home_of(key)) is not None


def _about(part: Part, index: int, key: str, each: SegmentEntry | PageEntry, what: str) -> Contradiction:
    return Contradiction(part=part, index=index, what=what, key=key, offsets=(each.base_offset, each.next_offset))
