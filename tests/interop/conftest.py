"""One Kafka for the whole run and its directories: made once, used by many tests, changed by none."""

from __future__ import annotations

import shutil

import loaded_by_kafka as loading
import pytest
import written_by_kafka as writing
from kafka_artifacts import KafkaMissing, find_kafka

from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition
from local.settings import LogSettings
from local.storage import DiskStorage

NOW_MS = writing.T0 + 3_600_000


@pytest.fixture(scope="session")
def kafka():
    try:
        return find_kafka()
    except KafkaMissing as error:
        pytest.skip(str(error))


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
