"""The settings of an adopted broker's topics, from all layers.

Precedence, highest first: ``-X topic:key=value`` of the command, then its ``-X key=value``, then the layers of
`tiered.config.config`. In these layers the broker's settings are the topic's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from local.errors import InvalidRequest
from local.names import TopicPartition
from local.storage import Storage
from policies.deleted_records import BrokerRetention
from tiered.config.config import Config
from tiered.config.properties import DEFAULTS, PROPERTIES, nearest, parse
from tiered.config.resolve_settings import check_combination, resolve_rules
from tiered.migrate.broker_topics import BrokerTopics

REFUSED = {  # settings that a sidecar cannot honour, with the alternative for the operator
    "remote.log.copy.disable": "exclude the topic: name the topics to adopt",
    "remote.copy.lag.ms": "a sidecar copies each closed segment at once",
    "remote.copy.lag.bytes": "a sidecar copies each closed segment at once",
}


POLICY = "cleanup.policy"
UNKNOWN = (
    "name the log directory with __cluster_metadata-0 of the broker by --metadata, or state "
    "the policy, -X TOPIC:cleanup.policy=compact for a topic or -X cleanup.policy=delete for "
    "all"
)


class AdoptSettings:
    """Settings by topic. `has_broker`: the broker's own settings are known. Not thread safe."""

    def __init__(
        self, storage: Storage, metadata: str, options: Mapping[str, str], config: Config | None = None
    ) -> None:
        """`metadata` is the log directory with the broker's metadata log.

        None for `config` means built-in defaults alone. Raises InvalidRequest for an option that no topic has or that
        has a wrong value. Raises Corrupt if the broker's metadata cannot be decoded.
        """
        self._all: dict[str, str] = {}
        self._one: dict[str, dict[str, str]] = {}
        self._config = config if config is not None else Config(data_dir="")
        for key, value in options.items():
            topic, colon, name = key.rpartition(":")
            entry = PROPERTIES.get(name)
            if entry is None or not entry.is_per_topic:
                near = nearest(name, PROPERTIES)
                raise InvalidRequest("cannot adopt, this is not a setting of topics", setting=name, did_you_mean=near)
            parse(name, value)
            (self._one.setdefault(topic, {}) if colon else self._all)[name] = value
        self._broker = BrokerTopics(storage, metadata)
        self.has_broker = self._broker.refresh()

    def refresh(self) -> None:
        """Read the changes of the broker's settings since the last call."""
        self.has_broker = self._broker.refresh()

    def of(self, topic: str) -> dict[str, str]:
        """The settings that some layer names and that a topic can have of its own, for the manifest."""
        return {name: value for name, value in self._given(topic).items() if PROPERTIES[name].is_per_topic}

    def effective(self, topic: str) -> dict[str, str]:
        """Every effective setting of a topic; of all topics for an empty name.

        Raises InvalidRequest if settings contradict each other, or if a sidecar cannot honour one. Raises it also if
        the broker's metadata are absent and no layer sets the cleanup policy: a compacted topic would count as plain.
        """
        given = self._given(topic)
        if topic and not self.has_broker and POLICY not in given:
            raise InvalidRequest(f"cannot adopt the topic, its cleanup.policy is unknown: {UNKNOWN}", topic=topic)
        values = DEFAULTS | given
        check_combination(values)
        for name, instead in REFUSED.items():
            if parse(name, values[name]) != parse(name, DEFAULTS[name]):
                wrong = f"cannot adopt the topic, a sidecar does not support this setting: {instead}"
                raise InvalidRequest(wrong, topic=topic, **{name: values[name]})
        return values

    def retention(self, name: TopicPartition) -> BrokerRetention:
        """The retention of a partition at its broker.

        A topic without a setting of its own has Kafka's default: ``server.properties`` is not read.
        """
        rules = resolve_rules(self._broker.of(name.topic))
        replicas = self._broker.replicas(name)
        return BrokerRetention(
            retention_ms=rules.retention_ms, retention_bytes=rules.retention_bytes, replicas=replicas
        )

    def _given(self, topic: str) -> dict[str, str]:
        own = self._config.given_properties(topic, self._broker.of(topic))
        return {**own, **self._all, **self._one.get(topic, {})}
