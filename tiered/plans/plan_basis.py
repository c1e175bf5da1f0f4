"""Basis of a saved plan apart from partition state: settings, prices, bucket, identity of the topics.

The basis has a name for each fact, so that a refusal can say what changed. Every setting counts except
`WITHOUT_EFFECT`. So a setting that is new in this version makes older plans refused, and no plan is applied to another
state than the reviewed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from local.errors import NotFound
from policies.cost.prices import PriceTable
from tiered.config.config import Config
from tiered.config.properties import DEFAULTS, Value, parse
from tiered.manager.manager import LogManager

_APPENDS = "it applies to appends, and the state contains their records"
_THROTTLE = "it changes the speed only"
_ROOM = "free space is checked when the plan is applied"
WITHOUT_EFFECT: Mapping[str, str] = {
    "max.message.bytes": _APPENDS,
    "message.timestamp.type": _APPENDS,
    "message.timestamp.before.max.ms": _APPENDS,
    "message.timestamp.after.max.ms": _APPENDS,
    "compression.type": _APPENDS,
    "compression.gzip.level": _APPENDS,
    "compression.lz4.level": _APPENDS,
    "compression.zstd.level": _APPENDS,
    "append.batch.bytes": _APPENDS,
    "flush.messages": _APPENDS,
    "flush.ms": _APPENDS,
    "producer.id.expiration.ms": _APPENDS,
    "log.cleaner.threads": _THROTTLE,
    "log.cleaner.io.max.bytes.per.second": _THROTTLE,
    "log.cleaner.uncleanable.retry.ms": _THROTTLE,
    "num.recovery.threads.per.data.dir": _THROTTLE,
    "remote.log.manager.copy.max.bytes.per.second": _THROTTLE,
    "remote.log.manager.fetch.max.bytes.per.second": _THROTTLE,
    "remote.log.manager.task.interval.ms": _THROTTLE,
    "remote.log.manager.copier.thread.pool.size": _THROTTLE,
    "remote.log.manager.expiration.thread.pool.size": _THROTTLE,
    "remote.s3.client": "both clients send the same requests",
    "remote.fetch.cache.bytes": "it applies to readers",
    "remote.fetch.cache.dir": "it applies to readers",
    "remote.fetch.cache.dir.max.bytes": "it applies to readers",
    "log.dir.free.bytes.min": _ROOM,
    "log.dir.free.share.min": _ROOM,
    "log.dir.append.free.bytes.min": _ROOM,
    "log.dir.relief.free.bytes.min": _ROOM,
    "clock.jump.hold.ms": "the clock is checked when the plan is applied",
    "cost.prices": "the prices are compared, not their file",
}


def plan_basis(manager: LogManager, config: Config, topics: Iterable[str], prices: PriceTable | None) -> dict[str, str]:
    """Return the state behind a plan for `topics`, as text by name.

    Settings with their default and deleted topics are left out.
    """
    found = {"prices": _told(prices), "remote.url": config.remote_url or "none"}
    for name in sorted(topics):
        try:
            topic = manager.topics.get(name)
        except NotFound:
            continue
        found[f"{name} topic id"] = topic.topic_id
        effective = config.topic_properties(name, topic.properties)
        found |= {f"{name} {key}": _spelled(parse(key, text)) for key, text in effective.items() if _counts(key, text)}
    return found


def basis_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return ``orders retention.ms 86400000 -> 3600000`` for each fact that differs."""
    found = []
    for name in sorted({*before, *now}):
        was, has = (each.get(name, "built in") for each in (before, now))
        if was != has:
            found.append(f"{name} {was} -> {has}")
    return found


def _counts(key: str, text: str) -> bool:
    return key not in WITHOUT_EFFECT and parse(key, text) != parse(key, DEFAULTS[key])


def _spelled(value: Value) -> str:
    """Return the same text for equal values, such as ``1d`` and ``24h``."""
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _told(prices: PriceTable | None) -> str:
    """Return date, region and a digest of all prices."""
    if prices is None:
        return "unknown"
    digits = hashlib.blake2b(repr(prices).encode(), digest_size=4).hexdigest()
    return f"{prices.as_of} {prices.region} {digits}"
