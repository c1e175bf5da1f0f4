"""The entries of a page, decoded on demand: the same answers as from a tuple of all of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.errors import Corrupt
from local.format.crc32c import crc32c
from remote.keys import data_key, indexes_key
from remote.manifest import manifest_page
from remote.manifest.manifest import PageEntry
from remote.manifest.manifest_lookup import _touching
from remote.manifest.manifest_page import BLOCK_ROWS, DecodedPage, decode_page, encode_page
from remote.segment_entry import IndexRange, SegmentEntry


def made_up(count: int, seed: int = 1) -> tuple[SegmentEntry, ...]:
    """Ascending entries, with some gaps, and timestamps that fall or are missing in places."""
    draw, base, entries = random.Random(seed), 0, []
    for at in range(count):
        base += draw.choice((0, 0, 5))
        following = base + draw.randint(1, 9)
        stamp = draw.choice((None, draw.randrange(100)))
        entries.append(
            SegmentEntry(
                ulid=f"{at:026}",
                base_offset=base,
                next_offset=following,
                size_bytes=10 + at,
                stored_bytes=10,
                record_count=following - base,
                max_timestamp_ms=stamp,
                min_timestamp_ms=stamp,
                epochs=((1, base),),
                data_crc32c=at,
                data_key=data_key(base, following - 1, 1, f"{at:026}"),
                indexes_key=indexes_key(base, following - 1, 1, f"{at:026}"),
                indexes_bytes=7,
                indexes={"offset": IndexRange(start=0, length=7)} if at % 3 else {},
            )
        )
        base = following
    return tuple(entries)


def page_of(entries: tuple[SegmentEntry, ...]) -> DecodedPage:
    return decode_page(*encode_page(entries, 1, "A" * 26))


ROWS = made_up(3 * BLOCK_ROWS + 7)
PAGE = page_of(ROWS)
PLACES = st.integers(-3, ROWS[-1].next_offset + 3)


@given(start=PLACES, end=st.none() | PLACES)
def test_a_range_of_offsets_gives_the_same_entries_as_a_tuple(start: int, end: int | None) -> None:
    assert tuple(PAGE.touching(start, end)) == tuple(_touching(ROWS, start, end))


@given(stamp=st.integers(-1, 101), start=PLACES, end=st.none() | PLACES)
def test_a_timestamp_gives_the_same_entry_as_a_tuple(stamp: int, start: int, end: int | None) -> None:
    inside = [entry for entry in _touching(ROWS, start, end) if entry.max_timestamp_ms is not None]
    expected = next(
        (entry for entry in inside if entry.max_timestamp_ms is not None and entry.max_timestamp_ms >= stamp), None
    )
    assert PAGE.first_at(stamp, start, end) == expected


@pytest.mark.parametrize("count", [1, 2, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS])
def test_page_entries_are_a_sequence_like_the_tuple_of_them(count: int) -> None:
    entries = made_up(count, seed=count)
    page = page_of(entries)
    assert (len(page), tuple(page), page[0], page[-1]) == (count, entries, entries[0], entries[-1])
    assert page[1 : count - 1] == entries[1 : count - 1]
    assert [page[at] for at in range(-count, count)] == [entries[at] for at in range(-count, count)]
    assert list(reversed(page)) == list(reversed(entries))
    for outside in (count, -count - 1):
        with pytest.raises(IndexError):
            page[outside]


def test_a_lookup_decodes_the_entries_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    page, made = page_of(ROWS), []
    plain_rows = manifest_page._plain_rows
    monkeypatch.setattr(manifest_page, "_plain_rows", lambda table: made.append(len(table)) or plain_rows(table))
    wanted = ROWS[2 * BLOCK_ROWS + 3]
    assert next(page.touching(wanted.base_offset, None)) == wanted
    assert made == [BLOCK_ROWS]
    assert next(page.touching(wanted.base_offset, None)) is page[2 * BLOCK_ROWS + 3]
    assert made == [BLOCK_ROWS]


def spoilt(drop: str | None = None, **columns: object) -> tuple[PageEntry, bytes]:
    """A page of two entries with changed columns, and a page reference with a valid checksum of it."""
    import io

    import pyarrow as pa
    from pyarrow import parquet

    page, body = encode_page(made_up(2), 1, "A" * 26)
    table = parquet.read_table(io.BytesIO(body))
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    sink = pa.BufferOutputStream()
    parquet.write_table(table.drop_columns([drop]) if drop else table, sink)
    changed = sink.getvalue().to_pybytes()
    return replace(page, page_bytes=len(changed), page_crc32c=crc32c(changed)), changed


@pytest.mark.parametrize("name", ["base_offset", "next_offset", "max_timestamp_ms"])
def test_a_page_without_a_searched_column_raises_corrupt_at_once(name: str) -> None:
    for page in (spoilt(drop=name), spoilt(**{name: ["a", "b"]})):
        with pytest.raises(Corrupt, match=f"the object is not a manifest page.*{name}"):
            decode_page(*page)


def test_a_page_without_offsets_raises_corrupt_at_once() -> None:
    with pytest.raises(Corrupt, match=r"the object is not a manifest page.*base_offset"):
        decode_page(*spoilt(base_offset=[None, 1]))


@pytest.mark.parametrize("name", ["ulid", "data_key", "size_bytes"])
def test_a_page_with_invalid_entries_raises_corrupt_when_they_are_read(name: str) -> None:
    page = decode_page(*spoilt(drop=name))
    for look in (lambda: page[0], lambda: list(page), lambda: next(page.touching(0, None))):
        with pytest.raises(Corrupt, match=r"the object is not a manifest page.*key=meta/spill/"):
            look()
