"""The sound entries of a manifest that readers reject, for a scrub.

A scrub reports each contradiction and continues. A salvaged manifest never serves reads, writes or deletes. An entry is
left out, with its place as a `Contradiction`, if the decoder rejects it, or if it contradicts itself or an earlier
entry. If the manifest's own identity or numbers are not sound, nothing is salvaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from local.errors import Corrupt
from remote.manifest.manifest import (
    STORED_MANIFEST,
    STORED_PAGE_DELETE,
    AppliedJob,
    Manifest,
    PageEntry,
    PendingDelete,
    contradiction,
    decode_line,
)
from remote.manifest.manifest_validation import Contradiction, Part, contradictions
from remote.manifest.view import STORED_VIEW
from remote.segment_entry import SegmentEntry, SegmentState
from remote.store import Body

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """`manifest` has the sound entries, None if the manifest itself is not sound; `found` has the others."""

    manifest: Manifest | None
    found: tuple[Contradiction, ...]


def salvage_manifest(data: Body, prefix: str) -> Salvage:
    """Salvage a manifest, see the module text. Raises Corrupt if not even the JSON can be read."""
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
    left = contradiction(manifest)
    # A view or a cleaner mark may depend on an entry that was left out: then this is no further contradiction.
    if left is not None and not found and not wrong:
        wrong.append(Contradiction(part=Part.WHOLE, what=left))
    is_sound = all(each.part not in (Part.TOPIC, Part.WHOLE) for each in wrong)
    return Salvage(manifest=manifest if is_sound else None, found=(*found, *wrong))


def _entries(part: Part, raw: msgspec.Raw, found: list[Contradiction]) -> list[Any]:
    """Return the entries of one list that the decoder accepts."""
    entries = []
    for at, each in enumerate(_LIST.decode(raw)):
        try:
            entries.append(_LISTS[part][1](each))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found.append(Contradiction(part=part, index=at, what=f"invalid entry: {error}", key=_key(each)))
    return entries


def _key(raw: msgspec.Raw) -> str | None:
    """Return the object that a rejected entry names, None if it names none."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    named = fields.get("data_key") or fields.get("key") if isinstance(fields, dict) else None
    return named if isinstance(named, str) else None


def _ascending(part: Part, entries: Iterable[Any], reached: int, found: list[Contradiction]) -> tuple[list[Any], int]:
    """Return the entries that ascend without overlap from `reached` on, and the end of the last one."""
    kept = []
    for each in entries:
        is_finished = not isinstance(each, SegmentEntry) or each.state is SegmentState.COPY_FINISHED
        if is_finished and reached <= each.base_offset < each.next_offset:
            kept.append(each)
            reached = each.next_offset
            continue
        what = "segments overlap or are out of order" if is_finished else "a segment is unfinished"
        key = each.data_key if isinstance(each, SegmentEntry) else each.key
        found.append(Contradiction(part=part, what=what, key=key, offsets=(each.base_offset, each.next_offset)))
    return kept, reached


def _without(manifest: Manifest, wrong: Iterable[Contradiction]) -> Manifest:
    gone = {(each.part, each.index) for each in wrong if each.index is not None}
    kept: dict[str, Any] = {
        name: tuple(each for at, each in enumerate(getattr(manifest, name)) if (part, at) not in gone)
        for part, (name, _) in _LISTS.items()
    }
    return replace(manifest, **kept)
