"""What was appended and not yet acknowledged by the bucket, so that the same command given again appends nothing twice.

One file of a directory, replaced whole. A mark is put there once the records are durable on the disk, and taken away
once the bucket holds them: a process that ends in between leaves the mark, and whoever comes with the same input goes
on waiting. One that ends before it, with the records appended, leaves none; then they are as any append that was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from local.errors import InvalidRequest, NotFound
from local.names import TopicPartition
from local.storage import Storage, replace_file

FILE = "append-remote.json"
MARKS_MAX = 100  # older ones go: of inputs that nobody came with again


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one partition was given: records at offsets in ``[base_offset, next_offset)``."""

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


# Made at import: made in two threads at once it ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(_File)


def input_key(facts: Mapping[str, object]) -> str:
    """The same for the same input: `facts` say which file in which state goes where, and how it is read."""
    return blake2b(repr(sorted(facts.items())).encode(errors="surrogateescape"), digest_size=16).hexdigest()


class AppendMarks:
    """The marks in the file at `path`; for one process at a time, which the directory's lock sees to."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path

    def find(self, key: str) -> list[Share] | None:
        """What of that input waits for the bucket; None when nothing does. Raises InvalidRequest for a damaged file."""
        return self._read().get(key)

    def note(self, key: str, shares: list[Share]) -> None:
        """Durable on return."""
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
            hint = "look what of it is in the log, then remove it"
            raise InvalidRequest(
                f"reading what waits for the bucket, the file is damaged: {hint}", path=self._path, cause=str(error)
            ) from None

    def _write(self, marks: Mapping[str, list[Share]]) -> None:
        if marks:
            replace_file(self._storage, self._path, msgspec.json.encode(_File(1, dict(marks))))
        else:
            self._storage.unlink(self._path)
