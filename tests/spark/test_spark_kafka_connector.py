"""Spark's own Kafka connector sees the records of a node and of a bucket that this project's reader sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from kafka_artifacts import KafkaMissing, find_spark_connector
from witness_node import Node, witness_node

from local.errors import InvalidRequest
from local.format.record import StoredRecord
from local.records.isolation import Isolation
from tiered.spark.session import ensure_java, ensure_pyspark

pytestmark = [pytest.mark.spark, pytest.mark.deep("a Spark application with Spark's Kafka connector")]
JOB = Path(__file__).with_name("kafka_connector_job.py")
ROOT = Path(__file__).parents[2]
PARTITIONS = {"plain": 2, "packed": 1, "newest": 1, "banking": 1}
COMMITTED = Isolation.READ_COMMITTED


def rows(topic: str, partition: int, records: Iterable[StoredRecord]) -> list[Any]:
    return [
        [
            *(topic, partition, each.offset, each.timestamp_ms, _encoded(each.key), _encoded(each.value)),
            [[name, _encoded(value)] for name, value in each.headers],
        ]
        for each in records
    ]


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def test_batches_and_streams_of_both_tiers_equal_this_projects_reader(tmp_path: Path) -> None:
    try:
        jars = find_spark_connector()
        ensure_pyspark()
        ensure_java()
    except (KafkaMissing, InvalidRequest) as error:
        pytest.skip(str(error))
    with witness_node(tmp_path / "node") as node:
        node.create("written")
        command = [sys.executable, str(JOB), str(jars), str(tmp_path), node.address, node.bucket_address, *PARTITIONS]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)
        assert done.returncode == 0, done.stderr[-6000:]
        found = json.loads(done.stdout.splitlines()[-1])
        check(node, found)
        copied = Counter((each.key, each.value, each.headers) for each in node.records("written"))
        sent = (each for number in (0, 1) for each in node.in_bucket("plain", number))
        assert copied == Counter((each.key, each.value, each.headers) for each in sent)


def check(node: Node, found: dict[str, Any]) -> None:
    for place, records_of in {"node": node.records, "bucket": node.in_bucket}.items():
        expected = [
            row
            for topic in sorted(PARTITIONS)
            for number in range(PARTITIONS[topic])
            for row in rows(topic, number, records_of(topic, number, COMMITTED))
        ]
        assert found[place] == expected, place
        streamed, batches = found[f"{place} stream"]
        assert streamed == expected, place
        assert batches > 1, "the stream had several batches"
