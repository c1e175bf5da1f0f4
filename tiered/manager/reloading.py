"""Apply topic settings of a changed configuration to a running manager.

Settings of topics take effect at once, as after `alter_topic`. Settings of the manager (directories, the store,
threads, caches) change at the next start, except AT_ONCE; the result names them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from local.errors import LogError
from tiered.config.config import Config
from tiered.config.properties import PROPERTIES, RELIEF_FREE_MIN
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.partition.partition_opening import Opener

_log = logging.getLogger(__name__)

AT_ONCE = frozenset({RELIEF_FREE_MIN})  # settings of the manager that are read for each maintenance run


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """`topics` have changed settings; `failed` are topics that could not take them, and why.

    `at_restart` names changed settings that take effect at the next start.
    """

    topics: tuple[str, ...] = ()
    failed: Mapping[str, str]
    at_restart: tuple[str, ...] = ()


class Reloadable:
    """The part of a manager that takes another configuration. Any thread may call it."""

    config: Config
    _opener: Opener
    _registry: TopicRegistry
    _topics_lock: threading.RLock

    def alter_topic(self, name: str, properties: dict[str, str], *, now_ms: int) -> Topic:
        raise NotImplementedError

    def reload(self, config: Config, *, now_ms: int) -> Reloaded:
        """Apply a configuration; see the module text.

        Raises InvalidRequest, with nothing changed, for settings that contradict some topic's own.
        """
        failed: dict[str, str] = {}
        with self._topics_lock:
            before = self.config
            topics = self._registry.all()
            changed = [each for each in topics if _values(before, each) != _values(config, each)]
            self._opener.reconfigure(config, topics)
            self.config = config
        for topic in changed:  # outside the lock: topics that become tiered wait for the store
            try:
                self.alter_topic(topic.name, {}, now_ms=now_ms)
            except LogError as error:
                failed[topic.name] = str(error)
                _log.error("cannot apply changed settings of a topic: topic=%s error=%s", topic.name, error)
        at_restart = tuple(_at_restart(before, config))
        names = tuple(each.name for each in changed)
        _log.info("the configuration was read again: topics=%s at_restart=%s", ",".join(names), ",".join(at_restart))
        return Reloaded(topics=names, failed=failed, at_restart=at_restart)


def _values(config: Config, topic: Topic) -> dict[str, str]:
    values = config.topic_properties(topic.name, topic.properties)
    return {name: value for name, value in values.items() if PROPERTIES[name].is_per_topic}


def _at_restart(before: Config, after: Config) -> Iterator[str]:
    if before.data_dirs != after.data_dirs or before.cordoned_dirs != after.cordoned_dirs:
        yield "[local]"
    if (before.remote_url, dict(before.remote_options), before.key_ring) != (
        after.remote_url,
        dict(after.remote_options),
        after.key_ring,
    ):
        yield "[remote]"
    old, new = before.topic_properties(""), after.topic_properties("")
    waiting = (name for name, entry in PROPERTIES.items() if not entry.is_per_topic and name not in AT_ONCE)
    yield from (name for name in waiting if old[name] != new[name])
