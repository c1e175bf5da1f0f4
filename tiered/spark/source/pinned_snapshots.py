"""Manifests pinned by a driver for several reads of one state."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from local.errors import InvalidRequest
from remote.gc.pins import Pin, release_all
from tiered.spark.options import parse_options
from tiered.spark.source.planning import PinKeeper, open_partitions, wall_ms


@dataclass(frozen=True, slots=True)
class PinnedSnapshots:
    """Pinned manifests by the prefix of their partition. Pass `options` to every read that shall use them."""

    pins: Mapping[str, Pin]

    @property
    def options(self) -> dict[str, str]:
        return {"pins": json.dumps({prefix: asdict(pin) for prefix, pin in self.pins.items()})}


@contextmanager
def pinned(url: str, **options: str) -> Iterator[PinnedSnapshots]:
    """Pin the selected newest manifests until the block ends. Raises the errors of planning a read."""
    selection = parse_options({"path": url, "pin": str(60 * 60 * 1000), **options})
    if selection.pin_ms is None:
        raise InvalidRequest("cannot pin manifests for Spark, pin=none pins nothing")
    with selection.bucket.opened() as store:
        opened = open_partitions(store, selection, wall_ms())
        pins = {each.name.prefix: each.pin for each in opened if each.pin is not None}
        over = threading.Event()
        keepers = [PinKeeper(store, prefix, pin, selection.pin_ms) for prefix, pin in pins.items()]
        wait_s = selection.pin_ms / 4000

        def renew() -> None:
            while not over.wait(wait_s):
                for keeper in keepers:
                    keeper.keep()

        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield PinnedSnapshots(pins)
        finally:
            over.set()
            renewing.join()
            release_all(store, pins.items())
