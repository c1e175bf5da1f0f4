"""Pause the uploads of some topics, or of all, until they are resumed (docs/how-to/pause-uploads.md). Nothing is lost.

``uploads-paused.json`` is at the root of every log directory and is replaced whole. The highest `version` is valid, so
a disk that was offline during a change does not restore the old state. One process at a time writes it, under a lock of
its own, also while a manager runs. The manager reads it before each run, task and copy. A crash leaves the change made
or not made. An unreadable file pauses everything: damage must not resume uploads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from local.errors import AccessDenied, Conflict, DiskFailed, InvalidRequest, LogError, NotFound
from local.logdirs.log_dirs import LogDirectories
from local.storage import StorageFile, join
from policies.rules import Pause
from tiered.node.topic_registry import CopiedFile, Copies, Places, Topic, TopicRegistry

FILE = "uploads-paused.json"
LOCK = ".uploads-paused.lock"
FORMAT_VERSION = 1
REASON_LENGTH_MAX = 200
_log = logging.getLogger(__name__)


class _Paused(msgspec.Struct, frozen=True):
    since_ms: int
    reason: str = ""


class _File(msgspec.Struct, frozen=True):
    """`topics` by their ids: a topic recreated under the name of a deleted one is not paused."""

    format_version: int
    version: int
    all: _Paused | None = None
    topics: dict[str, _Paused] = {}


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_DECODER = msgspec.json.Decoder(_File)
_NOTHING = _File(format_version=FORMAT_VERSION, version=0)


class UploadPauses:
    """The pauses of a node as of the last `refresh`, and their changes. Thread safe."""

    def __init__(self, directories: LogDirectories) -> None:
        self._directories = directories
        self._lock = threading.Lock()
        self._file = _current(_read(directories.places()))

    def refresh(self) -> None:
        """Read the file again. Never raises: unreadable state stays unchanged."""
        with self._lock:
            before = self._file
            places = self._directories.places()
            copies = _read(places)
            if len(copies.unavailable) < len(places):  # else the known state stays
                self._file = _current(copies)
            if self._file is None and before is not None:
                _log.warning("the upload pauses changed: %s is unreadable, all uploads are paused", FILE)
            elif self._file is not None and self._file != before:
                state = "no" if self._file.all is None else "paused"
                _log.warning("the upload pauses changed: all=%s topics=%d", state, len(self._file.topics))

    def of(self, topic: Topic) -> Pause | None:
        return _pause_of(self._file, topic)

    def pause(self, names: Iterable[str] | None = None, *, now_ms: int, reason: str = "") -> dict[str, Pause]:
        """As `pause_uploads`; a running upload is committed. Raises InvalidRequest in a read-only open."""
        self._directories.check_writable()
        return pause_uploads(self._directories.places(), names, now_ms=now_ms, reason=reason)

    def resume(self, names: Iterable[str] | None = None) -> dict[str, Pause]:
        """As `resume_uploads`; the next maintenance continues the uploads. Raises as `pause`."""
        self._directories.check_writable()
        return resume_uploads(self._directories.places(), names)

    def by_topic(self) -> dict[str, Pause]:
        return paused_topics(self._directories.places())


def pause_uploads(places: Places, names: Iterable[str] | None, *, now_ms: int, reason: str = "") -> dict[str, Pause]:
    """Pause the uploads of some topics (None: of all, also future ones); return all pauses, by topic.

    Durable on return. An existing pause is unchanged. Raises NotFound for an unknown topic, Conflict while another
    process changes pauses.
    """
    registry, mark = TopicRegistry(places), _mark(now_ms, reason)
    return _replace(places, _selected(registry, names), partial(_with_pauses, mark=mark))


def resume_uploads(places: Places, names: Iterable[str] | None) -> dict[str, Pause]:
    """Resume the uploads of some topics (None: of all); return the remaining pauses, by topic.

    None also resumes topics paused one by one. Durable on return. A topic that is not paused is no error. Raises
    NotFound for an unknown topic, InvalidRequest for some topics while all are paused, Conflict while another process
    changes pauses.
    """
    registry = TopicRegistry(places)
    return _replace(places, _selected(registry, names), partial(_without_pauses, registry=registry))


def dry_run_pause(places: Places, names: Iterable[str] | None, *, now_ms: int, reason: str = "") -> dict[str, Pause]:
    """The pauses after `pause_uploads`, with its errors; changes nothing."""
    registry, mark = TopicRegistry(places), _mark(now_ms, reason)
    return _by_topic(_with_pauses(_current(_read(places)), _selected(registry, names), mark), registry)


def dry_run_resume(places: Places, names: Iterable[str] | None) -> dict[str, Pause]:
    registry = TopicRegistry(places)
    return _by_topic(_without_pauses(_current(_read(places)), _selected(registry, names), registry), registry)


def paused_topics(places: Places) -> dict[str, Pause]:
    return _by_topic(_current(_read(places)), TopicRegistry(places))


def _mark(now_ms: int, reason: str) -> _Paused:
    if len(reason) > REASON_LENGTH_MAX:
        wrong = f"cannot pause uploads, the reason has more than {REASON_LENGTH_MAX} characters"
        raise InvalidRequest(wrong, length=len(reason))
    return _Paused(since_ms=now_ms, reason=" ".join(reason.split()))


def _selected(registry: TopicRegistry, names: Iterable[str] | None) -> list[Topic] | None:
    return None if names is None else [registry.get(name) for name in sorted(set(names))]


def _with_pauses(file: _File | None, topics: Sequence[Topic] | None, mark: _Paused) -> _File:
    if file is None and topics is not None:
        raise InvalidRequest(
            f"cannot pause uploads, {FILE} is unreadable, so all uploads are paused: run 'tiered resume' first"
        )
    file = file or _NOTHING
    if topics is None:
        return msgspec.structs.replace(file, all=file.all or mark)
    marks = {topic.topic_id: file.topics.get(topic.topic_id, mark) for topic in topics}
    return msgspec.structs.replace(file, topics={**file.topics, **marks})


def _without_pauses(file: _File | None, topics: Sequence[Topic] | None, registry: TopicRegistry) -> _File:
    """Return the file with these topics resumed (None: all), without topics that no longer exist."""
    if topics is None:
        return _NOTHING
    if file is None or file.all is not None:
        wrong = "cannot resume uploads of some topics while the uploads of all are paused: 'tiered resume' resumes all"
        raise InvalidRequest(wrong, topics=",".join(topic.name for topic in topics))
    remaining = {topic.topic_id for topic in registry.all()} - {topic.topic_id for topic in topics}
    marks = {topic_id: mark for topic_id, mark in file.topics.items() if topic_id in remaining}
    return msgspec.structs.replace(file, topics=marks)


def _by_topic(file: _File | None, registry: TopicRegistry) -> dict[str, Pause]:
    pauses = ((topic.name, _pause_of(file, topic)) for topic in registry.all())
    return {name: pause for name, pause in pauses if pause is not None}


def _pause_of(file: _File | None, topic: Topic) -> Pause | None:
    if file is None:
        return Pause(since_ms=None, reason=f"{FILE} is unreadable; 'tiered resume' writes it again")
    found = file.all or file.topics.get(topic.topic_id)
    if found is None:
        return None
    return Pause(since_ms=found.since_ms, reason=found.reason, is_of_all=file.all is not None)


def _replace(
    places: Places, topics: Sequence[Topic] | None, change: Callable[[_File | None, Sequence[Topic] | None], _File]
) -> dict[str, Pause]:
    """Replace the pauses, under the lock; return them. Raises the last error if no directory accepted them."""
    lock = _lock(places)
    try:
        copies = _read(places)
        version = (copies.newest.version if copies.newest is not None else 0) + (2 if copies.unavailable else 1)
        file = msgspec.structs.replace(change(_current(copies), topics), version=version)
        errors = _copied_file(places).write(msgspec.json.encode(file), version)
        if len(errors) == len(places):
            raise errors[-1]
    finally:
        lock.close()
    return paused_topics(places)


def _copied_file(places: Places) -> CopiedFile[_File]:
    return CopiedFile(places, FILE, _DECODER, FORMAT_VERSION, "upload pauses")


def _lock(places: Places) -> StorageFile:
    failed: LogError | None = None
    for storage, root in places:
        try:
            return storage.lock(join(root, LOCK))
        except Conflict:
            wrong = "cannot change the upload pauses, another process is changing them; run the command again"
            raise Conflict(wrong, directory=root) from None
        except (DiskFailed, AccessDenied, NotFound) as error:
            failed = error
    assert failed is not None, "a node has a log directory"
    raise failed


def _read(places: Places) -> Copies[_File]:
    copies = _copied_file(places).read()
    for error in copies.damaged:
        _log.error("cannot read the upload pauses: error=%s", error)
    return copies


def _current(copies: Copies[_File]) -> _File | None:
    """The valid pauses; None if all existing copies are damaged. Without any copy nothing is paused."""
    return None if copies.damaged and copies.newest is None else copies.newest or _NOTHING
