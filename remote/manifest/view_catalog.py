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
from remote.manifest.stored_form import StoredForm
from remote.manifest.view import STORED_VIEW, CompactedView, view_contradiction
from remote.number_bounds import INT64_MAX, WriterEpoch

CATALOG_BYTES_MAX = 64 << 20
_VERSION = 1
_LINE = re.compile(rb"tiered-view-catalog ([0-9]{1,4}) ([0-9a-f]{8}) ([0-9]{1,9})\n")
_LINE_BYTES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCatalog:
    """See the module text. `views` are ordered by name; `pending_deletes` are pending deletes."""

    epoch: WriterEpoch = 1
    views: tuple[CompactedView, ...] = ()
    pending_deletes: tuple[PendingDelete, ...] = ()

    @property
    def named_keys(self) -> frozenset[str]:
        """Every file that the catalog names, pending deletes included."""
        entries = (entry for view in self.views for entry in view.entries)
        named = {key for entry in entries for key in (entry.data_key, entry.indexes_key)}
        return frozenset(named | {each.key for each in self.pending_deletes})


_STORED = StoredForm(ViewCatalog, {"pending_deletes": "unlinked"}, views=STORED_VIEW)


def encode_catalog(catalog: ViewCatalog) -> bytes:
    """The file's bytes."""
    body = _STORED.encode(catalog)
    return b"tiered-view-catalog %d %08x %d\n" % (_VERSION, crc32c(body), len(body)) + body


def decode_catalog(data: bytes, *, path: str) -> ViewCatalog:
    """The inverse. Raises Corrupt for any defect, naming the file."""
    line = _LINE.match(data[:_LINE_BYTES_MAX])
    if line is None or int(line[1]) != _VERSION:
        raise Corrupt("cannot read a view catalog, it does not start with the format line", path=path)
    body, expected = data[line.end() :], int(line[2], 16)
    if len(body) != int(line[3]) or len(body) > CATALOG_BYTES_MAX:
        raise Corrupt(
            "a view catalog is damaged, its length differs", path=path, expected=int(line[3]), found=len(body)
        )
    if (found := crc32c(body)) != expected:
        facts = {"path": path, "expected": f"{expected:08x}", "found": f"{found:08x}"}
        raise Corrupt("a view catalog is damaged, its checksum differs", **facts)
    try:
        catalog = _STORED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("the body of a view catalog is not a catalog", path=path, cause=str(error)) from error
    wrong = next(_contradictions(catalog), None)
    if wrong is not None:
        raise Corrupt(f"invalid view catalog, {wrong}", path=path)
    return catalog


def _contradictions(catalog: ViewCatalog) -> Iterator[str]:
    wrong = view_contradiction(catalog.views, upto_offset=INT64_MAX)
    if wrong is not None:
        yield wrong
    for view in catalog.views:
        for entry in view.entries:
            wrong = entry_contradiction(entry, view=view.name, epoch_max=catalog.epoch)
            if wrong is not None:
                yield wrong
    for each in catalog.pending_deletes:
        if parse_view_key(each.key) is None:
            yield f"a pending delete is not a part of a view: key={each.key!r}"
