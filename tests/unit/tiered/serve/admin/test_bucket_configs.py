"""The settings of a bucket's topics are their own ones, as the manifest holds them."""

from __future__ import annotations

from contextlib import closing

import pytest
from manager_world import NOW, TIERED, World, send, settle

from local.errors import NotFound
from tiered.read.bucket_reader import RemoteLog
from tiered.serve.admin import ConfigSource
from tiered.serve.admin.bucket_configs import BucketConfigs
from tiered.serve.bucket_source import BucketSource


def test_a_replica_shows_the_settings_of_a_topic_and_no_unknown_defaults() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 2, {**TIERED, "segment.ms": "1h"}, now_ms=NOW)
        send(manager, 10)
        settle(manager)
    with RemoteLog(world.store) as bucket, closing(BucketSource(bucket, lambda: 0.0)) as source:
        configs = BucketConfigs(source)
        found = configs.topic_configs("t")
        assert {each.name: each.value for each in found} == {
            "local.retention.ms": "1",
            "remote.storage.enable": "true",
            "retention.ms": "-1",
            "segment.ms": "3600000",
        }
        assert {(each.source, each.is_read_only, len(each.synonyms)) for each in found} == {
            (ConfigSource.TOPIC, True, 1)
        }
        assert configs.broker_configs() == ()
        with pytest.raises(NotFound):
            configs.topic_configs("nope")
