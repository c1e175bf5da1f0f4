"""Changes and settings of a node for Kafka's admin clients. Start with `protocol`: what the handlers need of a node."""

from tiered.serve.admin.protocol import (
    Admin,
    Change,
    ConfigEntry,
    Configs,
    ConfigSource,
    ConfigType,
    CreatedTopic,
    LogDir,
    NewTopic,
    Operation,
    Refused,
    Replica,
    Synonym,
)

__all__ = [
    "Admin",
    "Change",
    "ConfigEntry",
    "ConfigSource",
    "ConfigType",
    "Configs",
    "CreatedTopic",
    "LogDir",
    "NewTopic",
    "Operation",
    "Refused",
    "Replica",
    "Synonym",
]
