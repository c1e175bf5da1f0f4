"""Drawn damage: one corruption of one object or entry. The scrub must find every one of them.

Excluded are changes that no check of a bucket can find:

* the newest manifest is missing without a trace (the bucket is then an older undamaged bucket);
* fields of an entry that do not depend on its bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from care_world import KEYS, named
from remote_samples import forged

from remote.check.partition_check import survey_partition
from remote.keys import manifest_key, parse_manifest_key, parse_page_key
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_lookup import Pages
from remote.manifest.manifest_page import encode_page
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.stored_segment import SECTIONS
from remote.store.memory_store import MemoryStore
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.health.scrub_report import ScrubReport

NOW = 1_800_000_000_000


def scrubbed(store: MemoryStore, topic: str, *, deep: bool = True) -> ScrubReport:
    plan = plan_scrub(store, [named(topic)], deep=deep)
    results = run_scrub(store, plan, keys=KEYS, threads=1)
    assert results is not None
    return report_of(store, plan, results, started_ms=NOW, now_ms=NOW)


class Rot:
    """Draws corruptions of one topic's partition. `of(seed)` applies one to a copy and names it."""

    def __init__(self, store: MemoryStore, topic: str) -> None:
        self._objects = dict(store._objects)
        self._prefix = named(topic).prefix
        survey = survey_partition(store, self._prefix)
        assert survey.manifest is not None
        self._manifest = survey.manifest
        self._entries = survey.entries
        pages = Pages(store, self._prefix)
        self._pages = {page: pages.entries(page) for page in self._manifest.pages}
        named_keys = {key for entry in self._entries for key in (entry.data_key, entry.indexes_key)}
        named_keys |= {page.key for page in self._manifest.pages}
        mine = [key.removeprefix(self._prefix) for key in self._objects if key.startswith(self._prefix)]
        self._checked = sorted(key for key in mine if key in named_keys or parse_manifest_key(key) is not None)

    def of(self, seed: object) -> tuple[MemoryStore, str]:
        rng = random.Random(repr(seed))
        store = MemoryStore("memory://b", now_ms=lambda: NOW)
        store._objects = dict(self._objects)
        kinds: list[Callable[[random.Random, MemoryStore], str]] = [
            self._bit_flip,
            self._truncation,
            self._longer,
            self._swap,
            self._missing,
            self._wrong_row,
        ]
        if self._pages:
            kinds += [self._stale_page, self._wrong_summary]
        return store, rng.choice(kinds)(rng, store)

    # --- objects -----------------------------------------------------------------------------------------------------

    def _bit_flip(self, rng: random.Random, store: MemoryStore) -> str:
        key = rng.choice(self._checked)
        body = bytearray(store.get(self._prefix + key))
        at, bit = rng.randrange(len(body)), rng.randrange(8)
        body[at] ^= 1 << bit
        store.put(self._prefix + key, bytes(body))
        return f"bit {bit} of byte {at} of {key}"

    def _truncation(self, rng: random.Random, store: MemoryStore) -> str:
        key = rng.choice(self._checked)
        body = store.get(self._prefix + key)
        length = rng.randrange(1, len(body))
        store.put(self._prefix + key, body[:length])
        return f"{key} cut to {length}"

    def _longer(self, rng: random.Random, store: MemoryStore) -> str:
        key = rng.choice(self._checked)
        store.put(self._prefix + key, store.get(self._prefix + key) + rng.randbytes(rng.randrange(1, 40)))
        return f"{key} made longer"

    def _swap(self, rng: random.Random, store: MemoryStore) -> str:
        while True:
            one, other = (self._prefix + key for key in rng.sample(self._checked, 2))
            bodies = store.get(one), store.get(other)
            if bodies[0] != bodies[1]:
                break
        store.put(one, bodies[1])
        store.put(other, bodies[0])
        return f"{one} and {other} swapped"

    def _missing(self, rng: random.Random, store: MemoryStore) -> str:
        newest = manifest_key(self._manifest.sequence)
        key = rng.choice([key for key in self._checked if key != newest])
        store.delete([self._prefix + key])
        return f"{key} missing"

    # --- entries and pages -------------------------------------------------------------------------------------------

    def _wrong_row(self, rng: random.Random, store: MemoryStore) -> str:
        """Change one field of one entry; manifests and pages have valid checksums."""
        entry = rng.choice(self._entries)
        field = rng.choice(_FIELDS)
        wrong = replace(entry, **{field: _other(rng, entry, field, self._entries)})
        if wrong == entry:
            return self._wrong_row(rng, store)

        def changed(entries: tuple[SegmentEntry, ...]) -> tuple[SegmentEntry, ...]:
            return tuple(wrong if each.ulid == entry.ulid else each for each in entries)

        manifest = replace(self._manifest, segments=changed(self._manifest.segments))
        manifest = replace(
            manifest, views=tuple(replace(view, entries=changed(view.entries)) for view in manifest.views)
        )
        pages = []
        for page, entries in self._pages.items():
            name = parse_page_key(page.key)
            assert name is not None
            fresh, body = encode_page(changed(entries), name.epoch, name.ulid)
            if changed(entries) != entries:
                store.put(self._prefix + fresh.key, body)
                pages.append(fresh)
            else:
                pages.append(page)
        self._put_head(store, replace(manifest, pages=tuple(pages)))
        return f"{field}={getattr(wrong, field)} in the row of {entry.data_key}"

    def _stale_page(self, rng: random.Random, store: MemoryStore) -> str:
        """Replace a page by an older version: one entry less, more or different under the same name."""
        page, entries = rng.choice(list(self._pages.items()))
        name = parse_page_key(page.key)
        assert name is not None
        at = rng.randrange(len(entries))
        older = replace(entries[at], cleaned_through=rng.randrange(1, 90), committed_ms=rng.randrange(NOW))
        _, body = encode_page((*entries[:at], older, *entries[at + 1 :]), name.epoch, name.ulid)
        store.put(self._prefix + page.key, body)
        return f"{page.key} is of another time"

    def _wrong_summary(self, rng: random.Random, store: MemoryStore) -> str:
        at = rng.randrange(len(self._manifest.pages))
        page = self._manifest.pages[at]
        field = rng.choice(
            [
                "min_timestamp_ms",
                "max_timestamp_ms",
                "first_stamp_ms",
                "record_count",
                "size_bytes",
                "stored_bytes",
                "aborted_bytes",
                "cleaned_through",
                "gaps",
                "epochs",
                "page_crc32c",
            ]
        )
        value: object = (getattr(page, field) or 0) + 1 if field not in ("gaps", "epochs") else ((9, 101),)
        wrong = replace(page, **{field: value})
        pages = (*self._manifest.pages[:at], wrong, *self._manifest.pages[at + 1 :])
        self._put_head(store, replace(self._manifest, pages=pages))
        return f"{field}={value} of the page {page.key}"

    def _put_head(self, store: MemoryStore, manifest: Manifest) -> None:
        store.put(self._prefix + manifest_key(manifest.sequence), forged(manifest))


