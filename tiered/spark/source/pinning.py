"""Pins of Spark jobs: a job of hours reads one state while retention, compaction and deletion go on.

Who plans a read pins the heads it planned on (`remote.gc.pins`). Nobody tells a batch source that its job is over, so
such a pin ends by time, `PIN_MS` after the last task that said it still needs it: every task looks at it when it begins
and while it reads, at some of other partitions too when it begins, and renews what is in the second half of its life. A
job that crashes leaves pins that end by themselves.

A driver that can say when it is done holds the heads itself: `tiered.spark.source.pinned_snapshots`.

A bucket that may only be read cannot be pinned: such a read goes by the grace time alone, unless a pin was asked for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence

from local.errors import AccessDenied, InvalidRequest, LogError, NotFound
from remote.gc.pinned_manifest import PinnedLog
from remote.gc.pins import Pin, pin_newest, release, renew
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head
from remote.store import ObjectStore
from tiered.spark.source.options import ReadOptions

_log = logging.getLogger(__name__)
_known_ends: dict[str, int] = {}  # of this process: when a pin ends, as last seen


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def seen_head(store: ObjectStore, prefix: str, options: ReadOptions, now_ms: int) -> tuple[MetadataLog, Pin | None]:
    """The chain of a partition that has seen the head to read by, and what pins it.

    A partition of a deleted topic has no pin. Raises AccessDenied where a pin was asked for and may not be written, and
    what `MetadataLog.missing` returns for a partition without a head.
    """
    if (given := options.pins.get(prefix)) is not None:
        pin = _pin_of(given)
        pinned = PinnedLog(store, prefix, pin)
        pinned.load()
        return pinned, pin
    metadata = MetadataLog(store, prefix)
    if not _is_there(metadata.refresh()) or options.pin_ms is None:
        return metadata, None
    expires_ms = now_ms + options.pin_ms
    try:
        pin, _ = pin_newest(store, prefix, metadata, now_ms=now_ms, expires_ms=expires_ms, holder=holder())
    except NotFound:
        if _is_there(metadata.cached):
            raise
        return metadata, None  # deleted just now
    except AccessDenied as error:
        if options.must_pin:
            raise
        _log.warning("a head cannot be pinned, the grace time has to do: prefix=%s cause=%s", prefix, error)
        return metadata, None
    return metadata, pin


def _is_there(head: Head | None) -> bool:
    return head is not None and head.deleted_ms is None


def holder() -> str:
    return f"spark, process {os.getpid()} of {os.uname().nodename}"


def let_go(store: ObjectStore, prefix: str, pin: Pin) -> None:
    """Release a pin; one that cannot be released ends by itself."""
    try:
        release(store, prefix, [pin])
    except LogError as error:
        _log.warning("a pin stays until it expires: prefix=%s key=%s cause=%s", prefix, pin.key, error)


class PinKeeper:
    """What a task does for the pin of its split: renew it in the second half of its life. Not thread safe."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        pin: Pin | None,
        pin_ms: int | None,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        """`pin_ms`: how long after a renewal it ends; None leaves it to its holder."""
        self._store = store
        self._prefix = prefix
        self._pin = pin if pin_ms is not None else None
        self._pin_ms = pin_ms or 0
        self._clock = clock

    def keep(self) -> None:
        """To be called again and again. What goes wrong is only told: the read goes on, perhaps on borrowed time."""
        if self._pin is None:
            return
        now_ms, name = self._clock(), self._prefix + self._pin.key
        ends_ms = max(self._pin.expires_ms, _known_ends.get(name, 0))
        if ends_ms - now_ms > self._pin_ms // 2:
            return
        try:
            later = renew(self._store, self._prefix, self._pin, clock=self._clock, expires_ms=now_ms + self._pin_ms)
        except LogError as error:
            _log.warning("a pin is not renewed: prefix=%s key=%s cause=%s", self._prefix, self._pin.key, error)
            return
        if later is None:
            _log.warning("a pin has lapsed, or was let go of: prefix=%s key=%s", self._prefix, self._pin.key)
            self._pin = None
            return
        _known_ends[name] = later.expires_ms  # by the first one's name, whatever stands in its place


def release_all(store: ObjectStore, pins: Sequence[tuple[str, Pin]]) -> None:
    for prefix, pin in pins:
        let_go(store, prefix, pin)


def _pin_of(given: Mapping[str, object]) -> Pin:
    match given:
        case {
            "key": str(key),
            "sequence": int(sequence),
            "commit_id": str(commit_id),
            "expires_ms": int(expires_ms),
            "holder": str(holder),
        }:
            return Pin(key=key, sequence=sequence, commit_id=commit_id, expires_ms=expires_ms, holder=holder)
    raise InvalidRequest("reading with spark, a wrong option, no pin", option="pins", value=dict(given))
