"""The remote tier of a real broker with Kafka's `LocalTieredStorage`, and the readings of its clients: made once.

The broker copies every closed segment and drops it from its disk at once, so that its consumer read the records through
the broker's remote tier. The remote tier ends where the active segment begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import kafka_clients as clients
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_clients import Step
from written_by_kafka import CODECS, sample_records

from local.format.record import StoredRecord
from local.names import segment_file

_SETTINGS = """\
remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.dir={remote}
rsm.config.delete.on.close=false
remote.log.metadata.manager.listener.name=PLAINTEXT
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=1
remote.log.manager.task.interval.ms=200
log.retention.check.interval.ms=500
log.initial.task.delay.ms=100
"""
_TOPIC = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "local.retention.ms": "1",
    "internal.segment.bytes": "12000",
    "index.interval.bytes": "700",
    "file.delete.delay.ms": "100",
}
TOPICS = {
    **{f"codec-{name}": {**_TOPIC, **CODECS[name]} for name in ("none", "gzip", "snappy", "lz4", "zstd")},
    "transactions": {**_TOPIC, "internal.segment.bytes": "4000"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredByKafka:
    """`remote` is the directory of LocalTieredStorage. Keys are topics. `ends` are the ends of the remote tier."""

    remote: Path
    records: dict[str, list[StoredRecord]]
    committed: dict[str, list[StoredRecord]]
    ends: dict[str, int]


def tier(kafka: Kafka, home: Path) -> TieredByKafka:
    """Run a broker once: produce, wait for its uploads, read everything, stop. Takes about fifteen seconds."""
    remote = home / "remote"
    broker = KafkaBroker(kafka, home, settings=_SETTINGS.format(remote=remote))
    broker.format()
    broker.start()
    try:
        clients.create_topics(broker.address, TOPICS)
        for topic in TOPICS:
            if topic.startswith("codec-"):
                settings = {"enable_idempotence": True, "max_batch_size": 3000}
                clients.produce(broker.address, topic, sample_records(300), **settings)
        clients.transactions(broker.address, _steps(), max_batch_size=1000)
        data = broker.log_dirs[0]
        clients.wait_until(lambda: all(len(_logs(data, topic)) == 1 for topic in TOPICS), "only active segments", 90)
        return TieredByKafka(
            remote=remote,
            records=clients.read(broker.address, list(TOPICS)),
            committed=clients.read(broker.address, list(TOPICS), committed=True),
            ends={topic: int(_logs(data, topic)[0].stem) for topic in TOPICS},
        )
    finally:
        broker.stop()


def _steps() -> list[Step]:
    steps = []
    for turn in range(24):
        producer = f"tx-{turn % 3}"
        steps += [
            Step(producer, "begin"),
            Step(producer, "send", "transactions", sample_records(12, start=turn * 12)),
            Step(producer, "abort" if turn % 4 == 1 else "commit"),
        ]
    return steps


def _logs(data: Path, topic: str) -> list[Path]:
    found = sorted((data / f"{topic}-0").glob("*.log"))
    assert not found or found[0].name == segment_file(int(found[0].stem), ".log")
    return found
