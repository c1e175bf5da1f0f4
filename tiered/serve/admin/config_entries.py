"""Effective settings as DescribeConfigs shows them: Kafka's names, bare numbers, types and sources.

| a value from | source | name of the synonym |
|---|---|---|
| the topic itself | DYNAMIC_TOPIC_CONFIG | the setting's |
| ``tiered.toml``, the environment, ``-X`` | STATIC_BROKER_CONFIG | that of the broker setting, if Kafka has one |
| built in | DEFAULT_CONFIG | the same |

Settings of Kafka that have one possible value here are listed with it, read-only: tools look for them. No value is
sensitive: the configuration refuses secrets. Source: kafka `ServerTopicConfigSynonyms`, `TopicConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple

from tiered.config.config import Config
from tiered.config.properties import BROKER_NAMES, DEFAULTS, PROPERTIES, Kind, Property, Source
from tiered.serve.admin.protocol import ConfigEntry, ConfigSource, ConfigType, Synonym
from tiered.topics.config_export import broker_properties, kafka_value

DEFAULT_PARTITIONS = 1  # Kafka's default of ``num.partitions``
INT32_MAX = 2**31 - 1
Layers = Sequence[tuple[str, Mapping[str, str]]]  # of `Config.layers`, the highest precedence first


class Fixed(NamedTuple):
    """The only value that a setting of Kafka can have here, and why."""

    value: str
    type: ConfigType
    why: str


_ALONE = "this server is the only replica"
FIXED_OF_TOPICS: Mapping[str, Fixed] = MappingProxyType(
    {
        "min.insync.replicas": Fixed("1", ConfigType.INT, _ALONE),
        "unclean.leader.election.enable": Fixed("false", ConfigType.BOOLEAN, _ALONE),
        "leader.replication.throttled.replicas": Fixed("", ConfigType.LIST, _ALONE),
        "follower.replication.throttled.replicas": Fixed("", ConfigType.LIST, _ALONE),
        "preallocate": Fixed("false", ConfigType.BOOLEAN, "segments are not preallocated"),
    }
)
_FIXED_OF_NODE: Mapping[str, Fixed] = MappingProxyType(
    {
        "num.partitions": Fixed(str(DEFAULT_PARTITIONS), ConfigType.INT, "the default of a new topic"),
        "default.replication.factor": Fixed("1", ConfigType.INT, _ALONE),
        "min.insync.replicas": FIXED_OF_TOPICS["min.insync.replicas"],
        "auto.create.topics.enable": Fixed("false", ConfigType.BOOLEAN, "topics are created explicitly"),
        "delete.topic.enable": Fixed("true", ConfigType.BOOLEAN, "topics can always be deleted"),
    }
)
_KINDS = {
    Kind.BOOL: ConfigType.BOOLEAN,
    Kind.FLOAT: ConfigType.DOUBLE,
    Kind.SET: ConfigType.LIST,
    Kind.MS: ConfigType.LONG,
}


class TopicEntries:
    """The settings of topics under one configuration. Topics share the entries that they do not set. Thread safe."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._shared: dict[tuple[str, ...], dict[str, ConfigEntry]] = {}  # by the globs that match a topic

    def of(self, topic: str, own: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
        """The settings of a topic with these own ones, by name. Raises InvalidRequest for an invalid one."""
        globs = tuple(each for each in self.config.topics if fnmatchcase(topic, each))
        shared = self._shared.get(globs)
        if shared is None:
            shared = self._shared[globs] = _entries(list(self.config.layers(topic, {}))[::-1])
        if not own:
            return tuple(shared.values())
        layers = list(self.config.layers(topic, own))[::-1]
        return tuple((shared | {name: _entry(PROPERTIES[name], layers) for name in own}).values())


def node_entries(config: Config, broker_id: int) -> list[ConfigEntry]:
    """The settings of the node, by name: those of Kafka's brokers, and its own."""
    given = config.given_properties("")
    values = dict(broker_properties(config, everything=True).topics[""])
    own = [row for row in PROPERTIES.values() if row.source is Source.TIERED and not row.is_per_topic]
    values |= {row.name: kafka_value(row.name, given.get(row.name, row.default)) for row in own}
    entries = [_node_entry(name, value, is_given=_row(name).name in given) for name, value in values.items()]
    entries += [_fixed(name, each) for name, each in _FIXED_OF_NODE.items()]
    places = {"node.id": (str(broker_id), ConfigType.INT), "log.dirs": (",".join(config.data_dirs), ConfigType.STRING)}
    for name, (value, kind) in places.items():
        synonym = Synonym(name=name, value=value, source=ConfigSource.STATIC_BROKER)
        entries.append(
            ConfigEntry(
                name=name, value=value, source=synonym.source, type=kind, is_read_only=True, synonyms=(synonym,)
            )
        )
    return sorted(entries, key=lambda entry: entry.name)


def type_of(row: Property) -> ConfigType:
    if row.kind in (Kind.BYTES, Kind.INT):
        is_small = row.maximum is not None and row.maximum <= INT32_MAX
        return ConfigType.INT if is_small else ConfigType.LONG
    return _KINDS.get(row.kind, ConfigType.STRING)


def _entries(layers: Layers) -> dict[str, ConfigEntry]:
    entries = [_entry(row, layers) for row in PROPERTIES.values() if row.is_per_topic]
    entries += [_fixed(name, each) for name, each in FIXED_OF_TOPICS.items()]
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}


