"""The state of a resumable job: a file of JSON lines, the first about the job, then one for each finished unit.

A crash may lose the last lines or tear one. These units are then done again, which is safe. So no fsync is needed, and
an unreadable line ends the file for the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from os.path import dirname
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from local.errors import InvalidRequest, NotFound
from local.names import TEMPORARY
from local.storage import Storage
from remote.keys import new_ulid

VERSION = 1


class _OfStore(Protocol):
    @property
    def store(self) -> str: ...


F = TypeVar("F", bound=_OfStore)
L = TypeVar("L")


class StateFile(Generic[F, L]):
    """The file as a context manager that closes it; `first` is its first line. One thread at a time."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        first: F,
        decoders: tuple[msgspec.json.Decoder[F], msgspec.json.Decoder[L]],
        *,
        job: str,
        is_resumable: Callable[[F], bool],
    ) -> None:
        """Continue with the file of an earlier run that `is_resumable`, else begin a file with `first`.

        `job` is the job's name for messages. Raises InvalidRequest if the file is for another bucket.
        """
        self._storage, self._path = storage, path
        self.first, self.lines = first, list[L]()
        self.is_resumed = self._read(decoders, job, is_resumable)
        if dirname(path):
            storage.make_directory(dirname(path))
        # Rewritten: a torn line would join the next one. Written under another name: a crash must not lose the old
        # file.
        self._file = storage.create(path + TEMPORARY)
        for each in (self.first, *self.lines):
            self._file.append(msgspec.json.encode(each) + b"\n")
        storage.rename(path + TEMPORARY, path)

    def append(self, line: L) -> None:
        self._file.append(msgspec.json.encode(line) + b"\n")

    def remove(self) -> None:
        """Delete the file, because the job is finished."""
        self.close()
        self._storage.unlink(self._path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    def _read(
        self,
        decoders: tuple[msgspec.json.Decoder[F], msgspec.json.Decoder[L]],
        job: str,
        is_resumable: Callable[[F], bool],
    ) -> bool:
        try:
            lines = self._storage.read(self._path).split(b"\n")[:-1]
            first = decoders[0].decode(lines[0]) if lines else None
        except (NotFound, msgspec.DecodeError):
            return False
        if first is None or not is_resumable(first):
            return False
        if first.store != self.first.store:
            facts = {"path": self._path, "store": self.first.store, "found": first.store}
            raise InvalidRequest(f"cannot resume the {job}, its state belongs to another store", **facts)
        self.first = first
        for text in lines[1:]:
            try:
                self.lines.append(decoders[1].decode(text))
            except msgspec.DecodeError:
                break
        return True


class _Pipeline(msgspec.Struct, frozen=True):
    tiered_pipeline: int
    store: str
    job_id: str
    run_id: str


class _Finished(msgspec.Struct, frozen=True):
    stage: str
    unit: str


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_DECODERS = msgspec.json.Decoder(_Pipeline), msgspec.json.Decoder(_Finished)


class PipelineState(StateFile[_Pipeline, _Finished]):
    """The finished units of a pipeline.

    `run_id` is the job id of the compaction notes in manifests. It changes when the file is removed, so a job of the
    same name on the next night does not count as done.
    """

    def __init__(self, storage: Storage, path: str, store_url: str, job_id: str, *, now_ms: int) -> None:
        super().__init__(
            storage,
            path,
            _Pipeline(VERSION, store_url, job_id, f"{job_id}-{new_ulid(now_ms)}"),
            _DECODERS,
            job="pipeline",
            is_resumable=lambda found: found.tiered_pipeline == VERSION and found.job_id == job_id,
        )
        self.run_id = self.first.run_id
        self._done = {(line.stage, line.unit) for line in self.lines}

    def is_over(self, stage: str, unit: str) -> bool:
        return (stage, unit) in self._done

    def note(self, stage: str, unit: str) -> None:
        self._done.add((stage, unit))
        self.append(_Finished(stage, unit))
