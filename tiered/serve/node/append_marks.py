"""Marks of appends that the bucket has not acknowledged: a repeated command appends nothing twice.

They are in one file, replaced whole. The directory's lock ensures that one process uses it.

| step of an append | a crash after it leaves |
|---|---|
| 1. the records are durable on the disk | no mark: an interrupted append like any other |
| 2. the mark is written | the mark: the same input given again waits for the bucket only |
| 3. the bucket holds the records and the mark is removed | nothing |
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from local.errors import InvalidRequest, NotFound
from local.names import TopicPartition
from local.storage import Storage, replace_file

MARKS_FILE = "append-remote.json"
MARKS_MAX = 100  # the oldest marks above this number are removed: their inputs were not repeated


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one partition: records at offsets in ``[base_offset, next_offset)``."""

    topic: str
    partition: int
    base_offset: int
    next_offset: int
    records: int

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class _File(msgspec.Struct, frozen=True):
    schema_version: int
    marks: dict[str, list[Share]]


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(_File)


def input_key(facts: Mapping[str, object]) -> str:
    """A key of one input; `facts` are its file, the file's state, its target and how it is read."""
    return blake2b(repr(sorted(facts.items())).encode(errors="surrogateescape"), digest_size=16).hexdigest()


class AppendMarks:
    """The marks in the file at `path`."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path

    def find(self, key: str) -> list[Share] | None:
        """The shares of this input that may not be in the bucket; None without a mark. Raises InvalidRequest."""
        return self._read().get(key)

    def note(self, key: str, shares: list[Share]) -> None:
        """Add a mark; durable on return."""
        marks = {**self._read(), key: shares}
        self._write(dict(list(marks.items())[-MARKS_MAX:]))

    def forget(self, key: str) -> None:
        marks = self._read()
        if marks.pop(key, None) is not None:
            self._write(marks)

    def _read(self) -> dict[str, list[Share]]:
        try:
            return dict(_FILE.decode(self._storage.read(self._path)).marks)
        except NotFound:
            return {}
        except msgspec.DecodeError as error:
            hint = "compare its contents with the log, then delete the file"
            wrong = f"cannot read the requests that wait for the bucket, the file is damaged: {hint}"
            raise InvalidRequest(wrong, path=self._path, cause=str(error)) from None

    def _write(self, marks: Mapping[str, list[Share]]) -> None:
        if marks:
            replace_file(self._storage, self._path, msgspec.json.encode(_File(1, dict(marks))))
        else:
            self._storage.unlink(self._path)
