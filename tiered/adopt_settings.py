"""What the topics of an adopted broker are set to: as the broker has them, and over that what the operator says.

An option is ``key=value``, of all topics, or ``topic:key=value``, of one; that of one topic is above.
"""

from __future__ import annotations

from collections.abc import Mapping

from local.errors import InvalidRequest
from local.storage import Storage
from tiered.broker_topics import BrokerTopics
from tiered.properties import PROPERTIES, nearest, parse


class AdoptSettings:
    """Settings by topic. `has_broker`: the broker's own are known. Not thread safe."""

    def __init__(self, storage: Storage, metadata: str, options: Mapping[str, str]) -> None:
        """`metadata` is the log directory with the broker's metadata log. Raises InvalidRequest for an option that no
        topic has, or with a wrong value, and Corrupt where the broker's metadata make no sense."""
        self._all: dict[str, str] = {}
        self._one: dict[str, dict[str, str]] = {}
        for key, value in options.items():
            topic, colon, name = key.rpartition(":")
            row = PROPERTIES.get(name)
            if row is None or not row.is_per_topic:
                near = nearest(name, PROPERTIES)
                raise InvalidRequest("adopting, no setting of topics", setting=name, did_you_mean=near)
            parse(name, value)
            (self._one.setdefault(topic, {}) if colon else self._all)[name] = value
        self._broker = BrokerTopics(storage, metadata)
        self.has_broker = self._broker.refresh()

    def refresh(self) -> None:
        """Look for what the broker has been told since."""
        self.has_broker = self._broker.refresh()

    def of(self, topic: str) -> dict[str, str]:
        return {**self._broker.of(topic), **self._all, **self._one.get(topic, {})}
