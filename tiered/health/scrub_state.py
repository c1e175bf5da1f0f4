"""State of a deep scrub: a line for each segment that was read completely, with its findings.

Results are keyed by all facts of their jobs, not by the object's name alone. The name is never reused, but forks share
it, and a repair may change the entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from local.storage import Storage
from local.verify.findings import Finding
from tiered.jobs.state_file import StateFile

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """Findings in one segment. `name` is `tiered.health.scrub.SegmentJob.identity`.

    `read_bytes` are the bytes of its objects.
    """

    name: str
    read_bytes: int
    findings: tuple[Finding, ...] = ()

    @property
    def is_unread(self) -> bool:
        """Whether the segment could not be opened."""
        return any(each.is_unread for each in self.findings)


class _Scrub(msgspec.Struct, frozen=True):
    tiered_scrub: int
    store: str
    started_ms: int


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_DECODERS = msgspec.json.Decoder(_Scrub), msgspec.json.Decoder(SegmentResult)


class ScrubState(StateFile[_Scrub, SegmentResult]):
    """The finished segments of a scrub that began at `started_ms`."""

    def __init__(self, storage: Storage, path: str, store_url: str, *, now_ms: int, resume: bool) -> None:
        """With `resume`, continue with the file of an earlier scrub of the same store, if there is one."""
        super().__init__(
            storage,
            path,
            _Scrub(VERSION, store_url, now_ms),
            _DECODERS,
            job="scrub",
            is_resumable=lambda found: resume and found.tiered_scrub == VERSION,
        )
        self.started_ms = self.first.started_ms
        self._done = {line.name: line for line in self.lines}

    def results(self, names: Iterable[str]) -> dict[str, SegmentResult]:
        """Return the known results of these jobs."""
        return {name: self._done[name] for name in names if name in self._done}

    def note(self, result: SegmentResult) -> None:
        """Record a segment that was read completely."""
        self.append(result)