_FIELDS = (
    "ulid",
    "next_offset",
    "size_bytes",
    "stored_bytes",
    "record_count",
    "max_timestamp_ms",
    "min_timestamp_ms",
    "epochs",
    "data_crc32c",
    "segment_crc32c",
    "data_key",
    "indexes_key",
    "indexes_bytes",
    "indexes",
    "codec",
    "key_id",
    "wrapped_key",
)


def _other(rng: random.Random, entry: SegmentEntry, field: str, entries: list[SegmentEntry]) -> object:
    """Another value that a manifest can hold."""
    value = getattr(entry, field)
    another = rng.choice([each for each in entries if each.ulid != entry.ulid])
    match field:
        case "ulid" | "data_key" | "indexes_key":
            return getattr(another, field)
        case "next_offset":
            return value - rng.randrange(1, 90)
        case "epochs":
            return tuple((epoch + 1, start) for epoch, start in value)
        case "indexes":
            section = rng.choice(SECTIONS[:-1])
            where = value[section]
            return {**value, section: IndexRange(start=where.start + rng.choice((0, 1)), length=where.length + 1)}
        case "codec":
            return "none" if value == "zstd" else "zstd"
        case "key_id":
            return None if value is not None else "a"
        case "wrapped_key":
            return "AAAA" if value is None else value[::-1]
        case "segment_crc32c":
            return (value or 0) ^ (1 << rng.randrange(32))
        case "data_crc32c":
            return value ^ (1 << rng.randrange(32))
        case _:
            return (value or 0) + rng.choice((-1, 1)) * rng.randrange(1, 5)


def run(stores: Mapping[str, MemoryStore], count: int, first_seed: int = 0) -> list[str]:
    """The drawn corruptions that were not found, over all topics in turn."""
    rots = {topic: Rot(store, topic) for topic, store in stores.items()}
    missed = []
    for seed in range(first_seed, first_seed + count):
        topic = sorted(rots)[seed % len(rots)]
        store, what = rots[topic].of(seed)
        if all(each.severity == "info" for each in scrubbed(store, topic).findings):
            missed.append(f"seed={seed} topic={topic}: {what}")
    return missed
