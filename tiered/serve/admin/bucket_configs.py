"""The settings of a bucket's topics: `Configs` of a replica.

A manifest holds the topic's own settings. The defaults of the node are not in the bucket, so they are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tiered.config.config import Config
from tiered.serve.admin.config_entries import TopicEntries
from tiered.serve.admin.protocol import ConfigEntry, ConfigSource


class TopicProperties(Protocol):
    """The own settings of a topic, as `tiered.serve.bucket_source` reads them."""

    def properties(self, topic: str) -> Mapping[str, str]:
        """Raises NotFound."""


class BucketConfigs:
    """Thread safe."""

    def __init__(self, source: TopicProperties) -> None:
        self._source = source
        self._entries = TopicEntries(Config(data_dir=""))

    def topic_configs(self, topic: str) -> Sequence[ConfigEntry]:
        entries = self._entries.of(topic, self._source.properties(topic))
        own = [each for each in entries if each.source is ConfigSource.TOPIC]
        return [replace(each, is_read_only=True, synonyms=each.synonyms[:1]) for each in own]

    def broker_configs(self) -> Sequence[ConfigEntry]:
        return ()