def _entry(row: Property, layers: Layers) -> ConfigEntry:
    broker_name = _BROKER_NAME_OF.get(row.name, row.name)

    def synonyms() -> Iterator[Synonym]:
        for origin, layer in layers:
            if row.name in layer:
                is_own = origin.startswith("topic ")
                source = ConfigSource.TOPIC if is_own else ConfigSource.STATIC_BROKER
                name = row.name if is_own else broker_name
                yield Synonym(name=name, value=kafka_value(row.name, layer[row.name]), source=source)
        default = kafka_value(row.name, DEFAULTS[row.name])
        yield Synonym(name=broker_name, value=default, source=ConfigSource.DEFAULT)

    found = tuple(synonyms())
    return ConfigEntry(
        name=row.name,
        value=found[0].value,
        source=found[0].source,
        type=type_of(row),
        synonyms=found,
        documentation=row.doc,
    )


def _fixed(name: str, fixed: Fixed) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=fixed.value,
        source=ConfigSource.DEFAULT,
        type=fixed.type,
        is_read_only=True,
        synonyms=(Synonym(name=name, value=fixed.value, source=ConfigSource.DEFAULT),),
        documentation=f"Always {fixed.value or 'empty'}: {fixed.why}.",
    )


def _node_entry(name: str, value: str, *, is_given: bool) -> ConfigEntry:
    row = _row(name)
    source = ConfigSource.STATIC_BROKER if is_given else ConfigSource.DEFAULT
    default = Synonym(name=name, value=kafka_value(row.name, row.default), source=ConfigSource.DEFAULT)
    given = [Synonym(name=name, value=value, source=source)] if is_given else []
    return ConfigEntry(
        name=name,
        value=value,
        source=source,
        type=type_of(row),
        is_read_only=True,
        synonyms=(*given, default),
        documentation=row.doc,
    )


def _row(name: str) -> Property:
    """The property of a setting of brokers."""
    return PROPERTIES[_OWN_NAME_OF.get(name, name)]


# One name in the same unit for each property: ``log.retention.ms``, not ``log.retention.hours``.
_OWN_NAME_OF = {kafka: own for kafka, own in BROKER_NAMES.items() if not kafka.endswith(("hours", "minutes"))}
_OWN_NAME_OF["log.flush.interval.ms"] = "flush.ms"
_BROKER_NAME_OF = {own: kafka for kafka, own in reversed(_OWN_NAME_OF.items())} | {"flush.ms": "log.flush.interval.ms"}
