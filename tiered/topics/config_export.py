"""Export the effective configuration for another directory, or for Kafka (durations in ms, sizes in bytes)."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from local.errors import InvalidRequest
from tiered.config.config import Config
from tiered.config.properties import BROKER_NAMES, DEFAULTS, PROPERTIES, Kind, Source, parse
from tiered.node.topic_registry import Topic

# Kafka has it, but not as a topic setting.
_NOT_OF_TOPICS = frozenset(("producer.id.expiration.ms",))
_SAME_NAMES = ("compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The exported settings, as text: `defaults`, overridden by each of `globs` in turn, then by `topics`."""

    defaults: Mapping[str, str]
    globs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfigs:
    """Settings by topic; `left_out` are non-default settings that Kafka does not know."""

    topics: Mapping[str, Mapping[str, str]]
    left_out: tuple[str, ...] = ()


def export_config(config: Config, topics: Sequence[Topic], *, everything: bool = False) -> Exported:
    """The effective settings without built-in values; with `everything`, `defaults` includes them."""
    above = {*config.environment, *config.overrides}
    effective = config.topic_properties("")
    defaults = {name: text for name, text in effective.items() if everything or not _is_default(name, text)}
    globs = {
        glob: {name: text for name, text in settings.items() if name not in above}
        for glob, settings in config.topics.items()
        if glob not in {topic.name for topic in topics}  # its settings are exported with the topic's own
    }
    bare = replace(config, defaults=defaults, topics=globs, environment={}, overrides={})
    own = {}
    for topic in topics:
        before = bare.topic_properties(topic.name)
        after = config.topic_properties(topic.name, topic.properties)
        if changed := {name: text for name, text in after.items() if before[name] != text}:
            own[topic.name] = changed
    return Exported(defaults=defaults, globs={glob: each for glob, each in globs.items() if each}, topics=own)


def as_toml(config: Config, exported: Exported) -> str:
    """A ``tiered.toml``. Directories below the file's own are relative: a copied deployment uses its copies."""
    root = os.path.dirname(os.path.abspath(config.path)) if config.path else os.getcwd()
    dirs = [_below(root, each) for each in config.data_dirs]
    lines = ["[local]", f"dir = {toml_text(dirs[0])}" if len(dirs) == 1 else f"dirs = {toml_text(dirs)}"]
    if config.cordoned_dirs:
        lines.append(f"cordoned = {toml_text([_below(root, each) for each in sorted(config.cordoned_dirs)])}")
    if config.remote_url is not None:
        lines += ["", "[remote]", f"url = {toml_text(config.remote_url)}"]
        lines += [f"options = {toml_text(dict(config.remote_options))}"] if config.remote_options else []
        lines += [f"key_ring = {toml_text(_below(root, config.key_ring))}"] if config.key_ring else []
    sections = {"defaults": exported.defaults}
    sections |= {f"topics.{toml_text(name)}": each for name, each in {**exported.globs, **exported.topics}.items()}
    for header, settings in sections.items():
        if settings:
            lines += ["", f"[{header}]", *(f"{toml_text(name)} = {toml_text(text)}" for name, text in settings.items())]
    return "\n".join([*lines, ""])


def kafka_configs(config: Config, topics: Iterable[Topic], *, everything: bool = False) -> KafkaConfigs:
    found, left_out = {}, set()
    for topic in topics:
        effective = config.topic_properties(topic.name, topic.properties)
        wanted = {name: text for name, text in effective.items() if everything or not _is_default(name, text)}
        found[topic.name] = {name: kafka_value(name, text) for name, text in wanted.items() if _is_kafkas(name)}
        left_out |= {name for name in wanted if not _is_kafkas(name) and not _is_default(name, wanted[name])}
    return KafkaConfigs(topics=found, left_out=tuple(sorted(left_out)))


def kafka_commands(configs: KafkaConfigs, bootstrap: str = "localhost:9092") -> list[str]:
    return [
        shlex.join(
            [
                *("kafka-configs.sh", "--bootstrap-server", bootstrap, "--alter", "--entity-type", "topics"),
                *("--entity-name", topic, "--add-config"),
                ",".join(f"{name}={f'[{text}]' if ',' in text else text}" for name, text in settings.items()),
            ]
        )
        for topic, settings in configs.topics.items()
        if settings
    ]


def broker_properties(config: Config, *, everything: bool = False) -> KafkaConfigs:
    """The defaults under the names of a broker's ``server.properties``, as the topic with the empty name."""
    names = {ours: kafka for kafka, ours in reversed(BROKER_NAMES.items()) if not kafka.endswith(("hours", "minutes"))}
    names |= {"flush.ms": "log.flush.interval.ms", **{name: name for name in _SAME_NAMES}}
    names |= {name: name for name, row in PROPERTIES.items() if row.source is Source.KAFKA and not row.is_per_topic}
    effective = config.topic_properties("")
    wanted = {name: text for name, text in effective.items() if everything or not _is_default(name, text)}
    known = {names[name]: kafka_value(name, text) for name, text in wanted.items() if name in names}
    left_out = sorted(name for name in wanted if name not in names and not _is_default(name, wanted[name]))
    return KafkaConfigs(topics={"": known}, left_out=tuple(left_out))


def as_properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={text}\n" for name, text in settings.items())


def kafka_value(name: str, text: str) -> str:
    """The value as Kafka takes it: bare numbers, lists without blanks."""
    value = parse(name, text)
    if isinstance(value, frozenset):
        return ",".join(each for each in PROPERTIES[name].choices if each in value)
    return str(value) if PROPERTIES[name].kind in (Kind.MS, Kind.BYTES) else text


def _is_kafkas(name: str) -> bool:
    row = PROPERTIES[name]
    return row.source is Source.KAFKA and row.is_per_topic and name not in _NOT_OF_TOPICS


def _is_default(name: str, text: str) -> bool:
    return parse(name, text) == parse(name, DEFAULTS[name])


def _below(root: str, path: str) -> str:
    relative = os.path.relpath(path, root)
    return path if relative.startswith("..") else relative


def toml_text(value: object) -> str:
    """A value as TOML: texts, switches, numbers, lists, tables. Raises InvalidRequest for null."""
    match value:
        case Mapping():
            return f"{{ {', '.join(f'{toml_text(name)} = {toml_text(each)}' for name, each in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(map(toml_text, value))}]"
        case float():
            return repr(value)  # inf and nan too
        case None:
            raise InvalidRequest("cannot write a configuration, TOML has no null: remove the key")
        case _:
            return json.dumps(value, ensure_ascii=False)
