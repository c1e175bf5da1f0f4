"""One Kafka for the whole run, and what it wrote: made once, looked at by many tests, never changed by them."""

from __future__ import annotations

import shutil

import pytest
import written_by_kafka as scenario
from kafka_artifacts import KafkaMissing, find_kafka

from local.log_dirs import LogDirectory
from local.settings import LogSettings
from local.storage import DiskStorage

NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="session")
def kafka():
    try:
        return find_kafka()
    except KafkaMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def written_by_kafka(kafka, tmp_path_factory):
    return scenario.write(kafka, tmp_path_factory.mktemp("kafka-wrote"))


@pytest.fixture(scope="session", params=["clean", "crashed"])
def opened(request, written_by_kafka, tmp_path_factory):
    """(what Kafka's clients read, our logs by topic) of a copy of each directory: recovered by us when it crashed."""
    found = getattr(written_by_kafka, request.param)
    copy = tmp_path_factory.mktemp("opened") / "data"
    shutil.copytree(found.root, copy)
    directory = LogDirectory(DiskStorage(), str(copy))
    assert directory.was_clean == (request.param == "clean")
    logs = {p.topic: directory.open_log(p, LogSettings(), now_ms=NOW_MS) for p in directory.partitions()}
    yield found, logs
    directory.abandon()
