"""Pins of Spark jobs (`remote.gc.pins`): a long job reads one state during retention, compaction and deletion.

Spark does not notify a batch source of the end of its job: a pin expires `PIN_MS` after its last renewal. Every task
checks its pin when it begins and while it reads, and some pins of other partitions when it begins. It renews a pin in
the second half of its life. A read of a read-only bucket relies on the grace period, unless the options require a pin.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from local.errors import AccessDenied, InvalidRequest, LogError, NotFound
from remote.gc.pins import Pin, pin_newest, renew
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_chain import ManifestChain
from remote.store import ObjectStore
from tiered.spark.options import ReadOptions

_log = logging.getLogger(__name__)
_known_ends: dict[str, int] = {}  # by pin, in this process: its expiry as last seen


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def seen_manifest(store: ObjectStore, prefix: str, options: ReadOptions, now_ms: int) -> tuple[MetadataLog, Pin | None]:
    """The metadata log of a partition, positioned at the manifest to read, and the pin of that manifest.

    A partition of a deleted topic has no pin. Raises AccessDenied if a required pin cannot be written, and the error of
    `MetadataLog.missing` for a partition without a manifest.
    """
    if (given := options.pins.get(prefix)) is not None:
        pin = _pin_of(given)
        pinned = pinned_log(store, prefix, sequence=pin.sequence, commit_id=pin.commit_id, holder=pin.holder)
        pinned.load()
        return pinned, pin
    metadata = MetadataLog(store, prefix)
    if metadata.refresh().deleted_ms is not None or options.pin_ms is None:
        return metadata, None
    expires_ms = now_ms + options.pin_ms
    try:
        pin, _ = pin_newest(store, prefix, metadata, now_ms=now_ms, expires_ms=expires_ms, holder=holder())
    except NotFound:
        if metadata.cached is not None and metadata.cached.deleted_ms is None:
            raise
        return metadata, None  # deleted in between
    except AccessDenied as error:
        if options.must_pin:
            raise
        _log.warning("cannot pin a manifest, the job relies on the grace period: prefix=%s cause=%s", prefix, error)
        return metadata, None
    return metadata, pin


def holder() -> str:
    return f"spark, process {os.getpid()} of {os.uname().nodename}"


class PinKeeper:
    """Renews the pin of a task's split in the second half of its life. Not thread safe."""

    def __init__(
        self, store: ObjectStore, prefix: str, pin: Pin | None, pin_ms: int | None, clock: Callable[[], int] = wall_ms
    ) -> None:
        """`pin_ms` is the life of the pin after a renewal; with None only its holder renews it."""
        self._store = store
        self._prefix = prefix
        self._pin = pin if pin_ms is not None else None
        self._pin_ms = pin_ms or 0
        self._clock = clock

    def keep(self) -> None:
        """Renew the pin if it is due; call it repeatedly. An error is only logged: the read continues."""
        if self._pin is None:
            return
        now_ms, name = self._clock(), self._prefix + self._pin.key
        ends_ms = max(self._pin.expires_ms, _known_ends.get(name, 0))
        if ends_ms - now_ms > self._pin_ms // 2:
            return
        try:
            later = renew(self._store, self._prefix, self._pin, clock=self._clock, expires_ms=now_ms + self._pin_ms)
        except LogError as error:
            _log.warning("cannot renew a pin: prefix=%s key=%s cause=%s", self._prefix, self._pin.key, error)
            return
        if later is None:
            _log.warning("a pin has expired, or was released: prefix=%s key=%s", self._prefix, self._pin.key)
            self._pin = None
            return
        _known_ends[name] = later.expires_ms  # by the first pin's name, although the renewed pin has another one


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
    raise InvalidRequest("cannot read with Spark, invalid option, there is no pin", option="pins", value=dict(given))


def pinned_log(store: ObjectStore, prefix: str, *, sequence: int, commit_id: str, holder: str) -> MetadataLog:
    """The log of a pin, one GET. Reads raise NotFound if the pin expired and the manifest was deleted."""
    return MetadataLog(store, prefix, source=_PinnedManifest(store, prefix, sequence, commit_id, holder))


class _PinnedManifest:
    def __init__(self, store: ObjectStore, prefix: str, sequence: int, commit_id: str, holder: str) -> None:
        self._chain, self._sequence, self._commit_id = ManifestChain(store, prefix), sequence, commit_id
        self._facts = {"prefix": prefix, "sequence": sequence, "holder": holder}

    def newest(self, known: Manifest | None) -> Manifest:
        found = known or self._chain.read(self._sequence)
        if found is None or found.commit_id != self._commit_id:
            raise self.missing()
        return found

    def missing(self) -> LogError:
        return NotFound("the pinned manifest does not exist, the pin has expired", **self._facts)
