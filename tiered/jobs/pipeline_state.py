"""Progress of a pipeline: a file with one line for each finished unit, appended when it finishes.

As in `tiered.health.scrub_state`, a crash may lose the last lines or tear one. These units are then done again, which
is safe.
"""

from __future__ import annotations

from os.path import dirname

import msgspec

from local.errors import InvalidRequest, NotFound
from local.names import TEMPORARY
from local.storage import Storage
from remote.keys import new_ulid

VERSION = 1


class _First(msgspec.Struct, frozen=True):
    tiered_pipeline: int
    store: str
    job_id: str
    run_id: str


class _Line(msgspec.Struct, frozen=True):
    stage: str
    unit: str


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_FIRST = msgspec.json.Decoder(_First)
_LINE = msgspec.json.Decoder(_Line)


class PipelineState:
    """The progress file as a context manager that closes it. One thread at a time."""

    def __init__(self, storage: Storage, path: str, store_url: str, job_id: str, *, now_ms: int) -> None:
        """Continue with the file of an earlier run of this job, if there is one.

        Raises InvalidRequest if the file is for another bucket. `run_id` is the job id of the compaction notes in
        manifests. It changes when the file is removed, so a job of the same name on the next night does not count as
        done.
        """
        self._storage, self._path = storage, path
        self.run_id = f"{job_id}-{new_ulid(now_ms)}"
        self._done: set[tuple[str, str]] = set()
        self._read(store_url, job_id)
        if dirname(path):
            storage.make_directory(dirname(path))
        # Rewritten: a torn line would join the next one. Written under another name: a crash must not lose the old
        # file.
        self._file = storage.create(path + TEMPORARY)
        self._append(_First(VERSION, store_url, job_id, self.run_id))
        for stage, unit in sorted(self._done):
            self._append(_Line(stage, unit))
        storage.rename(path + TEMPORARY, path)

    def is_over(self, stage: str, unit: str) -> bool:
        return (stage, unit) in self._done

    def note(self, stage: str, unit: str) -> None:
        self._done.add((stage, unit))
        self._append(_Line(stage, unit))

    def remove(self) -> None:
        """Delete the file, because the job is finished."""
        self.close()
        self._storage.unlink(self._path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> PipelineState:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    def _append(self, line: _First | _Line) -> None:
        self._file.append(msgspec.json.encode(line) + b"\n")

    def _read(self, store_url: str, job_id: str) -> None:
        try:
            lines = self._storage.read(self._path).split(b"\n")[:-1]
            first = _FIRST.decode(lines[0]) if lines else None
        except (NotFound, msgspec.DecodeError):
            return
        if first is None or first.tiered_pipeline != VERSION or first.job_id != job_id:
            return
        if first.store != store_url:
            facts = {"path": self._path, "store": store_url, "found": first.store}
            raise InvalidRequest("cannot resume the pipeline, the job belongs to another store", **facts)
        self.run_id = first.run_id
        for text in lines[1:]:
            try:
                line = _LINE.decode(text)
            except msgspec.DecodeError:
                break
            self._done.add((line.stage, line.unit))
