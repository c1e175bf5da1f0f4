"""Every object name of the external layouts and its inverse, in one place.

| layout | key |
|---|---|
| ``aiven`` | ``<prefix><topic>-<topic id>/<partition>/<base 20>-<segment id>.log .indexes .rsm-manifest`` |
| ``local-tiered-storage`` | ``<topic>-<partition>-<topic id>/<base>-<segment id>.log`` and its index files |
| ``pinterest`` | ``…/<cluster>/<topic>-<partition>/<base 20>.log .index .timeindex``, ``offset.wm``, ``_metadata`` |
| ``logs`` | ``…/<topic>-<partition>/<base 20>.log`` and Kafka's index files |

Ids are Kafka's: 22 characters of URL-safe base64 that may begin with a dash. So names are cut by fixed widths and never
split at dashes. Sources: Aiven `ObjectKeyFactory`; kafka `RemoteTopicPartitionDirectory`, `RemoteLogSegmentFileset`.
"""

from __future__ import annotations

import re

from local.errors import InvalidRequest
from local.names import check_topic_id, parse_partition_directory
from remote.keys import TOPIC_ID_LENGTH

MANIFEST, INDEXES, LOG = ".rsm-manifest", ".indexes", ".log"
KAFKA_ROOT = "kafka-tiered-storage"
PINTEREST_MARKS = ("offset.wm", "_metadata")
# Of LocalTieredStorage, by the sections of `remote.segments.index_bundle`. An empty transaction index has no file.
KAFKA_FILES = {
    "offset": ".index",
    "time": ".timeindex",
    "producers": ".snapshot",
    "epochs": ".leader_epoch_checkpoint",
    "txn": ".txnindex",
}
_AIVEN_FILE = re.compile(r"([0-9]{20})-([A-Za-z0-9_-]{22})(\.log|\.indexes|\.rsm-manifest)", re.ASCII)
_KAFKA_FILE = re.compile(r"([0-9]{1,20})-([A-Za-z0-9_-]{22})(\.[a-z_]+)", re.ASCII)
_OFFSET_MAX = 2**63 - 1


def parse_aiven_file(name: str) -> tuple[int, str, str] | None:
    """Return (base offset, stem, suffix) of a file's name; None for anything else."""
    return _parsed(_AIVEN_FILE, name)


def parse_kafka_file(name: str) -> tuple[int, str, str] | None:
    """Return (base offset, stem, suffix) of a LocalTieredStorage file; None for anything else."""
    return _parsed(_KAFKA_FILE, name)


def parse_kafka_directory(name: str) -> tuple[str, int, str] | None:
    """Return (topic, partition, topic id) of ``orders-3-<topic id>``; None for anything else."""
    if name[-TOPIC_ID_LENGTH - 1 : -TOPIC_ID_LENGTH] != "-":
        return None
    partition = parse_partition_directory(name[: -TOPIC_ID_LENGTH - 1])
    try:
        topic_id = check_topic_id(name[-TOPIC_ID_LENGTH:])
    except InvalidRequest:
        return None
    return (partition.topic, partition.partition, topic_id) if partition is not None else None


def sibling(data_key: str, suffix: str) -> str:
    """Return the key of a ``.log`` with another suffix."""
    return data_key.removesuffix(LOG) + suffix


def _parsed(pattern: re.Pattern[str], name: str) -> tuple[int, str, str] | None:
    found = pattern.fullmatch(name)
    if found is None or int(found[1]) > _OFFSET_MAX:
        return None
    return int(found[1]), name[: -len(found[3])], found[3]
