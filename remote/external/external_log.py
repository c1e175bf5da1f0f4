"""An external partition's entries as a manifest, so that readers of manifests can read it.

This manifest is not in the bucket, and nothing is ever written there. A refresh lists the partition again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from local.errors import InvalidRequest, LogError, NotFound
from local.verify.findings import Finding
from remote.external.external_layout import ExternalName, Layout
from remote.external.external_lineage import gaps
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore

_log = logging.getLogger(__name__)
ListRows = Callable[[dict[str, Finding]], list[SegmentEntry]]


class ExternalLog(MetadataLog):
    """A read-only chain of the manifests described above.

    `list_rows` lists the bucket and returns the current entries, ascending, without overlaps. It adds findings to its
    argument, by object.
    """

    def __init__(self, store: ObjectStore, name: ExternalName, layout: Layout, list_rows: ListRows) -> None:
        super().__init__(store, name.prefix)
        self._name = name
        self._layout = layout
        self._list_rows = list_rows
        self._findings: dict[str, Finding] = {}

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The offsets between entries that no entry holds, as of the last listing."""
        return gaps(self._head.segments) if self._head is not None else []

    @property
    def findings(self) -> list[Finding]:
        """The findings, sorted by the offsets they concern, as of the last listing."""
        return sorted(self._findings.values(), key=lambda each: (each.offsets or (0, 0), each.path))

    def load(self, *, exact: bool = False) -> Head | None:
        """Return the current state of the bucket as a manifest; None while no listing has found a segment.

        Raises the errors of the listing.
        """
        del exact  # every listing is exact
        findings: dict[str, Finding] = {}
        rows = tuple(self._list_rows(findings))
        with self._lock:
            self._tell_findings(findings)
            known = self._head
            if known is not None and known.segments == rows:
                return known
            if rows:
                self._head = self._made(rows, 1 if known is None else known.sequence + 1)
                self._tell_gaps()
            elif known is not None:  # all of it expired
                end = known.next_offset
                self._head = replace(known, segments=(), sequence=known.sequence + 1, log_start_offset=end)
            return self._head

    def missing(self) -> LogError:
        """Return the error for a partition of another layout without segments."""
        return NotFound("reading a partition of another layout, it holds no segment", partition=self._name.prefix)

    def become_writer(self, *_: object, **__: object) -> Head:
        raise InvalidRequest("becoming a writer, this bucket is only read", layout=self._layout.value)

    def _made(self, rows: tuple[SegmentEntry, ...], sequence: int) -> Head:
        name = self._name
        return Head(
            sequence=sequence,
            epoch=1 + max((epoch for row in rows for epoch, _ in row.epochs), default=0),
            commit_id=f"{self._layout.value}-{sequence}",
            parent_id=None,
            writer_id=self._layout.value,
            topic=name.topic,
            topic_id=name.topic_id,
            partition=name.partition,
            log_start_offset=rows[0].base_offset,
            committed_ms=0,
            segments=rows,
            properties={},
        )

    def _tell_findings(self, findings: dict[str, Finding]) -> None:
        before, self._findings = self._findings, findings
        for path in sorted(findings.keys() - before.keys()):
            each, where = findings[path], self._name.topic_partition
            _log.warning("the bucket makes no sense: partition=%s object=%s what=%s", where, path, each.what)

    def _tell_gaps(self) -> None:
        for start, end in self.gaps:
            where = self._name.topic_partition
            _log.warning("the bucket lacks offsets: partition=%s first=%d next=%d", where, start, end)
