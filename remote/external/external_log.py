"""An external partition's entries as a manifest, so that readers of manifests can read it.

This manifest is not in the bucket, and nothing is ever written there. A refresh lists the partition again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from local.errors import LogError, NotFound
from local.verify.findings import Finding
from remote.external.external_layout import ExternalName, Layout
from remote.external.external_lineage import gaps
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.segment_entry import SegmentEntry

_log = logging.getLogger(__name__)
ListRows = Callable[[dict[str, Finding]], list[SegmentEntry]]


class ExternalManifests:
    """The manifests of one external partition, for `MetadataLog(source=...)`. Not thread safe: the log holds its lock.

    `list_rows` lists the bucket and returns the current entries, ascending, without overlaps. It adds findings to its
    argument, by object.
    """

    def __init__(self, name: ExternalName, layout: Layout, list_rows: ListRows) -> None:
        self._name = name
        self._layout = layout
        self._list_rows = list_rows
        self._manifest: Manifest | None = None
        self._findings: dict[str, Finding] = {}

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The offsets between entries that no entry holds, as of the last listing."""
        return gaps(self._manifest.segments) if self._manifest is not None else []

    @property
    def findings(self) -> list[Finding]:
        """The findings, sorted by the offsets they concern, as of the last listing."""
        return sorted(self._findings.values(), key=lambda each: (each.offsets or (0, 0), each.path))

    def newest(self, known: Manifest | None) -> Manifest | None:
        """The bucket now as a manifest; None while no listing has found a segment. Raises the listing's errors."""
        findings: dict[str, Finding] = {}
        entries = tuple(self._list_rows(findings))
        self._log_findings(findings)
        if known is not None and known.segments == entries:
            return known
        if entries:
            self._manifest = self._made(entries, 1 if known is None else known.sequence + 1)
            self._log_gaps()
        elif known is not None:  # all of it expired
            end = known.next_offset
            self._manifest = replace(known, segments=(), sequence=known.sequence + 1, log_start_offset=end)
        return self._manifest

    def missing(self) -> LogError:
        """Return the error for a partition of another layout without segments."""
        return NotFound("the external partition holds no segment", partition=self._name.prefix)

    def _made(self, entries: tuple[SegmentEntry, ...], sequence: int) -> Manifest:
        name = self._name
        return Manifest(
            sequence=sequence,
            epoch=1 + max((epoch for entry in entries for epoch, _ in entry.epochs), default=0),
            commit_id=f"{self._layout.value}-{sequence}",
            parent_id=None,
            writer_id=self._layout.value,
            topic=name.topic,
            topic_id=name.topic_id,
            partition=name.partition,
            log_start_offset=entries[0].base_offset,
            committed_ms=0,
            segments=entries,
            properties={},
        )

    def _log_findings(self, findings: dict[str, Finding]) -> None:
        before, self._findings = self._findings, findings
        for path in sorted(findings.keys() - before.keys()):
            each, where = findings[path], self._name.topic_partition
            _log.warning("an object of the bucket is invalid: partition=%s object=%s what=%s", where, path, each.what)

    def _log_gaps(self) -> None:
        for start, end in self.gaps:
            where = self._name.topic_partition
            _log.warning("the bucket lacks offsets: partition=%s first=%d next=%d", where, start, end)


def external_manifests(log: MetadataLog | None) -> ExternalManifests | None:
    """The external source of a log; None for a partition of this project's own layout."""
    source = log.source if log is not None else None
    return source if isinstance(source, ExternalManifests) else None
