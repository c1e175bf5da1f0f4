"""Progress of a deep scrub: a file with one line for each segment that was read completely.

The first line names the scrubbed store. A crash may lose the last lines or tear one; these segments are read again. So
no fsync is needed, and an unreadable line ends the file for the reader. Results are keyed by all facts of their jobs,
not by the object's name alone. The name is never reused, but forks share it, and a repair may change the entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os.path import dirname

import msgspec

from local.errors import InvalidRequest, NotFound
from local.names import TEMPORARY
from local.storage import Storage
from local.verify.findings import Finding

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


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_RESULT = msgspec.json.Decoder(SegmentResult)


class _First(msgspec.Struct, frozen=True):
    tiered_scrub: int
    store: str
    started_ms: int


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_FIRST = msgspec.json.Decoder(_First)


class ScrubState:
    """The progress file as a context manager that closes it. One thread at a time."""

    def __init__(self, storage: Storage, path: str, store_url: str, *, now_ms: int, resume: bool) -> None:
        """With `resume`, continue with the file of an earlier scrub of the same store, if there is one.

        Raises InvalidRequest for another store's file.
        """
        self._storage, self._path = storage, path
        self._done: dict[str, SegmentResult] = {}
        self.started_ms = now_ms
        self.is_resumed = resume and self._read(store_url)
        if dirname(path):
            storage.make_directory(dirname(path))
        # Rewritten: a torn line would join the next one. Written under another name: a crash must not lose the old
        # file.
        self._file = storage.create(path + TEMPORARY)
        self._append(_First(VERSION, store_url, self.started_ms))
        for line in self._done.values():
            self._append(line)
        storage.rename(path + TEMPORARY, path)

    def results(self, names: Iterable[str]) -> dict[str, SegmentResult]:
        """Return the known results of these jobs."""
        return {name: self._done[name] for name in names if name in self._done}

    def note(self, result: SegmentResult) -> None:
        """Record a segment that was read completely."""
        self._append(result)

    def remove(self) -> None:
        """Delete the file: the scrub is complete and its report has all results."""
        self.close()
        self._storage.unlink(self._path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ScrubState:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    def _append(self, line: _First | SegmentResult) -> None:
        self._file.append(msgspec.json.encode(line) + b"\n")

    def _read(self, store_url: str) -> bool:
        try:
            lines = self._storage.read(self._path).split(b"\n")[:-1]
            first = _FIRST.decode(lines[0]) if lines else None
        except (NotFound, msgspec.DecodeError):
            return False
        if first is None or first.tiered_scrub != VERSION:
            return False
        if first.store != store_url:
            facts = {"path": self._path, "store": store_url, "found": first.store}
            raise InvalidRequest("cannot resume the scrub, the state belongs to another store", **facts)
        self.started_ms = first.started_ms
        for text in lines[1:]:
            try:
                line = _RESULT.decode(text)
            except msgspec.DecodeError:
                break
            self._done[line.name] = line
        return True
