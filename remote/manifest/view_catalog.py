"""View catalog: a file with the compacted views of a partition without a remote tier.

In a bucket the manifest holds the views. Without a bucket there is no manifest, so the file ``view-catalog`` holds the
same `CompactedView`, and the pending deletes: parts that no view names any more. Keys are relative to the partition's
directory. The bytes are a line with format, CRC-32C and length, then JSON.

Every process that opens the partition for writing and changes the catalog raises `epoch`. A run of an earlier epoch was
interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from local.errors import Corrupt
from local.format.crc32c import crc32c
from remote.keys import parse_view_key
from remote.manifest.manifest import PendingDelete
from remote.manifest.manifest_validation import entry_contradiction
from remote.manifest.view import CompactedView, view_contradiction
from remote.number_bounds import INT64_MAX, WriterEpoch

CATALOG_BYTES_MAX = 64 << 20
_VERSION = 1
_LINE = re.compile(rb"tiered-view-catalog ([0-9]{1,4}) ([0-9a-f]{8}) ([0-9]{1,9})\n")
_LINE_BYTES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCatalog:
    """See the module text. `views` are ordered by name; `unlinked` are pending deletes."""

    epoch: WriterEpoch = 1
    views: tuple[CompactedView, ...] = ()
    unlinked: tuple[PendingDelete, ...] = ()

    @property
    def named_keys(self) -> frozenset[str]:
        """Every file that the catalog names, pending deletes included."""
        rows = (row for view in self.views for row in view.rows)
        named = {key for row in rows for key in (row.data_key, row.indexes_key)}
        return frozenset(named | {each.key for each in self.unlinked})


_DECODER = msgspec.json.Decoder(ViewCatalog)  # created at import, as in `remote.manifest.manifest`


def encode_catalog(catalog: ViewCatalog) -> bytes:
    """The file's bytes."""
    body = msgspec.json.encode(catalog)
    return b"tiered-view-catalog %d %08x %d\n" % (_VERSION, crc32c(body), len(body)) + body


def decode_catalog(data: bytes, *, path: str) -> ViewCatalog:
    """The inverse. Raises Corrupt for any defect, naming the file."""
    line = _LINE.match(data[:_LINE_BYTES_MAX])
    if line is None or int(line[1]) != _VERSION:
        raise Corrupt("reading a view catalog, it has no line of this format at its start", path=path)
    body, expected = data[line.end() :], int(line[2], 16)
    if len(body) != int(line[3]) or len(body) > CATALOG_BYTES_MAX:
        raise Corrupt("reading a view catalog, its length differs", path=path, expected=int(line[3]), found=len(body))
    if (found := crc32c(body)) != expected:
        facts = {"path": path, "expected": f"{expected:08x}", "found": f"{found:08x}"}
        raise Corrupt("reading a view catalog, its checksum differs", **facts)
    try:
        catalog = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("reading a view catalog, its body is none", path=path, cause=str(error)) from error
    wrong = next(_contradictions(catalog), None)
    if wrong is not None:
        raise Corrupt(f"reading a view catalog, {wrong}", path=path)
    return catalog


def _contradictions(catalog: ViewCatalog) -> Iterator[str]:
    wrong = view_contradiction(catalog.views, upto_offset=INT64_MAX)
    if wrong is not None:
        yield wrong
    for view in catalog.views:
        for row in view.rows:
            wrong = entry_contradiction(row, view=view.name, epoch_max=catalog.epoch)
            if wrong is not None:
                yield wrong
    for each in catalog.unlinked:
        if parse_view_key(each.key) is None:
            yield f"a pending delete names no part of a view: key={each.key!r}"
