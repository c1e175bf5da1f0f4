"""One Kafka for the whole run and its directories: made once, used by many tests, changed by none."""

from __future__ import annotations

import shutil

import loaded_by_kafka as loading
import pytest
import written_by_kafka as writing
from built_clients import franz_go_client, rskafka_client
from fetched import Missing
from kafka_artifacts import KafkaMissing, find_kafka, find_kafka_3, find_mirror_maker, find_streams
from witness_node import witness_node

from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition
from local.settings import LogSettings
from local.storage import DiskStorage

NOW_MS = writing.T0 + 3_600_000


@pytest.fixture(scope="session")
def kafka():
    return _found(find_kafka)


@pytest.fixture(scope="session")
def kafka_3():
    return _found(find_kafka_3)


@pytest.fixture(scope="session")
def kafka_streams():
    return _found(find_streams)


@pytest.fixture(scope="session")
def mirror_maker():
    return _found(find_mirror_maker)


@pytest.fixture(scope="session")
def franz_go():
    return _found(franz_go_client)


@pytest.fixture(scope="session")
def rskafka():
    return _found(rskafka_client)


def _found(find):
    try:
        return find()
    except (KafkaMissing, Missing) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """A node that Java clients share: a test appends to topics of its own only."""
    with witness_node(tmp_path_factory.mktemp("witness")) as node:
        yield node


@pytest.fixture(scope="session")
def written_by_kafka(kafka, tmp_path_factory):
    return writing.write(kafka, tmp_path_factory.mktemp("kafka-wrote"))


@pytest.fixture(scope="session", params=["clean", "crashed"])
def opened(request, written_by_kafka, tmp_path_factory):
    """(readings of Kafka's clients, logs by topic) of a copy of each directory, recovered here if it crashed."""
    found = getattr(written_by_kafka, request.param)
    copy = tmp_path_factory.mktemp("opened") / "data"
    shutil.copytree(found.root, copy)
    directory = LogDirectory(DiskStorage(), str(copy))
    assert directory.was_clean == (request.param == "clean")
    logs = {p.topic: directory.open_log(p, LogSettings(), now_ms=NOW_MS) for p in directory.partitions()}
    yield found, logs
    directory.abandon()


@pytest.fixture(scope="session")
def loaded_by_kafka(kafka, tmp_path_factory):
    return loading.load(kafka, tmp_path_factory.mktemp("kafka-loaded"))


@pytest.fixture(scope="session", params=["clean", "recovered"])
def loaded(request, loaded_by_kafka):
    """One run of the broker on the directory written by this project."""
    return getattr(loaded_by_kafka, request.param)


@pytest.fixture(scope="session")
def reopened(loaded, tmp_path_factory):
    """Logs by topic, opened after the broker appended to them and stopped."""
    copy = tmp_path_factory.mktemp("reopened") / "data"
    shutil.copytree(loaded.root, copy)
    directory = LogDirectory(DiskStorage(), str(copy))
    opened_at = loading.NOW_MS + 1_000_000
    logs = {
        name: directory.open_log(TopicPartition(name, 0), kind.settings, now_ms=opened_at)
        for name, kind in loading.KINDS.items()
    }
    yield logs
    directory.abandon()
