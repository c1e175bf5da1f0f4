"""Report of a scrub, as a value and as a file: versioned JSON, one object.

Within a version fields are only added.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from local.errors import InvalidRequest

SCHEMA_VERSION = 1

Weight = Literal["info", "warning", "corrupt"]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `object` is relative to the partition's prefix, empty for the partition as a whole.

    `at` and `length` are bytes of the object, `base_offset` and `next_offset` the affected half-open range. `ulid`
    names the segment's entry. `good_copy` is the place of identical bytes: "local" for this machine's disk.
    """

    severity: Weight
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

    Fields are None without a manifest, and if the manifests are sealed and the key ring lacks their key.
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
    """Report of a completed scrub. Findings are sorted, the most severe first.

    `unread_segments` could not be opened; `unread_bytes` are the bytes of their objects, not included in `read_bytes`.
    Even the manifests of `unread_partitions` could not be read.
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

    def of(self, severity: Weight) -> list[Found]:
        return [each for each in self.findings if each.severity == severity]


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_REPORT = msgspec.json.Decoder(ScrubReport)


def encode_report(report: ScrubReport) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def decode_report(data: bytes, path: str) -> ScrubReport:
    """Decode a report. Raises InvalidRequest for another version and for a file that is no report.

    It is InvalidRequest, not Corrupt, because the path may be any file that a user typed.
    """
    try:
        report = _REPORT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "run 'tiered scrub --report FILE'"
        raise InvalidRequest(
            f"cannot read the scrub report, the file has another format: {hint}", path=path, cause=str(error)
        ) from error
    if report.schema_version != SCHEMA_VERSION:
        facts = {"version": report.schema_version, "known": SCHEMA_VERSION}
        raise InvalidRequest("cannot read the scrub report, it is of another version", path=path, **facts)
    return report
