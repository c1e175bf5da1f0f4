"""Validation of a manifest: contradictions to its bounds, its names or its own entries.

Pure; uses no store.

The decoder checks the bounds of every number (`remote.number_bounds`). This module checks the relations between fields:

| part | rule |
|---|---|
| identity | topic, topic id and partition are legal, and match the prefix of the manifest's object |
| segment entry | its two keys are one object name of this form: offsets, ULID, codec and encryption as in the entry |
| leader epochs, indexes, gaps | inside the offsets, or the object, of their entry; ascending |
| entries among themselves | no object is named twice; ranges ascend and never overlap (`remote.manifest.manifest`) |
| manifest page | its key has its offsets; it holds no more entries than offsets |
| pending delete | its key names a segment object or a page of this form, and no entry names the object |
| compacted view | a legal name; its entries' objects are in its own folder |

`decode_manifest` runs it on every load and `encode_manifest` before every write, so readers and writers agree. A
manifest that breaks a rule is Corrupt as a whole: nothing of it is served, written to a checkpoint or deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from local.errors import InvalidRequest
from remote.keys import (
    DATA,
    DATA_SUFFIX,
    ENCRYPTED_SUFFIX,
    INDEXES_SUFFIX,
    VIEWS,
    ZSTD_SUFFIX,
    check_view,
    home_of,
    is_in_other_topic,
    own_part,
    parse_data_key,
    parse_page_key,
    parse_prefix,
    parse_view_key,
    partition_prefix,
)
from remote.segment_entry import SegmentEntry, SegmentState
from remote.segments.chunk_table import RAW, ZSTD
from remote.segments.object_encoding import CODECS

if TYPE_CHECKING:
    from remote.manifest.manifest import Head, PageEntry
    from remote.manifest.view import CompactedView

_STEM = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9]{10})-([0-9A-HJKMNP-TV-Z]{26})", re.ASCII)
_SUFFIXES = {  # of a data object, by (codec, whether it is encrypted)
    (CODECS[RAW], False): DATA_SUFFIX,
    (CODECS[ZSTD], False): DATA_SUFFIX + ZSTD_SUFFIX,
    (CODECS[RAW], True): DATA_SUFFIX + ENCRYPTED_SUFFIX,
    (CODECS[ZSTD], True): DATA_SUFFIX + ZSTD_SUFFIX + ENCRYPTED_SUFFIX,
}


class Part(Enum):
    """A field of a manifest."""

    TOPIC = "topic"
    SEGMENTS = "segments"
    PAGES = "spills"
    VIEWS = "views"
    UNLINKED = "unlinked"
    UNLINKED_PAGES = "unlinked_pages"
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
        """The place as in JSON: ``segments[3]``."""
        return self.part.value if self.index is None else f"{self.part.value}[{self.index}]"

    def facts(self) -> dict[str, object]:
        """For an error: the place, the object and the offsets."""
        base, following = self.offsets if self.offsets is not None else (None, None)
        return {"place": self.place, "object": self.key, "base_offset": base, "next_offset": following}


def contradictions(head: Head, prefix: str | None = None) -> Iterator[Contradiction]:
    """Every rule of the module text that `head` breaks; `prefix` is its partition prefix, None if unknown."""
    if (wrong := identity_contradiction(head.topic, head.topic_id, head.partition, prefix)) is not None:
        yield Contradiction(part=Part.TOPIC, what=wrong)
    named: set[str] = set()
    for at, row in enumerate(head.segments):
        wrong = entry_contradiction(row, epoch_max=head.epoch) or _named_twice(row, named)
        if wrong is not None:
            yield _of_row(Part.SEGMENTS, at, row, wrong)
    for at, spill in enumerate(head.spills):
        if (wrong := page_contradiction(spill)) is not None:
            yield _of_page(Part.PAGES, at, spill, wrong)
        named.add(spill.key)
    for at, view in enumerate(head.views):
        yield from _of_view(at, view, named, head.epoch)
    yield from _of_pending_deletes(head, named)


def identity_contradiction(topic: str, topic_id: str, partition: int, prefix: str | None) -> str | None:
    """The reason why a manifest of this partition cannot be under `prefix`; None if it can."""
    try:
        expected = partition_prefix(topic, topic_id, partition)
    except InvalidRequest as error:
        return f"its partition has no legal name: {error}"
    if prefix is not None and prefix != expected:
        return f"another partition's head: found={expected} expected={prefix}"
    return None


def entry_contradiction(row: SegmentEntry, *, view: str | None = None, epoch_max: int | None = None) -> str | None:
    """The first contradiction within a segment entry; None if there is none.

    `view` is the entry's compacted view, None for the log. `epoch_max` is its manifest's epoch, None if unknown.
    """
    if row.state is not SegmentState.COPY_FINISHED or not row.base_offset < row.next_offset:
        return f"a segment is not finished, or empty: state={row.state.name}"
    suffix = _SUFFIXES.get((row.codec, row.key_id is not None))
    if suffix is None:
        return f"an unknown codec: codec={row.codec!r}"
    if (row.key_id is None) != (row.wrapped_key is None):
        return "a row has a data key without a key's name, or the other way"
    folder = DATA if view is None else f"{VIEWS}{view}/"
    if (wrong := _name_contradiction(row, suffix, folder, epoch_max)) is not None:
        return wrong
    for name, where in row.indexes.items():
        if where.start + where.length > row.indexes_bytes:
            return f"an index lies outside its object: section={name!r}"
    return _epochs_contradiction(row.epochs, row.base_offset, row.next_offset)


def page_contradiction(spill: PageEntry) -> str | None:
    """The first contradiction within the entry of a manifest page; None if there is none."""
    name = parse_page_key(spill.key)
    if name is None:
        return "its key is not that of a manifest page"
    if (name.base_offset, name.next_offset) != (spill.base_offset, spill.next_offset):
        return "its key says other offsets"
    if not 1 <= spill.segment_count <= spill.next_offset - spill.base_offset:
        return f"more segments than offsets, or none: segment_count={spill.segment_count}"
    reached = spill.base_offset
    for start, end in spill.gaps:
        if not reached < start < end < spill.next_offset:
            return f"a gap outside the page, or out of order: gap={start}..{end}"
        reached = end
    for epoch, start in spill.epochs:
        if not spill.base_offset <= start < spill.next_offset:
            return f"a leader epoch that begins outside the page: epoch={epoch} start={start}"
    return None


def pending_delete_contradiction(key: str) -> str | None:
    """The reason why `key` cannot be a pending delete; None if it can."""
    own = own_part(key)
    if is_in_other_topic(key) and not _is_home(key):
        return "its key is not that of another partition's object"
    if parse_data_key(own) is None and parse_view_key(own) is None and parse_page_key(own) is None:
        return "its key names neither a segment object nor a manifest page"
    return None


def _name_contradiction(row: SegmentEntry, suffix: str, folder: str, epoch_max: int | None) -> str | None:
    """Check that a segment's two objects have one stem with the entry's offsets and ULID."""
    stem, dot, ending = row.data_key.partition(DATA_SUFFIX)
    name = stem
    if stem.startswith("/"):
        if folder != DATA or not _is_home(stem):
            return "a row names what is no data object of another partition"
        name = own_part(stem)
    found = _STEM.fullmatch(name, len(folder)) if name.startswith(folder) else None
    if found is None:
        return "a row names what is no data object"
    if dot + ending != suffix:
        return f"an object's name says another way of keeping it: codec={row.codec}"
    if not row.is_named(int(found[1]), int(found[2]), found[4]):
        return "an object's name says another segment than its row"
    if epoch_max is not None and name is stem and int(found[3]) > epoch_max:
        return f"a row of a later epoch than its head: epoch={found[3]}"
    if row.indexes_key != stem + INDEXES_SUFFIX:
        return f"an object's name says another segment than its row: indexes_key={row.indexes_key!r}"
    return None


def _epochs_contradiction(epochs: tuple[tuple[int, int], ...], base_offset: int, next_offset: int) -> str | None:
    reached = base_offset
    for epoch, start in epochs:
        if not reached <= start < next_offset:
            return f"a leader epoch that begins outside the segment, or out of order: epoch={epoch} start={start}"
        reached = start
    return None


def _named_twice(row: SegmentEntry, named: set[str]) -> str | None:
    """Add both keys to `named`. The two objects share a stem, so one key stands for both."""
    if row.data_key in named:
        return "another entry names the same object"
    named.add(row.data_key)
    named.add(row.indexes_key)
    return None


def _of_view(at: int, view: CompactedView, named: set[str], epoch_max: int) -> Iterator[Contradiction]:
    """The first contradiction of a view. A view is one unit: one contradiction voids all its entries."""
    try:
        check_view(view.name)
    except InvalidRequest as error:
        yield Contradiction(part=Part.VIEWS, index=at, what=str(error))
        return
    for row in view.rows:
        wrong = entry_contradiction(row, view=view.name, epoch_max=epoch_max) or _named_twice(row, named)
        if wrong is not None:
            yield _of_row(Part.VIEWS, at, row, wrong)
            return
    for start, end in view.lost:
        if not start < end:
            yield Contradiction(part=Part.VIEWS, index=at, what=f"an empty range is lost: {start}..{end}")
            return


def _of_pending_deletes(head: Head, named: set[str]) -> Iterator[Contradiction]:
    for at, each in enumerate(head.unlinked):
        wrong = pending_delete_contradiction(each.key)
        wrong = wrong or _still_named(each.key, named) or _from_later(head, each.epoch, each.unlinked_sequence)
        if wrong is not None:
            yield Contradiction(part=Part.UNLINKED, index=at, what=wrong, key=each.key)
    for at, page in enumerate(head.unlinked_pages):
        wrong = page_contradiction(page.spill)
        wrong = wrong or _still_named(page.spill.key, named) or _from_later(head, page.epoch, page.unlinked_sequence)
        if wrong is not None:
            yield _of_page(Part.UNLINKED_PAGES, at, page.spill, wrong)


def _still_named(key: str, named: set[str]) -> str | None:
    return "given up for deletion and still named by a row" if key in named else None


def _from_later(head: Head, epoch: int, sequence: int) -> str | None:
    if epoch > head.epoch or sequence > head.sequence:
        return f"a pending delete of a later manifest: epoch={epoch} unlinked_sequence={sequence}"
    return None


def _is_home(key: str) -> bool:
    """Whether another partition's key begins with the prefix of a partition."""
    return key.count("/") > 3 and parse_prefix(home_of(key)) is not None


def _of_row(part: Part, index: int, row: SegmentEntry, what: str) -> Contradiction:
    offsets = (row.base_offset, row.next_offset)
    return Contradiction(part=part, index=index, what=what, key=row.data_key, offsets=offsets)


def _of_page(part: Part, index: int, spill: PageEntry, what: str) -> Contradiction:
    offsets = (spill.base_offset, spill.next_offset)
    return Contradiction(part=part, index=index, what=what, key=spill.key, offsets=offsets)
