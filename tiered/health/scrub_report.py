"""The two files of a scrub: its report, and the state of a deep scrub.

The report is versioned JSON, one object; within a version fields are only added. The state has a line for each segment
that was read completely, with its findings. The key of a line is `SegmentJob.identity`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from local.errors import InvalidRequest
from local.storage import Storage
from local.verify.findings import Finding
from tiered.jobs.runner import StateFile

SCHEMA_VERSION = 1
STATE_VERSION = 2


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One finding; `code` is empty in older reports.

    `object` is relative to the partition's prefix, empty for the partition as a whole. `at` and `length` are bytes of
    the object, offsets are half open. `ulid` names the segment's entry. `good_copy` is "local": this machine's disk has
    the bytes.
    """

    code: str = ""
    severity: str
    topic: str
    topic_id: str
    partition: int
    object: str
    what: str
    at: int | None = None
    length: int | None = None
    base_offset: int | None = None
    next_offset: int | None = None
    ulid: str | None = None
    good_copy: str | None = None


class PartitionScrub(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: its newest manifest, and the number of objects of each kind below its prefix.

    Fields are None without a manifest, or if the key ring lacks the key of sealed manifests.
    """

    topic: str
    topic_id: str
    partition: int
    sequence: int | None
    epoch: int | None
    segments: int | None
    size_bytes: int
    objects: dict[str, int]


class ScrubReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a completed scrub, the most severe finding first.

    `unread_segments` could not be opened; `unread_bytes` are their bytes, not included in `read_bytes`. The manifests
    of `unread_partitions` could not be read.
    """

    schema_version: int = SCHEMA_VERSION
    store: str
    is_deep: bool
    started_ms: int
    finished_ms: int
    read_bytes: int
    unread_segments: int = 0
    unread_bytes: int = 0
    unread_partitions: int = 0
    partitions: list[PartitionScrub]
    findings: list[Found]

    def of(self, severity: str) -> list[Found]:
        return [each for each in self.findings if each.severity == severity]

    @property
    def object_count(self) -> int:
        return sum(count for each in self.partitions for count in each.objects.values())

    def counts(self, *severities: str) -> str:
        return " ".join(f"{severity}={len(self.of(severity))}" for severity in severities)


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_REPORT = msgspec.json.Decoder(ScrubReport)


def encode_report(report: ScrubReport) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def decode_report(data: bytes, path: str) -> ScrubReport:
    """Decode a report. Raises InvalidRequest for another version or format: the path may be any user's file."""
    try:
        report = _REPORT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "cannot read the scrub report, the file has another format: run 'tiered scrub --report FILE'"
        raise InvalidRequest(what, path=path, cause=str(error)) from error
    if report.schema_version != SCHEMA_VERSION:
        facts = {"version": report.schema_version, "known": SCHEMA_VERSION}
        raise InvalidRequest("cannot read the scrub report, it is of another version", path=path, **facts)
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    name: str
    read_bytes: int
    findings: tuple[Finding, ...] = ()

    @property
    def is_unread(self) -> bool:
        return any(each.is_unread for each in self.findings)


class _Scrub(msgspec.Struct, frozen=True):
    tiered_scrub: int
    store: str
    started_ms: int


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_DECODERS = msgspec.json.Decoder(_Scrub), msgspec.json.Decoder(SegmentResult)


class ScrubState(StateFile[_Scrub, SegmentResult]):
    def __init__(self, storage: Storage, path: str, store_url: str, *, now_ms: int, resume: bool) -> None:
        """With `resume`, continue an earlier scrub of the same store, if there is one."""
        super().__init__(
            storage,
            path,
            _Scrub(STATE_VERSION, store_url, now_ms),
            _DECODERS,
            job="scrub",
            is_resumable=lambda found: resume and found.tiered_scrub == STATE_VERSION,
        )
        self.started_ms = self.first.started_ms
        self._done = {line.name: line for line in self.lines}

    def results(self, names: Iterable[str]) -> dict[str, SegmentResult]:
        return {name: self._done[name] for name in names if name in self._done}
